package guard_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

func ExampleWrap() {
	type order struct{ Account string }

	g, err := guard.New(memstore.New(nil), guard.Options{})
	if err != nil {
		panic(err)
	}
	key := func(_ context.Context, o order) (string, error) {
		return lockstore.Key("account", o.Account), nil
	}
	handle := func(ctx context.Context, lock guard.Lock, o order) (string, error) {
		// Only one invocation per account is here at a time. Write lock.Fence
		// with the data, and let the database refuse a smaller one.
		return "charged under " + lock.Key, nil
	}

	handler := guard.Wrap(g, key, handle) // for boot.Start
	fmt.Println(handler.Handle(context.Background(), order{Account: "7"}))
	// Output: charged under account/7 <nil>
}

// A job outside Lambda that may take hours. Without MaxHold its context ends after 15 minutes.
func ExampleGuard_Do() {
	g, err := guard.New(memstore.New(nil), guard.Options{MaxHold: 4 * time.Hour})
	if err != nil {
		panic(err)
	}
	err = g.Do(context.Background(), "nightly/report", func(ctx context.Context, lock guard.Lock) error {
		for part := range 3 {
			if err := ctx.Err(); err != nil {
				return err // the lock is lost, or 4 hours are over
			}
			fmt.Println("part", part, "under", lock.Key) // hand ctx and lock.Fence to what writes
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// part 0 under nightly/report
	// part 1 under nightly/report
	// part 2 under nightly/report
	// <nil>
}

// Money moves between two accounts, in both directions at once. Each transfer has both
// locks, so no update is lost, and the transfers never wait for each other in a circle.
func ExampleGuard_DoAll() {
	g, err := guard.New(memstore.New(nil), guard.Options{Wait: time.Minute})
	if err != nil {
		panic(err)
	}
	accounts := map[string]*int{"7": new(100), "9": new(100)}
	transfer := func(from, to string, amount int) error {
		keys := []string{lockstore.Key("account", from), lockstore.Key("account", to)}
		return g.DoAll(context.Background(), keys, func(_ context.Context, locks []guard.Lock) error {
			*accounts[from] -= amount // a database gets locks[0].Fence with it, and refuses a smaller one
			*accounts[to] += amount   // and here locks[1].Fence
			return nil
		})
	}
	var all sync.WaitGroup
	for range 10 {
		for from, to := range map[string]string{"7": "9", "9": "7"} {
			all.Go(func() {
				if err := transfer(from, to, map[string]int{"7": 3, "9": 1}[from]); err != nil {
					fmt.Println(err)
				}
			})
		}
	}
	all.Wait()
	fmt.Println("7 has", *accounts["7"], "and 9 has", *accounts["9"])
	// Output: 7 has 80 and 9 has 120
}

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
