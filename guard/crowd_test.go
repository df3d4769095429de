package guard

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
)

func TestCrowd(t *testing.T) {
	for name, newBench := range benches {
		bubble("F57 500 clients on one key"+name+": each gets in or is told so, and nobody hammers the store", t, func(t *testing.T) {
			const clients, patience, work = 500, 20 * time.Second, 20 * time.Millisecond
			b := newBench(t, Options{Wait: patience})
			var inside, had, busy atomic.Int32
			var highest lockstore.Fence // written by one at a time
			var wg sync.WaitGroup
			for range clients {
				wg.Go(func() {
					err := b.Do(within(t, time.Minute), "k", func(_ context.Context, lock Lock) error {
						assert.EqualValues(t, 1, inside.Add(1), "holders at once")
						assert.Greater(t, lock.Fence, highest)
						highest = lock.Fence
						pass(work)
						inside.Add(-1)
						return nil
					})
					if err == nil {
						had.Add(1)
					} else if assert.IsType(t, &LockBusy{}, err) {
						busy.Add(1)
					}
				})
			}
			wg.Wait()
			require.EqualValues(t, clients, had.Load()+busy.Load())
			require.Greater(t, had.Load(), int32(clients*9/10), "the key is not left idle: 20 s are enough for 1,000 works")
			var waited time.Duration
			for _, r := range b.reports {
				require.Less(t, r.WaitTime, patience+2*time.Second)
				waited += r.WaitTime
			}
			perSecond := float64(len(b.store.requests)-clients) / waited.Seconds()
			require.LessOrEqual(t, perSecond, 2.0, "writes of one waiter in a second, its first aside")
			t.Logf("%d had it, %d were told busy; %.2f writes and %.2f reads a second for each waiter", had.Load(), busy.Load(), perSecond, float64(b.store.polls+len(b.store.awaits))/waited.Seconds())
			b.free(t, "k")
		})
	}
	bubble("F59 200 waiters, and each release is the turn of one", t, func(t *testing.T) {
		const clients, places = 200, 128 // of memstore
		b := newBench(t, Options{Wait: 10 * time.Minute})
		b.freeAfter(5*time.Second, b.occupy(t, "k", time.Hour))
		var order []int // written by one at a time
		var wg sync.WaitGroup
		for i := range clients {
			wg.Go(func() {
				pass(time.Duration(i) * time.Millisecond)
				assert.NoError(t, b.Do(context.Background(), "k", func(context.Context, Lock) error {
					order = append(order, i)
					pass(100 * time.Millisecond)
					return nil
				}))
			})
		}
		wg.Wait()
		require.Len(t, order, clients)
		require.True(t, slices.IsSorted(order[:places]), "served in the order %v", order)
		asked := map[lockstore.Owner]int{}
		for _, req := range b.store.requests {
			asked[req.Owner]++
		}
		for _, l := range b.store.releases[:places] {
			require.Equal(t, 2, asked[l.Owner], "refused, and after its hand-over extended")
		}
		b.free(t, "k")
	})

	// DoAll has an order. Calls of Do inside one another have none.
	bubble("calls inside one another in opposite orders wait for as long as they may, and no longer", t, func(t *testing.T) {
		const patience = 5 * time.Second
		b := newBench(t, Options{Wait: patience})
		var both sync.WaitGroup
		both.Add(2)
		nested := func(one, two string) error {
			return b.Do(within(t, time.Minute), one, func(ctx context.Context, _ Lock) error {
				both.Done()
				both.Wait() // each has its first key
				return b.Do(ctx, two, func(context.Context, Lock) error { return nil })
			})
		}
		began := time.Now()
		results := make(chan error, 2)
		go func() { results <- nested("a", "b") }()
		go func() { results <- nested("b", "a") }()
		failed := 0
		for range 2 {
			if err := <-results; err != nil {
				require.IsType(t, &LockBusy{}, err)
				failed++
			}
		}
		require.Positive(t, failed, "both cannot have both")
		require.Less(t, time.Since(began), patience+2*time.Second)
		b.free(t, "a")
		b.free(t, "b")
	})
}
