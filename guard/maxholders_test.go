package guard

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestWithMaxHolders(t *testing.T) {
	ctx := context.Background()
	on("as many as it says hold the key at once, each with a seat of its own", t, newBench, Options{Wait: time.Minute}, func(t *testing.T, b *bench) {
		g := b.WithMaxHolders(3)
		var mu sync.Mutex
		seats, most, order := map[int]bool{}, 0, []int(nil)
		var all sync.WaitGroup
		for i := range 12 {
			all.Go(func() {
				pass(time.Duration(i) * time.Millisecond)
				assert.NoError(t, g.Do(ctx, "k", func(_ context.Context, lock Lock) error {
					mu.Lock()
					assert.False(t, seats[lock.Seat], "seat %d twice", lock.Seat)
					seats[lock.Seat] = true
					most, order = max(most, len(seats)), append(order, i)
					mu.Unlock()
					pass(time.Second + time.Duration(i%3)*100*time.Millisecond)
					mu.Lock()
					delete(seats, lock.Seat)
					mu.Unlock()
					return nil
				}))
			})
		}
		all.Wait()
		require.Equal(t, 3, most)
		require.True(t, slices.IsSorted(order), "served in the order %v", order)
		for _, r := range b.reports {
			require.Equal(t, 3, r.maxHolders)
			require.Less(t, r.seat, 3)
		}
		b.free(t, "k")
	})
	on("what it shares with the guard that it was made of", t, newBench, Options{}, func(t *testing.T, b *bench) {
		g := b.WithMaxHolders(2)
		require.NoError(t, g.Do(ctx, "k", func(ctx context.Context, _ Lock) error {
			require.IsType(t, &LockInvalid{}, b.Do(ctx, "k", neverRuns(t)), "F51: a run that would wait for itself")
			b.Shutdown()
			require.ErrorIs(t, context.Cause(ctx), errShutdown)
			return nil
		}))
		require.IsType(t, &LockDeadline{}, g.Do(ctx, "k", neverRuns(t)))
		require.Equal(t, 1, b.MaxHolders())
		require.Equal(t, 2, g.MaxHolders())
		require.Zero(t, (*Guard)(nil).MaxHolders())
	})
	t.Run("F48 F51 out of its bounds, and where the work has to be alone", func(t *testing.T) {
		b := newBench(t, Options{})
		for n, says := range map[int]string{0: "MaxHolders is 0; want 1 to 32", -1: "MaxHolders is -1", 33: "MaxHolders is 33; want 1 to 32"} {
			g := b.WithMaxHolders(n)
			require.ErrorContains(t, g.Do(ctx, "k", neverRuns(t)), says)
			_, err := g.Acquire(ctx, LeaseRequest{Key: "k", TTL: time.Minute})
			require.ErrorContains(t, err, says)
			_, err = Wrap(g, func(context.Context, int) (string, error) { return "k", nil }, Handler[int, int](nil)).Handle(ctx, 1)
			require.ErrorContains(t, err, says)
		}
		require.ErrorIs(t, (*Guard)(nil).WithMaxHolders(2).Validate(), errNoGuard)
		g := b.WithMaxHolders(2)
		require.ErrorContains(t, g.DoAll(ctx, []string{"k"}, nil2), "MaxHolders (boot: LOCK_MAX_HOLDERS) is 2; DoAll wants 1")
		require.ErrorContains(t, g.DoOnce(ctx, "k", OnceOptions{}, func(context.Context, Lock) (Completion, error) { return Completion{}, nil }), "MaxHolders (boot: LOCK_MAX_HOLDERS) is 2; DoOnce wants 1")
		require.Empty(t, b.store.requests)
	})
}

func nil2(context.Context, []Lock) error { return nil }
