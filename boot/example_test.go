package boot_test

import (
	"context"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
)

type Order struct{ Account string }

func Example() {
	g := boot.MustGuardFromEnv(dynamostore.Opener)
	boot.Start(g, guard.Wrap(g, key, handle))
}

func key(_ context.Context, o Order) (string, error) {
	return lockstore.Key("account", o.Account), nil
}

func handle(ctx context.Context, lock guard.Lock, o Order) (string, error) {
	// ctx is cancelled before the lease ends, and before Lambda's deadline.
	return "done for " + o.Account, nil
}
