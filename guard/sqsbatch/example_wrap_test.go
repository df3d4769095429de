package sqsbatch_test

import (
	"context"
	"fmt"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/sqsbatch"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// The handler of the package's example with a store in memory, as in a test.
func ExampleWrap() {
	g, err := guard.New(memstore.New(nil), guard.Options{})
	if err != nil {
		panic(err)
	}
	handler := sqsbatch.Wrap(g, key, handle)
	answer, err := handler.Handle(context.Background(), []byte(`{"Records": [
		{"eventSource": "aws:sqs", "messageId": "a", "body": "{\"account\": \"7\", \"cents\": 500}"},
		{"eventSource": "aws:sqs", "messageId": "b", "body": "no JSON"},
		{"eventSource": "aws:sqs", "messageId": "c", "body": "{\"account\": \"7\", \"cents\": 20}"}
	]}`))
	fmt.Println("failed:", answer.BatchItemFailures, err)
	// Output:
	// withdraw 500 under account/7
	// withdraw 20 under account/7
	// failed: [{b}] <nil>
}
