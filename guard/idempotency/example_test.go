package idempotency_test

import (
	"context"
	"fmt"
	"log"
	"time"

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

// Code that is no handler: the second call gets the first result.
func ExampleDo() {
	g, err := guard.New(memstore.New(nil), guard.Options{})
	if err != nil {
		log.Fatal(err)
	}
	once, err := idempotency.New(g, idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		id, replay, err := idempotency.Do(context.Background(), once, idempotency.NewCall("import", "file 7"),
			func(context.Context, guard.Lock) (string, error) { return "import 1", nil })
		fmt.Println(id, "repeated:", replay != nil, err)
	}
	// Output:
	// import 1 repeated: false <nil>
	// import 1 repeated: true <nil>
}

// A run died in the middle of work that must not be repeated. An operator finds its charge in the provider's list, and
// stores the result that every repeat gets from now on.
func ExampleResolveEffect() {
	ctx, now := context.Background(), time.Now()
	store := memstore.New(func() time.Time { return now })
	lease, err := store.Acquire(ctx, lockstore.Request{Key: "charge/42", Owner: lockstore.NewOwner(), TTL: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	if err := store.MarkStarted(ctx, lease); err != nil {
		log.Fatal(err)
	}
	now = now.Add(2 * time.Minute) // the run died

	status, err := store.Inspect(ctx, "charge/42")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(status.State)
	err = idempotency.ResolveEffect(ctx, store, "charge/42", status.Fence, []byte(`{"Charged": 30}`), idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	status, err = store.Inspect(ctx, "charge/42")
	fmt.Println(status.State, err)
	// Output:
	// in doubt
	// completed <nil>
}
