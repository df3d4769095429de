// Command nightly is the Lambda that a schedule starts once a day. It
// books the day's fee on accounts; one run at a time.
package main

import (
	"context"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/functions/internal/accounts"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/schedule"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore/elasticache"
)

// key is the schedule's: a second run is skipped while a first one is at work.
const key = "schedule/nightly"

func main() {
	g := boot.MustGuard(dynamostore.Opener, redisstore.Opener, elasticache.Opener)
	ledger := boot.Must(accounts.Open(boot.MustURL("ACCOUNTS_URL"), boot.Getenv))
	boot.Start(g, schedule.Wrap(g, key, handle(g, ledger)))
}

// handle does not use the schedule's fence: it writes to the accounts only, and
// each of them has a lock and fences of its own.
func handle(g *guard.Guard, ledger *accounts.Ledger) func(context.Context, guard.Lock, feeEvent) error {
	return func(ctx context.Context, _ guard.Lock, e feeEvent) error {
		return chargeFees(ctx, g, ledger, e)
	}
}
