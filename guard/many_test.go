package guard

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// TestManyKeys is many runs at once in one process, each on its own key and
// long enough to renew.
func TestManyKeys(t *testing.T) {
	keys := 10_000
	if verifyrecord.WithRaceDetector { // it makes 10,000 runs ten times as slow, and sees in 1,000 what it would see in them
		keys = 1000
	}
	bubble(fmt.Sprintf("F58 %d keys, one run each: no cross-talk", keys), t, func(t *testing.T) {
		store := memstore.New(nil)
		var reports atomic.Int64
		g, err := New(store, Options{TTL: 3 * time.Second, Observe: func(_ context.Context, r Report) {
			reports.Add(1)
			if r.Outcome != OutcomeOK || r.Calls < 3 {
				t.Errorf("key %q: %s after %d requests: %v", r.Key, r.Outcome, r.Calls, r.Err)
			}
		}})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()

		var running atomic.Int64
		var wg sync.WaitGroup
		for i := range keys {
			wg.Go(func() {
				key := fmt.Sprintf("account/%d", i)
				err := g.Do(ctx, key, func(ctx context.Context, lock Lock) error {
					running.Add(1)
					if lock.Key != key {
						t.Errorf("the work of %q runs under %q", key, lock.Key)
					}
					pass(2 * time.Second)
					if n := running.Load(); n != int64(keys) {
						t.Errorf("%d runs at once; want %d", n, keys)
					}
					pass(2 * time.Second) // the first lease alone would have ended by now
					status, err := store.Inspect(ctx, key)
					if err == nil && (status.State != lockstore.Held || status.Fence != lock.Fence) {
						t.Errorf("key %q has fence %d in the store (%v), and %d here", key, status.Fence, status.State, lock.Fence)
					}
					return err
				})
				if err != nil {
					t.Errorf("key %q: %v", key, err)
				}
			})
		}
		wg.Wait()
		// A goroutine that is left would fail the test at the end of the bubble.
		require.EqualValues(t, keys, reports.Load())
		require.Zero(t, len(g.runs), "the guard keeps nothing of a run that is over")
	})

}
