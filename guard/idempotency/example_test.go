package idempotency_test

import (
	"context"
	"fmt"
	"log"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

type order struct {
	ID     string
	Amount int
}

type receipt struct{ Charged int }

func Example() {
	g, err := guard.New(memstore.New(nil), guard.Options{})
	if err != nil {
		log.Fatal(err)
	}
	once, err := idempotency.New(g, idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	call := func(_ context.Context, o order) (idempotency.Call, error) {
		c := idempotency.NewCall("charge", o.ID)
		c.Fingerprint = o
		return c, nil
	}
	handler := idempotency.Wrap(once, call, func(_ context.Context, _ guard.Lock, o order) (receipt, error) {
		fmt.Println("charging", o.Amount)
		return receipt{o.Amount}, nil
	})
	for _, o := range []order{{"7", 30}, {"7", 30}, {"7", 31}} {
		receipt, err := handler.Handle(context.Background(), o)
		fmt.Printf("%v %T\n", receipt, err)
	}
	// Output:
	// charging 30
	// {30} <nil>
	// {30} <nil>
	// {0} *idempotency.RepeatMismatch
}

// A lock inside the work: if it is busy, nothing has happened yet, and the key is free again.
func ExampleNoEffect() {
	g, err := guard.New(memstore.New(nil), guard.Options{})
	if err != nil {
		log.Fatal(err)
	}
	once, err := idempotency.New(g, idempotency.Options{InDoubt: idempotency.AtMostOnce})
	if err != nil {
		log.Fatal(err)
	}
	pay := func(account string) error {
		_, _, err := idempotency.Do(context.Background(), once, idempotency.NewCall("pay", "42"), func(ctx context.Context, _ guard.Lock) (string, error) {
			started := false
			err := g.Do(ctx, lockstore.Key("account", account), func(context.Context, guard.Lock) error {
				started = true
				return nil // write with the fence of this lock
			})
			if err != nil && !started {
				return "", idempotency.NoEffect(err)
			}
			return "paid", err
		})
		return err
	}
	err = g.Do(context.Background(), "account/7", func(context.Context, guard.Lock) error {
		fmt.Printf("%T\n", pay("7"))
		return nil
	})
	fmt.Println(err, pay("7"))
	// Output:
	// *guard.LockBusy
	// <nil> <nil>
}
