package guard_test

import (
	"context"
	"fmt"

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
		return "booked under " + lock.Key, nil
	}

	handler := guard.Wrap(g, key, handle) // a plain Lambda handler
	fmt.Println(handler(context.Background(), order{Account: "7"}))
	// Output: booked under account/7 <nil>
}

func ExampleGuard_DoAll() {
	g, err := guard.New(memstore.New(nil), guard.Options{})
	if err != nil {
		panic(err)
	}
	from, to := lockstore.Key("account", "9"), lockstore.Key("account", "7")
	err = g.DoAll(context.Background(), []string{from, to}, func(ctx context.Context, locks []guard.Lock) error {
		// Nobody else works on one of the accounts. Write locks[0].Fence with the data
		// of from, and locks[1].Fence with the data of to.
		fmt.Println("from", locks[0].Key, "to", locks[1].Key)
		return nil
	})
	fmt.Println(err)
	// Output:
	// from account/9 to account/7
	// <nil>
}
