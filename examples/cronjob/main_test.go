package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

func TestOneHostWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, err := guard.New(memstore.New(nil), guard.Options{MaxHold: 4 * time.Hour, HolderInfo: holder})
		require.NoError(t, err)
		require.Zero(t, status(g.Do(t.Context(), "nightly/report", report)))

		err = g.Do(t.Context(), "nightly/report", func(ctx context.Context, _ guard.Lock) error {
			<-time.After(3 * time.Hour)
			require.NoError(t, ctx.Err())
			second := g.Do(t.Context(), "nightly/report", report)
			require.IsType(t, &guard.LockBusy{}, second)
			require.Zero(t, status(second))
			<-time.After(2 * time.Hour)
			return context.Cause(ctx)
		})
		require.ErrorIs(t, err, guard.ErrDeadline, "after 4 hours")
		require.Equal(t, 1, status(err))
		require.Equal(t, 1, status(errors.New("wrong")))
	})
}
