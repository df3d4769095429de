package guard

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
)

func TestCooldown(t *testing.T) {
	ctx := context.Background()
	on("a cooldown is told apart, and who would begin it does not wait for its end", t, newBench, Options{Wait: time.Minute}, func(t *testing.T, b *bench) {
		do := b.WithCooldown(10 * time.Second).Do
		require.NoError(t, do(ctx, "k", nothing))
		start := time.Now()
		busy, ok := do(ctx, "k", neverRuns(t)).(*LockBusy)
		require.True(t, ok)
		require.Zero(t, time.Since(start))
		require.Equal(t, lockstore.Cooldown, busy.State)
		var refused *lockstore.Refused
		require.ErrorAs(t, busy, &refused)
		require.Empty(t, refused.Result)
		require.ErrorIs(t, busy, lockstore.ErrRefused)
		require.ErrorContains(t, busy, "the work was done by")

		require.NoError(t, b.Do(ctx, "k", nothing), "a Do waits if the key is free in time")
		require.Equal(t, 10*time.Second, time.Since(start))
		lease := b.occupy(t, "k", time.Hour)
		require.NoError(t, b.store.Complete(ctx, lease, []byte("result"), time.Minute))
		start = time.Now()
		require.IsType(t, &LockBusy{}, b.Do(ctx, "k", neverRuns(t)))
		require.Zero(t, time.Since(start), "and not at all if it is not")
	})
	for name, cooldown := range map[string]time.Duration{"not over": 5 * time.Minute, "over, too": 1500 * time.Millisecond} {
		on("F08 a freeze while a run waits: the time to wait is over, and the cooldown is "+name, t, newBench, Options{Wait: 10 * time.Minute}, func(t *testing.T, b *bench) {
			require.NoError(t, b.WithCooldown(cooldown).Do(ctx, "k", nothing))
			began := time.Now()
			time.AfterFunc(time.Second, func() { b.shift(instant{wall: 20 * time.Minute}) })
			require.IsType(t, &LockBusy{}, b.Do(ctx, "k", neverRuns(t)))
			require.LessOrEqual(t, time.Since(began), 2*time.Second)
		})
	}
	on("F35 there is none after a lock that was lost", t, newBench, Options{}, func(t *testing.T, b *bench) {
		b.store.renew = says(driver.Lost)
		b.Guard = b.WithCooldown(time.Hour)
		lostAt(t, b)
		b.free(t, "k")
	})
	on("there is none after work that fails", t, newBench, Options{}, func(t *testing.T, b *bench) {
		require.Error(t, b.WithCooldown(time.Hour).Do(ctx, "k", func(context.Context, Lock) error { return errors.New("own") }))
		b.free(t, "k")
	})
}
