package guard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
)

// dies lets other owners take places in the key's queue and never come back.
func (b *bench) dies(t *testing.T, key string, places int) (owners []lockstore.Owner) {
	t.Helper()
	for range places {
		owner := lockstore.NewOwner()
		_, err := b.store.Store.Acquire(context.Background(), lockstore.Request{Key: key, Owner: owner, TTL: time.Minute, JoinQueue: true})
		held, ok := errors.AsType[*lockstore.Refused](err)
		require.True(t, ok, "%v", err)
		require.Positive(t, held.QueuePosition)
		owners = append(owners, owner)
	}
	return owners
}

// freeAfter releases a lease later.
func (b *bench) freeAfter(d time.Duration, lease lockstore.Lease) {
	time.AfterFunc(d, func() { _ = b.store.Store.Release(context.Background(), lease) })
}

// oneOwner requires that all requests are those of one attempt, and returns its owner.
func (b *bench) oneOwner(t *testing.T) lockstore.Owner {
	t.Helper()
	require.NotEmpty(t, b.store.requests)
	owner := b.store.requests[0].Owner
	for _, req := range b.store.requests {
		require.Equal(t, owner, req.Owner, "a new owner would be the last in the queue")
	}
	for _, o := range slices.Concat(b.store.awaits, b.store.leaves) {
		require.Equal(t, owner, o)
	}
	return owner
}

func TestQueue(t *testing.T) {
	ctx := context.Background()
	on("a run asks, waits for its turn and asks again", t, newBenchAsks, Options{Wait: time.Minute}, func(t *testing.T, b *bench) {
		began := time.Now()
		b.freeAfter(20*time.Second, b.occupy(t, "k", time.Hour))
		require.NoError(t, b.Do(ctx, "k", nothing))
		b.oneOwner(t)
		require.Len(t, b.store.requests, 2, "one refused, one granted")
		require.Equal(t, 20*time.Second, b.store.requests[1].HolderInfo.Since.Sub(began), "it holds the lock since then")
		require.Zero(t, b.store.polls)
		r := b.report(t)
		require.Equal(t, 20*time.Second, r.WaitTime)
		require.Equal(t, 1, r.QueuePosition)
		require.Equal(t, 3+len(b.store.awaits), r.Calls)
		require.Empty(t, b.store.leaves, "the grant ends the place")
		b.free(t, "k")
	})
	on("a run that has come nearer to the front has missed no turn", t, newBench, Options{Wait: time.Minute}, func(t *testing.T, b *bench) {
		b.freeAfter(time.Second, b.occupy(t, "k", time.Hour))
		b.dies(t, "k", 1)
		b.store.await = func(context.Context, int, request) (driver.Answer, error) {
			pass(1500 * time.Millisecond) // then the first one has been handed the key
			return driver.Answer{Outcome: driver.Ask}, nil
		}
		require.NoError(t, b.Do(ctx, "k", nothing))
		require.Greater(t, len(b.store.requests), 2)
		require.Equal(t, []int{2, 0}, []int{b.report(t).QueuePosition, b.report(t).MissedTurns})
	})
	on("a run that does not wait takes no place, and is refused while others wait", t, newBench, Options{}, func(t *testing.T, b *bench) {
		lease := b.occupy(t, "k", time.Hour)
		err := b.Do(ctx, "k", neverRuns(t))
		require.IsType(t, &LockBusy{}, err)
		require.Zero(t, b.status(t, "k").Waiting)
		require.Zero(t, err.(*LockBusy).QueuePosition)
		require.Equal(t, lockstore.Held, err.(*LockBusy).State)

		b.dies(t, "k", 1)
		require.NoError(t, b.store.Store.Release(ctx, lease))
		err = b.Do(ctx, "k", neverRuns(t))
		busy, ok := err.(*LockBusy)
		require.True(t, ok, "%T", err)
		require.Equal(t, lockstore.Reserved, busy.State)
		require.Zero(t, busy.Holder)
		require.Equal(t, lockstore.TurnTime, busy.StateEndsIn)
		require.EqualError(t, err, `lock "k" is busy: reserved for runs that have waited longer`)
		require.ErrorIs(t, err, lockstore.ErrRefused)
		require.Empty(t, b.store.leaves)
		require.Empty(t, b.store.awaits)
	})
}

// Whatever ends a wait, the place ends with it: those behind it do not wait for a turn of
// one that is gone.
func TestEndOfAWaitInAQueue(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(b *bench, cancel func())
		want error
	}{
		"the end of Wait":          {func(*bench, func()) {}, &LockBusy{}},
		"the caller leaves":        {func(_ *bench, cancel func()) { cancel() }, &LockNoTime{}},
		"F69 Shutdown":             {func(b *bench, _ func()) { b.Shutdown() }, &LockNoTime{}},
		"F11 a freeze":             {func(b *bench, _ func()) { b.shift(instant{wall: time.Hour}) }, &LockBusy{}},
		"F11 a freeze of a minute": {func(b *bench, _ func()) { b.shift(instant{wall: time.Minute}) }, &LockBusy{}},
	} {
		on(name, t, newBench, Options{Wait: 30 * time.Second}, func(t *testing.T, b *bench) {
			lease := b.occupy(t, "k", time.Hour)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			ended := make(chan error)
			go func() { ended <- b.Do(ctx, "k", neverRuns(t)) }()
			synctest.Wait()
			behind := b.dies(t, "k", 1)[0]
			pass(10*time.Second - 1)
			c.end(b, cancel)
			began := time.Now()
			require.IsType(t, c.want, <-ended)
			if len(name) > 3 && name[:3] == "F11" {
				require.LessOrEqual(t, time.Since(began), time.Second, "the clocks are read once a second")
			}
			b.oneOwner(t)
			require.Len(t, b.store.leaves, 1)
			require.Empty(t, b.store.releases, "an abandon would leave a mark that nobody needs")
			r := b.report(t)
			require.NoError(t, r.ReleaseErr)
			require.Equal(t, 2+len(b.store.awaits), r.Calls)
			require.Equal(t, 1, b.status(t, "k").Waiting)
			require.NoError(t, b.store.Store.Release(context.Background(), lease))
			_, err := b.store.Store.Acquire(context.Background(), lockstore.Request{Key: "k", Owner: behind, TTL: time.Minute})
			require.NoError(t, err, "it is the turn of the one behind")
			require.Empty(t, b.runs.runs)
		})
	}
	on("a place that the last refusals do not show, because they rest on old reads, is left", t, newBench, Options{Wait: 30 * time.Second}, func(t *testing.T, b *bench) {
		b.occupy(t, "k", time.Hour)
		b.store.await = says(driver.Ask)
		b.store.acquire = b.from(2, func(ctx context.Context, _ int, r request) (driver.Answer, error) {
			a, err := b.store.pass(ctx, r)
			a.Position = 0
			return a, err
		})
		require.IsType(t, &LockBusy{}, b.Do(context.Background(), "k", neverRuns(t)))
		require.Greater(t, len(b.store.requests), 2)
		require.NoError(t, b.report(t).ReleaseErr)
		require.Zero(t, b.status(t, "k").Waiting)
	})
	for state, inTenSeconds := range map[lockstore.State]func(*testing.T, *bench){
		lockstore.InDoubt: func(t *testing.T, b *bench) {
			require.NoError(t, b.store.MarkStarted(t.Context(), b.occupy(t, "k", 10*time.Second)))
		},
		lockstore.Cooldown: func(t *testing.T, b *bench) {
			lease := b.occupy(t, "k", time.Hour)
			time.AfterFunc(10*time.Second, func() { _ = b.store.Complete(context.Background(), lease, nil, time.Hour) })
		},
	} {
		on("the key is "+state.String(), t, newBench, Options{Wait: 30 * time.Second}, func(t *testing.T, b *bench) {
			inTenSeconds(t, b)
			err := b.Do(context.Background(), "k", neverRuns(t))
			require.Equal(t, state, err.(*LockBusy).State)
			require.Zero(t, b.status(t, "k").Waiting)
			require.Equal(t, state == lockstore.InDoubt, len(b.store.leaves) == 1, "a completion ends the queue")
			r := b.report(t)
			require.Equal(t, []any{10 * time.Second, 1, 0, false}, []any{r.WaitTime, r.QueuePosition, r.MissedTurns, r.NoPlace})
		})
	}
	for name, fault := range map[string]error{"F38 the store is down": errDown, "F25 all replies are lost": errLostReply} {
		for _, wait := range []time.Duration{time.Second, 10 * time.Second} {
			on(fmt.Sprintf("after a wait of %v the place cannot be left, %s: the key may be handed over to it", wait, name), t, newBench, Options{Wait: wait}, func(t *testing.T, b *bench) {
				b.freeAfter(wait, b.occupy(t, "k", time.Hour))
				b.store.await = b.from(2, fails(fault))
				b.store.acquire = b.from(2, fails(errDown))
				b.store.leave = fails(fault)
				began := time.Now()
				err := b.Do(context.Background(), "k", neverRuns(t))
				require.IsType(t, &LockStoreUnavailable{}, err)
				require.ErrorIs(t, err, errInQueue)
				require.NotErrorIs(t, err, lockstore.ErrUnavailable, "that would say that it has nothing")
				require.NotErrorIs(t, err, lockstore.ErrRefused)
				require.Equal(t, OutcomeUnknown, b.report(t).Outcome)
				require.ErrorIs(t, b.report(t).ReleaseErr, fault)
				require.LessOrEqual(t, time.Since(began), max(wait, storeRetryBudget)+releaseTime)
				require.Less(t, len(b.store.leaves), 40)
				require.Empty(t, b.store.releases)
			})
		}
	}
}

func TestUnknownOutcomeInAQueue(t *testing.T) {
	ctx := context.Background()

	repeatable := LeaseRequest{Key: "k", TTL: time.Minute, Wait: 2 * time.Second, Owner: "mine"}
	on("F64 a repeatable LeaseRequest that is told busy keeps its place for its next call", t, newBench, Options{Wait: time.Minute}, func(t *testing.T, b *bench) {
		lease := b.occupy(t, "k", time.Hour)
		for range 2 {
			_, err := b.Acquire(ctx, repeatable)
			require.IsType(t, &LockBusy{}, err)
			require.Equal(t, 1, err.(*LockBusy).QueuePosition)
		}
		go func() { assert.NoError(t, b.Do(ctx, "k", nothing)) }()
		pass(time.Second)
		require.NoError(t, b.store.Store.Release(ctx, lease))
		pass(lockstore.TurnTime - 1)
		got, err := b.Acquire(ctx, repeatable)
		require.NoError(t, err, "F26: it was handed the key between two calls")
		require.Equal(t, time.Minute-margin, got.TTL)
		require.Empty(t, b.store.leaves)
		require.Empty(t, b.store.releases, "an abandon would end its repeat")
		require.NoError(t, b.Release(ctx, got))
		synctest.Wait()
		b.free(t, "k")
	})
}

// The trust in a lease never goes past its end in the store, and is no shorter than it must
// be.
func TestTrustAfterAWaitInAQueue(t *testing.T) {
	const waited = 50 * time.Second
	on("F26 F29 a late duplicate of a refused request is granted: the store says what is left", t, newBench, Options{Wait: 10 * time.Minute}, func(t *testing.T, b *bench) {
		b.freeAfter(waited, b.occupy(t, "k", time.Hour))
		b.store.renew = fails(errDown)
		began := time.Now()
		b.store.await = func(context.Context, int, request) (driver.Answer, error) {
			pass(waited + 1)
			_, err := b.store.Store.Acquire(context.Background(), b.store.requests[0])
			assert.NoError(t, err, "the duplicate")
			pass(20 * time.Second)
			return driver.Answer{Outcome: driver.Ask}, nil
		}
		_ = b.Do(context.Background(), "k", func(ctx context.Context, _ Lock) error {
			<-ctx.Done()
			assert.Equal(t, waited+1+time.Minute-margin, time.Since(began), "the trust ends before the lease does")
			return nil
		})
	})
}

// What a store's queue may do, and what it may not do but might.
func TestQueueThatMisbehaves(t *testing.T) {
	ctx := context.Background()
	on("each turn comes at once and is none: the run pauses", t, newBench, Options{Wait: 20 * time.Second}, func(t *testing.T, b *bench) {
		lease := b.occupy(t, "k", time.Hour)
		// After many answers it takes its time, or a guard that does not pause would keep the time of the test from passing.
		b.store.await = func(_ context.Context, n int, _ request) (driver.Answer, error) {
			if n > 1000 {
				pass(time.Minute)
			}
			return driver.Answer{Outcome: driver.Ask}, nil
		}
		require.IsType(t, &LockBusy{}, b.Do(ctx, "k", neverRuns(t)))
		require.Less(t, len(b.store.requests), 400, "no request without a pause")
		require.Greater(t, len(b.store.requests), 100, "pauses are random up to 200 ms")
		require.Equal(t, 20*time.Second, b.report(t).WaitTime)
		require.Zero(t, b.report(t).MissedTurns, "nobody was granted the key")
		require.Zero(t, b.status(t, "k").Waiting)

		b.freeAfter(5*time.Second, lease)
		require.NoError(t, b.Do(ctx, "k", nothing))
		require.LessOrEqual(t, b.reports[1].WaitTime, 5*time.Second+maxWaitPause)
	})
	for name, c := range map[string]struct {
		err    error
		pauses bool
	}{"one turn comes at once": {nil, false}, "one wait fails at once": {errDown, true}} {
		on(name, t, newBench, Options{Wait: 20 * time.Second}, func(t *testing.T, b *bench) {
			lease := b.occupy(t, "k", time.Hour)
			b.store.await = func(ctx context.Context, _ int, _ request) (driver.Answer, error) {
				return driver.Answer{Outcome: driver.Ask}, errors.Join(b.store.Store.Release(ctx, lease), c.err)
			}
			require.NoError(t, b.Do(ctx, "k", nothing))
			require.Equal(t, c.pauses, b.report(t).WaitTime > 0)
		})
	}
	on("a store that has no news, again and again and at once: the run asks and pauses", t, newBench, Options{Wait: 20 * time.Second}, func(t *testing.T, b *bench) {
		b.occupy(t, "k", time.Hour)
		b.store.await = says(driver.NotYet)
		require.IsType(t, &LockBusy{}, b.Do(ctx, "k", neverRuns(t)))
		require.Less(t, len(b.store.requests), 400, "no request without a pause")
		require.Zero(t, b.status(t, "k").Waiting)
	})
	for name, lease := range map[string]time.Duration{"the holder has died": 10 * time.Second, "the holder lives": time.Hour} {
		on("F28 AwaitTurn blocks until its context ends, and "+name, t, newBench, Options{Wait: 20 * time.Second}, func(t *testing.T, b *bench) {
			b.occupy(t, "k", lease)
			b.store.await = silent
			err := b.Do(ctx, "k", nothing)
			if lease < time.Hour {
				require.NoError(t, err)
				require.Equal(t, lease, b.report(t).WaitTime, "it asks again when the lease must have ended")
				return
			}
			require.IsType(t, &LockBusy{}, err)
			require.Equal(t, 20*time.Second, b.report(t).WaitTime)
			require.Zero(t, b.status(t, "k").Waiting)
		})
	}

	// A full queue gives no place.
	full := func(t *testing.T, b *bench) []lockstore.Owner { return b.dies(t, "k", 128) }
	on("F57 the queue is full: the run asks for a place once a second", t, newBench, Options{Wait: time.Minute}, func(t *testing.T, b *bench) {
		lease := b.occupy(t, "k", time.Hour)
		places := full(t, b)
		// Between two requests for a place: the first place is free when all are.
		time.AfterFunc(10500*time.Millisecond, func() {
			for _, owner := range places {
				assert.NoError(t, b.store.Store.Leave(ctx, "k", owner))
			}
		})
		b.freeAfter(20*time.Second, lease)
		require.NoError(t, b.Do(ctx, "k", nothing))
		require.Equal(t, 20*time.Second, b.report(t).WaitTime)
		require.Equal(t, 1, b.report(t).QueuePosition, "when it got one")
		require.False(t, b.report(t).NoPlace, "it got one in the end")
		require.Zero(t, b.report(t).MissedTurns)
		require.LessOrEqual(t, len(b.store.requests), 13)
		b.oneOwner(t)
		b.free(t, "k")
	})
	on("F28 F57 a poll that is silent does not go on after Wait", t, newBenchFull, Options{Wait: 3 * time.Second}, func(t *testing.T, b *bench) {
		b.occupy(t, "k", time.Hour)
		b.store.inspect = silent
		require.IsType(t, &LockBusy{}, b.Do(ctx, "k", neverRuns(t)))
		require.Equal(t, 3*time.Second, b.report(t).WaitTime)
	})
	on("the first of the queue changes meanwhile: the report has the longest wait", t, newBenchFull, Options{Wait: 3 * time.Second}, func(t *testing.T, b *bench) {
		b.occupy(t, "k", time.Hour)
		b.store.acquire = b.first(1, func(ctx context.Context, _ int, r request) (driver.Answer, error) {
			a, err := b.store.pass(ctx, r)
			a.Status.OldestWait = time.Minute
			return a, err
		})
		require.IsType(t, &LockBusy{}, b.Do(ctx, "k", neverRuns(t)))
		require.Greater(t, len(b.store.requests), 1, "the last one says less")
		require.Equal(t, time.Minute, b.report(t).OldestWait)
	})
}
