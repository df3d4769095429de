package guard

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
)

func TestCooldown(t *testing.T) {
	ctx := context.Background()
	on("after good work nobody can acquire the key for d, then it is free", t, newBench, Options{}, func(t *testing.T, b *bench) {
		do := b.WithCooldown(10 * time.Second).Do
		require.NoError(t, do(ctx, "k", func(context.Context, Lock) error {
			pass(30 * time.Second)
			return nil
		}))
		require.Equal(t, 1, b.store.completions)
		require.Empty(t, b.store.releases)
		require.NoError(t, b.report(t).ReleaseErr)

		pass(10*time.Second - time.Millisecond)
		require.IsType(t, &LockBusy{}, b.Do(ctx, "k", neverRuns(t)))
		require.IsType(t, &LockBusy{}, do(ctx, "k", neverRuns(t)))
		pass(time.Millisecond)
		require.NoError(t, b.Do(ctx, "k", nothing))
		require.Equal(t, 1, b.store.completions, "Do itself closes nothing")
	})
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
		require.NoError(t, b.store.Complete(ctx, lease, []byte("result"), time.Hour))
		start = time.Now()
		require.IsType(t, &LockBusy{}, b.Do(ctx, "k", neverRuns(t)))
		require.Zero(t, time.Since(start), "and not at all if it is not")
	})
}

func TestCooldownRefused(t *testing.T) {
	b := newBench(t, Options{})
	for _, d := range []time.Duration{math.MinInt64, -1, 0, lockstore.MinTTL - 1, lockstore.MaxTTL + 1, math.MaxInt64} {
		require.ErrorContains(t, b.WithCooldown(d).Do(t.Context(), "k", neverRuns(t)), "want 1s to 24h", "F48")
	}
	for _, d := range []time.Duration{lockstore.MinTTL, lockstore.MaxTTL} {
		require.NoError(t, b.WithCooldown(d).Validate())
	}
	g := b.WithCooldown(time.Minute)
	require.ErrorContains(t, g.Do(t.Context(), "k", nil), "work is nil", "F51")
	require.ErrorContains(t, g.DoAll(t.Context(), []string{"k"}, neverRunsAll(t)), "DoAll wants a guard without a cooldown")
	require.ErrorContains(t, g.DoOnce(t.Context(), "k", OnceOptions{}, neverCompletes(t)), "DoOnce wants a guard without a cooldown")
	for _, several := range []*Guard{g.WithMaxHolders(2), b.WithMaxHolders(2).WithCooldown(time.Minute)} {
		require.ErrorContains(t, several.Validate(), "MaxHolders (boot: LOCK_MAX_HOLDERS) is 2; a cooldown wants 1")
	}
	var none *Guard
	require.ErrorIs(t, none.WithCooldown(time.Minute).Validate(), errNoGuard, "F51")
	require.ErrorIs(t, new(Guard).WithCooldown(time.Minute).Validate(), errNoGuard, "F51")
}

func TestHolderInfo(t *testing.T) {
	type id struct{}
	b := newBench(t, Options{HolderInfo: func(ctx context.Context) lockstore.HolderInfo {
		return lockstore.HolderInfo{Name: "f", ID: ctx.Value(id{}).(string)}
	}})
	require.Equal(t, lockstore.HolderInfo{Name: "f", ID: "r-1"}, b.HolderInfo(context.WithValue(context.Background(), id{}, "r-1")))
	var none *Guard
	require.Zero(t, none.HolderInfo(context.Background()), "F51")
	require.Zero(t, new(Guard).HolderInfo(context.Background()), "F51")
}
