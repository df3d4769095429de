package stream_test

import (
	"context"
	"fmt"
	"log"

	"github.com/aws/aws-lambda-go/events"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/stream"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// Each record of a table's stream runs under the lock of its item. What failed, and what comes after it, is
// named in the answer, and Lambda sends it again.
func ExampleWrapDynamoDB() {
	g, err := guard.New(memstore.New(nil), guard.Options{})
	if err != nil {
		log.Fatal(err)
	}
	key := func(_ context.Context, r events.DynamoDBEventRecord) (string, error) {
		return lockstore.Key("account", r.Change.Keys["id"].String()), nil
	}
	handler := stream.WrapDynamoDB(g, key, func(_ context.Context, lock guard.Lock, _ events.DynamoDBEventRecord) error {
		fmt.Println("under", lock.Key)
		return nil
	}) // for boot.Start
	answer, err := handler.Handle(context.Background(), []byte(`{"Records": [
		{"eventSource": "aws:dynamodb", "dynamodb": {"SequenceNumber": "100", "Keys": {"id": {"S": "7"}}}}
	]}`))
	fmt.Println(len(answer.BatchItemFailures), err)
	// Output:
	// under account/7
	// 0 <nil>
}
