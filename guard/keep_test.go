package guard

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

// keepBench is a guard whose store has faults.
type keepBench struct {
	*Guard
	store   *memstore.Store
	fault   func(storetest.Call) storetest.Fault
	calls   []storetest.Call
	mu      sync.Mutex
	reports []Report
}

func newKeepBench(t *testing.T, opt Options) *keepBench {
	b := &keepBench{store: memstore.New(nil)}
	opt.Observe = func(_ context.Context, r Report) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.reports = append(b.reports, r)
	}
	g, err := New(storetest.NewFaulty(b.store, func(c storetest.Call) storetest.Fault {
		b.calls = append(b.calls, c)
		if b.fault == nil {
			return storetest.Fault{}
		}
		return b.fault(c)
	}), opt)
	require.NoError(t, err)
	b.Guard = g
	return b
}

func (b *keepBench) count(op storetest.Op) (n int) {
	for _, c := range b.calls {
		if c.Op == op {
			n++
		}
	}
	return n
}

func (b *keepBench) report(t *testing.T) Report {
	t.Helper()
	require.Len(t, b.reports, 1, "one report for each run")
	return b.reports[0]
}

func (b *keepBench) status(t *testing.T) lockstore.Status {
	t.Helper()
	status, err := b.store.Inspect(context.Background(), "k")
	require.NoError(t, err)
	return status
}

// all gives each call of these kinds the same fault.
func all(f storetest.Fault, ops ...storetest.Op) func(storetest.Call) storetest.Fault {
	return func(c storetest.Call) storetest.Fault {
		for _, op := range ops {
			if c.Op == op {
				return f
			}
		}
		return storetest.Fault{}
	}
}

// once gives the first call of this kind a fault.
func once(f storetest.Fault, op storetest.Op) func(storetest.Call) storetest.Fault {
	return func(c storetest.Call) storetest.Fault {
		if c.Op != op {
			return storetest.Fault{}
		}
		op = ""
		return f
	}
}

var hour = Completion{ResultTime: time.Hour, Result: lockstore.Secret("answer"), Substitute: lockstore.Secret("mark")}

func keeps(context.Context, Lock) (Completion, error) { return hour, nil }

func neverKeeps(t *testing.T) func(context.Context, Lock) (Completion, error) {
	return func(context.Context, Lock) (Completion, error) {
		t.Error("the work ran")
		return Completion{}, nil
	}
}

func TestDoOnce(t *testing.T) {
	ctx := context.Background()
	own := errors.New("own")
	for name, begin := range map[string]bool{"": false, ", begun": true} {
		bubble("the end of the lease keeps the answer, and the next run gets it"+name, t, func(t *testing.T) {
			b := newKeepBench(t, Options{})
			require.NoError(t, b.DoOnce(ctx, "k", OnceOptions{MarkStarted: begin}, keeps))
			require.Zero(t, b.count(storetest.OpRelease))
			first := b.report(t)
			require.Equal(t, OutcomeOK, first.Outcome)
			require.NoError(t, first.CompleteErr)
			require.Equal(t, map[bool]int{false: 2, true: 3}[begin], first.Calls)

			refusal := errors.New("refused for good")
			err := b.DoOnce(ctx, "k", OnceOptions{MarkStarted: begin, Refused: func(busy *LockBusy) (Outcome, error) {
				kept, ok := busy.Err.(*lockstore.KeptError)
				require.True(t, ok)
				require.Equal(t, "answer", string(kept.Result))
				return OutcomeMismatch, refusal
			}}, neverKeeps(t))
			require.Equal(t, refusal, err)
			require.Equal(t, OutcomeMismatch, b.reports[1].Outcome)
			require.Equal(t, 1, b.reports[1].Calls)
			require.IsType(t, &LockBusy{}, b.DoOnce(ctx, "k", OnceOptions{}, neverKeeps(t)), "without Refused")
			require.IsType(t, &LockBusy{}, b.Do(ctx, "k", neverRuns(t)))
		})
		bubble("the answer of nothing is the end of the lease"+name, t, func(t *testing.T) {
			b := newKeepBench(t, Options{})
			require.NoError(t, b.DoOnce(ctx, "k", OnceOptions{MarkStarted: begin}, func(context.Context, Lock) (Completion, error) { return Completion{NoEffect: true}, nil }))
			require.False(t, b.status(t).Held)
			require.NoError(t, b.report(t).CompleteErr)
		})
		for what, end := range map[string]func(){"F04 a panic": func() { panic("boom") }, "F05 Goexit": runtime.Goexit, "F05 an error": func() {}} {
			bubble(what+name, t, func(t *testing.T) {
				b := newKeepBench(t, Options{})
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					defer func() { _ = recover() }()
					_ = b.DoOnce(ctx, "k", OnceOptions{MarkStarted: begin}, func(context.Context, Lock) (Completion, error) {
						end()
						return hour, own
					})
				}()
				<-ended
				require.Zero(t, b.count(storetest.OpKeep))
				require.Equal(t, begin, b.status(t).Held)
				require.Equal(t, begin, b.count(storetest.OpRelease) == 0)
				if begin {
					require.ErrorIs(t, b.report(t).CompleteErr, errInDoubt)
					pass(2 * defaultTTL)
					require.True(t, b.status(t).InDoubt)
					return
				}
				require.NoError(t, b.report(t).CompleteErr)
			})
		}
		bubble("an error of work that had no effect frees the key"+name, t, func(t *testing.T) {
			b := newKeepBench(t, Options{})
			require.Equal(t, own, b.DoOnce(ctx, "k", OnceOptions{MarkStarted: begin}, func(context.Context, Lock) (Completion, error) { return Completion{NoEffect: true}, own }))
			require.False(t, b.status(t).Held)
		})
		bubble("F24 a keep whose reply is lost is sent again"+name, t, func(t *testing.T) {
			b := newKeepBench(t, Options{})
			b.fault = once(storetest.Fault{Cut: errLostReply}, storetest.OpKeep)
			require.NoError(t, b.DoOnce(ctx, "k", OnceOptions{MarkStarted: begin}, keeps))
			require.NoError(t, b.report(t).CompleteErr)
			require.Equal(t, 2, b.count(storetest.OpKeep))
			require.True(t, b.status(t).Kept)
		})
		bubble("after a keep that failed the lease is not released, and the result stands"+name, t, func(t *testing.T) {
			b := newKeepBench(t, Options{})
			b.fault = all(storetest.Fault{Drop: errLostReply}, storetest.OpKeep)
			limited, cancel := context.WithTimeout(ctx, 30*time.Second)
			defer cancel()
			began := time.Now()
			require.NoError(t, b.DoOnce(limited, "k", OnceOptions{MarkStarted: begin}, keeps))
			require.Equal(t, 30*time.Second-answerTime, time.Since(began), "until the answer")
			require.Zero(t, b.count(storetest.OpRelease))
			require.ErrorIs(t, b.report(t).CompleteErr, errLostReply)
			require.Equal(t, OutcomeOK, b.report(t).Outcome)
			require.True(t, b.status(t).Held, "until the end of its lease")
			pass(defaultTTL)
			require.Equal(t, begin, b.status(t).InDoubt)
		})
		bubble("a keep that the store refuses as too large leaves a mark"+name, t, func(t *testing.T) {
			b := newKeepBench(t, Options{})
			b.fault = once(storetest.Fault{Drop: lockstore.Invalidf("store: too large")}, storetest.OpKeep)
			require.NoError(t, b.DoOnce(ctx, "k", OnceOptions{MarkStarted: begin}, keeps))
			require.ErrorContains(t, b.report(t).CompleteErr, "only a mark is kept: store: too large")
			require.Equal(t, map[bool]int{false: 3, true: 4}[begin], b.report(t).Calls)
			_, err := b.store.Acquire(ctx, lockstore.Request{Key: "k", Owner: lockstore.NewOwner(), TTL: time.Second})
			var kept *lockstore.KeptError
			require.ErrorAs(t, err, &kept)
			require.Equal(t, "mark", string(kept.Result))
		})
		bubble("F07 a lease that has ended and was nobody else's is kept, and is not lost"+name, t, func(t *testing.T) {
			b := newKeepBench(t, Options{TTL: 10 * time.Second})
			b.fault = all(storetest.Fault{Drop: lockstore.ErrUnavailable}, storetest.OpRenew)
			require.NoError(t, b.DoOnce(ctx, "k", OnceOptions{MarkStarted: begin}, func(ctx context.Context, _ Lock) (Completion, error) {
				<-ctx.Done()
				require.ErrorIs(t, context.Cause(ctx), lockstore.ErrLost)
				pass(time.Minute)
				return hour, nil
			}))
			require.Equal(t, OutcomeOK, b.report(t).Outcome)
			require.NoError(t, b.report(t).CompleteErr)
			require.True(t, b.status(t).Kept)
		})
		bubble("a lock that is lost under the work, which says that it had no effect"+name, t, func(t *testing.T) {
			b := newKeepBench(t, Options{TTL: 10 * time.Second})
			b.fault = all(storetest.Fault{Drop: lockstore.ErrUnavailable}, storetest.OpRenew)
			err := b.DoOnce(ctx, "k", OnceOptions{MarkStarted: begin}, func(ctx context.Context, _ Lock) (Completion, error) {
				<-ctx.Done()
				pass(time.Minute)
				return Completion{NoEffect: true}, own
			})
			require.IsType(t, &LockLost{}, err)
			require.ErrorIs(t, err, own)
			require.False(t, b.status(t).Held)
		})
		bubble("F69 Shutdown cuts a keep"+name, t, func(t *testing.T) {
			b := newKeepBench(t, Options{})
			b.fault = all(storetest.Fault{After: time.Hour}, storetest.OpKeep)
			time.AfterFunc(time.Second, b.Shutdown)
			began := time.Now()
			require.NoError(t, b.DoOnce(ctx, "k", OnceOptions{MarkStarted: begin}, keeps))
			require.Equal(t, time.Second+shutdownTime, time.Since(began))
			require.ErrorIs(t, b.report(t).CompleteErr, context.Canceled)
			require.Zero(t, b.count(storetest.OpRelease))
		})
	}
	bubble("a time out of its bounds is an error, and the lease is not released", t, func(t *testing.T) {
		for _, keep := range []time.Duration{-1, lockstore.MinTTL - 1, lockstore.MaxResultTime + 1} {
			b := newKeepBench(t, Options{})
			require.NoError(t, b.DoOnce(ctx, "k", OnceOptions{}, func(context.Context, Lock) (Completion, error) {
				return Completion{ResultTime: keep}, nil
			}))
			require.ErrorIs(t, b.report(t).CompleteErr, lockstore.ErrInvalid)
			require.Zero(t, b.count(storetest.OpRelease))
		}
	})
	bubble("F16 a lease that was granted to another: nothing is kept, and the lock is lost", t, func(t *testing.T) {
		b := newKeepBench(t, Options{TTL: 10 * time.Second})
		b.fault = all(storetest.Fault{Drop: lockstore.ErrUnavailable}, storetest.OpRenew)
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
		require.True(t, b.status(t).Held, "the other is untouched")
		require.False(t, b.status(t).Kept)
	})
	bubble("a lease that somebody broke under the work is lost", t, func(t *testing.T) {
		var steps []Phase
		b := newKeepBench(t, Options{Trace: func(_ context.Context, e TraceEvent) context.Context {
			steps = append(steps, e.Step)
			return nil
		}})
		err := b.DoOnce(ctx, "k", OnceOptions{}, func(_ context.Context, lock Lock) (Completion, error) {
			require.NoError(t, b.store.Release(ctx, lockstore.Lease{Key: "k", Owner: b.calls[0].Owner, Fence: lock.Fence}))
			return hour, nil
		})
		require.IsType(t, &LockLost{}, err)
		require.Equal(t, []Phase{PhaseAsking, PhaseGranted, PhaseLost}, steps)
		require.False(t, b.status(t).Held)
	})
	bubble("who waits gets the answer when it is kept", t, func(t *testing.T) {
		b := newKeepBench(t, Options{Wait: time.Minute})
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
		require.NoError(t, b.DoOnce(ctx, "k", OnceOptions{Refused: func(*LockBusy) (Outcome, error) { return OutcomeReplayed, nil }}, neverKeeps(t)))
		require.Equal(t, 5*time.Second, time.Since(began))
	})
}

func TestMarkStarted(t *testing.T) {
	ctx := context.Background()
	begun := OnceOptions{MarkStarted: true}
	bubble("F38 a begin is tried for half of the time that is left after a wait", t, func(t *testing.T) {
		b := newKeepBench(t, Options{Wait: time.Minute})
		lease, err := b.store.Acquire(ctx, lockstore.Request{Key: "k", Owner: lockstore.NewOwner(), TTL: time.Minute})
		require.NoError(t, err)
		time.AfterFunc(4*time.Second, func() { _ = b.store.Release(ctx, lease) })
		b.fault = all(storetest.Fault{Drop: lockstore.ErrUnavailable}, storetest.OpBegin)
		began := time.Now()
		require.IsType(t, &LockStoreUnavailable{}, b.DoOnce(within(t, 10*time.Second), "k", begun, neverKeeps(t)))
		require.Equal(t, 7*time.Second, time.Since(began), "4 s, and half of the 6 s that are left")
	})
	bubble("F23 a begin whose reply is lost is sent again", t, func(t *testing.T) {
		b := newKeepBench(t, Options{})
		b.fault = once(storetest.Fault{Cut: errLostReply}, storetest.OpBegin)
		require.NoError(t, b.DoOnce(ctx, "k", begun, keeps))
		require.Equal(t, 2, b.count(storetest.OpBegin))
	})
	for name, fault := range map[string]storetest.Fault{"F23 arrives, and no reply does": {Cut: errLostReply}, "F22 does not arrive": {Drop: lockstore.ErrUnavailable}} {
		bubble("a begin that "+name+": the work does not run, and the key is free", t, func(t *testing.T) {
			b := newKeepBench(t, Options{})
			b.fault = all(fault, storetest.OpBegin)
			began := time.Now()
			require.IsType(t, &LockStoreUnavailable{}, b.DoOnce(ctx, "k", begun, neverKeeps(t)))
			require.Equal(t, storeRetryBudget, time.Since(began))
			require.False(t, b.status(t).Held)
			require.NoError(t, b.report(t).ReleaseErr)
			require.NoError(t, b.report(t).CompleteErr)
		})
	}
	bubble("F23 a begin and its release get no reply: the key is in doubt, and nothing ran", t, func(t *testing.T) {
		b := newKeepBench(t, Options{TTL: 10 * time.Second})
		b.fault = func(c storetest.Call) storetest.Fault {
			switch c.Op {
			case storetest.OpBegin:
				return storetest.Fault{Cut: errLostReply}
			case storetest.OpRelease:
				return storetest.Fault{Drop: errLostReply}
			}
			return storetest.Fault{}
		}
		require.IsType(t, &LockStoreUnavailable{}, b.DoOnce(ctx, "k", begun, neverKeeps(t)))
		require.Error(t, b.report(t).ReleaseErr)
		pass(10 * time.Second)
		require.True(t, b.status(t).InDoubt)
	})
	bubble("F22 begun work had no effect, and its release does not arrive for a minute: the key is free after that", t, func(t *testing.T) {
		b := newKeepBench(t, Options{})
		back := time.Now().Add(time.Minute)
		b.fault = func(c storetest.Call) storetest.Fault {
			if c.Op == storetest.OpRelease && time.Now().Before(back) {
				return storetest.Fault{Drop: lockstore.ErrUnavailable}
			}
			return storetest.Fault{}
		}
		own := errors.New("own")
		require.Equal(t, own, b.DoOnce(ctx, "k", begun, func(context.Context, Lock) (Completion, error) { return Completion{NoEffect: true}, own }))
		require.NoError(t, b.report(t).ReleaseErr)
		require.False(t, b.status(t).Held)
	})
	bubble("F22 a release of work that did not begin takes a second at most", t, func(t *testing.T) {
		b := newKeepBench(t, Options{})
		b.fault = all(storetest.Fault{Drop: lockstore.ErrUnavailable}, storetest.OpBegin, storetest.OpRelease)
		began := time.Now()
		require.IsType(t, &LockStoreUnavailable{}, b.DoOnce(ctx, "k", begun, neverKeeps(t)))
		require.Equal(t, storeRetryBudget+releaseTime, time.Since(began))
		require.Error(t, b.report(t).ReleaseErr)
	})
	bubble("F29 a begin that is slow, and the lease is renewed meanwhile", t, func(t *testing.T) {
		b := newKeepBench(t, Options{TTL: 3 * time.Second})
		b.fault = all(storetest.Fault{After: 1500 * time.Millisecond}, storetest.OpBegin)
		require.NoError(t, b.DoOnce(ctx, "k", begun, keeps))
		require.Equal(t, 1, b.count(storetest.OpRenew))
		require.Equal(t, len(b.calls), b.report(t).Calls) // -race sees whether both count
	})
	bubble("F43 a lease that is lost before the begin", t, func(t *testing.T) {
		b := newKeepBench(t, Options{})
		b.fault = all(storetest.Fault{Drop: lockstore.ErrLost}, storetest.OpBegin)
		err := b.DoOnce(ctx, "k", begun, neverKeeps(t))
		require.IsType(t, &LockStoreUnavailable{}, err)
		require.ErrorContains(t, err, "lost before the work began")
		require.Equal(t, OutcomeUnavailable, b.report(t).Outcome)
	})
	bubble("F48 a begin that takes all the time for the work", t, func(t *testing.T) {
		b := newKeepBench(t, Options{})
		b.fault = all(storetest.Fault{After: 450 * time.Millisecond}, storetest.OpBegin)
		limited, cancel := context.WithTimeout(ctx, 800*time.Millisecond)
		defer cancel()
		err := b.DoOnce(limited, "k", begun, neverKeeps(t))
		require.Error(t, err)
		require.Contains(t, []Outcome{OutcomeDeadline, OutcomeUnknown}, b.report(t).Outcome)
		require.False(t, b.status(t).Held)
	})
	bubble("F69 Shutdown while the store is told that the work begins", t, func(t *testing.T) {
		b := newKeepBench(t, Options{})
		b.fault = all(storetest.Fault{After: time.Second}, storetest.OpBegin)
		time.AfterFunc(500*time.Millisecond, b.Shutdown)
		err := b.DoOnce(ctx, "k", begun, neverKeeps(t))
		require.Error(t, err)
		require.False(t, b.status(t).Held, "%v", err)
	})
	bubble("a store whose begin is corrupt", t, func(t *testing.T) {
		b := newKeepBench(t, Options{})
		b.fault = all(storetest.Fault{Drop: lockstore.ErrCorrupt}, storetest.OpBegin)
		require.IsType(t, &LockCorrupt{}, b.DoOnce(ctx, "k", begun, neverKeeps(t)))
		require.False(t, b.status(t).Held)
	})
}

func TestDoOnceReports(t *testing.T) {
	var out strings.Builder
	observe := LogReports(slog.New(slog.NewTextHandler(&out, nil)))
	observe(t.Context(), Report{Outcome: OutcomeOK, CompleteErr: errInDoubt})
	require.Contains(t, out.String(), `keepError="the work began`)
	require.Contains(t, out.String(), "WARN")
	for outcome, level := range map[Outcome]string{OutcomeReplayed: "INFO", OutcomeMismatch: "INFO", OutcomeInDoubt: "WARN", OutcomeNoAnswer: "WARN"} {
		out.Reset()
		observe(t.Context(), Report{Outcome: outcome})
		require.Contains(t, out.String(), level)
	}
}

func TestDoOnceNeedsACompleter(t *testing.T) {
	ctx := t.Context()
	b := newBench(t, Options{})
	require.NoError(t, b.CanComplete())
	require.ErrorIs(t, b.DoOnce(ctx, "k", OnceOptions{}, nil), errNoWork)
	b.Guard.store = noQueue{b.store, b.store}
	require.ErrorContains(t, b.CanComplete(), "no lockstore.Completer")
	require.ErrorContains(t, b.DoOnce(ctx, "k", OnceOptions{}, neverKeeps(t)), "no lockstore.Completer")
	var none *Guard
	require.ErrorIs(t, none.CanComplete(), errNoGuard)
	require.ErrorIs(t, none.DoOnce(ctx, "k", OnceOptions{}, neverKeeps(t)), errNoGuard)
}
