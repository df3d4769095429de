package dynamostore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
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

// A covered event costs one refused write, see TestCoveredEvents. DynamoDB reckons it by the size of the row, one unit for each KB. With the names and
// ids of functions on AWS that is one unit, however many events come.
func TestUnitsOfACoveredEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service, s := newFake(t)
		event := func(id int) error {
			req := request(time.Minute)
			req.JoinQueue, req.Work, req.Event = true, "reindex-ReindexFunction-1A2B3C4D5E6F", fmt.Sprint("059f36b4-87a3-44ab-83d2-66197", id)
			req.HolderInfo = lockstore.HolderInfo{Name: req.Work, ID: "8476a536-e9f4-11e8-9739-2dfe598c3fcd"}
			_, err := s.Acquire(t.Context(), req)
			return err
		}
		require.NoError(t, event(1))
		require.ErrorIs(t, event(2), lockstore.ErrRefused)
		row := service.Row(key)
		for id := range 100 {
			refused, _ := errors.AsType[*lockstore.Refused](event(10 + id))
			require.NotNil(t, refused)
			require.True(t, refused.Covered)
		}
		require.Equal(t, row, service.Row(key))
		require.Less(t, rowSize(row), 1024)
	})
}

// What a key costs that several may hold, when nobody interferes: a read and a write for each request. MaxHolders 1 is
// the request without one, and costs one write.
func TestCostOfSeveralHolders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service, s := newFake(t)
		var leases []lockstore.Lease
		inspected(t, s) // now it knows the time
		before := service.Actions()
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
