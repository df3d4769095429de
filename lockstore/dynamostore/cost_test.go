package dynamostore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore/internal/fakedynamo"
)

// rtt is a network of 5 ms, as between Lambda and DynamoDB.
func rtt(fakedynamo.Request) fakedynamo.Fault {
	return fakedynamo.Fault{In: 2500 * time.Microsecond, Out: 2500 * time.Microsecond}
}

// What a run costs that waits among others. Each of 16 clients has its runs one after the other. With one run each,
// nobody knows at first how long a lease takes.
func TestCostOfAQueue(t *testing.T) {
	verifyrecord.SkipWithRace(t)
	const clients = 16
	for _, most := range []struct {
		work          time.Duration
		runs, holders int
		writes, reads float64
		handOver      time.Duration
	}{
		{20 * time.Millisecond, 10, 1, 2.1, 4, 12 * time.Millisecond},
		{time.Second, 10, 1, 3.1, 30, 25 * time.Millisecond},
		{time.Second, 1, 1, 3.1, 30, 25 * time.Millisecond},
		// The row takes fewer runs than 5 holders would do. If they wait in the queue, they are handed the key: 2.4 to 3.9 writes.
		// If they come while there is room, all of them write: 4.1 to 4.4.
		{20 * time.Millisecond, 10, 5, 6, 5.5, 10 * time.Millisecond},
	} {
		work, runs := most.work, most.runs
		bubble(t, fmt.Sprint(runs, " of ", work, " for ", most.holders), func(t *testing.T) {
			service := fakedynamo.New(table)
			service.Fault = rtt
			var all sync.WaitGroup
			start := time.Now()
			for range clients {
				g, err := guard.New(newStore(t, service, 0, dynamostore.Options{}).Store, guard.Options{Wait: time.Hour})
				require.NoError(t, err)
				g = g.WithMaxHolders(most.holders)
				all.Go(func() {
					for range runs {
						assert.NoError(t, g.Do(t.Context(), key, func(context.Context, guard.Lock) error { pass(work); return nil }))
					}
				})
			}
			all.Wait()
			n := float64(clients * runs)
			handOver := time.Since(start)/time.Duration(n) - work
			writes, reads := float64(service.Actions()["UpdateItem"])/n, float64(service.Actions()["GetItem"])/n
			t.Logf("a run of %v: a hand-over takes %v; %.2f writes, %.2f reads", work, handOver, writes, reads)
			require.LessOrEqual(t, writes, most.writes)
			require.LessOrEqual(t, reads, most.reads)
			require.LessOrEqual(t, handOver, most.handOver)
		})
	}
}

// After a long lease, those who wait read as often as if they had just come. So each of them is served soon after the
// one before.
func TestHandOversAfterALongLease(t *testing.T) {
	const clients, long, short, allowed = 8, time.Minute, 100 * time.Millisecond, 60 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		service, s := newFake(t)
		lease := acquired(t, s, request(2*long))
		var all sync.WaitGroup
		for range clients {
			g, err := guard.New(newStore(t, service, 0, dynamostore.Options{}).Store, guard.Options{Wait: time.Hour})
			require.NoError(t, err)
			all.Go(func() {
				assert.NoError(t, g.Do(t.Context(), key, func(context.Context, guard.Lock) error { pass(short); return nil }))
			})
			pass(time.Second)
		}
		pass(long)
		released := time.Now()
		require.NoError(t, s.Release(t.Context(), lease))
		all.Wait()
		first := 2500 * time.Millisecond // it and the next one may just have read
		require.Less(t, time.Since(released), first+clients*(short+allowed))
	})
}

// What a key costs that several may hold, when nobody interferes: a read and a write for each request. MaxHolders 1 is
// the request without one, and costs one write.
func TestCostOfSeveralHolders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service, s := newFake(t)
		var leases []lockstore.Lease
		before := map[string]int{}
		cost := func(what string, reads, writes int, err error) {
			t.Helper()
			require.NoError(t, err, what)
			require.Equal(t, [2]int{reads, writes}, [2]int{service.Actions()["GetItem"] - before["GetItem"], service.Actions()["UpdateItem"] - before["UpdateItem"]}, what)
			before = service.Actions()
		}
		acquire := func(most int) error {
			req := request(time.Minute)
			req.MaxHolders = most
			lease, err := s.Acquire(t.Context(), req)
			leases = append(leases, lease)
			return err
		}
		cost("one alone", 0, 1, acquire(1))
		cost("a release of one alone", 0, 1, s.Release(t.Context(), leases[0]))
		cost("the first", 1, 1, acquire(3))
		cost("the second", 1, 1, acquire(3))
		_, err := s.Renew(t.Context(), leases[1], 2*time.Minute)
		cost("a renewal", 1, 1, err)
		cost("the third", 1, 1, acquire(3))
		require.ErrorIs(t, acquire(3), lockstore.ErrRefused)
		cost("a refusal", 1, 0, nil)
		for _, lease := range leases[1:4] {
			cost("a release", 1, 1, s.Release(t.Context(), lease))
		}
	})
}

// As many as may hold a key ask for it at the same time, and none of them waits. All get it, within the time that the
// guard allows a call.
func TestManyAcquireASharedKeyAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := fakedynamo.New(table)
		service.Fault = rtt
		var all sync.WaitGroup
		for range lockstore.MaxHolders {
			s := newStore(t, service, 0, dynamostore.Options{})
			all.Go(func() {
				req := request(time.Minute)
				req.MaxHolders = lockstore.MaxHolders
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				defer cancel()
				_, err := s.Acquire(ctx, req)
				assert.NoError(t, err)
			})
		}
		all.Wait()
		t.Log(service.Actions())
	})
}

// 20 holders renew their leases of a key, and each second 100 others come for 10 ms. A renewal is due after
// a third of the lease, and none is later than by half of it. The row takes no more writes than it
// can: with 5 ms to the service not all of the others are served.
func TestHoldersRenewInTimeAmongManyArrivals(t *testing.T) {
	verifyrecord.SkipWithRace(t)
	const holders, ttl, lasts = 20, 3 * time.Second, 5 * time.Second
	synctest.Test(t, func(t *testing.T) {
		service := fakedynamo.New(table)
		service.Fault = rtt
		var mu sync.Mutex
		var latest time.Duration
		renewals := 0
		ctx, cancel := context.WithTimeout(t.Context(), lasts)
		defer cancel()
		var all sync.WaitGroup
		newGuard := func(wrap func(driver.Driver) driver.Driver) *guard.Guard {
			g, err := guard.New(newStore(t, service, 0, dynamostore.Options{}).Store.WrapDriver(wrap), guard.Options{TTL: ttl, Wait: lasts})
			require.NoError(t, err)
			return g.WithMaxHolders(lockstore.MaxHolders)
		}
		for i := range holders {
			r := &renewed{due: ttl / 3}
			g := newGuard(func(d driver.Driver) driver.Driver { r.Driver = d; return r })
			all.Go(func() {
				pass(time.Duration(i) * ttl / 3 / holders)
				assert.NoError(t, g.Do(context.WithoutCancel(ctx), key, func(work context.Context, _ guard.Lock) error {
					select {
					case <-ctx.Done():
						return nil
					case <-work.Done():
						return context.Cause(work)
					}
				}))
				mu.Lock()
				defer mu.Unlock()
				latest = max(latest, r.latest)
				renewals += r.renewals
			})
		}
		pass(time.Second)
		rng := rand.New(rand.NewPCG(1, 1))
		shared := newGuard(func(d driver.Driver) driver.Driver { return d })
		for ctx.Err() == nil {
			pass(time.Duration(rng.ExpFloat64() * float64(10*time.Millisecond)))
			all.Go(func() {
				_ = shared.Do(ctx, key, func(context.Context, guard.Lock) error { pass(10 * time.Millisecond); return nil })
			})
		}
		all.Wait()
		t.Logf("%d renewals, the latest by %v; %v", renewals, latest, service.Actions())
		require.Greater(t, renewals, holders)
		require.Less(t, latest, ttl/2, "then a sixth of the TTL is left")
	})
}

// renewed looks at how late the renewals of one holder are.
type renewed struct {
	driver.Driver
	due      time.Duration
	last     time.Time // when the lease was made longer last
	latest   time.Duration
	renewals int
}

func (r *renewed) Do(ctx context.Context, key string, q driver.Request) (driver.Answer, error) {
	a, err := r.Driver.Do(ctx, key, q)
	if err == nil && a.Outcome == driver.Granted && (q.Kind == driver.Acquire || q.Kind == driver.Renew) {
		if q.Kind == driver.Renew {
			r.latest, r.renewals = max(r.latest, time.Since(r.last)-r.due), r.renewals+1
		}
		r.last = time.Now()
	}
	return a, err
}

// partition is one partition of DynamoDB with one row. It has 1,000 write units and 3,000 read units
// a second, and those of one second in reserve.
type partition struct {
	*fakedynamo.Service
	mu     sync.Mutex
	left   [2]float64 // writes, reads
	last   time.Time
	counts map[string]int
}

var partitionUnits = [2]float64{1000, 3000}

// take reports whether the partition has the units of a request for its row.
func (p *partition) take(write, weak bool) bool {
	kind, units := 1, 1.0
	switch {
	case write:
		kind, units = 0, float64(rowSize(p.Row(table, key))/1024+1)
	case weak:
		units = 0.5
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for i, most := range partitionUnits {
		p.left[i] = min(most, p.left[i]+now.Sub(p.last).Seconds()*most)
	}
	p.last = now
	if p.left[kind] < units {
		p.counts[[]string{"throttled writes", "throttled reads"}[kind]]++
		return false
	}
	p.left[kind] -= units
	p.counts[[]string{"writes", "reads"}[kind]]++
	return true
}

// A request for a place that is throttled is refused by a read, which costs less than to ask again.
func TestThrottledJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service, s := newFake(t)
		noWrites := func(r fakedynamo.Request) (f fakedynamo.Fault) {
			if r.Action == "UpdateItem" {
				f = throttled
			}
			return f
		}
		req := request(time.Minute)
		req.JoinQueue = true
		service.Fault = noWrites
		_, err := s.Acquire(t.Context(), req)
		require.ErrorIs(t, err, lockstore.ErrUnavailable, "the key is free")
		service.Fault = nil
		held(t, s)
		pass(time.Second)
		service.Fault = noWrites
		_, err = s.Acquire(t.Context(), req)
		refused, ok := errors.AsType[*lockstore.Refused](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, lockstore.Held, refused.State)
		require.Zero(t, refused.QueuePosition)
		service.Fault = always(throttled)
		_, err = s.Acquire(t.Context(), req)
		require.ErrorIs(t, err, lockstore.ErrUnavailable)
		service.Fault = nil
		req.Hint = refused.Hint
		_, err = s.Acquire(t.Context(), req)
		require.ErrorAs(t, err, &refused)
		require.Equal(t, 1, refused.QueuePosition, "it takes a place when it asks again")
	})
}
