package guard_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

func newGuard() *guard.Guard {
	g, err := guard.New(memstore.New(nil), guard.Options{})
	if err != nil {
		log.Fatal(err)
	}
	return g
}

// Each run is told how it ended: for a metric, for example.
func ExampleNew() {
	g, err := guard.New(memstore.New(nil), guard.Options{
		TTL:  30 * time.Second, // how long others wait for a holder that died
		Wait: 2 * time.Second,  // how long a run waits for a busy lock
		Observe: func(_ context.Context, r guard.Report) {
			fmt.Println(r.Key, r.Outcome, r.Err)
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	_ = g.Do(context.Background(), "account/7", func(context.Context, guard.Lock) error { return nil })
	// Output: account/7 ok <nil>
}

// A lock for another program, over several requests: the first takes it, a later one renews it or gives it back.
func ExampleGuard_Acquire() {
	g, ctx := newGuard(), context.Background()
	lease, err := g.Acquire(ctx, guard.LeaseRequest{Key: "deploy/shop", TTL: 10 * time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	_, err = g.Acquire(ctx, guard.LeaseRequest{Key: "deploy/shop", TTL: 10 * time.Minute})
	if busy, ok := errors.AsType[*guard.LockBusy](err); ok {
		fmt.Println("the second request:", busy.State)
	}
	if _, err := g.Renew(ctx, lease, 10*time.Minute); err != nil {
		log.Fatal(err)
	}
	fmt.Println(g.Release(ctx, lease))
	// Output:
	// the second request: held
	// <nil>
}

// A state of Step Functions, or another request that comes again, gets the same lease: its owner is a hash of what is
// the same in each try, and in no other request.
func ExampleGuard_Acquire_again() {
	execution, key := "arn:aws:states:eu-central-1:123456789012:execution:payout:invoice-4711", "account/7"
	owner := lockstore.Owner(fmt.Sprintf("%x", sha256.Sum256([]byte(lockstore.Key(execution, key)))))
	g, ctx := newGuard(), context.Background()
	first, err := g.Acquire(ctx, guard.LeaseRequest{Key: key, TTL: time.Minute, Owner: owner})
	if err != nil {
		log.Fatal(err)
	}
	again, err := g.Acquire(ctx, guard.LeaseRequest{Key: key, TTL: time.Minute, Owner: owner})
	fmt.Println(again.Fence == first.Fence, err)
	// Output: true <nil>
}

// A trigger that comes twice within a minute runs the work once.
func ExampleGuard_WithCooldown() {
	g := newGuard().WithCooldown(time.Minute)
	for range 2 {
		err := g.Do(context.Background(), "report", func(context.Context, guard.Lock) error {
			fmt.Println("writing the report")
			return nil
		})
		if busy, ok := errors.AsType[*guard.LockBusy](err); ok {
			fmt.Println("skipped:", busy.State)
		}
	}
	// Output:
	// writing the report
	// skipped: cooldown
}

// A handler that cannot use the fence, because the mail server compares nothing.
func ExampleWithoutFence() {
	send := func(_ context.Context, address string) (string, error) { return "sent to " + address, nil }
	key := func(_ context.Context, address string) (string, error) { return lockstore.Key("mail", address), nil }
	handler := guard.Wrap(newGuard(), key, guard.WithoutFence(send)) // for boot.Start
	fmt.Println(handler.Handle(context.Background(), "ada@example.com"))
	// Output: sent to ada@example.com <nil>
}

// A handler that learns only in its work what it has to lock.
func ExampleWrapUnlocked() {
	g := newGuard()
	handler := guard.WrapUnlocked(func(ctx context.Context, order string) (string, error) {
		account := "7" // read from the order
		err := g.Do(ctx, lockstore.Key("account", account), func(context.Context, guard.Lock) error {
			return nil // write with the fence of this lock
		})
		return "charged " + order, err
	})
	fmt.Println(handler.Handle(context.Background(), "order 42")) // boot.Start takes this handler
	// Output: charged order 42 <nil>
}
