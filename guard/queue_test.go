package guard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
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
	on("a run that does not wait takes no place, and is refused while others wait", t, newBench, Options{}, func(t *testing.T, b *bench) {
		lease := b.occupy(t, "k", time.Hour)
		err := b.Do(ctx, "k", neverRuns(t))
		require.IsType(t, &LockBusy{}, err)
		require.Zero(t, b.waiting(t, "k"))
		require.Zero(t, err.(*LockBusy).QueuePosition)
		require.Equal(t, lockstore.Held, err.(*LockBusy).State)

		b.dies(t, "k", 1)
		require.NoError(t, b.store.Store.Release(ctx, lease))
		err = b.Do(ctx, "k", neverRuns(t))
		busy, ok := err.(*LockBusy)
		require.True(t, ok, "%T", err)
		require.Equal(t, lockstore.Reserved, busy.State)
		require.Zero(t, busy.Holder)
		require.Equal(t, lockstore.Turn, busy.Remaining)
		require.EqualError(t, err, `lock "k" is busy: reserved for runs that have waited longer`)
		require.ErrorIs(t, err, lockstore.ErrRefused)
		require.Empty(t, b.store.leaves)
		require.Empty(t, b.store.awaits)
	})
	on("F02 the Wait of a run ends in the turn of one that was killed", t, newBench, Options{Wait: time.Second}, func(t *testing.T, b *bench) {
		lease := b.occupy(t, "k", time.Hour)
		b.dies(t, "k", 1)
		require.NoError(t, b.store.Store.Release(ctx, lease))
		err := b.Do(ctx, "k", neverRuns(t))
		busy, ok := err.(*LockBusy)
		require.True(t, ok, "%T", err)
		require.Equal(t, lockstore.Reserved, busy.State)
		require.Equal(t, 1, busy.QueuePosition, "the dead one was handed the key")
		require.Equal(t, time.Second, b.report(t).WaitTime)
		require.Zero(t, b.waiting(t, "k"))
	})
	bubble("the state and the place are in the log", t, func(t *testing.T) {
		var out bytes.Buffer
		store := memstore.New(nil)
		g, err := New(store, Options{Wait: time.Second, Observe: LogReports(slog.New(slog.NewJSONHandler(&out, nil)))})
		require.NoError(t, err)
		lease, err := store.Acquire(ctx, lockstore.Request{Key: "k", Owner: "other", TTL: time.Hour})
		require.NoError(t, err)
		require.IsType(t, &LockBusy{}, g.Do(ctx, "k", neverRuns(t)))
		require.Contains(t, out.String(), `"state":"held","queue_position":1`)
		out.Reset()
		require.NoError(t, g.Do(ctx, "free", nothing))
		require.NotContains(t, out.String(), "queue_position")
		require.NotContains(t, out.String(), `"state"`)

		out.Reset()
		time.AfterFunc(500*time.Millisecond, func() { assert.NoError(t, store.Release(ctx, lease)) })
		require.NoError(t, g.Do(ctx, "k", nothing))
		require.Contains(t, out.String(), `"queue_position":1`)
		require.NotContains(t, out.String(), `"state"`, "it was refused, and has got the lock")
	})
	on("nobody waits in the queue of a key that is in its cooldown", t, newBench, Options{Wait: time.Minute}, func(t *testing.T, b *bench) {
		lease := b.occupy(t, "k", time.Hour)
		require.NoError(t, b.store.Complete(ctx, lease, nil, 10*time.Second))
		require.NoError(t, b.Do(ctx, "k", nothing))
		require.InDelta(t, 10.5, b.report(t).WaitTime.Seconds(), 0.51)
		require.Zero(t, b.report(t).QueuePosition)
		require.Empty(t, b.store.awaits)
		require.LessOrEqual(t, len(b.store.requests), 3, "it sleeps until the key is free")
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
		"the caller leaves":        {func(_ *bench, cancel func()) { cancel() }, &LockDeadline{}},
		"F69 Shutdown":             {func(b *bench, _ func()) { b.Shutdown() }, &LockDeadline{}},
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
			require.Equal(t, 1, b.waiting(t, "k"))
			require.NoError(t, b.store.Store.Release(context.Background(), lease))
			_, err := b.store.Store.Acquire(context.Background(), lockstore.Request{Key: "k", Owner: behind, TTL: time.Minute})
			require.NoError(t, err, "it is the turn of the one behind")
			require.Empty(t, b.runs.runs)
		})
	}
	for name, lost := range map[string]bool{"": false, ", and the reply to the leave is lost": true} {
		on("F23 a run that gives up is handed the key at the same time: it goes to the next at once"+name, t, newBench, Options{Wait: 10 * time.Second}, func(t *testing.T, b *bench) {
			lease := b.occupy(t, "k", time.Hour)
			var behind lockstore.Owner
			var handed lockstore.Fence
			b.store.leave = func(ctx context.Context, n int, r request) (driver.Answer, error) {
				if n == 1 {
					behind = b.dies(t, "k", 1)[0]
					assert.NoError(t, b.store.Store.Release(ctx, lease))
				}
				a, err := b.store.pass(ctx, r)
				assert.Equal(t, driver.Holding, a.Outcome)
				handed = a.Fence
				if n == 1 && lost {
					return driver.Answer{}, errLostReply
				}
				return a, err
			}
			require.IsType(t, &LockBusy{}, b.Do(context.Background(), "k", neverRuns(t)))
			r := b.report(t)
			require.Equal(t, OutcomeBusy, r.Outcome)
			require.NoError(t, r.ReleaseErr)
			require.Equal(t, []lockstore.Lease{{Key: "k", Owner: b.oneOwner(t), Fence: handed}}, b.store.releases, "with the fence that Leave said")
			require.Less(t, r.WaitTime, 11*time.Second)
			require.Zero(t, b.waiting(t, "k"), "the next was handed the key")
			next, err := b.store.Store.Acquire(context.Background(), lockstore.Request{Key: "k", Owner: behind, TTL: time.Minute})
			require.NoError(t, err)
			require.Greater(t, next.Fence, lease.Fence+1, "the run was handed the key between them")
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
	for _, applied := range []bool{true, false} {
		on(fmt.Sprintf("F23 the reply to the request for a place is lost, applied %v: the same owner asks again", applied), t, newBench, Options{Wait: time.Minute}, func(t *testing.T, b *bench) {
			b.freeAfter(10*time.Second, b.occupy(t, "k", time.Hour))
			b.store.acquire = func(ctx context.Context, n int, r request) (driver.Answer, error) {
				if n == 1 {
					if applied {
						_, _ = b.store.pass(ctx, r)
					}
					b.dies(t, "k", 1)
					return driver.Answer{}, errLostReply
				}
				return b.store.pass(ctx, r)
			}
			require.NoError(t, b.Do(ctx, "k", nothing))
			b.oneOwner(t)
			require.Len(t, b.store.releases, 1, "the release; nothing was abandoned")
			want := 10 * time.Second
			if !applied {
				want += lockstore.Turn // of the one before it
			}
			require.Equal(t, want, b.report(t).WaitTime)
		})
	}
	on("F26 a request for a place whose outcome is unknown is abandoned in the end, and takes no place later", t, newBench, Options{Wait: 10 * time.Second}, func(t *testing.T, b *bench) {
		b.occupy(t, "k", time.Minute)
		var late lockstore.Request
		b.store.acquire = func(ctx context.Context, n int, r request) (driver.Answer, error) {
			if n == 1 {
				late = b.store.requests[0]
				return driver.Answer{}, errLostReply
			}
			return b.store.pass(ctx, r)
		}
		require.IsType(t, &LockBusy{}, b.Do(ctx, "k", neverRuns(t)))
		owner := b.oneOwner(t)
		require.Equal(t, []lockstore.Lease{{Key: "k", Owner: owner}}, b.store.releases, "an abandon")
		require.Empty(t, b.store.leaves, "the abandon ends the place, too")
		require.NoError(t, b.report(t).ReleaseErr)
		require.Zero(t, b.waiting(t, "k"))
		_, err := b.store.Store.Acquire(ctx, late)
		require.ErrorIs(t, err, lockstore.ErrLost, "a late request takes no place")
		require.Zero(t, b.waiting(t, "k"))
	})

	// granted lets the store grant a request, that it had refused, before the leave.
	granted := func(t *testing.T, b *bench, lease lockstore.Lease, lost int) {
		b.store.leave = func(ctx context.Context, n int, r request) (driver.Answer, error) {
			if n <= lost {
				return driver.Answer{}, errLostReply
			}
			if n == lost+1 {
				assert.NoError(t, b.store.Store.Release(ctx, lease))
				_, err := b.store.Store.Acquire(ctx, lockstore.Request{Key: "k", Owner: r.Owner, TTL: time.Minute})
				assert.NoError(t, err)
			}
			return b.store.pass(ctx, r)
		}
	}
	for _, lost := range []int{0, 1} {
		on(fmt.Sprintf("F26 a run that leaves finds itself the holder, after %d lost replies: it releases", lost), t, newBench, Options{Wait: time.Second}, func(t *testing.T, b *bench) {
			granted(t, b, b.occupy(t, "k", time.Hour), lost)
			require.IsType(t, &LockBusy{}, b.Do(ctx, "k", neverRuns(t)))
			require.NoError(t, b.report(t).ReleaseErr)
			require.Len(t, b.store.leaves, lost+1, "the answer is final")
			require.Positive(t, b.store.releases[0].Fence, "an abandon would leave a mark that nobody needs")
			b.free(t, "k")
		})
	}

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
		pass(lockstore.Turn - 1)
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
	noRenewal := fails(errDown)
	const waited = 50 * time.Second
	for name, c := range map[string]struct {
		bench func(*testing.T, Options) *bench
		first time.Duration // of the wait and the pauses before the request that returned the lease
	}{
		"the turn":                     {newBenchAsks, waited},
		"the extension of a hand-over": {newBench, waited + firstExtension},
	} {
		bubble("counts from the request that returned the lease: "+name, t, func(t *testing.T) {
			b := c.bench(t, Options{Wait: 10 * time.Minute})
			b.freeAfter(waited, b.occupy(t, "k", time.Hour))
			b.store.renew = noRenewal
			began := time.Now()
			_ = b.Do(context.Background(), "k", func(ctx context.Context, _ Lock) error {
				<-ctx.Done()
				assert.Equal(t, c.first+time.Minute-margin, time.Since(began))
				return nil
			})
		})
		bubble("F29 counts from the sending, not from the reply: "+name, t, func(t *testing.T) {
			b := c.bench(t, Options{Wait: 10 * time.Minute})
			b.freeAfter(waited, b.occupy(t, "k", time.Hour))
			b.store.renew = noRenewal
			b.store.acquire = b.slow(time.Second)
			began := time.Now()
			_ = b.Do(context.Background(), "k", func(ctx context.Context, _ Lock) error {
				<-ctx.Done()
				assert.Equal(t, c.first+time.Minute-margin, time.Since(began))
				return nil
			})
		})
	}
	on("F26 F29 a late duplicate of a refused request is granted: the store says what is left", t, newBench, Options{Wait: 10 * time.Minute}, func(t *testing.T, b *bench) {
		b.freeAfter(waited, b.occupy(t, "k", time.Hour))
		b.store.renew = noRenewal
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
	on("the TTL of each request is that of the time that is left", t, newBenchAsks, Options{Wait: 10 * time.Minute}, func(t *testing.T, b *bench) {
		b.freeAfter(waited, b.occupy(t, "k", time.Hour))
		require.NoError(t, b.Do(within(t, 101*time.Second), "k", nothing))
		require.Equal(t, time.Minute, b.store.requests[0].TTL)
		require.Equal(t, 52*time.Second, b.store.requests[len(b.store.requests)-1].TTL)
	})
}

// What a store's queue may do, and what it may not do but might.
func TestQueueThatMisbehaves(t *testing.T) {
	ctx := context.Background()
	// atOnce answers at once. After many answers it takes its time, or a guard that does
	// not pause would keep the time of the test from passing.
	atOnce := func(err error) hook {
		return func(_ context.Context, n int, _ request) (driver.Answer, error) {
			if n > 1000 {
				pass(time.Minute)
			}
			return driver.Answer{Outcome: driver.Ask}, err
		}
	}
	on("F60 a wake-up that is lost costs the time until the store looks for itself", t, newBench, Options{Wait: time.Minute}, func(t *testing.T, b *bench) {
		b.freeAfter(5*time.Second, b.occupy(t, "k", time.Hour))
		b.store.await = func(ctx context.Context, _ int, _ request) (driver.Answer, error) {
			pass(750 * time.Millisecond)
			return driver.Answer{Outcome: driver.Ask}, nil
		}
		require.NoError(t, b.Do(ctx, "k", nothing))
		require.Equal(t, 5250*time.Millisecond, b.report(t).WaitTime)
		b.oneOwner(t)
	})
	on("F60 a wake-up that comes twice costs a request, and no place", t, newBench, Options{Wait: time.Minute}, func(t *testing.T, b *bench) {
		b.freeAfter(5*time.Second, b.occupy(t, "k", time.Hour))
		b.store.await = b.first(1, says(driver.Ask))
		require.NoError(t, b.Do(ctx, "k", nothing))
		require.Equal(t, 5*time.Second, b.report(t).WaitTime)
		require.Len(t, b.store.requests, 2)
		b.oneOwner(t)
	})
	on("each turn comes at once and is none: the run pauses", t, newBench, Options{Wait: 20 * time.Second}, func(t *testing.T, b *bench) {
		lease := b.occupy(t, "k", time.Hour)
		b.store.await = atOnce(nil)
		require.IsType(t, &LockBusy{}, b.Do(ctx, "k", neverRuns(t)))
		require.Less(t, len(b.store.requests), 400, "no request without a pause")
		require.Greater(t, len(b.store.requests), 100, "pauses are random up to 200 ms")
		require.Zero(t, b.waiting(t, "k"))

		b.freeAfter(5*time.Second, lease)
		require.NoError(t, b.Do(ctx, "k", nothing))
		require.LessOrEqual(t, b.reports[1].WaitTime, 5*time.Second+maxWaitPause)
	})
	on("a store that has no news, again and again and at once: the run asks and pauses", t, newBench, Options{Wait: 20 * time.Second}, func(t *testing.T, b *bench) {
		b.occupy(t, "k", time.Hour)
		b.store.await = says(driver.NotYet)
		require.IsType(t, &LockBusy{}, b.Do(ctx, "k", neverRuns(t)))
		require.Less(t, len(b.store.requests), 400, "no request without a pause")
		require.Zero(t, b.waiting(t, "k"))
	})
	// asked is when the run asked for the lock. Its random pauses are as long as they can be.
	asked := func(b *bench) *[]time.Duration {
		b.SetRandom(func(most time.Duration) time.Duration { return most })
		began, times := time.Now(), []time.Duration(nil)
		b.store.acquire = func(ctx context.Context, _ int, r request) (driver.Answer, error) {
			times = append(times, time.Since(began))
			return b.store.pass(ctx, r)
		}
		return &times
	}
	for name, c := range map[string]struct {
		await hook
		wait  time.Duration
		asked []time.Duration
	}{
		"the first turn that is none costs no pause, and a pause ends with the wait": {
			atOnce(nil), 300 * time.Millisecond, []time.Duration{0, 0, maxWaitPause + 1}},
		"after an error of AwaitTurn the run always pauses": {
			atOnce(errDown), 300 * time.Millisecond, []time.Duration{0, maxWaitPause + 1}},
	} {
		on(name, t, newBench, Options{Wait: c.wait}, func(t *testing.T, b *bench) {
			b.occupy(t, "k", time.Hour)
			b.store.await = c.await
			times := asked(b)
			require.IsType(t, &LockBusy{}, b.Do(ctx, "k", neverRuns(t)))
			require.Equal(t, c.asked, *times)
			require.Equal(t, c.wait, b.report(t).WaitTime)
		})
	}
	on("F31 F44 AwaitTurn fails, and is no reason to call a free lock busy", t, newBench, Options{Wait: 20 * time.Second}, func(t *testing.T, b *bench) {
		b.freeAfter(5*time.Second, b.occupy(t, "k", time.Hour))
		b.store.await = atOnce(errDown) // denied, for example
		require.NoError(t, b.Do(ctx, "k", nothing))
		require.LessOrEqual(t, b.report(t).WaitTime, 5*time.Second+maxWaitPause)
		require.Less(t, len(b.store.requests), 120, "it pauses between tries")
		require.Equal(t, len(b.store.awaits), b.report(t).FailedCalls)
		b.oneOwner(t)
	})
	on("F38 a store that leaves out the last requests alone: busy, as it said before", t, newBench, Options{Wait: 20 * time.Second}, func(t *testing.T, b *bench) {
		b.occupy(t, "k", time.Hour)
		began := time.Now()
		b.store.await = atOnce(nil)
		b.store.acquire = func(ctx context.Context, n int, r request) (driver.Answer, error) {
			if time.Since(began) > 19*time.Second {
				return driver.Answer{}, errDown
			}
			return b.store.pass(ctx, r)
		}
		require.IsType(t, &LockBusy{}, b.Do(ctx, "k", neverRuns(t)))
		require.Equal(t, 20*time.Second, b.report(t).WaitTime)
		require.Positive(t, b.report(t).FailedCalls)
		require.Zero(t, b.waiting(t, "k"))
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
			require.Zero(t, b.waiting(t, "k"))
		})
	}
	on("F28 AwaitTurn ends late after its context", t, newBench, Options{Wait: 20 * time.Second}, func(t *testing.T, b *bench) {
		b.occupy(t, "k", time.Hour)
		b.store.await = hangs
		require.IsType(t, &LockBusy{}, b.Do(ctx, "k", neverRuns(t)))
		require.Equal(t, 20*time.Second+50*time.Millisecond, b.report(t).WaitTime)
		require.Len(t, b.store.requests, 1)
	})

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
		require.Zero(t, b.report(t).Lapsed)
		require.LessOrEqual(t, len(b.store.requests), 13)
		b.oneOwner(t)
		b.free(t, "k")
	})
	on("F57 a full queue: long pauses do not make the run ask later than once a second", t, newBench, Options{Wait: 5 * time.Second}, func(t *testing.T, b *bench) {
		b.occupy(t, "k", time.Hour)
		full(t, b)
		times := asked(b)
		require.IsType(t, &LockBusy{}, b.Do(ctx, "k", neverRuns(t)))
		require.True(t, b.report(t).NoPlace)
		require.Equal(t, []time.Duration{0, time.Second, 2 * time.Second, 3 * time.Second, 4 * time.Second}, *times)
	})
}

func TestQueueInsideOtherRuns(t *testing.T) {
	ctx := context.Background()
	on("DoAll waits for each key in its queue, and asks for no place when Wait is over", t, newBench, Options{Wait: 10 * time.Second}, func(t *testing.T, b *bench) {
		b.freeAfter(4*time.Second, b.occupy(t, "a", time.Hour))
		b.freeAfter(8*time.Second, b.occupy(t, "b", time.Hour))
		b.occupy(t, "c", time.Hour)
		err := b.DoAll(ctx, []string{"a", "b", "c", "d"}, neverRunsAll(t))
		require.IsType(t, &LockBusy{}, err)
		require.Equal(t, "c", err.(*LockBusy).Key)
		for _, r := range b.reports {
			require.Equal(t, 1, r.QueuePosition)
		}
		for _, key := range []string{"a", "b"} {
			b.free(t, key)
		}
		require.Zero(t, b.waiting(t, "c"))

		b = newBench(t, Options{Wait: 10 * time.Second})
		b.store.acquire = func(ctx context.Context, _ int, r request) (driver.Answer, error) {
			a, err := b.store.pass(ctx, r)
			if r.Key == "a" {
				b.shift(instant{mono: 10 * time.Second, wall: 10 * time.Second})
			}
			return a, err
		}
		b.occupy(t, "b", time.Hour)
		require.IsType(t, &LockBusy{}, b.DoAll(ctx, []string{"a", "b"}, neverRunsAll(t)))
		require.Len(t, b.store.requests, 2)
		require.True(t, b.store.requests[0].JoinQueue)
		require.False(t, b.store.requests[1].JoinQueue)
		require.Empty(t, b.store.leaves)
		b.free(t, "a")
	})
}

func TestQueueOfManyInOrder(t *testing.T) {
	bubble("F59 140 waiters, and each release is the turn of one", t, func(t *testing.T) {
		const clients, places = 140, 128 // of memstore
		b := newBench(t, Options{Wait: 10 * time.Minute})
		b.freeAfter(5*time.Second, b.occupy(t, "k", time.Hour))
		var order []int // written by one at a time
		var wg sync.WaitGroup
		for i := range clients {
			wg.Go(func() {
				pass(time.Duration(i) * time.Millisecond)
				assert.NoError(t, b.Do(context.Background(), "k", func(context.Context, Lock) error {
					order = append(order, i)
					pass(100 * time.Millisecond)
					return nil
				}))
			})
		}
		wg.Wait()
		require.Len(t, order, clients)
		require.True(t, slices.IsSorted(order[:places]), "served in the order %v", order)
		asked := map[lockstore.Owner]int{}
		for _, req := range b.store.requests {
			asked[req.Owner]++
		}
		for _, l := range b.store.releases[:places] {
			require.Equal(t, 2, asked[l.Owner], "refused, and after its hand-over extended")
		}
		b.free(t, "k")
	})
}
