package guard

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
)

// The answer to a repeat says nothing about an earlier request whose reply was lost: the
// store may have applied the earlier request.
func TestAnUnknownOutcomeStaysUnknown(t *testing.T) {
	ctx := context.Background()
	// unknown says that the call may have been applied, and why.
	unknown := func(t *testing.T, b *bench, err error) {
		t.Helper()
		assert.IsType(t, &LockStoreUnavailable{}, err)
		assert.ErrorIs(t, err, errLostReply, "the first lost reply")
		assert.NotErrorIs(t, err, lockstore.ErrUnavailable, "that would say that nothing was applied")
		assert.Equal(t, OutcomeUnknown, b.reports[len(b.reports)-1].Outcome)
	}
	for name, later := range map[string]error{"F24 F25 F76 down": errDown, "F24 F25 lost": lockstore.ErrLost, "F24 F25 foreign": lockstore.ErrCorrupt} {
		// first applies the first request and loses its reply.
		first := func(b *bench) hook {
			return func(ctx context.Context, n int, r request) (driver.Answer, error) {
				if n > 1 {
					return driver.Answer{}, later
				}
				return b.loses(ctx, n, r)
			}
		}
		on(name+" after a release", t, newBench, Options{}, func(t *testing.T, b *bench) {
			b.store.release = first(b)
			lease, err := b.Acquire(ctx, LeaseRequest{Key: "k", TTL: 10 * time.Second})
			require.NoError(t, err)
			unknown(t, b, b.Release(ctx, lease))
			b.free(t, "k")
		})
		on(name+" after the release of a run", t, newBench, Options{}, func(t *testing.T, b *bench) {
			b.store.release = first(b)
			require.NoError(t, b.Do(ctx, "k", nothing), "the work's result stands")
			require.Equal(t, OutcomeOK, b.report(t).Outcome)
			require.ErrorIs(t, b.report(t).ReleaseErr, errLostReply)
			require.NotErrorIs(t, b.report(t).ReleaseErr, later)
			require.ErrorContains(t, b.report(t).ReleaseErr, later.Error(), "what came after it is told, too")
		})
		if later != errDown {
			continue
		}
		on(name+" after a renewal", t, newBench, Options{}, func(t *testing.T, b *bench) {
			b.store.renew = first(b)
			lease, err := b.Acquire(ctx, LeaseRequest{Key: "k", TTL: 10 * time.Second})
			require.NoError(t, err)
			_, err = b.Renew(ctx, lease, time.Minute)
			unknown(t, b, err)
			require.Greater(t, b.status(t, "k").Remaining, 50*time.Second, "it was renewed")
		})
		on(name+" after an acquire, and the attempt cannot be abandoned", t, newBench, Options{}, func(t *testing.T, b *bench) {
			b.store.acquire = first(b)
			b.store.release = func(_ context.Context, n int, _ request) (driver.Answer, error) {
				if n > 1 {
					return driver.Answer{}, later
				}
				return driver.Answer{}, errLostReply
			}
			_, err := b.Acquire(ctx, LeaseRequest{Key: "k", TTL: 10 * time.Second})
			unknown(t, b, err)
			require.NotErrorIs(t, b.report(t).ReleaseErr, lockstore.ErrUnavailable, "the abandon may have been applied")
		})
	}
}

// The store may grant, later, what could not be abandoned: that is unknown,
// whatever else ended the run.
func TestWhatCannotBeAbandonedIsUnknown(t *testing.T) {
	unknown := func(t *testing.T, b *bench, err error, cause error) {
		t.Helper()
		require.IsType(t, &LockStoreUnavailable{}, err, "it may be granted later: unknown")
		require.ErrorIs(t, err, cause)
		require.NotErrorIs(t, err, lockstore.ErrUnavailable)
		require.NotErrorIs(t, err, lockstore.ErrRefused)
		require.ErrorContains(t, err, "may block the key")
		require.Equal(t, OutcomeUnknown, b.report(t).Outcome)
		require.Error(t, b.report(t).ReleaseErr)
	}
	on("F26 another holds the lock", t, newBench, Options{}, func(t *testing.T, b *bench) {
		b.store.acquire = b.overtaken(t)
		b.store.release = fails(errDown)
		unknown(t, b, b.Do(context.Background(), "k", neverRuns(t)), errLostReply)
	})
	on("F54 the entry is foreign: corrupt, and the report says what may be left", t, newBench, Options{}, func(t *testing.T, b *bench) {
		b.store.acquire = func(_ context.Context, n int, _ request) (driver.Answer, error) {
			if n == 1 {
				return driver.Answer{}, errLostReply
			}
			return driver.Answer{}, lockstore.ErrCorrupt
		}
		b.store.release = fails(lockstore.ErrCorrupt)
		require.IsType(t, &LockCorrupt{}, b.Do(context.Background(), "k", neverRuns(t)))
		require.ErrorIs(t, b.report(t).ReleaseErr, lockstore.ErrCorrupt)
	})
	on("F11 the lease came too late for the deadline", t, newBench, Options{}, func(t *testing.T, b *bench) {
		b.store.acquire = func(ctx context.Context, _ int, r request) (driver.Answer, error) {
			pass(time.Second)
			return b.store.pass(context.WithoutCancel(ctx), r)
		}
		b.store.release = fails(errDown)
		unknown(t, b, b.Do(within(t, time.Second), "k", neverRuns(t)), errLate)
	})
}
