// Command invoice numbers invoices: README.md.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/redis/go-redis/v9"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
)

type Order struct{ Shop, Text string }

var rows redis.UniversalClient

func main() {
	rows = boot.Must(redisstore.Client(lockstore.Config{URL: boot.MustURLFromEnv("ROWS_URL"), Getenv: boot.EnvVar}))
	g := boot.MustGuardFromEnv(dynamostore.Opener, redisstore.Opener) // LOCK_URL says which
	boot.Start(g, guard.Wrap(g, key, guard.WithoutFence(invoice)))
}

func key(_ context.Context, o Order) (string, error) { return lockstore.Key("invoices", o.Shop), nil }

func invoice(ctx context.Context, o Order) (int, error) {
	last, err := rows.Get(ctx, o.Shop).Int()
	if err != nil && err != redis.Nil {
		return 0, err
	}
	file := fmt.Sprintf("%s/%s-%d.txt", boot.EnvVar("FOLDER"), lockstore.Key(o.Shop), last+1)
	if err := os.WriteFile(file, []byte(o.Text), 0o644); err != nil {
		return 0, err
	}
	return last + 1, rows.Set(ctx, o.Shop, last+1, 0).Err()
}
