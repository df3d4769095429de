package guard

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
)

func TestLongLivedLease(t *testing.T) {
	ctx := context.Background()
	req := LeaseRequest{Key: "k", TTL: 10 * time.Second}

	on("stays held after the call, until it is released", t, newBench, Options{HolderInfo: func(context.Context) lockstore.HolderInfo { return lockstore.HolderInfo{Name: "service", ID: "call"} }}, func(t *testing.T, b *bench) {
		lease, err := b.Acquire(ctx, req)
		require.NoError(t, err)
		require.Equal(t, 10*time.Second-margin, lease.TTL)
		status, err := b.Inspect(ctx, "k")
		require.NoError(t, err)
		require.Equal(t, lockstore.Held, status.State)
		require.Equal(t, lease.Fence, status.Fence)
		require.Equal(t, "service", status.Holder.Name)
		require.Equal(t, outcomeAcquired, b.report(t).Outcome)
		require.Equal(t, lease.Fence, b.report(t).Fence)
		require.IsType(t, &LockBusy{}, b.Do(ctx, "k", neverRuns(t)))

		require.NoError(t, b.Release(ctx, lease))
		require.NoError(t, b.Release(ctx, lease), "again is nil")
		require.Equal(t, outcomeReleased, b.reports[2].Outcome)
		b.free(t, "k")
	})
	on("is completed: nobody gets the key for a time", t, newBench, Options{}, func(t *testing.T, b *bench) {
		lease, err := b.Acquire(ctx, req)
		require.NoError(t, err)
		require.IsType(t, &LockBadRequest{}, b.Complete(ctx, lease, 0))
		require.IsType(t, &LockBadRequest{}, b.Complete(ctx, lease, -time.Second))
		require.NoError(t, b.Complete(ctx, lease, time.Minute))
		require.NoError(t, b.Complete(ctx, lease, time.Minute), "again is nil")
		require.Equal(t, outcomeReleased, b.reports[3].Outcome)
		_, err = b.Acquire(ctx, req)
		busy, ok := errors.AsType[*LockBusy](err)
		require.True(t, ok && busy.State == lockstore.Cooldown, "%v", err)
		pass(time.Minute)
		lease, err = b.Acquire(ctx, req)
		require.NoError(t, err)
		require.NoError(t, b.Release(ctx, lease))
		require.IsType(t, &LockLost{}, b.Complete(ctx, lease, time.Minute), "it was released")
	})
	on("the trust counts from before the request, and a slow reply shortens it", t, newBench, Options{}, func(t *testing.T, b *bench) {
		b.store.acquire = b.slow(1500 * time.Millisecond)
		lease, err := b.Acquire(ctx, req)
		require.NoError(t, err)
		require.Equal(t, 8500*time.Millisecond-margin, lease.TTL)
	})
	on("requests out of their bounds", t, newBench, Options{}, func(t *testing.T, b *bench) {
		for want, req := range map[string]LeaseRequest{
			"Key is empty; want 1 to 1024 bytes":  {TTL: time.Minute},
			"Key has 1025 bytes; want 1 to 1024":  {Key: strings.Repeat("k", 1025), TTL: time.Minute},
			"TTL is 0s; want 1s to 24h0m0s":       {Key: "k"},
			"TTL is 24h0m0.000000001s":            {Key: "k", TTL: lockstore.MaxTTL + 1},
			"Wait is -1ns; want 0 or more":        {Key: "k", TTL: time.Minute, Wait: -1},
			"Owner has 65 bytes; want 1 to 64":    {Key: "k", TTL: time.Minute, Owner: lockstore.Owner(strings.Repeat("o", 65))},
			"Key has a control character at byte": {Key: "k\n", TTL: time.Minute},
		} {
			_, err := b.Acquire(ctx, req)
			require.IsType(t, &LockBadRequest{}, err)
			require.ErrorContains(t, err, want)
		}
		_, err := b.Acquire(ctx, LeaseRequest{Key: strings.Repeat("k", 5000)})
		require.Less(t, len(err.Error()), 1200, "a key as large as an event is cut")
		b.store.inspect = fails(lockstore.ErrCorrupt)
		_, err = b.Inspect(ctx, "k")
		require.IsType(t, &LockCorrupt{}, err)
	})
}

func TestRepeatableAcquire(t *testing.T) {
	ctx := context.Background()
	req := LeaseRequest{Key: "k", TTL: 10 * time.Second, Owner: "me"}

	on("the same owner gets the same lease, with the time that is left", t, newBench, Options{}, func(t *testing.T, b *bench) {
		first, err := b.Acquire(ctx, req)
		require.NoError(t, err)
		pass(4 * time.Second)
		again, err := b.Acquire(ctx, req)
		require.NoError(t, err)
		require.Equal(t, first.Fence, again.Fence)
		require.Equal(t, first.TTL-4*time.Second, again.TTL)
		stranger := req
		stranger.Owner = "you"
		_, err = b.Acquire(ctx, stranger)
		require.IsType(t, &LockBusy{}, err)
	})
	for name, end := range map[string]func(*testing.T, *bench, lockstore.Lease){
		"released": func(t *testing.T, b *bench, lease lockstore.Lease) { require.NoError(t, b.Release(ctx, lease)) },
		"expired":  func(*testing.T, *bench, lockstore.Lease) { pass(10 * time.Second) },
	} {
		on("an owner whose lease is "+name+" gets no lease again", t, newBench, Options{}, func(t *testing.T, b *bench) {
			lease, err := b.Acquire(ctx, req)
			require.NoError(t, err)
			end(t, b, lease)
			began := time.Now()
			_, err = b.Acquire(ctx, req)
			require.IsType(t, &LockLost{}, err)
			require.Zero(t, time.Since(began))
		})
	}
	on("F25 the lease of a lost reply has ended when it asks again", t, newBench, Options{}, func(t *testing.T, b *bench) {
		b.store.acquire = b.first(1, func(ctx context.Context, _ int, r request) (driver.Answer, error) {
			a, err := b.store.pass(ctx, r)
			require.NoError(t, errors.Join(err, b.store.Store.Release(ctx, lockstore.Lease{Key: "k", Owner: r.Owner, Fence: a.Fence})))
			return driver.Answer{}, errLostReply
		})
		_, err := b.Acquire(ctx, req)
		require.IsType(t, &LockLost{}, err)
	})
	bubble("F26 another's lock after a lost reply is not busy: the lost request may still take it", t, func(t *testing.T) {
		for _, wait := range []time.Duration{0, 3 * time.Second} {
			b := newBench(t, Options{})
			b.store.acquire = b.overtaken(t)
			req := req
			req.Wait = wait
			_, err := b.Acquire(ctx, req)
			require.IsType(t, &LockStoreUnavailable{}, err)
			require.ErrorIs(t, err, errLostReply)
			require.NotErrorIs(t, err, lockstore.ErrUnavailable)
			require.Equal(t, OutcomeUnknown, b.report(t).Outcome)
			_, err = b.Acquire(ctx, req)
			require.IsType(t, &LockBusy{}, err, "a call that lost nothing says so")
		}
	})
}

func TestRenew(t *testing.T) {
	on("lasts longer", t, newBench, Options{}, func(t *testing.T, b *bench) {
		ctx := context.Background()
		lease, err := b.Acquire(ctx, LeaseRequest{Key: "k", TTL: 10 * time.Second})
		require.NoError(t, err)
		pass(5 * time.Second)
		trusted, err := b.Renew(ctx, lease, 20*time.Second)
		require.NoError(t, err)
		require.Equal(t, 20*time.Second-margin, trusted)
		require.Equal(t, outcomeRenewed, b.reports[1].Outcome)
		require.Equal(t, lease.Fence, b.reports[1].Fence)
	})
	for name, c := range map[string]struct {
		first hook
		after bool // the error tells of the lost answer
	}{"F09 lost": {says(driver.Lost), false}, "F09 F25 lost, after a lost answer": {fails(errLostReply), true}} {
		on(name, t, newBench, Options{}, func(t *testing.T, b *bench) {
			b.store.renew = func(ctx context.Context, n int, r request) (driver.Answer, error) {
				if n == 1 {
					return c.first(ctx, n, r)
				}
				return driver.Answer{Outcome: driver.Lost}, nil
			}
			_, err := b.Renew(context.Background(), lockstore.Lease{Key: "k", Owner: "o", Fence: 1}, time.Minute)
			require.IsType(t, &LockLost{}, err)
			require.Equal(t, c.after, strings.Contains(err.Error(), "an earlier request was lost"))
		})
	}
}
