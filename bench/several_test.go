package bench

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/pgstore"
)

// TestSeveralAtOnce has 16 clients wait for a key that several may hold. No more work at once than the smallest
// MaxHolders of them, each has a seat of its own, and the fence is larger than those of runs that had ended before it
// asked. Every run is released, see guarded.
func TestSeveralAtOnce(t *testing.T) {
	mixes := map[string][]int{
		"three at once":       {3},
		"ten at once":         {10},
		"readers and writers": {lockstore.MaxHolders, lockstore.MaxHolders, 1, lockstore.MaxHolders},
	}
	for name, opens := range map[string]func(*testing.T) func() *lockstore.Store{
		"Redis": func(t *testing.T) func() *lockstore.Store {
			addr := testservers.Redis(t)
			return func() *lockstore.Store { return redisStore(t, redisClient(t, addr)) }
		},
		"DynamoDB": func(t *testing.T) func() *lockstore.Store {
			rawURL := testservers.Table(t, testservers.DynamoDB(t), "several", "key")
			return func() *lockstore.Store {
				store, err := dynamostore.New(dynamoClient(t, rawURL), "several", dynamostore.Options{})
				if err != nil {
					t.Fatal(err)
				}
				return store.Store
			}
		},
		"ZooKeeper": func(t *testing.T) func() *lockstore.Store {
			addr := testservers.ZooKeeper(t).Addr
			return func() *lockstore.Store { return zooKeeperStore(t, addr) }
		},
		"PostgreSQL": func(t *testing.T) func() *lockstore.Store {
			url := testservers.PostgreSQL(t)
			createTable(t, url)
			return func() *lockstore.Store {
				return postgresStore(t, postgresDB(t, url, new(atomic.Int64)), pgstore.Options{Listen: listen(url)})
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			open := opens(t)
			for name, mix := range mixes {
				t.Run(name, func(t *testing.T) { severalAtOnce(t, mix, open) })
			}
		})
	}
}

func severalAtOnce(t *testing.T, mix []int, open func() *lockstore.Store) {
	const n, times, work = 16, 5, 20 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var mu sync.Mutex
	var ended lockstore.Fence // the largest of those that have ended
	working := map[int]int{}  // MaxHolders by seat
	together, runs := 0, 0    // the most at once
	key := lockstore.Key(t.Name())
	var all sync.WaitGroup
	began := time.Now()
	for i := range n {
		most := mix[i%len(mix)]
		g := waiting(t, open()).WithMaxHolders(most)
		all.Go(func() {
			for range times {
				mu.Lock()
				before := ended
				mu.Unlock()
				err := g.Do(ctx, key, func(_ context.Context, lock guard.Lock) error {
					mu.Lock()
					if other, taken := working[lock.Seat]; taken {
						t.Errorf("seat %d is given twice, for %d and for %d", lock.Seat, other, most)
					}
					if lock.Fence <= before {
						t.Errorf("fence %d after %d", lock.Fence, before)
					}
					working[lock.Seat] = most
					least := lockstore.MaxHolders
					for _, most := range working {
						least = min(least, most)
					}
					if len(working) > least {
						t.Errorf("%d work at once, and one of them allows %d: %v", len(working), least, working)
					}
					together, runs = max(together, len(working)), runs+1
					mu.Unlock()
					<-time.After(work)
					mu.Lock()
					defer mu.Unlock()
					delete(working, lock.Seat)
					ended = max(ended, lock.Fence)
					return nil
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	if together < 2 {
		t.Error("nobody worked beside another")
	}
	fmt.Printf("%s: %d runs of %v by %d clients in %v, up to %d at once\n", t.Name(), runs, work, n, time.Since(began).Round(time.Millisecond), together)
}
