// Command own-function is a start for a Lambda function of your own. It charges orders
// to accounts, and starts only when it has the lock of the order's account.
package main

import (
	"context"
	"time"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
)

// Order is the event.
type Order struct {
	ID      string `json:"id"`
	Account string `json:"account"`
	Amount  int64  `json:"amount"` // in cents
}

// Receipt is the result.
type Receipt struct {
	Order   string `json:"order"`
	Balance int64  `json:"balance"` // of the account, after the order
}

func main() {
	// LOCK_URL chooses one of these stores: DynamoDB in AWS, Redis on your machine.
	g := boot.MustGuardFromEnv(dynamostore.Opener, redisstore.Opener)
	accounts := boot.Must(openAccounts(boot.MustURLFromEnv("ACCOUNTS_URL"), boot.EnvVar))
	boot.Start(g, guard.Wrap(g, key, handle(accounts)))
}

// key names what is locked. Orders of different accounts run at the same time.
func key(_ context.Context, o Order) (string, error) {
	return lockstore.Key("account", o.Account), nil
}

func handle(a accounts) guard.Handler[Order, Receipt] {
	return func(ctx context.Context, lock guard.Lock, o Order) (Receipt, error) {
		// Your work stands here. ctx ends
		// before the lease does, so hand ctx to everything that takes time.
		if err := charge(ctx, o); err != nil {
			return Receipt{}, err
		}
		// Every write takes the fence of the lock, so that a write that comes too late is refused.
		balance, err := a.add(ctx, lock, o)
		return Receipt{Order: o.ID, Balance: balance}, err
	}
}

// charge stands for a call to another system.
func charge(ctx context.Context, _ Order) error {
	select {
	case <-time.After(20 * time.Millisecond):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
