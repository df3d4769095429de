package guard

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
)

// hangs never answers, and ends as late after its context as a store may.
func hangs(ctx context.Context, _ int, _ request) (driver.Answer, error) {
	<-ctx.Done()
	pass(50 * time.Millisecond)
	return driver.Answer{}, ctx.Err()
}

// Lambda ends the process 500 ms after SIGTERM. A run has returned and reported 400 ms after
// Shutdown: whatever the run does at that moment, and though the store no longer answers.
func TestShutdownWithAStoreThatHangs(t *testing.T) {
	const patience = 400 * time.Millisecond
	untilCancelled := func(ctx context.Context, _ Lock) error { <-ctx.Done(); return nil }
	for name, c := range map[string]struct {
		opt     Options
		work    func(context.Context, Lock) error
		prepare func(*testing.T, *bench)
		bench   func(*testing.T, Options) *bench // nil is newBench
	}{
		"while it acquires": {prepare: func(_ *testing.T, b *bench) {
			b.store.acquire = hangs
		}},
		"while it waits": {opt: Options{Wait: time.Hour}, prepare: func(t *testing.T, b *bench) { b.occupy(t, "k", time.Hour) }},
		"while it waits for a turn that hangs": {opt: Options{Wait: time.Hour}, prepare: func(t *testing.T, b *bench) {
			b.occupy(t, "k", time.Hour)
			b.store.await = hangs
		}},
		"while it polls": {opt: Options{Wait: time.Hour}, bench: newBenchFull, prepare: func(t *testing.T, b *bench) {
			b.occupy(t, "k", time.Hour)
			b.store.inspect = hangs
		}},
		"while it abandons": {prepare: func(_ *testing.T, b *bench) {
			b.store.acquire = b.trusts(0)
		}},
		"while it abandons what waits in a queue": {opt: Options{Wait: time.Hour}, prepare: func(t *testing.T, b *bench) {
			b.occupy(t, "k", time.Hour)
			b.store.acquire = b.first(1, fails(errLostReply))
		}},
		"while the work runs": {work: untilCancelled},
		"while it renews": {work: untilCancelled, prepare: func(_ *testing.T, b *bench) {
			b.store.renew = hangs
		}},
		"while it releases": {work: nothing},
		"while it pauses between two releases": {work: nothing, prepare: func(_ *testing.T, b *bench) {
			b.store.release = func(ctx context.Context, n int, r request) (driver.Answer, error) {
				if n <= 2 {
					return driver.Answer{}, errDown
				}
				return hangs(ctx, n, r)
			}
		}},
	} {
		t.Run("F69 "+name, func(t *testing.T) {
			// Every 25 ms of the first two seconds, and about when it renews first.
			for _, from := range []time.Duration{0, 20 * time.Second} {
				for after := from; after < from+2*time.Second; after += 25 * time.Millisecond {
					bubble(after.String(), t, func(t *testing.T) {
						bench := c.bench
						if bench == nil {
							bench = newBench
						}
						b := bench(t, c.opt)
						b.store.release = hangs
						b.store.leave = hangs
						if c.prepare != nil {
							c.prepare(t, b)
						}
						work := c.work
						if work == nil {
							work = untilCancelled
						}
						returned := make(chan time.Time, 1)
						go func() {
							_ = b.Do(context.Background(), "k", work)
							returned <- time.Now()
						}()
						pass(after)
						called := time.Now()
						b.Shutdown()
						require.Less(t, (<-returned).Sub(called), patience)
						require.Len(t, b.reports, 1)
					})
				}
			}
		})
	}
	on("a release of a lease that was acquired before", t, newBench, Options{}, func(t *testing.T, b *bench) {
		lease, err := b.Acquire(context.Background(), LeaseRequest{Key: "k", TTL: time.Minute})
		require.NoError(t, err)
		b.store.release = hangs
		var called time.Time
		time.AfterFunc(30*time.Millisecond, func() { called = time.Now(); b.Shutdown() })
		require.IsType(t, &LockStoreUnavailable{}, b.Release(context.Background(), lease))
		require.Less(t, time.Since(called), patience)

		called = time.Now()
		require.IsType(t, &LockStoreUnavailable{}, b.Release(context.Background(), lease))
		require.Less(t, time.Since(called), patience, "and after Shutdown")
	})
	on("a second Shutdown gives no more time", t, newBench, Options{}, func(t *testing.T, b *bench) {
		b.store.release = silent
		began := time.Now()
		time.AfterFunc(time.Second, b.Shutdown)
		time.AfterFunc(1200*time.Millisecond, b.Shutdown)
		require.NoError(t, b.Do(context.Background(), "k", func(ctx context.Context, _ Lock) error { <-ctx.Done(); return nil }))
		require.Equal(t, time.Second+shutdownTime, time.Since(began))
	})
	bubble("a store that answers late still releases", t, func(t *testing.T) {
		for _, at := range []time.Duration{0, 250 * time.Millisecond, 10 * time.Second} { // when the work returns
			b := newBench(t, Options{})
			b.store.release = b.late(40 * time.Millisecond)
			time.AfterFunc(time.Second, b.Shutdown)
			require.NoError(t, b.Do(context.Background(), "k", func(ctx context.Context, _ Lock) error {
				<-ctx.Done()
				pass(at)
				return nil
			}))
			require.NoError(t, b.report(t).ReleaseErr, at)
			b.free(t, "k")
		}
	})
}
