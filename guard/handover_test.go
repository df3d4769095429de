package guard

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/doonce"
	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
)

const handedAfter = 10 * time.Second

// newBenchHandsOver is a bench whose key k another holds, and releases after 10 s.
func newBenchHandsOver(t *testing.T, opt Options) *bench {
	t.Helper()
	b := newBench(t, opt)
	b.freeAfter(handedAfter, b.occupy(t, "k", time.Hour))
	return b
}

// told changes what the store says to a waiter that was handed the key.
func (b *bench) told(change func(*driver.Answer)) {
	b.store.await = func(ctx context.Context, _ int, r request) (driver.Answer, error) {
		a, err := b.store.pass(ctx, r)
		if a.Outcome == driver.Granted {
			change(&a)
		}
		return a, err
	}
}

// lostAt is when the work's context ended because of its lease.
func lostAt(t *testing.T, b *bench) (at time.Duration) {
	t.Helper()
	began := time.Now()
	err := b.Do(context.Background(), "k", func(ctx context.Context, _ Lock) error {
		<-ctx.Done()
		at = time.Since(began)
		require.ErrorIs(t, context.Cause(ctx), lockstore.ErrLost)
		return nil
	})
	require.IsType(t, &LockLost{}, err)
	return at
}

// A waiter that sees that it was handed the key works at once, with that lease.
func TestHandOver(t *testing.T) {
	ctx := context.Background()
	wait := Options{Wait: time.Minute}
	on("short work sends nothing but the release", t, newBenchHandsOver, wait, func(t *testing.T, b *bench) {
		var fence lockstore.Fence
		b.told(func(a *driver.Answer) { fence = a.Fence })
		require.NoError(t, b.Do(ctx, "k", func(_ context.Context, lock Lock) error {
			require.Equal(t, fence, lock.Fence)
			pass(firstExtension - 1)
			return nil
		}))
		require.Len(t, b.store.requests, 1)
		require.Equal(t, []lockstore.Lease{{Key: "k", Owner: b.oneOwner(t), Fence: fence}}, b.store.releases)
		require.Empty(t, b.store.leaves)
		require.Equal(t, []time.Duration{handedAfter, firstExtension - 1}, []time.Duration{b.report(t).WaitTime, b.report(t).HoldTime})
		require.Equal(t, fence, b.report(t).Fence)
		b.free(t, "k")
	})
	on("longer work makes it a full lease, with the fence of the hand-over, and renews it", t, newBenchHandsOver, wait, func(t *testing.T, b *bench) {
		began := time.Now()
		var asked, renewed []time.Duration
		var extension driver.Request
		b.store.renew = func(ctx context.Context, _ int, r request) (driver.Answer, error) {
			renewed = append(renewed, time.Since(began)-handedAfter-firstExtension)
			return b.store.pass(ctx, r)
		}
		b.store.acquire = func(ctx context.Context, _ int, r request) (driver.Answer, error) {
			asked, extension = append(asked, time.Since(began)), r.Request
			return b.store.pass(ctx, r)
		}
		require.NoError(t, b.Do(ctx, "k", func(_ context.Context, lock Lock) error {
			pass(firstExtension)
			synctest.Wait()
			require.Equal(t, lock.Fence, extension.Fence, "without it a lapsed lease would become another one")
			status := b.status(t, "k")
			require.Equal(t, lockstore.Held, status.State)
			require.Equal(t, handedAfter, status.Holder.Since.Sub(began), "it holds the lock since then")
			pass(time.Minute + time.Second)
			return nil
		}))
		require.Equal(t, []time.Duration{0, handedAfter + firstExtension}, asked)
		require.Equal(t, []time.Duration{20 * time.Second, 40 * time.Second, time.Minute}, renewed)
		b.oneOwner(t)
		b.free(t, "k")
	})
	for name, says := range map[string]hook{"F09 lost": says(driver.Lost), "refused": says(driver.Refused)} {
		on("an extension that is "+name+" ends the work", t, newBenchHandsOver, wait, func(t *testing.T, b *bench) {
			b.store.acquire = b.from(2, says)
			require.Equal(t, handedAfter+firstExtension, lostAt(t, b))
		})
	}
	on("a turn with little more than a second left is extended before that", t, newBenchHandsOver, wait, func(t *testing.T, b *bench) {
		b.told(func(a *driver.Answer) { a.TTL = margin + time.Second + 20*time.Millisecond })
		b.store.acquire = b.from(2, says(driver.Lost))
		require.Equal(t, handedAfter+20*time.Millisecond, lostAt(t, b))
	})
	const extends = 10 * time.Millisecond // takes the extension
	for name, c := range map[string]struct{ trust, begins time.Duration }{
		"a turn with too little left is extended before the work": {leastTurn - 1, handedAfter + extends},
		"work begins at once with just enough of its turn left":   {leastTurn, handedAfter},
	} {
		on(name, t, newBenchHandsOver, wait, func(t *testing.T, b *bench) {
			b.told(func(a *driver.Answer) { a.TTL = margin + c.trust })
			b.store.acquire = b.from(2, func(ctx context.Context, _ int, r request) (driver.Answer, error) {
				pass(extends)
				return b.store.pass(ctx, r)
			})
			began := time.Now()
			require.NoError(t, b.Do(ctx, "k", func(context.Context, Lock) error {
				require.Equal(t, c.begins, time.Since(began))
				pass(time.Second)
				return nil
			}))
			b.free(t, "k")
		})
	}
	on("it is extended by a second try, also if Wait is over", t, newBenchHandsOver, Options{Wait: handedAfter + 1}, func(t *testing.T, b *bench) {
		b.told(func(a *driver.Answer) { a.TTL = margin + leastTurn - 1 })
		b.store.acquire = b.from(2, b.first(2, fails(errLostReply)))
		require.NoError(t, b.Do(ctx, "k", func(context.Context, Lock) error { return nil }))
		b.free(t, "k")
	})
	on("F38 a store that is down when the lease is to be extended is not busy", t, newBench, wait, func(t *testing.T, b *bench) {
		b.freeAfter(time.Second, b.occupy(t, "k", time.Hour))
		b.store.acquire = b.from(2, fails(errDown))
		require.IsType(t, &LockStoreUnavailable{}, b.WithCooldown(time.Minute).Do(within(t, 6*time.Second), "k", neverRuns(t)))
	})
	on("the store's notes travel", t, newBenchHandsOver, wait, func(t *testing.T, b *bench) {
		var notes []driver.Hint
		note := func(answers ...driver.Hint) hook {
			return func(ctx context.Context, n int, r request) (driver.Answer, error) {
				notes = append(notes, r.Hint)
				a, err := b.store.pass(ctx, r)
				a.Hint = answers[min(n, len(answers))-1]
				return a, err
			}
		}
		b.store.acquire, b.store.await = note("refused", "extended"), note("", "waited", "handed over")
		b.store.renew, b.store.release = note("renewed"), note("")
		first := b.store.await
		b.store.await = func(ctx context.Context, n int, r request) (driver.Answer, error) {
			if n < 3 {
				notes = append(notes, r.Hint)
				pass(time.Duration(n-1) * (handedAfter + 1))
				return driver.Answer{Outcome: driver.NotYet, Hint: []driver.Hint{"", "waited"}[n-1]}, nil
			}
			return first(ctx, n, r)
		}
		require.NoError(t, b.Do(ctx, "k", func(context.Context, Lock) error { pass(30 * time.Second); return nil }))
		require.Equal(t, []driver.Hint{"", "refused", "refused", "waited", "handed over", "extended", "renewed"}, notes)
	})
	on("the store learns how old the last refusal is, by the clock that saw more", t, newBenchHandsOver, wait, func(t *testing.T, b *bench) {
		var elapsed []time.Duration
		b.store.await = func(ctx context.Context, n int, r request) (driver.Answer, error) {
			elapsed = append(elapsed, r.Elapsed)
			if n == 1 {
				pass(time.Second)
				b.shift(instant{wall: 2 * time.Second}) // a freeze
				return driver.Answer{Outcome: driver.NotYet}, nil
			}
			return b.store.pass(ctx, r)
		}
		require.NoError(t, b.Do(ctx, "k", nothing))
		require.Equal(t, []time.Duration{0, 3 * time.Second, handedAfter + 2*time.Second}, elapsed)
	})
	bubble("a run whose end would do more harm makes the lease a full one before it works", t, func(t *testing.T) {
		for name, do := range map[string]func(*bench) error{
			"cooldown": func(b *bench) error { return b.WithCooldown(time.Minute).Do(ctx, "k", nothing) },
			"result": func(b *bench) error {
				return b.DoOnce(ctx, "k", doonce.Options{MarkStarted: true}, func(context.Context, Lock) (doonce.Completion, error) {
					return doonce.Completion{ResultTime: time.Minute}, nil
				})
			},
			"long-lived lease": func(b *bench) error {
				lease, err := b.Acquire(ctx, LeaseRequest{Key: "k", TTL: time.Minute, Wait: time.Minute})
				assert.Equal(t, time.Minute-margin, lease.TTL)
				return err
			},
		} {
			b := newBenchHandsOver(t, wait)
			require.NoError(t, do(b), name)
			require.Len(t, b.store.requests, 2, name)
			require.Equal(t, time.Minute, b.store.requests[1].TTL, name)
			require.Equal(t, b.report(t).Fence, b.store.extended, "it extends, and arrives in no queue")
			b.oneOwner(t)
			require.Equal(t, handedAfter, b.report(t).WaitTime)
		}
	})
	on("F61 DoAll makes each lease a full one before it waits for its next key", t, newBenchHandsOver, wait, func(t *testing.T, b *bench) {
		b.freeAfter(handedAfter+20*time.Second, b.occupy(t, "l", time.Hour))
		require.NoError(t, b.DoAll(ctx, []string{"l", "k"}, func(ctx context.Context, locks []Lock) error {
			return ctx.Err()
		}))
		require.Equal(t, []string{"k", "k", "l"}, b.store.asked(), "the last key's lease is used as it is")
	})
}

// A process may stand still between the hand-over and its first request, and its caller may go
// away. It never works under a lease that it cannot trust, and it leaves none behind.
func TestHandOverThatIsNotUsed(t *testing.T) {
	ctx := context.Background()
	on("F11 a run that was handed the key and comes too late is the last, and the report says so", t, newBenchHandsOver, Options{Wait: time.Minute}, func(t *testing.T, b *bench) {
		b.store.await = func(ctx context.Context, n int, r request) (driver.Answer, error) {
			a, err := b.store.pass(ctx, r)
			if n == 1 {
				b.freeAfter(20*time.Second, b.occupied(t, "k", lockstore.TurnTime))
			}
			return a, err
		}
		require.NoError(t, b.Do(ctx, "k", nothing))
		r := b.report(t)
		require.Equal(t, handedAfter+lockstore.TurnTime+20*time.Second, r.WaitTime)
		require.Equal(t, []int{1, 1, 0}, []int{r.QueuePosition, r.MissedTurns, r.FailedCalls})
		b.oneOwner(t)
	})
	on("F09 a turn that is lost before the work is missed", t, newBenchHandsOver, Options{Wait: time.Minute}, func(t *testing.T, b *bench) {
		b.store.acquire = b.some(says(driver.Lost), func(n int, _ request) bool { return n == 2 })
		require.NoError(t, b.WithCooldown(time.Minute).Do(ctx, "k", nothing))
		require.Equal(t, 1, b.report(t).MissedTurns)
		b.oneOwner(t)
	})
}
