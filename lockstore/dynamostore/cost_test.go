package dynamostore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
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

// crowd works in so many processes at once, in each of them so many times, and returns how many runs ended well. The
// others were told busy, nobody lost its lease, and each run that has worked or has waited releases what it has.
func crowd(t *testing.T, service *fakedynamo.Service, processes, runs, holders int, wait, work time.Duration) int {
	var all sync.WaitGroup
	var served atomic.Int64
	for range processes {
		g, err := guard.New(newStore(t, service, 0, dynamostore.Options{}).Store, guard.Options{
			Wait: wait,
			HolderInfo: func(context.Context) lockstore.HolderInfo {
				return lockstore.HolderInfo{Name: "my-function-prod", ID: "8476a536-e9f4-11e8-9739-2dfe598c3fcd"}
			},
			Observe: func(_ context.Context, r guard.Report) {
				assert.NoError(t, r.ReleaseErr, "%s after %d calls", r.Outcome, r.Calls)
			},
		})
		require.NoError(t, err)
		g = g.WithMaxHolders(holders)
		all.Go(func() {
			for range runs {
				err := g.Do(t.Context(), key, func(ctx context.Context, _ guard.Lock) error {
					select {
					case <-ctx.Done():
						return context.Cause(ctx)
					case <-time.After(work):
						return nil
					}
				})
				if err == nil {
					served.Add(1)
				} else {
					assert.ErrorIs(t, err, lockstore.ErrRefused)
				}
			}
		})
	}
	all.Wait()
	return int(served.Load())
}

// What a run costs that waits among others. Each of 16 clients has its runs one after the other. With one run each,
// nobody knows at first how long a lease takes. After a long lease, those who wait read as often as if they had just come.
func TestCostOfAQueue(t *testing.T) {
	verifyrecord.SkipWithRace(t)
	const clients = 16
	for _, most := range []struct {
		work          time.Duration
		runs, holders int
		writes, reads float64
		handOver      time.Duration
		held          time.Duration // by another one before
	}{
		{20 * time.Millisecond, 10, 1, 2.1, 4, 12 * time.Millisecond, 0},
		{time.Second, 10, 1, 3.1, 30, 25 * time.Millisecond, 0},
		{time.Second, 1, 1, 3.1, 30, 25 * time.Millisecond, 0},
		{100 * time.Millisecond, 1, 1, 4.5, 120, 200 * time.Millisecond, time.Minute},
		// The row takes fewer runs than 5 holders would do. If they wait in the queue, they are handed the key: 2.4 to 3.9 writes.
		// If they come while there is room, all of them write: 4.1 to 4.4.
		{20 * time.Millisecond, 10, 5, 6, 5.5, 10 * time.Millisecond, 0},
	} {
		bubble(t, fmt.Sprintf("%d of %v for %d, after %v", most.runs, most.work, most.holders, most.held), func(t *testing.T) {
			service, s := newFake(t)
			if most.held > 0 {
				lease := acquired(t, s, request(2*most.held))
				time.AfterFunc(most.held, func() { assert.NoError(t, s.Release(t.Context(), lease)) })
			}
			service.Fault = rtt
			start := time.Now().Add(most.held)
			require.Equal(t, clients*most.runs, crowd(t, service, clients, most.runs, most.holders, time.Hour, most.work))
			n := float64(clients * most.runs)
			handOver := time.Since(start)/time.Duration(n) - most.work
			writes, reads := float64(service.Actions()["UpdateItem"])/n, float64(service.Actions()["GetItem"])/n
			t.Logf("a hand-over takes %v; %.2f writes, %.2f reads", handOver, writes, reads)
			require.LessOrEqual(t, writes, most.writes)
			require.LessOrEqual(t, reads, most.reads)
			require.LessOrEqual(t, handOver, most.handOver)
		})
	}
}

// What a key costs that several may hold, when nobody interferes: a read and a write for each request.
func TestCostOfSeveralHolders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service, s := newFake(t)
		inspected(t, s) // now it knows the time
		req := request(time.Minute)
		req.MaxHolders = 3
		var leases []lockstore.Lease
		for range 3 {
			req.Owner = lockstore.NewOwner()
			costs(t, service, 1, 1, "a holder", func() { leases = append(leases, acquired(t, s, req)) })
		}
		costs(t, service, 1, 1, "a renewal", func() {
			_, err := s.Renew(t.Context(), leases[0], 2*time.Minute)
			require.NoError(t, err)
		})
		req.Owner = lockstore.NewOwner()
		costs(t, service, 0, 1, "a refusal", func() { isRefused(t, s, req) })
		for _, lease := range leases {
			costs(t, service, 1, 1, "a release", func() { require.NoError(t, s.Release(t.Context(), lease)) })
		}
	})
}

// partition gives the row of the key one partition of DynamoDB, 5 ms away. It has 1,000 write units and 3,000 read units a second, and those of
// one second in reserve.
func partition(service *fakedynamo.Service) {
	var mu sync.Mutex
	most := [2]float64{1000, 3000} // writes, reads
	left, last := most, time.Now()
	service.Fault = func(r fakedynamo.Request) fakedynamo.Fault {
		f, kind, units := rtt(r), 1, 1.0
		switch {
		case r.Action == "UpdateItem":
			kind, units = 0, float64(rowSize(service.Row(key))/1024+1)
		case r.Weak:
			units = 0.5
		}
		mu.Lock()
		defer mu.Unlock()
		for i := range left {
			left[i] = min(most[i], left[i]+time.Since(last).Seconds()*most[i])
		}
		last = time.Now()
		if left[kind] < units {
			f.Refuse = throttled.Refuse
			return f
		}
		left[kind] -= units
		return f
	}
}

// Many runs come together for a key of a hot partition: as many as an account of AWS Lambda allows for a key that one may
// hold.
func TestHotPartition(t *testing.T) {
	verifyrecord.SkipWithRace(t)
	type hot struct {
		holders, runs int
		wait, work    time.Duration
		served        int // at least
	}
	const short = 20 * time.Millisecond
	crowds := []hot{{lockstore.MaxHolders, 200, time.Minute, short, 200}}
	if verifyrecord.Full() { // it computes for a minute
		const wait, handOver = 30 * time.Second, 12 * time.Millisecond // see TestCostOfAQueue
		crowds = append(crowds, hot{1, 1000, wait, short, int(0.8 * float64(wait) / float64(short+handOver))})
	}
	if verifyrecord.Full() && !verifyrecord.Gate() {
		for _, holders := range []int{10, lockstore.MaxHolders} {
			for _, work := range []time.Duration{short, time.Second, 3 * time.Second, 10 * time.Second} {
				runs := 300
				if work > time.Second {
					runs = 100 // more of them would only read for longer
				}
				crowds = append(crowds, hot{holders, runs, time.Minute, work, min(runs, holders*int(time.Minute/work)/2)})
			}
		}
	}
	for _, c := range crowds {
		bubble(t, fmt.Sprintf("F57 %d runs of %v, %d at once", c.runs, c.work, c.holders), func(t *testing.T) {
			service, s := newFake(t)
			partition(service)
			require.GreaterOrEqual(t, crowd(t, service, c.runs, 1, c.holders, c.wait, c.work), c.served)
			service.Fault = nil
			status := inspected(t, s)
			require.Empty(t, status.Holders)
			require.Zero(t, status.Waiting)
		})
	}
}

// An Acquire whose write is throttled is refused, also if only a read shows that the key is held: that costs less than to ask again. It says
// that many ask for it if the key is free, or if the owner was handed the key or has a place: these are there.
func TestThrottledAcquire(t *testing.T) {
	for _, c := range []struct {
		what    string
		key     string // "free", "held" or "started"
		place   string // of the owner: "", "waits" or "handed over"
		holders int
		refused bool
	}{
		{"a free key", "free", "", 1, false},
		{"an arrival", "held", "", 1, true},
		{"behind work that has started a place takes a write of its own", "started", "", 1, true},
		{"a hand-over", "held", "handed over", 1, false},
		{"a hand-over of a key for three", "held", "handed over", 3, false},
	} {
		bubble(t, "F31 F57 "+c.what, func(t *testing.T) {
			service, s := newFake(t)
			req := queued(c.holders)
			lease := held(t, s)
			if c.key == "started" {
				require.NoError(t, s.MarkStarted(t.Context(), lease))
			}
			if c.place != "" {
				isRefused(t, s, req)
			}
			if c.place != "" || c.key == "free" {
				require.NoError(t, s.Release(t.Context(), lease))
			}
			pass(time.Second)
			service.Fault = func(r fakedynamo.Request) (f fakedynamo.Fault) {
				if r.Action == "UpdateItem" {
					f = throttled
				}
				return f
			}
			_, err := s.Acquire(t.Context(), req)
			service.Fault = nil
			if !c.refused {
				require.ErrorIs(t, err, lockstore.ErrUnavailable)
				require.ErrorIs(t, err, lockstore.ErrContended)
				acquired(t, s, req)
				return
			}
			refused, ok := errors.AsType[*lockstore.Refused](err)
			require.True(t, ok, "%v", err)
			require.Equal(t, lockstore.Held, refused.State)
			require.Zero(t, refused.QueuePosition)
			req.Hint = refused.Hint
			require.Equal(t, 1, refusal(t, s, req).QueuePosition, "it takes a place when it asks again")
		})
	}
}

// The context of a release ends during the pause after a conflict, or leaves too little time for a write after it, whose outcome
// would be unknown. The error says so, as well as that others were quicker.
func TestContextEndsAfterAConflict(t *testing.T) {
	for what, left := range map[string]time.Duration{"it ends": time.Minute, "it ends soon": 50 * time.Millisecond} {
		bubble(t, "F57 "+what, func(t *testing.T) {
			service, s := newFake(t)
			leases := sharing(t, s, 2)
			ctx, cancel := context.WithTimeout(t.Context(), left)
			defer cancel()
			beforeWrite(service, 1, func() (f fakedynamo.Fault) {
				_, err := s.Renew(t.Context(), leases[1], time.Hour)
				require.NoError(t, err)
				if left == time.Minute {
					go func() {
						synctest.Wait() // it pauses
						cancel()
					}()
				}
				return f
			})
			err := s.Release(ctx, leases[0])
			require.ErrorIs(t, err, lockstore.ErrContended)
			require.ErrorIs(t, err, lockstore.ErrUnavailable)
			require.Equal(t, left == time.Minute, errors.Is(err, context.Canceled), "%v", err)
		})
	}
}
