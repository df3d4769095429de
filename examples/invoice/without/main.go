// Command without is the program of README.md without the lock, for the picture of make run. Never deploy it.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-lambda-go/lambdacontext"
	"github.com/redis/go-redis/v9"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
)

type order struct{ Shop, Text string }

func main() {
	rows := boot.Must(redisstore.Client(lockstore.Config{URL: boot.MustURLFromEnv("ROWS_URL"), Getenv: boot.EnvVar}))
	// The guard writes this line in the program with the lock. lockctl reads from it which calls overlap.
	report := guard.LogReports(slog.New(slog.NewJSONHandler(os.Stdout, nil)))
	lambda.Start(func(ctx context.Context, o order) (n int, err error) {
		r := guard.Report{Key: lockstore.Key("invoices", o.Shop), Outcome: guard.OutcomeOK, AcquiredAt: time.Now()}
		if call, ok := lambdacontext.FromContext(ctx); ok {
			r.HolderInfo.ID = call.AwsRequestID
		}
		n, r.Err = invoice(ctx, rows, o)
		if r.HoldTime = time.Since(r.AcquiredAt); r.Err != nil {
			r.Outcome = guard.OutcomeError
		}
		report(ctx, r)
		return n, r.Err
	})
}

func invoice(ctx context.Context, rows redis.UniversalClient, o order) (int, error) {
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
