package guard

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
)

func TestTooLate(t *testing.T) {
	for name, left := range map[string]time.Duration{
		"F65 nearer than reserve and least work": defaultReserve + leastWork - 1,
		"F66 nothing left":                       0,
		"F66 less than nothing left":             -time.Hour,
	} {
		bubble(name, t, func(t *testing.T) {
			b := newBench(t, Options{})
			ctx, cancel := context.WithDeadline(context.Background(), time.Now().Add(left))
			defer cancel()
			err := b.Do(ctx, "k", neverRuns(t))
			require.IsType(t, &LockDeadline{}, err)
			require.ErrorIs(t, err, ErrDeadline)
			require.Empty(t, b.store.requests, "nothing is asked for")
			require.Equal(t, OutcomeDeadline, b.report(t).Outcome)
		})
	}
	for name, deadline := range map[string]time.Time{
		"F66 in the first year":  time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC),
		"F66 as old as times go": time.Unix(math.MinInt64, 0),
	} {
		bubble(name, t, func(t *testing.T) {
			b := newBench(t, Options{})
			ctx, cancel := context.WithDeadline(context.Background(), deadline)
			defer cancel()
			require.IsType(t, &LockDeadline{}, b.Do(ctx, "k", neverRuns(t)))
			require.Empty(t, b.store.requests)
		})
	}
	for _, year := range []int{2263, 2600, 9999, 100_000_000} {
		bubble(fmt.Sprintf("F48 a deadline in the year %d is as good as none", year), t, func(t *testing.T) {
			b := newBench(t, Options{Wait: time.Hour})
			b.occupy(t, "k", time.Minute)
			ctx, cancel := context.WithDeadline(context.Background(), time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC))
			defer cancel()
			require.NoError(t, b.Do(ctx, "k", nothing))
			for _, req := range b.store.requests {
				require.Equal(t, time.Minute, req.TTL)
			}
		})
	}
	bubble("the caller has gone", t, func(t *testing.T) {
		b := newBench(t, Options{})
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		err := b.Do(ctx, "k", neverRuns(t))
		require.IsType(t, &LockDeadline{}, err)
		require.ErrorIs(t, err, context.Canceled)
		b.free(t, "k")
	})
}

// An abandon whose reply is lost may arrive at any time. So its owner must get no lease any
// more; otherwise the abandon would release the lease under the work.
func TestAbandonThatMayStillArrive(t *testing.T) {
	for name, first := range map[string]func(*bench) (lockstore.Lease, error){
		"behind another's grant": func(b *bench) (lockstore.Lease, error) { return lockstore.Lease{}, errLostReply },
		"behind a grant that came too late": func(b *bench) (lockstore.Lease, error) {
			return lockstore.Lease{TTL: leastWork}, nil
		},
	} {
		bubble(name, t, func(t *testing.T) {
			b := newBenchWithoutQueue(t, Options{Wait: 10 * time.Second})
			b.occupy(t, "k", 2*time.Second)
			b.store.acquire = func(ctx context.Context, n int, req lockstore.Request) (lockstore.Lease, error) {
				if n == 1 {
					return first(b)
				}
				return b.store.Store.Acquire(ctx, req)
			}
			b.store.release = func(context.Context, int, lockstore.Lease) error { return errLostReply }
			err := b.Do(context.Background(), "k", neverRuns(t))
			require.IsType(t, &LockStoreUnavailable{}, err)
			require.Equal(t, OutcomeUnknown, b.report(t).Outcome)
			for _, req := range b.store.requests {
				require.Equal(t, b.store.requests[0].Owner, req.Owner, "no other owner asks while this one may be granted")
			}
			require.LessOrEqual(t, len(b.store.requests), 2)
		})
	}
}

func TestBusy(t *testing.T) {
	bubble("F64 at once and with the holder, when there is no Wait", t, func(t *testing.T) {
		b := newBench(t, Options{})
		b.occupy(t, "k", time.Minute)
		start := time.Now()
		err := b.Do(context.Background(), "k", neverRuns(t))
		busy, ok := err.(*LockBusy)
		require.True(t, ok, "%T", err)
		require.ErrorIs(t, err, lockstore.ErrHeld)
		require.Equal(t, "another", busy.Holder.Name)
		require.Equal(t, time.Minute, busy.Remaining)
		require.Zero(t, time.Since(start))
		require.Equal(t, 1, b.report(t).Calls)
		require.Empty(t, b.store.releases, "a clear refusal leaves nothing to abandon")
	})
	bubble("a store that names no holder", t, func(t *testing.T) {
		b := newBench(t, Options{})
		b.store.acquire = func(context.Context, int, lockstore.Request) (lockstore.Lease, error) {
			return lockstore.Lease{}, lockstore.ErrHeld
		}
		require.IsType(t, &LockBusy{}, b.Do(context.Background(), "k", neverRuns(t)))
	})
	bubble("waits by reading, and writes only when it may succeed", t, func(t *testing.T) {
		b := newBenchWithoutQueue(t, Options{Wait: time.Minute})
		lease := b.occupy(t, "k", time.Hour)
		time.AfterFunc(20*time.Second, func() { b.store.Store.Release(context.Background(), lease) })
		require.NoError(t, b.Do(context.Background(), "k", nothing))
		require.Len(t, b.store.requests, 2, "one refused, one granted")
		require.Greater(t, b.store.polls, 20)
		require.Less(t, b.store.polls, 300)
		require.InDelta(t, 20.1, b.report(t).WaitTime.Seconds(), 0.11, "noticed within one poll")
	})
	bubble("a store that cannot inspect a key is asked for the lease again instead", t, func(t *testing.T) {
		b := newBench(t, Options{Wait: time.Minute})
		lease := b.occupy(t, "k", time.Hour)
		g, err := New(struct{ lockstore.Store }{b.store}, Options{Wait: time.Minute})
		require.NoError(t, err)
		time.AfterFunc(5*time.Second, func() { b.store.Store.Release(context.Background(), lease) })
		require.NoError(t, g.Do(context.Background(), "k", nothing))
		require.Zero(t, b.store.polls)
	})
	bubble("F31 F44 a poll that fails is no reason to call a free lock busy", t, func(t *testing.T) {
		b := newBenchWithoutQueue(t, Options{Wait: time.Minute})
		lease := b.occupy(t, "k", time.Hour)
		b.store.inspect = func(context.Context, int, string) (lockstore.Status, error) {
			return lockstore.Status{}, errDown // denied, for example
		}
		time.AfterFunc(5*time.Second, func() { b.store.Store.Release(context.Background(), lease) })
		require.NoError(t, b.Do(context.Background(), "k", nothing))
		require.LessOrEqual(t, b.report(t).WaitTime, 5*time.Second+maxWaitPause)
		require.Less(t, len(b.store.requests), 90, "it pauses between tries")
	})
	bubble("F38 a store that goes down under a waiter is unavailable, not busy", t, func(t *testing.T) {
		b := newBenchWithoutQueue(t, Options{Wait: 20 * time.Second})
		b.occupy(t, "k", time.Hour)
		b.store.acquire = func(ctx context.Context, n int, req lockstore.Request) (lockstore.Lease, error) {
			if n > 1 {
				return lockstore.Lease{}, errDown
			}
			return b.store.Store.Acquire(ctx, req)
		}
		b.store.inspect = func(context.Context, int, string) (lockstore.Status, error) { return lockstore.Status{}, errDown }
		err := b.Do(context.Background(), "k", neverRuns(t))
		require.IsType(t, &LockStoreUnavailable{}, err)
		require.ErrorIs(t, err, lockstore.ErrUnavailable)
	})
	bubble("a waiter whose caller leaves during a poll asks for nothing more", t, func(t *testing.T) {
		b := newBenchWithoutQueue(t, Options{Wait: time.Minute})
		b.occupy(t, "k", time.Hour)
		ctx, cancel := context.WithCancel(context.Background())
		b.store.inspect = func(ctx context.Context, _ int, _ string) (lockstore.Status, error) {
			cancel()
			<-ctx.Done()
			return lockstore.Status{}, ctx.Err()
		}
		err := b.Do(ctx, "k", neverRuns(t))
		require.IsType(t, &LockDeadline{}, err)
		require.Len(t, b.store.requests, 1)
		require.Empty(t, b.store.releases)
	})
	for name, newBench := range benches {
		bubble("waits for at most half of the time that is left"+name, t, func(t *testing.T) {
			b := newBench(t, Options{Wait: time.Hour})
			b.occupy(t, "k", time.Hour)
			start := time.Now()
			require.IsType(t, &LockBusy{}, b.Do(within(t, 20*time.Second), "k", neverRuns(t)))
			require.Equal(t, 10*time.Second, time.Since(start))
			require.Zero(t, b.waiting(t, "k"))
		})
		bubble("F01 a dead holder's lock is taken over one poll after its TTL"+name, t, func(t *testing.T) {
			b := newBench(t, Options{Wait: 5 * time.Minute})
			dead := b.occupy(t, "k", time.Minute)
			require.NoError(t, b.Do(context.Background(), "k", func(_ context.Context, lock Lock) error {
				assert.Greater(t, lock.Fence, dead.Fence)
				return nil
			}))
			waited := b.report(t).WaitTime
			require.GreaterOrEqual(t, waited, time.Minute)
			require.LessOrEqual(t, waited, time.Minute+maxWaitPause)
		})
		bubble("a long wait does not shorten the lease"+name, t, func(t *testing.T) {
			b := newBench(t, Options{Wait: time.Hour})
			b.occupy(t, "k", 10*time.Minute)
			require.NoError(t, b.Do(context.Background(), "k", func(ctx context.Context, _ Lock) error {
				pass(50 * time.Second)
				return ctx.Err()
			}))
		})
	}
}

func TestUnknownOutcome(t *testing.T) {
	bubble("F23 after a lost reply the same owner asks again: one grant, one fence", t, func(t *testing.T) {
		b := newBench(t, Options{})
		var first lockstore.Lease
		b.store.acquire = func(ctx context.Context, n int, req lockstore.Request) (lockstore.Lease, error) {
			lease, err := b.store.Store.Acquire(ctx, req)
			if n == 1 {
				first = lease
				return lockstore.Lease{}, errLostReply
			}
			return lease, err
		}
		require.NoError(t, b.Do(context.Background(), "k", func(_ context.Context, lock Lock) error {
			assert.Equal(t, first.Fence, lock.Fence)
			return nil
		}))
		require.Len(t, b.store.requests, 2)
		require.Equal(t, b.store.requests[0].Owner, b.store.requests[1].Owner)
		b.free(t, "k")
	})
	bubble("F23 the trust counts from the first request", t, func(t *testing.T) {
		b := newBench(t, Options{})
		b.store.acquire = func(ctx context.Context, n int, req lockstore.Request) (lockstore.Lease, error) {
			lease, err := b.store.Store.Acquire(ctx, req)
			if n == 1 {
				<-ctx.Done() // the reply never comes
				return lockstore.Lease{}, ctx.Err()
			}
			lease.TTL = req.TTL // a store that forgets to count down
			return lease, err
		}
		b.store.renew = func(context.Context, int, lockstore.Lease, time.Duration) (time.Duration, error) {
			return 0, errDown
		}
		start := time.Now()
		b.Do(context.Background(), "k", func(ctx context.Context, _ Lock) error {
			<-ctx.Done()
			assert.Equal(t, time.Minute-margin, time.Since(start))
			return nil
		})
	})
	bubble("F28 F22 if the store never answers, the attempt is abandoned in the end", t, func(t *testing.T) {
		b := newBench(t, Options{})
		var late []lockstore.Request
		b.store.acquire = func(ctx context.Context, _ int, req lockstore.Request) (lockstore.Lease, error) {
			<-ctx.Done()
			late = append(late, req)
			return lockstore.Lease{}, ctx.Err()
		}
		start := time.Now()
		err := b.Do(context.Background(), "k", neverRuns(t))
		require.IsType(t, &LockStoreUnavailable{}, err)
		require.NotErrorIs(t, err, lockstore.ErrUnavailable, "nobody knows")
		require.NotErrorIs(t, err, lockstore.ErrHeld)
		require.Contains(t, err.Error(), "was abandoned")
		require.LessOrEqual(t, time.Since(start), storeRetryBudget+releaseTime)
		require.Equal(t, lockstore.Fence(0), b.store.releases[0].Fence, "an abandon")

		// F26: the requests arrive now, and take no lock.
		for _, req := range late {
			_, err := b.store.Store.Acquire(context.Background(), req)
			require.ErrorIs(t, err, lockstore.ErrLost)
		}
		b.free(t, "k")
	})
	bubble("when the abandon fails too, the error says that the key may be blocked", t, func(t *testing.T) {
		b := newBench(t, Options{})
		b.store.acquire = func(context.Context, int, lockstore.Request) (lockstore.Lease, error) {
			return lockstore.Lease{}, errLostReply
		}
		b.store.release = func(context.Context, int, lockstore.Lease) error { return errDown }
		err := b.Do(context.Background(), "k", neverRuns(t))
		require.IsType(t, &LockStoreUnavailable{}, err)
		require.Contains(t, err.Error(), "may block the key for up to 1m0s")
		require.Equal(t, OutcomeUnknown, b.report(t).Outcome)
		require.Error(t, b.report(t).ReleaseErr)
	})
	bubble("F37 the outcome is unknown also if the store goes down after the lost reply", t, func(t *testing.T) {
		b := newBench(t, Options{})
		b.store.acquire = func(ctx context.Context, n int, req lockstore.Request) (lockstore.Lease, error) {
			if n == 1 {
				b.store.Store.Acquire(ctx, req)
				return lockstore.Lease{}, errLostReply
			}
			return lockstore.Lease{}, errDown
		}
		b.store.release = func(context.Context, int, lockstore.Lease) error { return errDown }
		err := b.Do(context.Background(), "k", neverRuns(t))
		require.IsType(t, &LockStoreUnavailable{}, err)
		require.ErrorIs(t, err, errLostReply)
		require.NotErrorIs(t, err, lockstore.ErrUnavailable, "that would say that nothing was applied")
		require.Equal(t, OutcomeUnknown, b.report(t).Outcome)
		require.ErrorIs(t, b.report(t).ReleaseErr, lockstore.ErrUnavailable)
	})
	bubble("F26 if another holds the lock after a lost reply, the outcome is busy, and the own attempt is abandoned", t, func(t *testing.T) {
		b := newBench(t, Options{})
		b.store.acquire = func(ctx context.Context, n int, req lockstore.Request) (lockstore.Lease, error) {
			if n == 1 {
				b.occupy(t, "k", time.Minute)
				return lockstore.Lease{}, errLostReply
			}
			return b.store.Store.Acquire(ctx, req)
		}
		require.IsType(t, &LockBusy{}, b.Do(context.Background(), "k", neverRuns(t)))
		require.Len(t, b.store.releases, 1)
		require.Equal(t, b.store.requests[0].Owner, b.store.releases[0].Owner)
	})
	bubble("F26 a waiter abandons the attempt before a new owner asks", t, func(t *testing.T) {
		b := newBenchWithoutQueue(t, Options{Wait: time.Minute})
		b.store.acquire = func(ctx context.Context, n int, req lockstore.Request) (lockstore.Lease, error) {
			if n == 1 {
				b.occupy(t, "k", 5*time.Second)
				return lockstore.Lease{}, errLostReply
			}
			return b.store.Store.Acquire(ctx, req)
		}
		require.NoError(t, b.Do(context.Background(), "k", nothing))
		_, err := b.store.Store.Acquire(context.Background(), b.store.requests[0])
		require.ErrorIs(t, err, lockstore.ErrLost)
	})
	bubble("a caller that leaves during the acquire leaves nothing behind", t, func(t *testing.T) {
		b := newBench(t, Options{})
		ctx, cancel := context.WithCancel(context.Background())
		b.store.acquire = func(callCtx context.Context, _ int, req lockstore.Request) (lockstore.Lease, error) {
			b.store.Store.Acquire(callCtx, req)
			cancel()
			return lockstore.Lease{}, callCtx.Err()
		}
		err := b.Do(ctx, "k", neverRuns(t))
		require.IsType(t, &LockDeadline{}, err)
		require.ErrorIs(t, err, context.Canceled)
		b.free(t, "k")
	})
}

func TestUnavailableStore(t *testing.T) {
	bubble("F21 F44 is asked again with pauses; then the run ends, and nothing is abandoned", t, func(t *testing.T) {
		b := newBench(t, Options{})
		b.store.acquire = func(context.Context, int, lockstore.Request) (lockstore.Lease, error) {
			return lockstore.Lease{}, errDown
		}
		start := time.Now()
		err := b.Do(context.Background(), "k", neverRuns(t))
		require.IsType(t, &LockStoreUnavailable{}, err)
		require.ErrorIs(t, err, lockstore.ErrUnavailable)
		require.NotErrorIs(t, err, lockstore.ErrHeld)
		require.Contains(t, err.Error(), "connection refused", "the cause is kept")
		require.LessOrEqual(t, time.Since(start), storeRetryBudget)
		require.Less(t, len(b.store.requests), 40, "no retry storm")
		require.Greater(t, len(b.store.requests), 4)
		require.Empty(t, b.store.releases)
	})
	bubble("F38 that recovers in time grants the lock", t, func(t *testing.T) {
		b := newBench(t, Options{})
		b.store.acquire = func(ctx context.Context, n int, req lockstore.Request) (lockstore.Lease, error) {
			if n < 4 {
				return lockstore.Lease{}, errDown
			}
			return b.store.Store.Acquire(ctx, req)
		}
		require.NoError(t, b.Do(context.Background(), "k", nothing))
	})
	bubble("is asked for at most half of the time that is left", t, func(t *testing.T) {
		b := newBench(t, Options{})
		b.store.acquire = func(context.Context, int, lockstore.Request) (lockstore.Lease, error) {
			return lockstore.Lease{}, errDown
		}
		start := time.Now()
		require.IsType(t, &LockStoreUnavailable{}, b.Do(within(t, 3*time.Second), "k", neverRuns(t)))
		require.LessOrEqual(t, time.Since(start), 1500*time.Millisecond)
	})
	bubble("F44 F53 F54 with a corrupt entry or a wrong table is not asked again", t, func(t *testing.T) {
		b := newBench(t, Options{})
		b.store.acquire = func(context.Context, int, lockstore.Request) (lockstore.Lease, error) {
			return lockstore.Lease{}, lockstore.ErrCorrupt
		}
		err := b.Do(context.Background(), "k", neverRuns(t))
		require.IsType(t, &LockCorrupt{}, err)
		require.ErrorIs(t, err, lockstore.ErrCorrupt)
		require.Len(t, b.store.requests, 1)
	})
}

func TestSlowGrant(t *testing.T) {
	bubble("F29 the work has what is left of the lease, counted from the request", t, func(t *testing.T) {
		b := newBench(t, Options{TTL: 3 * time.Second})
		b.store.acquire = func(ctx context.Context, _ int, req lockstore.Request) (lockstore.Lease, error) {
			lease, err := b.store.Store.Acquire(ctx, req)
			pass(1500 * time.Millisecond)
			return lease, err
		}
		b.store.renew = func(context.Context, int, lockstore.Lease, time.Duration) (time.Duration, error) {
			return 0, errDown
		}
		start := time.Now()
		b.Do(context.Background(), "k", func(ctx context.Context, _ Lock) error {
			<-ctx.Done()
			assert.Equal(t, 3*time.Second-margin, time.Since(start))
			return nil
		})
	})
	bubble("F11 F29 a lease that comes too late is released, and a new owner asks", t, func(t *testing.T) {
		b := newBench(t, Options{TTL: time.Second})
		b.store.acquire = func(ctx context.Context, n int, req lockstore.Request) (lockstore.Lease, error) {
			lease, err := b.store.Store.Acquire(ctx, req)
			if n == 1 {
				pass(900 * time.Millisecond)
			}
			return lease, err
		}
		require.NoError(t, b.Do(context.Background(), "k", func(_ context.Context, lock Lock) error { return nil }))
		require.Len(t, b.store.requests, 2)
		require.NotEqual(t, b.store.requests[0].Owner, b.store.requests[1].Owner)
		require.Equal(t, b.store.requests[0].Owner, b.store.releases[0].Owner)
	})
	bubble("F11 a late lease that cannot be released is unknown, and not busy because of this run itself", t, func(t *testing.T) {
		b := newBench(t, Options{})
		b.store.acquire = func(ctx context.Context, n int, req lockstore.Request) (lockstore.Lease, error) {
			lease, err := b.store.Store.Acquire(ctx, req)
			lease.TTL = 0
			return lease, err
		}
		b.store.release = func(context.Context, int, lockstore.Lease) error { return errDown }
		err := b.Do(context.Background(), "k", neverRuns(t))
		require.IsType(t, &LockStoreUnavailable{}, err)
		require.NotErrorIs(t, err, lockstore.ErrUnavailable)
		require.Contains(t, err.Error(), "may block the key")
		require.Equal(t, OutcomeUnknown, b.report(t).Outcome)
	})
	bubble("F11 late leases that were released leave nothing to report", t, func(t *testing.T) {
		b := newBench(t, Options{TTL: time.Second})
		b.store.acquire = func(ctx context.Context, n int, req lockstore.Request) (lockstore.Lease, error) {
			lease, err := b.store.Store.Acquire(ctx, req)
			pass(1100 * time.Millisecond)
			return lease, err
		}
		err := b.Do(within(t, 10*time.Second), "k", neverRuns(t))
		require.IsType(t, &LockStoreUnavailable{}, err)
		require.ErrorIs(t, err, errLate)
		require.NoError(t, b.report(t).ReleaseErr)
		b.free(t, "k")
	})
	bubble("F11 a freeze inside the request never runs work on a dead lease", t, func(t *testing.T) {
		b := newBench(t, Options{})
		b.store.acquire = func(ctx context.Context, n int, req lockstore.Request) (lockstore.Lease, error) {
			lease, err := b.store.Store.Acquire(ctx, req)
			if n == 1 {
				b.shift(instant{wall: 2 * time.Minute})
			}
			return lease, err
		}
		// The caller's time went by in the freeze as well.
		err := b.Do(within(t, 30*time.Second), "k", neverRuns(t))
		require.IsType(t, &LockDeadline{}, err)
		b.free(t, "k")
	})
	bubble("F11 a freeze while waiting ends as a deadline", t, func(t *testing.T) {
		b := newBenchWithoutQueue(t, Options{Wait: time.Minute})
		b.occupy(t, "k", time.Hour)
		b.store.inspect = func(context.Context, int, string) (lockstore.Status, error) {
			b.shift(instant{wall: 2 * time.Minute})
			return lockstore.Status{}, nil // free, the last thing that was seen
		}
		b.store.acquire = func(ctx context.Context, n int, req lockstore.Request) (lockstore.Lease, error) {
			if n == 1 {
				return b.store.Store.Acquire(ctx, req)
			}
			return lockstore.Lease{Key: req.Key, Owner: req.Owner, Fence: 1, TTL: req.TTL}, req.Validate()
		}
		require.IsType(t, &LockDeadline{}, b.Do(within(t, time.Minute), "k", neverRuns(t)))
	})
	bubble("a lease that comes when the caller has left is released", t, func(t *testing.T) {
		b := newBench(t, Options{})
		ctx, cancel := context.WithCancel(context.Background())
		b.store.acquire = func(callCtx context.Context, _ int, req lockstore.Request) (lockstore.Lease, error) {
			defer cancel()
			return b.store.Store.Acquire(callCtx, req)
		}
		err := b.Do(ctx, "k", neverRuns(t))
		require.IsType(t, &LockDeadline{}, err)
		require.ErrorIs(t, err, context.Canceled)
		require.Zero(t, b.report(t).Fence)
		b.free(t, "k")
	})
	bubble("F69 a lease that comes after Shutdown is released", t, func(t *testing.T) {
		b := newBench(t, Options{})
		b.store.acquire = func(ctx context.Context, _ int, req lockstore.Request) (lockstore.Lease, error) {
			defer b.Shutdown()
			return b.store.Store.Acquire(ctx, req)
		}
		err := b.Do(context.Background(), "k", neverRuns(t))
		require.IsType(t, &LockDeadline{}, err)
		require.ErrorIs(t, err, ErrShutdown)
		b.free(t, "k")
	})
	bubble("F09 if its own lease has expired, a new owner asks", t, func(t *testing.T) {
		b := newBench(t, Options{})
		b.store.acquire = func(ctx context.Context, n int, req lockstore.Request) (lockstore.Lease, error) {
			if n == 1 {
				return lockstore.Lease{}, lockstore.ErrLost
			}
			return b.store.Store.Acquire(ctx, req)
		}
		require.NoError(t, b.Do(context.Background(), "k", nothing))
		require.NotEqual(t, b.store.requests[0].Owner, b.store.requests[1].Owner)
	})
}

func TestKeys(t *testing.T) {
	for name, key := range map[string]string{
		"empty": "", "too long": strings.Repeat("k", 1025), "as large as an event": strings.Repeat("k", 6<<20), "NUL": "a\x00b", "newline": "a\nb", "not UTF-8": "a\xffb",
	} {
		bubble("F52 refused: "+name, t, func(t *testing.T) {
			b := newBench(t, Options{})
			err := b.Do(context.Background(), key, neverRuns(t))
			require.IsType(t, &LockInvalid{}, err)
			require.ErrorIs(t, err, lockstore.ErrInvalid)
			require.NotContains(t, err.Error(), "\n", "an error is one line")
			require.Less(t, len(err.Error()), 2000)
			require.LessOrEqual(t, len(b.report(t).Key), lockstore.MaxKeyBytes)
			require.Empty(t, b.store.requests)
		})
	}
}

func TestOneCallThatHangsLeavesTimeForAnother(t *testing.T) {
	bubble("F28 acquire under a short deadline", t, func(t *testing.T) {
		b := newBench(t, Options{})
		b.store.acquire = func(ctx context.Context, n int, req lockstore.Request) (lockstore.Lease, error) {
			if n == 1 {
				<-ctx.Done()
				return lockstore.Lease{}, ctx.Err()
			}
			return b.store.Store.Acquire(ctx, req)
		}
		require.NoError(t, b.Do(within(t, 3*time.Second), "k", nothing))
		require.Len(t, b.store.requests, 2)
	})
	bubble("F28 renewal of a short lease", t, func(t *testing.T) {
		b := newBench(t, Options{TTL: 3 * time.Second})
		b.store.renew = func(ctx context.Context, n int, l lockstore.Lease, ttl time.Duration) (time.Duration, error) {
			if n == 1 {
				<-ctx.Done()
				return 0, ctx.Err()
			}
			return b.store.Store.Renew(ctx, l, ttl)
		}
		require.NoError(t, b.Do(within(t, time.Minute), "k", func(ctx context.Context, _ Lock) error {
			pass(10 * time.Second)
			return ctx.Err()
		}))
	})
}
