// Command nightly is the Lambda that a schedule starts once a day. It charges the day's
// fee to accounts. Of the runs for one event, one works at a time.
package main

import (
	"context"
	"encoding/json"

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

func main() {
	wake := boot.Must(sfnwake.FromEnv(boot.EnvVar)) // payouts that wait for an account
	g := boot.MustGuardFromEnvWith(func(o *guard.Options) { o.Wake = wake }, dynamostore.Opener, redisstore.Opener, elasticache.Opener, zkstore.Opener)
	ledger := boot.Must(accounts.Open(boot.MustURLFromEnv("ACCOUNTS_URL"), boot.EnvVar))
	boot.Start(g, handler(g, ledger))
}

// handler skips an event while another run does the same work. What the event asks for is in the key, because a skip of
// other work would lose it. A bad event takes no lock.
func handler(g *guard.Guard, ledger *accounts.Ledger) guard.Wrapped[json.RawMessage, schedule.Result] {
	return guard.WrapUnlocked(func(ctx context.Context, event json.RawMessage) (schedule.Result, error) {
		var e feeEvent
		if err := json.Unmarshal(event, &e); err != nil {
			return schedule.Result{}, err
		}
		key, err := e.key()
		if err != nil {
			return schedule.Result{}, err
		}
		return schedule.Wrap(g, key, handle(g, ledger)).Handle(ctx, event)
	})
}

// handle does not use the schedule's fence: it writes to accounts only, and each account
// has its own lock and fence.
func handle(g *guard.Guard, ledger *accounts.Ledger) guard.Work[feeEvent] {
	return func(ctx context.Context, _ guard.Lock, e feeEvent) error {
		return chargeFees(ctx, g, ledger, e)
	}
}
