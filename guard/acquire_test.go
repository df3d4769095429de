package guard

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
)

func TestTooLate(t *testing.T) {
	for name, left := range map[string]time.Duration{
		"F65 nearer than reserve and least work": defaultDeadlineMargin + leastWork - 1,
		"F66 nothing left":                       0,
		"F66 less than nothing left":             -time.Hour,
	} {
		on(name, t, newBench, Options{}, func(t *testing.T, b *bench) {
			ctx, cancel := context.WithDeadline(context.Background(), time.Now().Add(left))
			defer cancel()
			err := b.Do(ctx, "k", neverRuns(t))
			require.IsType(t, &LockNoTime{}, err)
			require.ErrorIs(t, err, ErrDeadline)
			require.Empty(t, b.store.requests, "nothing is asked for")
			require.Equal(t, OutcomeDeadline, b.report(t).Outcome)
		})
	}
	on("F65 just enough is left", t, newBench, Options{}, func(t *testing.T, b *bench) {
		require.NoError(t, b.Do(within(t, defaultDeadlineMargin+leastWork), "k", nothing))
	})
	for _, year := range []int{2600, 100_000_000} {
		on(fmt.Sprintf("F48 a deadline in the year %d is as good as none", year), t, newBench, Options{Wait: time.Hour}, func(t *testing.T, b *bench) {
			b.occupy(t, "k", time.Minute)
			ctx, cancel := context.WithDeadline(context.Background(), time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC))
			defer cancel()
			require.NoError(t, b.Do(ctx, "k", nothing))
			for _, req := range b.store.requests {
				require.Equal(t, time.Minute, req.TTL)
			}
		})
	}
	on("the caller has gone", t, newBench, Options{}, func(t *testing.T, b *bench) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		err := b.Do(ctx, "k", neverRuns(t))
		require.IsType(t, &LockNoTime{}, err)
		require.ErrorIs(t, err, context.Canceled)
		b.free(t, "k")
	})
}

func TestBusy(t *testing.T) {
	on("F64 at once and with the holder, when there is no Wait", t, newBench, Options{}, func(t *testing.T, b *bench) {
		b.occupy(t, "k", time.Minute)
		start := time.Now()
		err := b.Do(context.Background(), "k", neverRuns(t))
		busy, ok := err.(*LockBusy)
		require.True(t, ok, "%T", err)
		require.ErrorIs(t, err, lockstore.ErrRefused)
		require.Equal(t, "another", busy.Holder.Name)
		require.Equal(t, time.Minute, busy.StateEndsIn)
		require.Zero(t, time.Since(start))
		require.Equal(t, 1, b.report(t).Calls)
		require.False(t, b.report(t).NoPlace, "it wanted none")
		require.Zero(t, b.report(t).HeldFor, "nobody knows since when")
		require.True(t, b.report(t).AcquiredAt.IsZero())
		require.Empty(t, b.store.releases, "a clear refusal leaves nothing to abandon")
	})
	on("a store that names no holder", t, newBench, Options{}, func(t *testing.T, b *bench) {
		b.store.acquire = says(driver.Refused)
		require.IsType(t, &LockBusy{}, b.Do(context.Background(), "k", neverRuns(t)))
	})
	for name, newBench := range benches {
		on("waits for at most half of the time that is left"+name, t, newBench, Options{Wait: time.Hour}, func(t *testing.T, b *bench) {
			b.occupy(t, "k", time.Hour)
			start := time.Now()
			require.IsType(t, &LockBusy{}, b.Do(within(t, 20*time.Second), "k", neverRuns(t)))
			require.Equal(t, 10*time.Second, time.Since(start))
			require.Zero(t, b.status(t, "k").Waiting)
			require.Equal(t, b.store.full, b.report(t).NoPlace)
			require.Equal(t, b.store.full, len(b.store.leaves) == 0)
		})
	}
	// A run without a place asks a store less often that answers slowly.
	for takes, requests := range map[time.Duration]int{0: 20, 400 * time.Millisecond: 13, time.Second: 10} {
		on("without a place, each request takes "+takes.String(), t, newBenchFull, Options{Wait: 20 * time.Second}, func(t *testing.T, b *bench) {
			b.occupy(t, "k", time.Hour)
			b.store.acquire = b.slow(takes)
			require.IsType(t, &LockBusy{}, b.Do(context.Background(), "k", neverRuns(t)))
			require.Len(t, b.store.requests, requests)
		})
	}
}

func TestUnavailableStore(t *testing.T) {
	on("F21 F44 is asked again with pauses; then the run ends, and nothing is abandoned", t, newBench, Options{}, func(t *testing.T, b *bench) {
		start, last := time.Now(), time.Duration(0)
		b.store.acquire = func(context.Context, int, request) (driver.Answer, error) {
			last = time.Since(start)
			return driver.Answer{}, errDown
		}
		err := b.Do(context.Background(), "k", neverRuns(t))
		require.IsType(t, &LockStoreUnavailable{}, err)
		require.ErrorIs(t, err, lockstore.ErrUnavailable)
		require.NotErrorIs(t, err, lockstore.ErrRefused)
		require.Contains(t, err.Error(), "connection refused", "the cause is kept")
		require.LessOrEqual(t, time.Since(start), storeRetryBudget)
		require.Less(t, last, storeRetryBudget)
		require.Equal(t, len(b.store.requests), b.report(t).FailedCalls)
		require.Less(t, len(b.store.requests), 40, "no retry storm")
		require.Greater(t, len(b.store.requests), 4)
		require.Empty(t, b.store.releases)
	})
	on("F28 is silent: each call leaves time for another one, and the attempt is abandoned", t, newBench, Options{}, func(t *testing.T, b *bench) {
		b.store.acquire = silent
		start := time.Now()
		err := b.Do(context.Background(), "k", neverRuns(t))
		require.IsType(t, &LockStoreUnavailable{}, err)
		require.ErrorContains(t, err, "the attempt was abandoned")
		require.LessOrEqual(t, time.Since(start), storeRetryBudget+minCallTimeout)
		require.Greater(t, len(b.store.requests), 3)
		require.Equal(t, len(b.store.requests), b.report(t).FailedCalls)
		require.Len(t, b.store.releases, 1)
	})
	on("F44 F53 F54 with a corrupt entry or a wrong table is not asked again", t, newBench, Options{}, func(t *testing.T, b *bench) {
		b.store.acquire = fails(lockstore.ErrCorrupt)
		err := b.Do(context.Background(), "k", neverRuns(t))
		require.IsType(t, &LockCorrupt{}, err)
		require.ErrorIs(t, err, lockstore.ErrCorrupt)
		require.Len(t, b.store.requests, 1)
	})
}

// What a refusal or a poll said less than 5 s ago is the answer, if no request since then had one and none may have been applied.
func TestUnavailableStoreAfterARefusal(t *testing.T) {
	for name, c := range map[string]struct {
		later error // of all requests after the refusal
		wait  time.Duration
		want  error
	}{
		"a moment ago":              {errDown, 3 * time.Second, &LockBusy{}},
		"long ago":                  {errDown, time.Minute, &LockStoreUnavailable{}},
		"and then a reply was lost": {errLostReply, 3 * time.Second, &LockStoreUnavailable{}},
	} {
		on(name, t, newBench, Options{Wait: c.wait}, func(t *testing.T, b *bench) {
			began := time.Now()
			b.store.acquire = func(context.Context, int, request) (driver.Answer, error) {
				if time.Since(began) > 2*time.Second {
					return driver.Answer{}, c.later
				}
				return driver.Answer{Outcome: driver.Refused, Status: driver.Status{State: driver.Held, Fence: 7}}, nil
			}
			require.IsType(t, c.want, b.Do(context.Background(), "k", neverRuns(t)))
			require.Greater(t, len(b.store.requests), 1)
		})
	}
	on("a moment ago, by a poll", t, newBenchFull, Options{Wait: storeRetryBudget}, func(t *testing.T, b *bench) {
		b.occupy(t, "k", time.Hour)
		b.store.acquire = b.from(2, fails(errDown))
		require.IsType(t, &LockBusy{}, b.Do(context.Background(), "k", neverRuns(t)))
		require.Greater(t, len(b.store.requests), 1)
	})
}

func TestSlowGrant(t *testing.T) {
	on("F69 a lease that comes after Shutdown is released", t, newBench, Options{}, func(t *testing.T, b *bench) {
		b.store.acquire = func(ctx context.Context, _ int, r request) (driver.Answer, error) {
			defer b.Shutdown()
			return b.store.pass(ctx, r)
		}
		err := b.Do(context.Background(), "k", neverRuns(t))
		require.IsType(t, &LockNoTime{}, err)
		require.ErrorIs(t, err, errShutdown)
		b.free(t, "k")
	})
	on("a lease that cannot be trusted is given back, and another owner asks", t, newBench, Options{}, func(t *testing.T, b *bench) {
		b.store.acquire = b.first(1, b.trusts(0))
		require.NoError(t, b.Do(context.Background(), "k", nothing))
		require.NotEqual(t, b.store.requests[0].Owner, b.store.requests[1].Owner)
		require.Len(t, b.store.releases, 2)
	})
	on("an owner that the caller has chosen keeps its lease, and asks again", t, newBench, Options{}, func(t *testing.T, b *bench) {
		b.store.acquire = b.first(1, b.trusts(0))
		_, err := b.Acquire(context.Background(), LeaseRequest{Key: "k", TTL: time.Minute, Owner: "mine"})
		require.NoError(t, err)
		require.Empty(t, b.store.releases)
	})
	on("F26 another has the key since: nothing is left", t, newBench, Options{TTL: time.Second}, func(t *testing.T, b *bench) {
		b.store.acquire = b.first(1, func(ctx context.Context, _ int, r request) (driver.Answer, error) {
			a, err := b.store.pass(ctx, r)
			b.occupied(t, "k", time.Second)
			return a, err
		})
		require.IsType(t, &LockBusy{}, b.Do(context.Background(), "k", neverRuns(t)))
		require.NoError(t, b.report(t).ReleaseErr)
	})
}

func TestKeys(t *testing.T) {
	for name, key := range map[string]string{
		"empty": "", "too long": strings.Repeat("k", 1025), "as large as an event": strings.Repeat("k", 6<<20), "NUL": "a\x00b", "newline": "a\nb", "not UTF-8": "a\xffb",
	} {
		on("F52 refused: "+name, t, newBench, Options{}, func(t *testing.T, b *bench) {
			err := b.Do(context.Background(), key, neverRuns(t))
			require.IsType(t, &LockBadRequest{}, err)
			require.ErrorIs(t, err, lockstore.ErrInvalid)
			require.NotContains(t, err.Error(), "\n", "an error is one line")
			require.Less(t, len(err.Error()), 2000)
			require.LessOrEqual(t, len(b.report(t).Key), lockstore.MaxKeyBytes)
			require.Empty(t, b.store.requests)
		})
	}
}
