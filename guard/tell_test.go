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

	"github.com/lambdalock/lambdalock/internal/lib/doonce"
	"github.com/lambdalock/lambdalock/internal/lib/tell"
	"github.com/lambdalock/lambdalock/lockstore"
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
	for mischief, do := range mischiefs {
		for _, where := range []string{"HolderInfo", "Granted", "Observe"} {
			t.Run("F81 "+where+" "+mischief, func(t *testing.T) {
				said := stderrTo(t)
				synctest.Test(t, func(t *testing.T) {
					free := make(chan struct{})
					hook := func(at string) {
						if at == where {
							do(free)
						}
					}
					b := newBench(t, Options{TTL: 2 * time.Second, HolderInfo: func(context.Context) lockstore.HolderInfo {
						hook("HolderInfo")
						return lockstore.HolderInfo{Name: "in time"}
					}, Granted: func(ctx context.Context, _ Report) context.Context {
						hook("Granted")
						return ctx
					}})
					note := b.opt.Observe
					b.opt.Observe = func(ctx context.Context, r Report) {
						note(ctx, r)
						hook("Observe")
					}
					b.store.renew = b.first(1, fails(errLostReply))
					began := time.Now()
					require.NoError(t, b.Do(within(t, time.Minute), "k", func(ctx context.Context, lock Lock) error {
						require.NoError(t, ctx.Err())
						status := b.status(t, "k")
						require.Equal(t, lockstore.Held, status.State)
						require.Equal(t, where != "HolderInfo", status.Holder.Name == "in time")
						require.Equal(t, lock.Fence, status.Fence, "another run has had the key since")
						require.True(t, sleep(ctx, 3*time.Second))
						return nil
					}))
					require.Greater(t, len(b.store.renewals), 3)
					b.free(t, "k")
					require.LessOrEqual(t, time.Since(began), 5*time.Second)
					close(free)
					pass(20 * time.Second) // slow ones return
					synctest.Wait()
					require.Equal(t, OutcomeOK, b.report(t).Outcome)
				})
				require.Equal(t, 1, strings.Count(said(), "lambdalock: guard.Options."), said())
				require.NotContains(t, said(), "left out")
			})
		}
	}
}

// TestWorkDoesNotBeginLate: what comes between the grant and the work may take longer than the lease.
func TestWorkDoesNotBeginLate(t *testing.T) {
	for name, c := range map[string]struct {
		ttl     time.Duration
		granted func(*bench)
		err     any
	}{
		"Granted is slow, and nothing renews the lease": {time.Second, func(*bench) { pass(4 * time.Second) }, &LockStoreUnavailable{}},
		"F08 a freeze until the lease is over":          {time.Second, func(b *bench) { b.shift(instant{wall: time.Second}) }, &LockStoreUnavailable{}},
		"F08 a freeze until the deadline":               {time.Minute, func(b *bench) { b.shift(instant{wall: 29650 * time.Millisecond}) }, &LockNoTime{}},
		"F08 a freeze until the work's time is over":    {time.Minute, func(b *bench) { b.shift(instant{wall: 29900 * time.Millisecond}) }, &LockNoTime{}},
		"Shutdown": {time.Minute, func(b *bench) { b.Shutdown() }, &LockNoTime{}},
	} {
		for call, do := range map[string]func(*bench, context.Context) error{
			"Do": func(b *bench, ctx context.Context) error { return b.Do(ctx, "k", neverRuns(t)) },
			"DoOnce": func(b *bench, ctx context.Context) error {
				return b.DoOnce(ctx, "k", doonce.Options{}, func(context.Context, Lock) (doonce.Completion, error) {
					t.Error("the work ran")
					return doonce.Completion{}, nil
				})
			},
			"DoAll": func(b *bench, ctx context.Context) error {
				return b.DoAll(ctx, []string{"a", "k"}, func(context.Context, []Lock) error { t.Error("the work ran"); return nil })
			},
		} {
			bubble(name+", "+call, t, func(t *testing.T) {
				var b *bench
				b = newBench(t, Options{TTL: c.ttl, Granted: func(ctx context.Context, r Report) context.Context {
					if r.Key == "k" {
						c.granted(b)
					}
					return ctx
				}})
				b.store.renew = fails(errLostReply)
				err := do(b, within(t, 30*time.Second))
				require.IsType(t, c.err, err)
				if e, ok := err.(*LockNoTime); ok {
					require.Equal(t, map[string]error{"Shutdown": errShutdown, "F08 a freeze until the work's time is over": ErrDeadline}[name], e.Err)
				}
				pass(5 * time.Second) // Granted returns
				b.free(t, "k")
				b.free(t, "a")
			})
		}
	}
}

// TestHooksHaveTheTimeThatIsLeft: the answer comes before the deadline, and soon after Shutdown.
func TestHooksHaveTheTimeThatIsLeft(t *testing.T) {
	untilCancelled := func(ctx context.Context, _ Lock) error { <-ctx.Done(); return ctx.Err() }
	for name, c := range map[string]struct {
		do   func(*testing.T, *bench) error
		most time.Duration
	}{
		"F03 the work ends with its context": {func(t *testing.T, b *bench) error { return b.Do(within(t, 5*time.Second), "k", untilCancelled) }, 5*time.Second - 1},
		"Shutdown": {func(t *testing.T, b *bench) error {
			return b.Do(t.Context(), "k", func(ctx context.Context, lock Lock) error { b.Shutdown(); return untilCancelled(ctx, lock) })
		}, 100 * time.Millisecond},
		"Shutdown while a hook is under way": {func(t *testing.T, b *bench) error {
			time.AfterFunc(20*time.Millisecond, b.Shutdown)
			return b.Do(t.Context(), "k", nothing)
		}, 20*time.Millisecond + tell.Least},
		"a DoAll": {func(t *testing.T, b *bench) error {
			return b.DoAll(t.Context(), []string{"a", "b", "k"}, func(context.Context, []Lock) error { return nil })
		}, time.Second},
		"F03 a DoAll whose work ends with its context": {func(t *testing.T, b *bench) error {
			return b.DoAll(within(t, 5*time.Second), []string{"a", "b", "c", "d", "e", "k"}, func(ctx context.Context, _ []Lock) error { return untilCancelled(ctx, Lock{}) })
		}, 5*time.Second - 1},
	} {
		on(name, t, newBench, Options{}, func(t *testing.T, b *bench) {
			free := make(chan struct{})
			b.opt.Observe = func(context.Context, Report) { <-free }
			defer close(free)
			began := time.Now()
			_ = c.do(t, b)
			require.LessOrEqual(t, time.Since(began), c.most)
			b.free(t, "k")
		})
	}
	on("Granted, of a DoAll and when Shutdown comes", t, newBench, Options{}, func(t *testing.T, b *bench) {
		free := make(chan struct{})
		b.opt.Granted = func(context.Context, Report) context.Context { <-free; return nil }
		defer close(free)
		began := time.Now()
		require.NoError(t, b.DoAll(t.Context(), []string{"a", "b", "k"}, func(context.Context, []Lock) error {
			require.Equal(t, time.Second, time.Since(began))
			return nil
		}))
		began = time.Now()
		time.AfterFunc(20*time.Millisecond, b.Shutdown)
		require.ErrorIs(t, b.Do(t.Context(), "k", neverRuns(t)), errShutdown)
		require.Equal(t, 20*time.Millisecond+tell.Least, time.Since(began))
		b.free(t, "k")
	})
	on("HolderInfo takes nothing from the time to wait", t, newBench, Options{Wait: time.Second}, func(t *testing.T, b *bench) {
		free := make(chan struct{})
		b.opt.HolderInfo = func(context.Context) lockstore.HolderInfo { <-free; return lockstore.HolderInfo{} }
		defer close(free)
		b.occupy(t, "k", tell.Most+time.Second/2)
		require.NoError(t, b.Do(t.Context(), "k", nothing))
		require.Equal(t, 1, b.report(t).QueuePosition)
		b.occupy(t, "k", time.Hour)
		began := time.Now()
		_, err := b.Acquire(t.Context(), LeaseRequest{Key: "k", TTL: time.Second})
		require.IsType(t, &LockBusy{}, err)
		require.Equal(t, tell.Most, time.Since(began), "who does not wait does not join")
		require.Zero(t, b.reports[1].QueuePosition)
	})
	on("HolderInfo comes after a request that does not say who asks", t, newBench, Options{}, func(t *testing.T, b *bench) {
		lease, err := b.Acquire(t.Context(), LeaseRequest{Key: "k", TTL: time.Second})
		require.NoError(t, err)
		free := make(chan struct{})
		b.opt.HolderInfo = func(context.Context) lockstore.HolderInfo { <-free; return lockstore.HolderInfo{} }
		defer close(free)
		_, err = b.Renew(t.Context(), lease, 3*time.Second)
		require.NoError(t, err)
		require.NoError(t, b.Release(t.Context(), lease), "the call before has cost a second")
		began := time.Now()
		_, err = b.Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.Zero(t, time.Since(began), "it has no report")
	})
	on("HolderInfo of a call after Shutdown", t, newBench, Options{}, func(t *testing.T, b *bench) {
		free := make(chan struct{})
		b.opt.HolderInfo = func(context.Context) lockstore.HolderInfo { <-free; return lockstore.HolderInfo{} }
		defer close(free)
		b.Shutdown()
		began := time.Now()
		require.ErrorIs(t, b.Do(t.Context(), "k", neverRuns(t)), errShutdown)
		require.Equal(t, tell.Least, time.Since(began))
	})
}

// Calls that nobody waits for count, too: 1,000 may hang.
func TestMostHooksHang(t *testing.T) {
	said := stderrTo(t)
	on("Observe of many keys", t, newBench, Options{}, func(t *testing.T, b *bench) {
		free := make(chan struct{})
		defer close(free)
		var made atomic.Int64
		b.opt.Observe = func(context.Context, Report) { made.Add(1); <-free }
		for range 80 {
			require.NoError(t, b.DoAll(t.Context(), letters(16), func(context.Context, []Lock) error { return nil }))
			pass(2 * tell.Most)
		}
		require.LessOrEqual(t, made.Load(), int64(1000+16))
		require.GreaterOrEqual(t, made.Load(), int64(1000))
	})
	require.Contains(t, said(), "lambdalock: guard.Options.Observe has not returned within 1s")
}
