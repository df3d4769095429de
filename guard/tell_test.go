package guard

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// mischiefs are what a hook may do in place of returning soon. free is closed at the end of the test.
var mischiefs = map[string]func(free <-chan struct{}){
	"hangs":                func(free <-chan struct{}) { <-free },
	"is slow":              func(<-chan struct{}) { pass(4 * time.Second) },
	"panics":               func(<-chan struct{}) { panic("the hook's") },
	"calls runtime.Goexit": func(<-chan struct{}) { runtime.Goexit() },
}

// stderrTo is a file in place of standard error. It returns what is in the file.
func stderrTo(t *testing.T) func() string {
	t.Helper()
	name, before := filepath.Join(t.TempDir(), "stderr"), os.Stderr
	f, err := os.Create(name)
	require.NoError(t, err)
	os.Stderr = f
	t.Cleanup(func() {
		os.Stderr = before
		require.NoError(t, f.Close())
	})
	return func() string {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		return string(text)
	}
}

// TestHooksThatDoNotReturn: no hook delays a renewal or a release, changes an outcome, or lets work begin late.
func TestHooksThatDoNotReturn(t *testing.T) {
	const observe = Phase("observe")
	for mischief, do := range mischiefs {
		for _, where := range []Phase{PhaseAsking, PhaseGranted, PhaseRenewed, PhaseRenewFailed, PhaseLost, observe} {
			t.Run("F81 "+string(where)+" "+mischief, func(t *testing.T) {
				said := stderrTo(t)
				synctest.Test(t, func(t *testing.T) {
					free := make(chan struct{})
					var called atomic.Int32
					hook := func(at Phase) {
						if at == where {
							called.Add(1)
							do(free)
						}
					}
					b := newBench(t, Options{TTL: 2 * time.Second, Trace: func(ctx context.Context, e TraceEvent) context.Context {
						hook(e.Phase)
						return ctx
					}})
					note := b.opt.Observe
					b.opt.Observe = func(ctx context.Context, r Report) {
						note(ctx, r)
						hook(observe)
					}
					b.store.renew = b.first(1, fails(errCut))
					if where == PhaseLost {
						b.store.renew = b.from(2, says(driver.Lost))
					}
					began := time.Now()
					err := b.Do(within(t, time.Minute), "k", func(ctx context.Context, lock Lock) error {
						require.NoError(t, ctx.Err())
						status, err := b.store.Store.Inspect(context.Background(), "k")
						require.NoError(t, err)
						require.Equal(t, lockstore.Held, status.State)
						require.Equal(t, lock.Fence, status.Fence, "another run has had the key since")
						select {
						case <-time.After(3 * time.Second):
							return nil
						case <-ctx.Done():
							return ctx.Err()
						}
					})
					if where == PhaseLost {
						require.IsType(t, &LockLost{}, err)
					} else {
						require.NoError(t, err)
						require.Greater(t, len(b.store.renewals), 3)
						b.free(t, "k")
					}
					require.LessOrEqual(t, time.Since(began), 5*time.Second)
					close(free)
					pass(20 * time.Second) // slow ones return
					synctest.Wait()
					require.Equal(t, outcomeOfDo(err), b.report(t).Outcome)
					if mischief == "panics" || mischief == "calls runtime.Goexit" {
						require.EqualValues(t, 1, called.Load(), "a hook that has failed is not called again")
					}
				})
				require.Equal(t, 1, strings.Count(said(), "lambdalock: guard.Options."), said())
				require.NotContains(t, said(), "left out")
			})
		}
	}
}

// TestHolderInfoThatDoesNotReturn: a lease is renewed and released without the name.
func TestHolderInfoThatDoesNotReturn(t *testing.T) {
	for mischief, do := range mischiefs {
		bubble("F81 it "+mischief, t, func(t *testing.T) {
			free := make(chan struct{})
			b := newBench(t, Options{HolderInfo: func(context.Context) lockstore.HolderInfo {
				do(free)
				return lockstore.HolderInfo{Name: "late"}
			}})
			defer func() {
				close(free)
				pass(5 * time.Second)
			}()
			lease := b.occupy(t, "k", 5*time.Second)
			ctx := within(t, 20*time.Second)
			_, err := b.Renew(ctx, lease, time.Minute)
			require.NoError(t, err)
			require.NoError(t, b.Release(ctx, lease))
			require.NoError(t, b.Do(ctx, "k", func(context.Context, Lock) error {
				status, err := b.store.Store.Inspect(ctx, "k")
				require.Empty(t, status.Holder.Name)
				return err
			}))
			b.free(t, "k")
		})
	}
}

// outcomeOfDo is the outcome of work that returned nil.
func outcomeOfDo(err error) Outcome {
	if err != nil {
		return OutcomeLost
	}
	return OutcomeOK
}

// TestWorkDoesNotBeginLate: what comes between the grant and the work may take longer than the lease.
func TestWorkDoesNotBeginLate(t *testing.T) {
	for name, c := range map[string]struct {
		ttl     time.Duration
		granted func(*bench)
		err     any
	}{
		"Trace is slow, and nothing renews the lease": {time.Second, func(*bench) { pass(4 * time.Second) }, &LockStoreUnavailable{}},
		"F08 a freeze until the lease is over":        {time.Second, func(b *bench) { b.shift(instant{wall: time.Second}) }, &LockStoreUnavailable{}},
		"F08 a freeze until the deadline":             {time.Minute, func(b *bench) { b.shift(instant{wall: 29650 * time.Millisecond}) }, &LockDeadline{}},
		"Shutdown":                                    {time.Minute, func(b *bench) { b.Shutdown() }, &LockDeadline{}},
	} {
		for call, do := range map[string]func(*bench, context.Context) error{
			"Do": func(b *bench, ctx context.Context) error { return b.Do(ctx, "k", neverRuns(t)) },
			"DoOnce": func(b *bench, ctx context.Context) error {
				return b.DoOnce(ctx, "k", OnceOptions{}, func(context.Context, Lock) (Completion, error) { t.Error("the work ran"); return Completion{}, nil })
			},
			"DoAll": func(b *bench, ctx context.Context) error {
				return b.DoAll(ctx, []string{"a", "k"}, func(context.Context, []Lock) error { t.Error("the work ran"); return nil })
			},
		} {
			bubble(name+", "+call, t, func(t *testing.T) {
				var b *bench
				b = newBench(t, Options{TTL: c.ttl, Trace: func(ctx context.Context, e TraceEvent) context.Context {
					if e.Phase == PhaseGranted && e.Report.Key == "k" {
						c.granted(b)
					}
					return ctx
				}})
				b.store.renew = fails(errCut)
				require.IsType(t, c.err, do(b, within(t, 30*time.Second)))
				pass(5 * time.Second) // Trace returns
				b.free(t, "k")
				b.free(t, "a")
			})
		}
	}
}

// TestObserveHasTheTimeThatIsLeft: the answer comes before the deadline, and soon after Shutdown.
func TestObserveHasTheTimeThatIsLeft(t *testing.T) {
	hangs := func(t *testing.T) *bench {
		b, free := newBench(t, Options{}), make(chan struct{})
		b.opt.Observe = func(context.Context, Report) { <-free }
		t.Cleanup(func() { close(free) })
		return b
	}
	bubble("F03 the work ends with its context", t, func(t *testing.T) {
		b, ctx := hangs(t), within(t, 5*time.Second)
		require.Error(t, b.Do(ctx, "k", func(ctx context.Context, _ Lock) error { <-ctx.Done(); return ctx.Err() }))
		require.NoError(t, ctx.Err())
		b.free(t, "k")
	})
	bubble("Shutdown", t, func(t *testing.T) {
		b := hangs(t)
		began := time.Now()
		_ = b.Do(context.Background(), "k", func(ctx context.Context, _ Lock) error { b.Shutdown(); <-ctx.Done(); return ctx.Err() })
		require.LessOrEqual(t, time.Since(began), 100*time.Millisecond)
	})
	bubble("a DoAll", t, func(t *testing.T) {
		b := hangs(t)
		began := time.Now()
		require.NoError(t, b.DoAll(context.Background(), []string{"a", "b", "c"}, func(context.Context, []Lock) error { return nil }))
		require.LessOrEqual(t, time.Since(began), 3*time.Second)
	})
}
