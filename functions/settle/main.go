// Command settle is the Lambda behind the queue of settlements. What it cannot
// book stays in the queue, and then in the dead-letter queue, for a person to
// see; see package settlements.
package main

import (
	"context"

	"github.com/aws/aws-lambda-go/events"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/functions/internal/accounts"
	"github.com/lambdalock/lambdalock/functions/internal/settlements"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/sqsbatch"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore/elasticache"
)

func main() {
	g := boot.Guard(lockstore.Openers{
		"dynamodb":    dynamostore.Open,
		"redis":       redisstore.Open,
		"rediss":      redisstore.Open,
		"valkey":      redisstore.Open,
		"valkeys":     redisstore.Open,
		"elasticache": elasticache.Open,
	})
	book := boot.Must(accounts.Open(boot.Config("ACCOUNTS_URL")))
	boot.Start(g, sqsbatch.Wrap(g, key, handle(book)))
}

// key reads the whole body, so that a bad one takes no lock.
func key(_ context.Context, m events.SQSMessage) (string, error) {
	w, err := settlements.Parse(m.Body)
	return accounts.Key(w.Account), err
}

func handle(book *accounts.Book) func(context.Context, guard.Lock, events.SQSMessage) error {
	return func(ctx context.Context, lock guard.Lock, m events.SQSMessage) error {
		w, err := settlements.Parse(m.Body)
		if err != nil {
			return err
		}
		_, err = book.Withdraw(ctx, lock, w)
		return err
	}
}
