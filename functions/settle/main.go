// Command settle is the Lambda behind the queue of settlements. A message that it cannot
// process stays in the queue, and later in the dead-letter queue, where a person sees it.
package main

import (
	"context"

	"github.com/aws/aws-lambda-go/events"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/functions/internal/accounts"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/sfnwake"
	"github.com/lambdalock/lambdalock/guard/sqsbatch"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore/elasticache"
	"github.com/lambdalock/lambdalock/lockstore/zkstore"
)

func main() {
	wake := boot.Must(sfnwake.FromEnv(boot.EnvVar)) // payouts that wait for an account
	g := boot.MustGuardFromEnvWith(func(o *guard.Options) { o.Wake = wake }, dynamostore.Opener, redisstore.Opener, elasticache.Opener, zkstore.Opener)
	ledger := boot.Must(accounts.Open(boot.MustURLFromEnv("ACCOUNTS_URL"), boot.EnvVar))
	boot.Start(g, sqsbatch.Wrap(g, key, handle(ledger)))
}

// key reads the whole body, so that a bad one takes no lock.
func key(_ context.Context, m events.SQSMessage) (string, error) {
	w, err := parse(m.Body)
	return accounts.Key(w.Account), err
}

func handle(ledger *accounts.Ledger) guard.Work[events.SQSMessage] {
	return func(ctx context.Context, lock guard.Lock, m events.SQSMessage) error {
		w, err := parse(m.Body)
		if err != nil {
			return err
		}
		_, err = ledger.Withdraw(ctx, lock, w)
		return err
	}
}
