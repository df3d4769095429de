package sqsbatch_test

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/aws/aws-lambda-go/events"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/sqsbatch"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
)

// The main function of a Lambda behind a queue.
func Example() {
	g := boot.MustGuardFromEnv(dynamostore.Opener)
	boot.Start(g, sqsbatch.Wrap(g, key, handle))
}

type payment struct {
	Account string
	Cents   int64
}

func parse(m events.SQSMessage) (p payment, err error) {
	err = json.Unmarshal([]byte(m.Body), &p)
	return p, err
}

// key fails for a message that cannot be read, which then takes no lock.
func key(_ context.Context, m events.SQSMessage) (string, error) {
	p, err := parse(m)
	return lockstore.Key("account", p.Account), err
}

func handle(ctx context.Context, lock guard.Lock, m events.SQSMessage) error {
	p, err := parse(m)
	if err != nil {
		return err
	}
	// One message of an account is here at a time. Write lock.Fence with the
	// data, and let the database refuse a smaller one.
	fmt.Println("withdraw", p.Cents, "under", lock.Key)
	return nil
}
