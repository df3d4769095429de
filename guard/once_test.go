package guard

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/doonce"
	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
)

var hour = doonce.Completion{ResultTime: time.Hour, Result: lockstore.HiddenBytes("result")}

func completes(context.Context, Lock) (doonce.Completion, error) { return hour, nil }

func neverCompletes(t *testing.T) func(context.Context, Lock) (doonce.Completion, error) {
	return func(context.Context, Lock) (doonce.Completion, error) {
		t.Error("the work ran")
		return doonce.Completion{}, nil
	}
}

func TestDoOnce(t *testing.T) {
	ctx := context.Background()
	for name, started := range map[string]bool{"": false, ", started": true} {
		on("the end of the lease stores the result, and the next run gets it"+name, t, newBench, Options{}, func(t *testing.T, b *bench) {
			require.NoError(t, b.DoOnce(ctx, "k", doonce.Options{MarkStarted: started}, completes))
			require.Zero(t, len(b.store.releases))
			first := b.report(t)
			require.Equal(t, OutcomeOK, first.Outcome)
			require.NoError(t, first.CompleteErr)
			require.Equal(t, map[bool]int{false: 2, true: 3}[started], first.Calls)

			refusal := errors.New("refused for good")
			err := b.DoOnce(ctx, "k", doonce.Options{MarkStarted: started, OnRefused: func(busy error) (string, error) {
				require.Equal(t, lockstore.Completed, busy.(*LockBusy).State)
				var refused *lockstore.Refused
				require.ErrorAs(t, busy, &refused)
				require.Equal(t, "result", string(refused.Result))
				return doonce.Mismatch, refusal
			}}, neverCompletes(t))
			require.Equal(t, refusal, err)
			require.Equal(t, Outcome(doonce.Mismatch), b.reports[1].Outcome)
			require.Equal(t, 1, b.reports[1].Calls)
			require.IsType(t, &LockBusy{}, b.DoOnce(ctx, "k", doonce.Options{}, neverCompletes(t)), "without Refused")
			require.IsType(t, &LockBusy{}, b.Do(ctx, "k", neverRuns(t)))
		})
		on("work without a result ends with a release"+name, t, newBench, Options{}, func(t *testing.T, b *bench) {
			require.NoError(t, b.DoOnce(ctx, "k", doonce.Options{MarkStarted: started}, func(context.Context, Lock) (doonce.Completion, error) { return doonce.Completion{NoEffect: true}, nil }))
			require.False(t, b.status(t, "k").State.Taken())
			require.NoError(t, b.report(t).CompleteErr)
		})
		on("after a Complete that failed the lease is not released, and the result stands"+name, t, newBench, Options{}, func(t *testing.T, b *bench) {
			b.store.complete = fails(errLostReply)
			began := time.Now()
			require.NoError(t, b.DoOnce(within(t, 30*time.Second), "k", doonce.Options{MarkStarted: started}, completes))
			require.Equal(t, 30*time.Second-answerTime, time.Since(began), "until the answer")
			require.Zero(t, len(b.store.releases))
			require.ErrorIs(t, b.report(t).CompleteErr, errLostReply)
			require.Equal(t, OutcomeOK, b.report(t).Outcome)
			require.Equal(t, lockstore.Held, b.status(t, "k").State, "until the end of its lease")
			pass(defaultTTL)
			require.Equal(t, started, b.status(t, "k").State == lockstore.InDoubt)
		})
		on("F07 a lease that has ended and was nobody else's is completed, and is not lost"+name, t, newBench, Options{TTL: 10 * time.Second}, func(t *testing.T, b *bench) {
			b.store.renew = fails(errDown)
			require.NoError(t, b.DoOnce(ctx, "k", doonce.Options{MarkStarted: started}, func(ctx context.Context, _ Lock) (doonce.Completion, error) {
				<-ctx.Done()
				require.ErrorIs(t, context.Cause(ctx), lockstore.ErrLost)
				pass(time.Minute)
				return hour, nil
			}))
			require.Equal(t, OutcomeOK, b.report(t).Outcome)
			require.NoError(t, b.report(t).CompleteErr)
			require.Equal(t, lockstore.Completed, b.status(t, "k").State)
		})
		on("F69 Shutdown cuts a Complete"+name, t, newBench, Options{}, func(t *testing.T, b *bench) {
			b.store.complete = silent
			time.AfterFunc(time.Second, b.Shutdown)
			began := time.Now()
			require.NoError(t, b.DoOnce(ctx, "k", doonce.Options{MarkStarted: started}, completes))
			require.Equal(t, time.Second+shutdownTime, time.Since(began))
			require.ErrorIs(t, b.report(t).CompleteErr, context.Canceled)
			require.Zero(t, b.report(t).FailedCalls, "it was cut, and has not failed")
			require.Zero(t, len(b.store.releases))
		})
	}
	bubble("a time out of its bounds is an error, and the lease is not released", t, func(t *testing.T) {
		for _, d := range []time.Duration{-1, lockstore.MinTTL - 1, lockstore.MaxResultTime + 1} {
			b := newBench(t, Options{})
			require.NoError(t, b.DoOnce(ctx, "k", doonce.Options{}, func(context.Context, Lock) (doonce.Completion, error) {
				return doonce.Completion{ResultTime: d}, nil
			}))
			require.ErrorIs(t, b.report(t).CompleteErr, lockstore.ErrInvalid)
			require.Zero(t, len(b.store.releases))
		}
	})
}

func TestMarkStarted(t *testing.T) {
	ctx := context.Background()
	started := doonce.Options{MarkStarted: true}
	for name, c := range map[string]struct {
		mark    func(*bench) hook
		unknown bool
	}{
		"F23 arrives, and no reply does": {func(b *bench) hook { return b.loses }, true},
		"F22 does not arrive":            {func(*bench) hook { return fails(errDown) }, false},
	} {
		on("a mark that "+name+": the work does not run, and the key is free", t, newBench, Options{}, func(t *testing.T, b *bench) {
			b.store.mark = c.mark(b)
			began := time.Now()
			require.IsType(t, &LockStoreUnavailable{}, b.DoOnce(ctx, "k", started, neverCompletes(t)))
			require.Equal(t, storeRetryBudget, time.Since(began))
			require.False(t, b.status(t, "k").State.Taken())
			require.NoError(t, b.report(t).ReleaseErr)
			require.NoError(t, b.report(t).CompleteErr)

			b.store.release = b.until(completeTime/2, fails(errDown))
			began = time.Now()
			require.IsType(t, &LockStoreUnavailable{}, b.DoOnce(ctx, "k", started, neverCompletes(t)))
			require.Equal(t, c.unknown, time.Since(began) > storeRetryBudget+releaseTime, "the key would be in doubt")
			require.Equal(t, c.unknown, b.reports[1].ReleaseErr == nil)
		})
	}
	own := errors.New("own")
	noEffect := func(context.Context, Lock) (doonce.Completion, error) { return doonce.Completion{NoEffect: true}, own }
	on("F22 started work had no effect, and its release does not arrive for half a minute: the key is free after that", t, newBench, Options{}, func(t *testing.T, b *bench) {
		b.store.release = b.until(completeTime/2, fails(errDown))
		require.Equal(t, own, b.DoOnce(ctx, "k", started, noEffect))
		require.NoError(t, b.report(t).ReleaseErr)
		require.False(t, b.status(t, "k").State.Taken())
	})
	on("F43 a lease that is lost before the mark", t, newBench, Options{}, func(t *testing.T, b *bench) {
		b.store.mark = says(driver.Lost)
		err := b.DoOnce(ctx, "k", started, neverCompletes(t))
		require.IsType(t, &LockStoreUnavailable{}, err)
		require.ErrorContains(t, err, "lost before the work began")
		require.Equal(t, OutcomeUnavailable, b.report(t).Outcome)
	})
}
