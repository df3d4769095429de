package guard_test

import (
	"context"
	"fmt"
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
