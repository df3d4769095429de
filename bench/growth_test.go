package bench

import (
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
)

// TestGrowth measures how the cost grows with the clients of one key, and with the keys
// that are held at once. It has no budgets, so it runs for the record only.
func TestGrowth(t *testing.T) {
	if *keep == "" {
		t.Skip("it runs with -keep")
	}
	waiters := []string{"waiters", "hand-over", "wait p50", "wait p99", "requests", "write units"}
	part(t, "waiters of one key on Redis, 1 ms of work", waiters[:5], testWaitersRedis)
	part(t, "waiters of one key on DynamoDB Local, 20 ms of work", waiters, testWaitersDynamoDB)
	part(t, "keys held at once on Redis", []string{"keys", "grants a second", "releases a second"}, testKeys)
}

// growthTimes is how often each of n clients works.
func growthTimes(n, grants int) int { return max(4, grants/n) }

func testWaitersRedis(t *testing.T) {
	addr := testservers.Redis(t)
	for _, n := range []int{1, 4, 16, 64, 128} {
		var count count
		all := clients(n, func() locker {
			client := redisClient(t, addr)
			client.AddHook(&count)
			return guarded(t, redisStore(t, client))
		})
		crowd(t, 2, lasting(time.Millisecond), all...)
		count.requests.Store(0)
		times := growthTimes(n, 960)
		handOver, waits := crowd(t, times, lasting(time.Millisecond), all...)
		keepGrowth(n, handOver, waits, float64(count.requests.Load())/float64(n*times))
	}
}

func testWaitersDynamoDB(t *testing.T) {
	const table = "growth"
	rawURL := testservers.Table(t, testservers.DynamoDB(t), table, "key")
	for _, n := range []int{1, 4, 16, 64} {
		all, meters := meteredClients(t, n, rawURL, table)
		crowd(t, 1, lasting(20*time.Millisecond), all...)
		meters.sum() // from zero
		times := growthTimes(n, 128)
		handOver, waits := crowd(t, times, lasting(20*time.Millisecond), all...)
		used, grants := meters.sum(), float64(n*times)
		units := used.units + float64(used.refused) // a refused write costs a unit, too
		keepGrowth(n, handOver, waits, float64(used.reads+used.writes+used.refused)/grants, units/grants)
	}
}

func keepGrowth(n int, handOver time.Duration, waits []time.Duration, perGrant ...float64) {
	cells := []string{strconv.Itoa(n)}
	w := entrant{waits: slices.Sorted(slices.Values(waits))}
	for _, d := range []time.Duration{handOver, w.wait(0.5), w.wait(0.99)} {
		cells = append(cells, d.Round(10*time.Microsecond).String())
	}
	for _, v := range perGrant {
		cells = append(cells, fmt.Sprintf("%.1f", v))
	}
	tell(cells...)
}

// testKeys holds many keys at once, with 64 goroutines of one client.
func testKeys(t *testing.T) {
	addr := testservers.Redis(t)
	store := redisStore(t, redisClient(t, addr))
	each := func(n int, do func(i int)) (perSecond float64) {
		var next atomic.Int64
		var all sync.WaitGroup
		began := time.Now()
		for range min(n, 64) {
			all.Go(func() {
				for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
					do(i)
				}
			})
		}
		all.Wait()
		return float64(n) / time.Since(began).Seconds()
	}
	for _, n := range []int{1, 100, 10_000, 100_000} {
		leases := make([]lockstore.Lease, n)
		grants := each(n, func(i int) {
			var err error
			leases[i], err = store.Acquire(t.Context(), lockstore.Request{
				Key: fmt.Sprintf("growth/%d/%d", n, i), Owner: lockstore.NewOwner(), TTL: 10 * time.Minute,
				HolderInfo: lockstore.HolderInfo{Name: "bench", ID: "8f5a1c52-3a3c-4c1e-9d3c-000000000000", Since: time.Now()},
			})
			if err != nil {
				t.Error(err)
			}
		})
		releases := each(n, func(i int) {
			if err := store.Release(t.Context(), leases[i]); err != nil {
				t.Error(err)
			}
		})
		tell(strconv.Itoa(n), fmt.Sprintf("%.0f", grants), fmt.Sprintf("%.0f", releases))
	}
}
