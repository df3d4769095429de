// Command without does the work of own-function without the lock and the fence, for
// lockctl local --compare. Never deploy it.
package main

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-lambda-go/lambdacontext"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
)

type order struct {
	Account string `json:"account"`
	Amount  int64  `json:"amount"`
}

func main() {
	accounts := boot.Must(redisstore.Client(lockstore.Config{URL: boot.MustURLFromEnv("ACCOUNTS_URL"), Getenv: boot.EnvVar}))
	// The guard writes this line in the function with the lock. lockctl reads from it which calls overlap.
	report := guard.LogReports(slog.New(slog.NewJSONHandler(os.Stdout, nil)))
	lambda.Start(func(ctx context.Context, o order) (balance int64, err error) {
		r := guard.Report{Key: lockstore.Key("account", o.Account), Outcome: guard.OutcomeOK, AcquiredAt: time.Now()}
		if call, ok := lambdacontext.FromContext(ctx); ok {
			r.HolderInfo.ID = call.AwsRequestID
		}
		time.Sleep(20 * time.Millisecond) // as charge
		balance, r.Err = accounts.HIncrBy(ctx, "account:"+o.Account, "balance", o.Amount).Result()
		if r.HoldTime = time.Since(r.AcquiredAt); r.Err != nil {
			r.Outcome = guard.OutcomeError
		}
		report(ctx, r)
		return balance, r.Err
	})
}
