// Command unguarded is the control of the demo: the withdraw function without
// a lock, and so without fences. It also opens accounts and reads balances for
// the demo, which knows functions only from outside. It is never deployed.
package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"time"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-lambda-go/lambdacontext"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/functions/internal/accounts"
	"github.com/lambdalock/lambdalock/functions/internal/withdrawals"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/httpapi"
	"github.com/lambdalock/lambdalock/lockstore"
)

func main() {
	ledger := boot.Must(accounts.Open(boot.MustURL("ACCOUNTS_URL"), boot.Getenv))
	logger := slog.New(slog.NewJSONHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: lambdacontext.ReplaceAttr}))
	f := function{ledger, guard.LogReports(logger)}
	lambda.StartHandlerFunc(f.handle)
}

type function struct {
	ledger *accounts.Ledger
	report func(context.Context, guard.Report)
}

// event is one of the three things to do.
type event struct {
	Open *struct {
		Account string `json:"account"`
		Balance int64  `json:"balance"`
	} `json:"open"`
	Read *struct {
		Account string `json:"account"`
	} `json:"read"`
	httpapi.Request
}

func (f function) handle(ctx context.Context, in json.RawMessage) (any, error) {
	var e event
	if err := json.Unmarshal(in, &e); err != nil {
		return nil, err
	}
	switch {
	case e.Open != nil:
		return nil, f.ledger.Create(ctx, e.Open.Account, e.Open.Balance)
	case e.Read != nil:
		balance, err := f.ledger.Balance(ctx, e.Read.Account)
		return map[string]int64{"balance": balance}, err
	default:
		return f.withdraw(ctx, e.Request)
	}
}

// sameFence is the token of everybody here: no account can tell an earlier
// holder from a later one, as if there were no fence.
const sameFence lockstore.Fence = 1

func (f function) withdraw(ctx context.Context, r httpapi.Request) (httpapi.Response, error) {
	w, err := withdrawals.Parse(r)
	if err != nil {
		return httpapi.Response{}, err
	}
	key, began := accounts.Key(w.Account), time.Now()
	receipt, err := f.ledger.Withdraw(ctx, guard.Lock{Key: key, Fence: sameFence}, w)
	report := guard.Report{Key: key, Outcome: guard.OutcomeOK, Err: err, AcquiredAt: began, Held: time.Since(began)}
	if err != nil {
		report.Outcome = guard.OutcomeError
	}
	if lc, ok := lambdacontext.FromContext(ctx); ok {
		report.Holder.ID = lc.AwsRequestID
	}
	f.report(ctx, report)
	return withdrawals.Answer(receipt, err)
}
