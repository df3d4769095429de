package boot_test

import (
	"context"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
)

func Example() {
	g := boot.MustGuard(dynamostore.Opener)
	boot.Start(g, guard.Wrap(g, key, handle))
}

func key(_ context.Context, o Order) (string, error) {
	return lockstore.Key("account", o.Account), nil
}

func handle(ctx context.Context, lock guard.Lock, o Order) (Receipt, error) {
	// Only one invocation per account is here at a time. ctx is cancelled
	// before Lambda's deadline and before the lease ends.
	return ledger.Add(ctx, o, lock.Fence) // the write refuses an older fence
}

type Order struct{ Account string }

type Receipt struct{}

// ledger stands for the function's own database.
var ledger interface {
	Add(context.Context, Order, lockstore.Fence) (Receipt, error)
}
