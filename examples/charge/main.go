// Command charge is a sample of package idempotency: it charges the card of each order
// once. Its tests run it in several environments, kill and freeze them, and count the
// charges. It is not in the template.
package main

import (
	"context"
	"fmt"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
)

// Order is the event.
type Order struct {
	ID    string `json:"id"`
	Cents int64  `json:"cents"`
}

// Receipt is the result.
type Receipt struct {
	Order string `json:"order"`
	Cents int64  `json:"cents"`
}

// modes are the ways to charge. With once the provider charges, and a run that is killed
// after the charge may charge again. With refuse an operator has to look first. With
// transaction the charge is a row in DynamoDB, which is written together with the result.
func modes() map[string]mode {
	return map[string]mode{
		"once":        func(g *guard.Guard) handler { return atProvider(g, idempotency.AtLeastOnce) },
		"refuse":      func(g *guard.Guard) handler { return atProvider(g, idempotency.AtMostOnce) },
		"transaction": inTransaction,
	}
}

type (
	handler = guard.Wrapped[Order, Receipt]
	mode    = func(*guard.Guard) handler
)

func main() { start(modes()) }

func start(modes map[string]mode) {
	name := boot.Getenv("CHARGE_MODE")
	open := modes[name]
	if open == nil {
		open = boot.Must(open, fmt.Errorf("CHARGE_MODE is %q; want once, refuse or transaction", name))
	}
	g := boot.MustGuardFromEnv(dynamostore.Opener, redisstore.Opener)
	boot.Start(g, open(g))
}

// call makes an order with the same id and another amount a mismatch.
func call(_ context.Context, o Order) (idempotency.Call, error) {
	c := idempotency.NewCall("charge", o.ID)
	c.Fingerprint = o.Cents
	return c, nil
}

func atProvider(g *guard.Guard, inDoubt idempotency.Doubt) handler {
	p := provider{url: boot.MustURLFromEnv("PROVIDER_URL").String()}
	once := boot.Must(idempotency.New(g, idempotency.Options{InDoubt: inDoubt}))
	return idempotency.Wrap(once, call, func(ctx context.Context, lock guard.Lock, o Order) (Receipt, error) {
		return p.charge(ctx, lock, o)
	})
}

func inTransaction(g *guard.Guard) handler {
	l := boot.Must(openLedger(boot.MustURLFromEnv("CHARGES_URL"), boot.MustURLFromEnv("LOCK_URL"), boot.Getenv))
	once := boot.Must(idempotency.New(g, idempotency.Options{}))
	return idempotency.Wrap(once, call, func(ctx context.Context, _ guard.Lock, o Order) (Receipt, error) {
		return l.charge(ctx, o)
	})
}
