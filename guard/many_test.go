package guard

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
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

	t.Run("F58 what a guard keeps does not grow with the keys it has seen", func(t *testing.T) {
		g, err := New(lockstore.New("forgetful", forgetful{}), Options{})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		round := func(name string) {
			for i := range keys {
				require.NoError(t, g.Do(ctx, fmt.Sprintf("%s/%d", name, i), nothing))
			}
		}
		round("first") // the runtime's own tables have their size now
		goroutines, before := runtime.NumGoroutine(), heap()
		round("second")
		require.Less(t, int64(heap()-before), int64(64<<10), "bytes kept after %d more keys", keys)
		require.LessOrEqual(t, runtime.NumGoroutine(), goroutines)
	})
}

// forgetful grants everything and keeps nothing, so that what stays in memory
// is the guard's.
type forgetful struct{}

func (forgetful) Do(_ context.Context, _ string, r driver.Request) (driver.Answer, error) {
	if r.Kind == driver.Acquire {
		return driver.Answer{Outcome: driver.Granted, Fence: 1, TTL: r.TTL}, nil
	}
	return driver.Answer{Outcome: driver.Done}, nil
}

func (forgetful) Await(context.Context, string, driver.Request) (driver.Answer, error) {
	return driver.Answer{Outcome: driver.Ask}, nil
}

func heap() uint64 {
	runtime.GC()
	runtime.GC() // the first one only finds what finalizers and pools still hold
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
