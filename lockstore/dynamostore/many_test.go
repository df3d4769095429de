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
		kind, units = 0, float64(rowSize(p.Row(key))/1024+1)
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

// newPartition is a partition 5 ms away.
func newPartition() *partition {
	p := &partition{Service: fakedynamo.New(table), left: partitionUnits, last: time.Now(), counts: map[string]int{}}
	p.Fault = func(r fakedynamo.Request) fakedynamo.Fault {
		f := rtt(r)
		if !p.take(r.Action == "UpdateItem", r.Weak) {
			f.Refuse = throttled.Refuse
		}
		return f
	}
	return p
}

// guard is a guard of another process. It counts how its runs end.
func (p *partition) guard(t *testing.T, holders int, wait time.Duration) *guard.Guard {
	store := newStoreOver(t, dynamostore.ClientOver(p, fakeEndpoint, 0), 0, dynamostore.Options{})
	g, err := guard.New(store.Store, guard.Options{
		Wait: wait,
		HolderInfo: func(context.Context) lockstore.HolderInfo {
			return lockstore.HolderInfo{Name: "my-function-prod", ID: "8476a536-e9f4-11e8-9739-2dfe598c3fcd"}
		},
		Observe: p.observe(t),
	})
	require.NoError(t, err)
	return g.WithMaxHolders(holders)
}

// observe counts how runs end. Each of them releases what it has.
func (p *partition) observe(t *testing.T) func(context.Context, guard.Report) {
	return func(_ context.Context, r guard.Report) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.counts[string(r.Outcome)]++
		assert.NoError(t, r.ReleaseErr, "%s after %d calls", r.Outcome, r.Calls)
	}
}

// works works for so long, unless the lease is lost.
func works(d time.Duration) func(context.Context, guard.Lock) error {
	return func(ctx context.Context, _ guard.Lock) error {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(d):
			return nil
		}
	}
}

// Many runs come together for a key of a hot partition: as many as an account of AWS Lambda allows for a key that one may
// hold. Nobody at work loses its lease, each run that has worked or has waited releases what it has, and who is not
// served in time is told busy.
func TestHotPartition(t *testing.T) {
	verifyrecord.SkipWithRace(t)
	type crowd struct {
		holders, runs int
		wait, work    time.Duration
		served        int // at least
	}
	const short = 20 * time.Millisecond
	crowds := []crowd{{lockstore.MaxHolders, 200, time.Minute, short, 200}}
	if verifyrecord.Full() { // it computes for a minute
		const wait, handOver = 30 * time.Second, 12 * time.Millisecond // see TestCostOfAQueue
		crowds = append(crowds, crowd{1, 1000, wait, short, int(0.8 * float64(wait) / float64(short+handOver))})
	}
	if verifyrecord.Full() && !verifyrecord.Gate() {
		for _, holders := range []int{10, lockstore.MaxHolders} {
			for _, work := range []time.Duration{short, time.Second, 3 * time.Second, 10 * time.Second} {
				runs := 300
				if work > time.Second {
					runs = 100 // more of them would only read for longer
				}
				crowds = append(crowds, crowd{holders, runs, time.Minute, work, min(runs, holders*int(time.Minute/work)/2)})
			}
		}
	}
	for _, c := range crowds {
		bubble(t, fmt.Sprintf("F57 %d runs of %v, %d at once", c.runs, c.work, c.holders), func(t *testing.T) {
			p, began := newPartition(), time.Now()
			var all sync.WaitGroup
			for range c.runs {
				all.Go(func() {
					err := p.guard(t, c.holders, c.wait).Do(t.Context(), key, works(c.work))
					if err != nil && !errors.Is(err, lockstore.ErrRefused) {
						t.Errorf("%v", err)
					}
				})
			}
			all.Wait()
			t.Logf("%v in %v", p.counts, time.Since(began))
			require.GreaterOrEqual(t, p.counts["ok"], c.served)
			s := newStoreOver(t, dynamostore.ClientOver(p.Service, fakeEndpoint, 0), 0, dynamostore.Options{})
			p.Fault = nil
			status, err := s.Inspect(t.Context(), key)
			require.NoError(t, err)
			require.Empty(t, status.Holders)
			require.Zero(t, status.Waiting)
		})
	}
}

// Whoever joins or leaves a queue of a key that several hold sends one write, whatever its owner is: a word of the row, or one that
// was handed the key and missed its turn.
func TestAnyOwnerJoinsSeveral(t *testing.T) {
	for _, owner := range []lockstore.Owner{"e", "owner", "1", `"`, ""} {
		bubble(t, fmt.Sprintf("F57 F60 %q", string(owner)), func(t *testing.T) {
			service, s := newFake(t)
			lease := sharing(t, s, 2)[0]
			place := func(owner lockstore.Owner) int {
				req := queued(2)
				req.Owner = owner
				return refusal(t, s, req).QueuePosition
			}
			misses := owner == ""
			if misses {
				owner = lockstore.NewOwner()
				require.Equal(t, 1, place(owner))
				require.NoError(t, s.Release(t.Context(), lease)) // it is handed the key
			}
			require.Equal(t, 1, place(lockstore.NewOwner()))
			if misses {
				pass(lockstore.TurnTime + 1200*time.Millisecond)
			}
			before := service.Requests()
			require.Equal(t, 2, place(owner))
			require.Equal(t, 2, service.Requests()-before, "a read and a write")
			require.NoError(t, s.Leave(t.Context(), key, owner))
			require.Equal(t, 4, service.Requests()-before)
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

// The context of a release ends during the pause after a conflict. The error says so, as well as that others were quicker.
func TestContextEndsAfterAConflict(t *testing.T) {
	bubble(t, "F57 release", func(t *testing.T) {
		service, s := newFake(t)
		leases := sharing(t, s, 2)
		ctx, cancel := context.WithCancel(t.Context())
		beforeWrite(service, 1, func() (f fakedynamo.Fault) {
			_, err := s.Renew(t.Context(), leases[1], time.Hour)
			require.NoError(t, err)
			go func() {
				synctest.Wait() // it pauses
				cancel()
			}()
			return f
		})
		err := s.Release(ctx, leases[0])
		for _, want := range []error{context.Canceled, lockstore.ErrContended, lockstore.ErrUnavailable} {
			require.ErrorIs(t, err, want)
		}
	})
}
