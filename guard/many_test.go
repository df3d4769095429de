package guard

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// TestManyKeys is many runs at once in one process, each long enough to renew. Half of them have a key of their own, five
// of the others share one.
func TestManyKeys(t *testing.T) {
	keys := 10_000
	if verifyrecord.WithRaceDetector { // it makes 10,000 runs ten times as slow, and sees in 1,000 what it would see in them
		keys = 1000
	}
	const together = 5
	bubble(fmt.Sprintf("F58 %d runs, alone or %d for a key: no cross-talk", keys, together), t, func(t *testing.T) {
		store := memstore.New(nil)
		var reports atomic.Int64
		g, err := New(store, Options{TTL: 3 * time.Second, Observe: func(_ context.Context, r Report) {
			reports.Add(1)
			if r.Outcome != OutcomeOK || r.Calls < 3 || r.ReleaseErr != nil {
				t.Errorf("key %q: %s after %d requests: %v, %v", r.Key, r.Outcome, r.Calls, r.Err, r.ReleaseErr)
			}
		}})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()

		var running atomic.Int64
		var wg sync.WaitGroup
		for i := range keys {
			wg.Go(func() {
				key, g := fmt.Sprintf("account/%d", i), g
				if i%2 == 1 {
					key, g = fmt.Sprintf("shared/%d", i/2/together), g.WithMaxHolders(together)
				}
				ours := func(lock Lock) (has bool) {
					status, err := store.Inspect(ctx, key)
					assert.NoError(t, err)
					assert.LessOrEqual(t, len(status.Holders), g.MaxHolders())
					return slices.ContainsFunc(status.Holders, func(h lockstore.LiveLease) bool {
						return h.Fence == lock.Fence && h.Seat == lock.Seat && h.State == lockstore.Held
					})
				}
				var had Lock
				assert.NoError(t, g.Do(ctx, key, func(ctx context.Context, lock Lock) error {
					running.Add(1)
					pass(2 * time.Second)
					assert.EqualValues(t, keys, running.Load(), "runs at once")
					pass(2 * time.Second) // the first lease alone would have ended by now
					had = lock
					assert.Equal(t, key, lock.Key)
					assert.True(t, ours(lock), "the store does not have %v of work that goes on", lock)
					return nil
				}))
				assert.False(t, ours(had), "the store still has %v of a run that is over", had)
			})
		}
		wg.Wait()
		// A goroutine that is left would fail the test at the end of the bubble.
		require.EqualValues(t, keys, reports.Load())
		require.Zero(t, len(g.runs.runs), "the guard keeps nothing of a run that is over")
	})
}
