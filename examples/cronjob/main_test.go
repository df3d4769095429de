package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

func TestOneHostWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reports := 0
		store := memstore.New(nil)
		opt := options
		opt.Observe = func(_ context.Context, r guard.Report) {
			if r.Outcome == guard.OutcomeOK {
				reports++
			}
		}
		g, err := guard.New(store, opt)
		require.NoError(t, err)
		for range 2 { // the clock of the second host is late
			reports = 0
			require.Zero(t, run(t.Context(), g))
			<-time.After(5 * time.Minute)
			require.Zero(t, run(t.Context(), g))
			require.Equal(t, 1, reports)
			<-time.After(24 * time.Hour)
		}

		err = g.Do(t.Context(), "nightly/report", func(ctx context.Context, _ guard.Lock) error {
			<-time.After(3 * time.Hour)
			require.NoError(t, ctx.Err())
			require.Zero(t, run(t.Context(), g), "another host")
			<-time.After(2 * time.Hour)
			return context.Cause(ctx)
		})
		require.ErrorIs(t, err, guard.ErrDeadline, "after 4 hours")
		require.Equal(t, 1, status(err))
		require.Equal(t, 1, status(errors.New("wrong")))

		// The host that was first dies at once: another one works, when the lease has ended.
		<-time.After(24 * time.Hour)
		reports = 0
		_, err = store.Acquire(t.Context(), lockstore.Request{Key: "nightly/report", Owner: lockstore.NewOwner(), TTL: time.Minute})
		require.NoError(t, err)
		require.Zero(t, run(t.Context(), g))
		require.Equal(t, 1, reports)
		<-time.After(24 * time.Hour)

		// An operator has revoked the lease of a host, so nobody does the work: that is no success.
		lease, err := store.Acquire(t.Context(), lockstore.Request{Key: "nightly/report", Owner: lockstore.NewOwner(), TTL: time.Hour})
		require.NoError(t, err)
		_, err = store.Revoke(t.Context(), lockstore.RevokeRequest{Key: "nightly/report", Fence: lease.Fence, By: lockstore.HolderInfo{Name: "operator"}})
		require.NoError(t, err)
		require.Equal(t, 1, run(t.Context(), g))
	})
}
