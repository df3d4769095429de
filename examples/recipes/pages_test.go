package recipes_test

import (
	"context"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
)

// Code of the pages in docs/ that no program has. It is compiled, and not run.
var _ = []any{main, call, exports}

type (
	Order struct {
		ID    string
		Cents int
	}
	Receipt struct{}
)

// docs/idempotency.md

func main() {
	g := boot.MustGuardFromEnv(dynamostore.Opener)
	once := boot.Must(idempotency.New(g, idempotency.Options{}))
	boot.Start(g, idempotency.Wrap(once, call, charge))
}

func call(_ context.Context, o Order) (idempotency.Call, error) {
	c := idempotency.NewCall("charge", o.ID) // what is done, and the id of the event
	c.Fingerprint = o.Cents                  // the same id with another amount is an error
	return c, nil
}

func charge(context.Context, guard.Lock, Order) (Receipt, error) { return Receipt{}, nil }

// docs/waiting.md

func exports(ctx context.Context, g *guard.Guard, export func(context.Context, int, lockstore.Fence) error) error {
	err := g.WithMaxHolders(3).Do(ctx, "export", func(ctx context.Context, lock guard.Lock) error {
		return export(ctx, lock.Seat, lock.Fence)
	})
	return err
}
