package guard

import (
	"context"
	"errors"
	"math"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
)

// closer puts itself between the guard and ReleaseAfter.
type closer struct {
	*hooked
	releaseAfter func(ctx context.Context, n int, lease lockstore.Lease, d time.Duration) error
	closed       int
}

func (c *closer) ReleaseAfter(ctx context.Context, lease lockstore.Lease, d time.Duration) error {
	c.closed++
	if c.releaseAfter != nil {
		return c.releaseAfter(ctx, c.closed, lease, d)
	}
	return c.hooked.ReleaseAfter(ctx, lease, d)
}

// wrapped hides what a store can do besides the contract, but shows the store.
type wrapped struct{ lockstore.Store }

func (w wrapped) Unwrap() lockstore.Store { return w.Store }

func newCloser(t *testing.T) (*bench, *closer) {
	b := newBench(t, Options{})
	c := &closer{hooked: b.store}
	b.Guard.store = c
	return b, c
}

func TestCooldown(t *testing.T) {
	ctx := context.Background()
	bubble("after good work nobody can acquire the key for d, then it is free", t, func(t *testing.T) {
		b, c := newCloser(t)
		do, err := b.WithCooldown(10 * time.Second)
		require.NoError(t, err)
		require.NoError(t, do(ctx, "k", func(context.Context, Lock) error {
			pass(30 * time.Second)
			return nil
		}))
		require.Equal(t, 1, c.closed)
		require.Empty(t, b.store.releases)
		require.NoError(t, b.report(t).ReleaseErr)

		pass(10*time.Second - time.Millisecond)
		require.IsType(t, &LockBusy{}, b.Do(ctx, "k", neverRuns(t)))
		require.IsType(t, &LockBusy{}, do(ctx, "k", neverRuns(t)))
		pass(time.Millisecond)
		require.NoError(t, b.Do(ctx, "k", nothing))
		require.Equal(t, 1, c.closed, "Do itself closes nothing")
	})
	bubble("F05 after an error the key is free at once", t, func(t *testing.T) {
		b, c := newCloser(t)
		do, err := b.WithCooldown(time.Hour)
		require.NoError(t, err)
		own := errors.New("own")
		require.Equal(t, own, do(ctx, "k", func(context.Context, Lock) error { return own }))
		require.Zero(t, c.closed)
		b.free(t, "k")
	})
	bubble("F04 F05 also after a panic or Goexit", t, func(t *testing.T) {
		b, c := newCloser(t)
		do, err := b.WithCooldown(time.Hour)
		require.NoError(t, err)
		require.PanicsWithValue(t, "boom", func() { do(ctx, "k", func(context.Context, Lock) error { panic("boom") }) })
		b.free(t, "k")
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			do(ctx, "k", func(context.Context, Lock) error { runtime.Goexit(); return nil })
		}()
		<-ended
		b.free(t, "k")
		require.Zero(t, c.closed)
	})
	bubble("F08 work whose lease has run out has no cooldown", t, func(t *testing.T) {
		b, c := newCloser(t)
		do, err := b.WithCooldown(time.Hour)
		require.NoError(t, err)
		require.IsType(t, &LockLost{}, do(ctx, "k", func(context.Context, Lock) error {
			b.shift(instant{wall: time.Hour})
			return nil
		}))
		require.Zero(t, c.closed)
		b.free(t, "k")
	})
	bubble("F35 a lease that vanished under the work is lost", t, func(t *testing.T) {
		b, c := newCloser(t)
		c.releaseAfter = func(context.Context, int, lockstore.Lease, time.Duration) error { return lockstore.ErrLost }
		do, err := b.WithCooldown(time.Hour)
		require.NoError(t, err)
		require.IsType(t, &LockLost{}, do(ctx, "k", nothing))
	})
	bubble("F25 after a lost reply the release is repeated", t, func(t *testing.T) {
		b, c := newCloser(t)
		c.releaseAfter = func(ctx context.Context, n int, lease lockstore.Lease, d time.Duration) error {
			err := b.store.ReleaseAfter(ctx, lease, d)
			if n == 1 {
				return errLostReply
			}
			return err
		}
		do, err := b.WithCooldown(time.Hour)
		require.NoError(t, err)
		require.NoError(t, do(ctx, "k", nothing))
		require.Equal(t, 2, c.closed)
		require.NoError(t, b.report(t).ReleaseErr)
		require.IsType(t, &LockBusy{}, b.Do(ctx, "k", neverRuns(t)))
	})
	bubble("the store is down at the release: the work's result stands, and the report says so", t, func(t *testing.T) {
		b, c := newCloser(t)
		c.releaseAfter = func(context.Context, int, lockstore.Lease, time.Duration) error { return errDown }
		do, err := b.WithCooldown(time.Hour)
		require.NoError(t, err)
		require.NoError(t, do(ctx, "k", nothing))
		require.ErrorIs(t, b.report(t).ReleaseErr, lockstore.ErrUnavailable)
		pass(defaultTTL)
		b.free(t, "k")
	})
	bubble("a lease that arrived too late has no cooldown", t, func(t *testing.T) {
		b, c := newCloser(t)
		b.store.acquire = func(ctx context.Context, _ int, req lockstore.Request) (lockstore.Lease, error) {
			lease, err := b.store.Store.Acquire(ctx, req)
			b.shift(instant{wall: time.Hour, mono: time.Hour})
			return lease, err
		}
		do, err := b.WithCooldown(time.Hour)
		require.NoError(t, err)
		require.Error(t, do(within(t, 10*time.Second), "k", neverRuns(t)))
		require.Zero(t, c.closed)
		b.free(t, "k")
	})
}

func TestCooldownRefused(t *testing.T) {
	b := newBench(t, Options{})
	for _, d := range []time.Duration{math.MinInt64, -1, 0, lockstore.MinTTL - 1, lockstore.MaxTTL + 1, math.MaxInt64} {
		_, err := b.WithCooldown(d)
		require.ErrorContains(t, err, "want 1s to 24h", "F48")
	}
	for _, d := range []time.Duration{lockstore.MinTTL, lockstore.MaxTTL} {
		_, err := b.WithCooldown(d)
		require.NoError(t, err)
	}
	plain, err := New(struct{ lockstore.Store }{b.store}, Options{})
	require.NoError(t, err)
	_, err = plain.WithCooldown(time.Minute)
	require.ErrorContains(t, err, "CooldownReleaser")

	shown, err := New(wrapped{b.store}, Options{})
	require.NoError(t, err)
	do, err := shown.WithCooldown(time.Minute)
	require.NoError(t, err, "a wrapper may show the store that can")
	require.ErrorContains(t, do(context.Background(), "k", nil), "work is nil", "F51")

	var none *Guard
	_, err = none.WithCooldown(time.Minute)
	require.ErrorContains(t, err, "guard is nil", "F51")
	_, err = new(Guard).WithCooldown(time.Minute)
	require.ErrorContains(t, err, "not made by New", "F51")
}

func TestHolder(t *testing.T) {
	type id struct{}
	b := newBench(t, Options{Holder: func(ctx context.Context) lockstore.Holder {
		return lockstore.Holder{Name: "f", ID: ctx.Value(id{}).(string)}
	}})
	require.Equal(t, lockstore.Holder{Name: "f", ID: "r-1"}, b.Holder(context.WithValue(context.Background(), id{}, "r-1")))
	var none *Guard
	require.Zero(t, none.Holder(context.Background()), "F51")
	require.Zero(t, new(Guard).Holder(context.Background()), "F51")
}
