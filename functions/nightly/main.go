// Command nightly is the Lambda that a schedule starts once a day. It charges the day's
// fee to accounts. One run works at a time.
package main

import (
	"context"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/functions/internal/accounts"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/schedule"
	"github.com/lambdalock/lambdalock/guard/sfnwake"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore/elasticache"
	"github.com/lambdalock/lambdalock/lockstore/zkstore"
)

// key is the schedule's: while one run works, a second run is skipped.
const key = "schedule/nightly"

func main() {
	wake := boot.Must(sfnwake.FromEnv(boot.EnvVar)) // payouts that wait for an account
	g := boot.MustGuardFromEnvWith(func(o *guard.Options) { o.Wake = wake }, dynamostore.Opener, redisstore.Opener, elasticache.Opener, zkstore.Opener)
	ledger := boot.Must(accounts.Open(boot.MustURLFromEnv("ACCOUNTS_URL"), boot.EnvVar))
	boot.Start(g, schedule.Wrap(g, key, handle(g, ledger)))
}

// handle does not use the schedule's fence: it writes to accounts only, and each account
// has its own lock and fence.
func handle(g *guard.Guard, ledger *accounts.Ledger) guard.Work[feeEvent] {
	return func(ctx context.Context, _ guard.Lock, e feeEvent) error {
		return chargeFees(ctx, g, ledger, e)
	}
}
