package guard

import (
	"context"
	"errors"
	"fmt"
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

// once gives the first call of this kind a fault.
func once(f storetest.Fault, kind driver.Kind) func(storetest.Call) storetest.Fault {
	done := false
	return func(c storetest.Call) storetest.Fault {
		if done || c.Kind != kind {
			return storetest.Fault{}
		}
		done = true
		return f
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
		on("an error of work that had no effect frees the key"+name, t, newOnceBench, Options{}, func(t *testing.T, b *onceBench) {
			require.Equal(t, own, b.DoOnce(ctx, "k", OnceOptions{MarkStarted: started}, func(context.Context, Lock) (Completion, error) { return Completion{NoEffect: true}, own }))
			require.False(t, b.status(t).State.Taken())
		})
		on("F24 a Complete whose reply is lost is sent again"+name, t, newOnceBench, Options{}, func(t *testing.T, b *onceBench) {
			b.fault = once(storetest.Fault{Cut: errLostReply}, driver.Complete)
			require.NoError(t, b.DoOnce(ctx, "k", OnceOptions{MarkStarted: started}, completes))
			require.NoError(t, b.report(t).CompleteErr)
			require.Equal(t, 2, b.count(driver.Complete))
			require.Equal(t, lockstore.Completed, b.status(t).State)
		})
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
		on("a result that the store refuses as too large leaves the substitute"+name, t, newOnceBench, Options{}, func(t *testing.T, b *onceBench) {
			b.fault = once(storetest.Fault{Drop: lockstore.Invalidf("store: too large")}, driver.Complete)
			require.NoError(t, b.DoOnce(ctx, "k", OnceOptions{MarkStarted: started}, completes))
			require.ErrorContains(t, b.report(t).CompleteErr, "only a substitute is stored: store: too large")
			require.Equal(t, map[bool]int{false: 3, true: 4}[started], b.report(t).Calls)
			_, err := b.store.Acquire(ctx, lockstore.Request{Key: "k", Owner: lockstore.NewOwner(), TTL: time.Second})
			var refused *lockstore.Refused
			require.ErrorAs(t, err, &refused)
			require.Equal(t, "substitute", string(refused.Result))
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
		on("a lock that is lost under the work, which says that it had no effect"+name, t, newOnceBench, Options{TTL: 10 * time.Second}, func(t *testing.T, b *onceBench) {
			b.fault = all(storetest.Fault{Drop: lockstore.ErrUnavailable}, driver.Renew)
			err := b.DoOnce(ctx, "k", OnceOptions{MarkStarted: started}, func(ctx context.Context, _ Lock) (Completion, error) {
				<-ctx.Done()
				pass(time.Minute)
				return Completion{NoEffect: true}, own
			})
			require.IsType(t, &LockLost{}, err)
			require.ErrorIs(t, err, own)
			require.False(t, b.status(t).State.Taken())
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
	on("F16 a lease that was granted to another: nothing is stored, and the lock is lost", t, newOnceBench, Options{TTL: 10 * time.Second}, func(t *testing.T, b *onceBench) {
		b.fault = all(storetest.Fault{Drop: lockstore.ErrUnavailable}, driver.Renew)
		err := b.DoOnce(ctx, "k", OnceOptions{}, func(ctx context.Context, _ Lock) (Completion, error) {
			<-ctx.Done()
			pass(time.Minute)
			_, err := b.store.Acquire(ctx, lockstore.Request{Key: "k", Owner: "another", TTL: time.Minute})
			require.ErrorIs(t, err, context.Canceled)
			_, err = b.store.Acquire(context.Background(), lockstore.Request{Key: "k", Owner: "another", TTL: time.Minute})
			require.NoError(t, err)
			return hour, nil
		})
		require.IsType(t, &LockLost{}, err)
		require.ErrorIs(t, b.report(t).CompleteErr, lockstore.ErrLost)
		require.Equal(t, OutcomeLost, b.report(t).Outcome)
		require.Equal(t, lockstore.Held, b.status(t).State, "the other is untouched")
	})
	bubble("a lease that somebody released under the work is lost", t, func(t *testing.T) {
		var phases []Phase
		b := newOnceBench(t, Options{Trace: func(_ context.Context, e TraceEvent) context.Context {
			phases = append(phases, e.Phase)
			return nil
		}})
		err := b.DoOnce(ctx, "k", OnceOptions{}, func(_ context.Context, lock Lock) (Completion, error) {
			require.NoError(t, b.store.Release(ctx, lockstore.Lease{Key: "k", Owner: b.calls[0].Owner, Fence: lock.Fence}))
			return hour, nil
		})
		require.IsType(t, &LockLost{}, err)
		require.Equal(t, []Phase{PhaseAsking, PhaseGranted, PhaseLost}, phases)
		require.False(t, b.status(t).State.Taken())
	})
	on("who waits gets the result when it is stored", t, newOnceBench, Options{Wait: time.Minute}, func(t *testing.T, b *onceBench) {
		entered := make(chan struct{})
		go func() {
			_ = b.DoOnce(ctx, "k", OnceOptions{}, func(context.Context, Lock) (Completion, error) {
				close(entered)
				pass(5 * time.Second)
				return hour, nil
			})
		}()
		<-entered
		began := time.Now()
		require.NoError(t, b.DoOnce(ctx, "k", OnceOptions{Refused: func(*LockBusy) (Outcome, error) { return OutcomeReplayed, nil }}, neverCompletes(t)))
		require.Equal(t, 5*time.Second, time.Since(began))
	})
}

func TestMarkStarted(t *testing.T) {
	ctx := context.Background()
	started := OnceOptions{MarkStarted: true}
	on("F38 a mark is tried for half of the time that is left after a wait", t, newOnceBench, Options{Wait: time.Minute}, func(t *testing.T, b *onceBench) {
		lease, err := b.store.Acquire(ctx, lockstore.Request{Key: "k", Owner: lockstore.NewOwner(), TTL: time.Minute})
		require.NoError(t, err)
		time.AfterFunc(4*time.Second, func() { _ = b.store.Release(ctx, lease) })
		b.fault = all(storetest.Fault{Drop: lockstore.ErrUnavailable}, driver.MarkStarted)
		began := time.Now()
		require.IsType(t, &LockStoreUnavailable{}, b.DoOnce(within(t, 10*time.Second), "k", started, neverCompletes(t)))
		require.Equal(t, 7*time.Second, time.Since(began), "4 s, and half of the 6 s that are left")
	})
	on("F23 a mark whose reply is lost is sent again", t, newOnceBench, Options{}, func(t *testing.T, b *onceBench) {
		b.fault = once(storetest.Fault{Cut: errLostReply}, driver.MarkStarted)
		require.NoError(t, b.DoOnce(ctx, "k", started, completes))
		require.Equal(t, 2, b.count(driver.MarkStarted))
	})
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
	for name, c := range map[string]struct {
		opt  OnceOptions
		work func(context.Context, Lock) (Completion, error)
		err  error
	}{
		"work":                            {OnceOptions{}, completes, nil},
		"started work":                    {started, completes, nil},
		"started work that has no effect": {started, noEffect, own},
	} {
		for most, opt := range map[time.Duration]Options{time.Minute: {}, 10 * time.Second: {MaxHold: 10 * time.Second}} {
			on(fmt.Sprintf("F22 the store goes down under %s: the run ends after %v, with its result", name, most), t, newOnceBench, opt, func(t *testing.T, b *onceBench) {
				b.fault = all(storetest.Fault{Drop: lockstore.ErrUnavailable}, driver.Complete, driver.Release)
				leaves, cancel := context.WithCancel(ctx)
				time.AfterFunc(time.Second, cancel) // that nobody waits for the answer changes nothing: the result is for a repeat
				began := time.Now()
				require.Equal(t, c.err, b.DoOnce(leaves, "k", c.opt, c.work))
				require.WithinRange(t, time.Now(), began.Add(most-maxPause), began.Add(most))
				require.ErrorIs(t, errors.Join(b.report(t).CompleteErr, b.report(t).ReleaseErr), lockstore.ErrUnavailable)
			})
		}
	}
	on("F22 a release of work that did not start takes a second at most", t, newOnceBench, Options{}, func(t *testing.T, b *onceBench) {
		b.fault = all(storetest.Fault{Drop: lockstore.ErrUnavailable}, driver.MarkStarted, driver.Release)
		began := time.Now()
		require.IsType(t, &LockStoreUnavailable{}, b.DoOnce(ctx, "k", started, neverCompletes(t)))
		require.Equal(t, storeRetryBudget+releaseTime, time.Since(began))
		require.Error(t, b.report(t).ReleaseErr)
	})
	on("F43 a lease that is lost before the mark", t, newOnceBench, Options{}, func(t *testing.T, b *onceBench) {
		b.fault = all(storetest.Fault{Drop: lockstore.ErrLost}, driver.MarkStarted)
		err := b.DoOnce(ctx, "k", started, neverCompletes(t))
		require.IsType(t, &LockStoreUnavailable{}, err)
		require.ErrorContains(t, err, "lost before the work began")
		require.Equal(t, OutcomeUnavailable, b.report(t).Outcome)
	})
	on("F48 a mark that takes all the time for the work", t, newOnceBench, Options{}, func(t *testing.T, b *onceBench) {
		b.fault = all(storetest.Fault{After: 450 * time.Millisecond}, driver.MarkStarted)
		limited, cancel := context.WithTimeout(ctx, 800*time.Millisecond)
		defer cancel()
		require.Error(t, b.DoOnce(limited, "k", started, neverCompletes(t)))
		require.Contains(t, []Outcome{OutcomeDeadline, OutcomeUnknown}, b.report(t).Outcome)
		require.False(t, b.status(t).State.Taken())
	})
	on("F69 Shutdown while the store is told that the work begins", t, newOnceBench, Options{}, func(t *testing.T, b *onceBench) {
		b.fault = all(storetest.Fault{After: time.Second}, driver.MarkStarted)
		time.AfterFunc(500*time.Millisecond, b.Shutdown)
		err := b.DoOnce(ctx, "k", started, neverCompletes(t))
		require.Error(t, err)
		require.False(t, b.status(t).State.Taken(), "%v", err)
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
