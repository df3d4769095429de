package guard

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

// onceBench is a guard whose store has faults.
type onceBench struct {
	*Guard
	store   *lockstore.Store // without the faults
	fault   func(storetest.Call) storetest.Fault
	calls   []storetest.Call
	mu      sync.Mutex
	reports []Report
}

func newOnceBench(t *testing.T, opt Options) *onceBench {
	b := &onceBench{store: memstore.New(nil)}
	opt.Observe = func(_ context.Context, r Report) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.reports = append(b.reports, r)
	}
	faulty := storetest.NewFaulty(b.store, func(c storetest.Call) storetest.Fault {
		b.calls = append(b.calls, c)
		if b.fault == nil {
			return storetest.Fault{}
		}
		return b.fault(c)
	})
	g, err := New(faulty.Store, opt)
	require.NoError(t, err)
	b.Guard = g
	return b
}

func (b *onceBench) count(kind driver.Kind) (n int) {
	for _, c := range b.calls {
		if c.Kind == kind {
			n++
		}
	}
	return n
}

func (b *onceBench) report(t *testing.T) Report {
	t.Helper()
	require.Len(t, b.reports, 1, "one report for each run")
	return b.reports[0]
}

func (b *onceBench) status(t *testing.T) lockstore.Status {
	t.Helper()
	status, err := b.store.Inspect(context.Background(), "k")
	require.NoError(t, err)
	return status
}

// all gives each call of these kinds the same fault.
func all(f storetest.Fault, kinds ...driver.Kind) func(storetest.Call) storetest.Fault {
	return func(c storetest.Call) storetest.Fault {
		if slices.Contains(kinds, c.Kind) {
			return f
		}
		return storetest.Fault{}
	}
}

var hour = Completion{ResultTime: time.Hour, Result: lockstore.Secret("result"), Substitute: lockstore.Secret("substitute")}

func completes(context.Context, Lock) (Completion, error) { return hour, nil }

func neverCompletes(t *testing.T) func(context.Context, Lock) (Completion, error) {
	return func(context.Context, Lock) (Completion, error) {
		t.Error("the work ran")
		return Completion{}, nil
	}
}

func TestDoOnce(t *testing.T) {
	ctx := context.Background()
	own := errors.New("own")
	for name, started := range map[string]bool{"": false, ", started": true} {
		on("the end of the lease stores the result, and the next run gets it"+name, t, newOnceBench, Options{}, func(t *testing.T, b *onceBench) {
			require.NoError(t, b.DoOnce(ctx, "k", OnceOptions{MarkStarted: started}, completes))
			require.Zero(t, b.count(driver.Release))
			first := b.report(t)
			require.Equal(t, OutcomeOK, first.Outcome)
			require.NoError(t, first.CompleteErr)
			require.Equal(t, map[bool]int{false: 2, true: 3}[started], first.Calls)

			refusal := errors.New("refused for good")
			err := b.DoOnce(ctx, "k", OnceOptions{MarkStarted: started, Refused: func(busy *LockBusy) (Outcome, error) {
				require.Equal(t, lockstore.Completed, busy.State)
				var refused *lockstore.Refused
				require.ErrorAs(t, busy, &refused)
				require.Equal(t, "result", string(refused.Result))
				return OutcomeMismatch, refusal
			}}, neverCompletes(t))
			require.Equal(t, refusal, err)
			require.Equal(t, OutcomeMismatch, b.reports[1].Outcome)
			require.Equal(t, 1, b.reports[1].Calls)
			require.IsType(t, &LockBusy{}, b.DoOnce(ctx, "k", OnceOptions{}, neverCompletes(t)), "without Refused")
			require.IsType(t, &LockBusy{}, b.Do(ctx, "k", neverRuns(t)))
		})
		on("work without a result ends with a release"+name, t, newOnceBench, Options{}, func(t *testing.T, b *onceBench) {
			require.NoError(t, b.DoOnce(ctx, "k", OnceOptions{MarkStarted: started}, func(context.Context, Lock) (Completion, error) { return Completion{NoEffect: true}, nil }))
			require.False(t, b.status(t).State.Taken())
			require.NoError(t, b.report(t).CompleteErr)
		})
		for what, end := range map[string]func(){"F04 a panic": func() { panic("boom") }, "F05 Goexit": runtime.Goexit, "F05 an error": func() {}} {
			on(what+name, t, newOnceBench, Options{}, func(t *testing.T, b *onceBench) {
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					defer func() { _ = recover() }()
					_ = b.DoOnce(ctx, "k", OnceOptions{MarkStarted: started}, func(context.Context, Lock) (Completion, error) {
						end()
						return hour, own
					})
				}()
				<-ended
				require.Zero(t, b.count(driver.Complete))
				require.Equal(t, started, b.status(t).State == lockstore.Held)
				require.Equal(t, started, b.count(driver.Release) == 0)
				if started {
					require.ErrorIs(t, b.report(t).CompleteErr, errInDoubt)
					pass(2 * defaultTTL)
					require.Equal(t, lockstore.InDoubt, b.status(t).State)
					return
				}
				require.NoError(t, b.report(t).CompleteErr)
			})
		}
		on("after a Complete that failed the lease is not released, and the result stands"+name, t, newOnceBench, Options{}, func(t *testing.T, b *onceBench) {
			b.fault = all(storetest.Fault{Drop: errLostReply}, driver.Complete)
			limited, cancel := context.WithTimeout(ctx, 30*time.Second)
			defer cancel()
			began := time.Now()
			require.NoError(t, b.DoOnce(limited, "k", OnceOptions{MarkStarted: started}, completes))
			require.Equal(t, 30*time.Second-answerTime, time.Since(began), "until the answer")
			require.Zero(t, b.count(driver.Release))
			require.ErrorIs(t, b.report(t).CompleteErr, errLostReply)
			require.Equal(t, OutcomeOK, b.report(t).Outcome)
			require.Equal(t, lockstore.Held, b.status(t).State, "until the end of its lease")
			pass(defaultTTL)
			require.Equal(t, started, b.status(t).State == lockstore.InDoubt)
		})
		on("F07 a lease that has ended and was nobody else's is completed, and is not lost"+name, t, newOnceBench, Options{TTL: 10 * time.Second}, func(t *testing.T, b *onceBench) {
			b.fault = all(storetest.Fault{Drop: lockstore.ErrUnavailable}, driver.Renew)
			require.NoError(t, b.DoOnce(ctx, "k", OnceOptions{MarkStarted: started}, func(ctx context.Context, _ Lock) (Completion, error) {
				<-ctx.Done()
				require.ErrorIs(t, context.Cause(ctx), lockstore.ErrLost)
				pass(time.Minute)
				return hour, nil
			}))
			require.Equal(t, OutcomeOK, b.report(t).Outcome)
			require.NoError(t, b.report(t).CompleteErr)
			require.Equal(t, lockstore.Completed, b.status(t).State)
		})
		on("F69 Shutdown cuts a Complete"+name, t, newOnceBench, Options{}, func(t *testing.T, b *onceBench) {
			b.fault = all(storetest.Fault{After: time.Hour}, driver.Complete)
			time.AfterFunc(time.Second, b.Shutdown)
			began := time.Now()
			require.NoError(t, b.DoOnce(ctx, "k", OnceOptions{MarkStarted: started}, completes))
			require.Equal(t, time.Second+shutdownTime, time.Since(began))
			require.ErrorIs(t, b.report(t).CompleteErr, context.Canceled)
			require.Zero(t, b.count(driver.Release))
		})
	}
	bubble("a time out of its bounds is an error, and the lease is not released", t, func(t *testing.T) {
		for _, d := range []time.Duration{-1, lockstore.MinTTL - 1, lockstore.MaxResultTime + 1} {
			b := newOnceBench(t, Options{})
			require.NoError(t, b.DoOnce(ctx, "k", OnceOptions{}, func(context.Context, Lock) (Completion, error) {
				return Completion{ResultTime: d}, nil
			}))
			require.ErrorIs(t, b.report(t).CompleteErr, lockstore.ErrInvalid)
			require.Zero(t, b.count(driver.Release))
		}
	})
}

func TestMarkStarted(t *testing.T) {
	ctx := context.Background()
	started := OnceOptions{MarkStarted: true}
	for name, fault := range map[string]storetest.Fault{"F23 arrives, and no reply does": {Cut: errLostReply}, "F22 does not arrive": {Drop: lockstore.ErrUnavailable}} {
		on("a mark that "+name+": the work does not run, and the key is free", t, newOnceBench, Options{}, func(t *testing.T, b *onceBench) {
			b.fault = all(fault, driver.MarkStarted)
			began := time.Now()
			require.IsType(t, &LockStoreUnavailable{}, b.DoOnce(ctx, "k", started, neverCompletes(t)))
			require.Equal(t, storeRetryBudget, time.Since(began))
			require.False(t, b.status(t).State.Taken())
			require.NoError(t, b.report(t).ReleaseErr)
			require.NoError(t, b.report(t).CompleteErr)
		})
	}
	own := errors.New("own")
	noEffect := func(context.Context, Lock) (Completion, error) { return Completion{NoEffect: true}, own }
	on("F22 started work had no effect, and its release does not arrive for half a minute: the key is free after that", t, newOnceBench, Options{}, func(t *testing.T, b *onceBench) {
		back := time.Now().Add(completeTime / 2)
		b.fault = func(c storetest.Call) storetest.Fault {
			if c.Kind == driver.Release && time.Now().Before(back) {
				return storetest.Fault{Drop: lockstore.ErrUnavailable}
			}
			return storetest.Fault{}
		}
		require.Equal(t, own, b.DoOnce(ctx, "k", started, noEffect))
		require.NoError(t, b.report(t).ReleaseErr)
		require.False(t, b.status(t).State.Taken())
	})
	on("F43 a lease that is lost before the mark", t, newOnceBench, Options{}, func(t *testing.T, b *onceBench) {
		b.fault = all(storetest.Fault{Drop: lockstore.ErrLost}, driver.MarkStarted)
		err := b.DoOnce(ctx, "k", started, neverCompletes(t))
		require.IsType(t, &LockStoreUnavailable{}, err)
		require.ErrorContains(t, err, "lost before the work began")
		require.Equal(t, OutcomeUnavailable, b.report(t).Outcome)
	})
}

func TestDoOnceReports(t *testing.T) {
	var out strings.Builder
	observe := LogReports(slog.New(slog.NewTextHandler(&out, nil)))
	observe(t.Context(), Report{Outcome: OutcomeOK, CompleteErr: errInDoubt})
	require.Contains(t, out.String(), `completeError="the work started`)
	require.Contains(t, out.String(), "WARN")
	for outcome, level := range map[Outcome]string{OutcomeReplayed: "INFO", OutcomeMismatch: "INFO", OutcomeInDoubt: "WARN", OutcomeNoResult: "WARN"} {
		out.Reset()
		observe(t.Context(), Report{Outcome: outcome})
		require.Contains(t, out.String(), level)
	}
}

func TestDoOnceMistakes(t *testing.T) {
	ctx := t.Context()
	require.ErrorIs(t, newBench(t, Options{}).DoOnce(ctx, "k", OnceOptions{}, nil), errNoWork)
	var none *Guard
	require.ErrorIs(t, none.DoOnce(ctx, "k", OnceOptions{}, neverCompletes(t)), errNoGuard)
}
