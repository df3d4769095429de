// Command without is the withdraw function without a lock, and so without fences.
// The tests of lockctl local compare the withdraw function with it. It is never deployed.
package main

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-lambda-go/lambdacontext"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/functions/internal/accounts"
	"github.com/lambdalock/lambdalock/functions/internal/withdrawalhttp"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/httpapi"
	"github.com/lambdalock/lambdalock/lockstore"
)

func main() {
	ledger := boot.Must(accounts.Open(boot.MustURLFromEnv("ACCOUNTS_URL"), boot.EnvVar))
	logger := slog.New(slog.NewJSONHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: lambdacontext.ReplaceAttr}))
	f := function{ledger, guard.LogReports(logger)}
	lambda.StartHandlerFunc(f.handle)
}

type function struct {
	ledger *accounts.Ledger
	report func(context.Context, guard.Report)
}

// sameFence is the token of everybody here: no account can tell an earlier
// holder from a later one, as if there were no fence.
const sameFence lockstore.Fence = 1

func (f function) handle(ctx context.Context, r httpapi.Request) (httpapi.Response, error) {
	w, err := withdrawalhttp.Parse(r)
	if err != nil {
		return httpapi.Response{}, err
	}
	key, began := accounts.Key(w.Account), time.Now()
	receipt, err := f.ledger.Withdraw(ctx, guard.Lock{Key: key, Fence: sameFence}, w)
	report := guard.Report{Key: key, Outcome: guard.OutcomeOK, Err: err, AcquiredAt: began, HoldTime: time.Since(began)}
	if err != nil {
		report.Outcome = guard.OutcomeError
	}
	if lc, ok := lambdacontext.FromContext(ctx); ok {
		report.HolderInfo.ID = lc.AwsRequestID
	}
	f.report(ctx, report)
	answer, err := withdrawalhttp.Answer(receipt, err)
	return answer.For(r), err
}
