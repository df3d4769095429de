// Command parked is a function whose runs wait for their lock without running: a state of Step Functions
// with .waitForTaskToken would call it. lockctl's tests run it. It is never deployed.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/aws/aws-lambda-go/lambdacontext"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/sfnwake"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
)

func main() {
	wake := boot.Must(sfnwake.FromEnv(boot.Getenv))
	g := boot.MustGuardWith(func(o *guard.Options) { o.Wake = wake }, redisstore.Opener)
	report := guard.LogReports(slog.New(slog.NewJSONHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: lambdacontext.ReplaceAttr})))
	boot.Start(g, guard.TakesOwnLocks(func(ctx context.Context, e event) (string, error) { return e.handle(ctx, g, report) }))
}

type event struct {
	ID        string `json:"id"` // of all calls of one execution
	Key       string `json:"key"`
	TaskToken string `json:"taskToken"`
	Keep      bool   `json:"keep"` // do not release
}

func (e event) handle(ctx context.Context, g *guard.Guard, report func(context.Context, guard.Report)) (string, error) {
	same := sha256.Sum256([]byte(e.ID + "\n" + e.Key))
	request := guard.LeaseRequest{Key: e.Key, TTL: 10 * time.Second, Owner: lockstore.Owner(hex.EncodeToString(same[:]))}
	lease, err := g.Park(ctx, request, lockstore.MaxParked, lockstore.TaskToken(e.TaskToken))
	if busy, ok := errors.AsType[*guard.LockBusy](err); ok && busy.QueuePosition > 0 {
		return "parked", nil
	}
	if err != nil {
		return "", err
	}
	if e.Keep {
		return "kept", nil
	}
	began := time.Now()
	select { // the work
	case <-time.After(50 * time.Millisecond):
	case <-ctx.Done():
		err = ctx.Err()
	}
	r := guard.Report{Key: e.Key, Outcome: guard.OutcomeOK, Err: err, Fence: lease.Fence, AcquiredAt: began, HoldTime: time.Since(began)}
	if lc, ok := lambdacontext.FromContext(ctx); ok {
		r.HolderInfo.ID = lc.AwsRequestID
	}
	report(ctx, r) // the guard reports a lease that outlives a call only at its ends
	return "done", errors.Join(err, g.Release(ctx, lease))
}
