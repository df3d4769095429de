package dynamostore_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore/internal/fakedynamo"
)

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

// As many runs as an account of AWS Lambda allows ask for one key at the same time, whose partition has
// limits. Who is not served in time is told busy. Who has worked releases the key, and nobody is told that the
// store is unavailable.
func TestHotPartition(t *testing.T) {
	if !verifyrecord.Full() {
		t.Skip("it computes for a minute: make verify has it")
	}
	const runs, wait, work, handOver = 1000, 30 * time.Second, 20 * time.Millisecond, 12 * time.Millisecond // see TestCostOfAQueue
	synctest.Test(t, func(t *testing.T) {
		p := &partition{Service: fakedynamo.New(table), left: partitionUnits, last: time.Now(), counts: map[string]int{}}
		p.Fault = func(r fakedynamo.Request) fakedynamo.Fault {
			f := rtt(r)
			if !p.take(r.Action == "UpdateItem", r.Weak) {
				f.Refuse = throttled.Refuse
			}
			return f
		}
		count := func(what string) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.counts[what]++
		}
		var all sync.WaitGroup
		for range runs {
			all.Go(func() {
				var report guard.Report
				store := newStoreOver(t, dynamostore.ClientOver(p, fakeEndpoint, 0), 0, dynamostore.Options{})
				g, err := guard.New(store.Store, guard.Options{Wait: wait, Observe: func(_ context.Context, r guard.Report) { report = r }})
				require.NoError(t, err)
				err = g.Do(t.Context(), key, func(context.Context, guard.Lock) error { pass(work); return nil })
				switch {
				case err == nil && report.ReleaseErr != nil:
					count("not released")
				case err == nil:
					count("served")
				case errors.Is(err, lockstore.ErrRefused):
					count("busy")
				default:
					count("other")
					t.Logf("%v", err)
				}
			})
		}
		all.Wait()
		t.Logf("%v", p.counts)
		require.GreaterOrEqual(t, float64(p.counts["served"]), 0.8*float64(wait)/float64(work+handOver))
		require.Zero(t, p.counts["not released"])
		require.Zero(t, p.counts["other"])
	})
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
		service.Fault = from(0, throttled)
		_, err = s.Acquire(t.Context(), req)
		require.ErrorIs(t, err, lockstore.ErrUnavailable)
		service.Fault = nil
		req.Note = refused.Note
		_, err = s.Acquire(t.Context(), req)
		require.ErrorAs(t, err, &refused)
		require.Equal(t, 1, refused.QueuePosition, "it takes a place when it asks again")
	})
}
