// Command charge is a sample of package idempotency: it charges each order once. The charge is
// a row in DynamoDB, which is written together with the result. It is not in the template.
package main

import (
	"context"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
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

func main() {
	g := boot.MustGuardFromEnv(dynamostore.Opener)
	l := boot.Must(openLedger(boot.MustURLFromEnv("CHARGES_URL"), boot.MustURLFromEnv("LOCK_URL"), boot.EnvVar))
	once := boot.Must(idempotency.New(g, idempotency.Options{}))
	boot.Start(g, idempotency.Wrap(once, call, l.charge))
}

// call makes an order with the same id and another amount a mismatch.
func call(_ context.Context, o Order) (idempotency.Call, error) {
	c := idempotency.NewCall("charge", o.ID)
	c.Fingerprint = o.Cents
	return c, nil
}
