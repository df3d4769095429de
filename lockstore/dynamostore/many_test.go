package dynamostore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore/internal/fakedynamo"
)

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
		Observe: func(_ context.Context, r guard.Report) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.counts[string(r.Outcome)]++
			assert.NoError(t, r.ReleaseErr, "%s after %d calls", r.Outcome, r.Calls)
		},
	})
	require.NoError(t, err)
	return g.WithMaxHolders(holders)
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

// As many readers as may hold the key read again and again, and writers come one after the other. Each writer gets the key
// when the readers before it have released it.
func TestWritersAmongManyReaders(t *testing.T) {
	const readers = lockstore.MaxHolders
	writers, limits := 1, []bool{false}
	if verifyrecord.Full() && !verifyrecord.Gate() {
		writers, limits = 5, []bool{false, true}
	}
	for _, limited := range limits {
		bubble(t, fmt.Sprintf("F57 %d readers, limited %t", readers, limited), func(t *testing.T) {
			const work, wait = 20 * time.Millisecond, 30 * time.Second
			p := newPartition()
			if !limited {
				p.Fault = rtt
			}
			ctx, cancel := context.WithCancel(t.Context())
			var all sync.WaitGroup
			for range readers {
				g := p.guard(t, lockstore.MaxHolders, wait)
				all.Go(func() {
					for ctx.Err() == nil {
						assert.NoError(t, g.Do(t.Context(), key, works(work)))
					}
				})
			}
			for range writers {
				pass(time.Second / 2)
				began := time.Now()
				assert.NoError(t, p.guard(t, 1, wait).Do(t.Context(), key, works(work)))
				took := time.Since(began)
				t.Logf("a writer took %v", took)
				assert.LessOrEqual(t, took, 10*time.Second, "turns and releases of the readers before it")
			}
			cancel()
			all.Wait()
			t.Logf("%v", p.counts)
		})
	}
}

// Whoever joins or leaves a queue of a key that several hold sends one write, whatever its owner is: a word of the row, or one that
// was handed the key and missed its turn.
func TestAnyOwnerJoinsSeveral(t *testing.T) {
	for _, owner := range []lockstore.Owner{"e", "owner", "1", `"`, ""} {
		bubble(t, fmt.Sprintf("F57 F60 %q", string(owner)), func(t *testing.T) {
			service, s := newFake(t)
			req := request(time.Minute)
			req.MaxHolders, req.JoinQueue = 2, true
			lease := acquired(t, s, req)
			place := func(owner lockstore.Owner) int {
				req.Owner = owner
				_, err := s.Acquire(t.Context(), req)
				refused, ok := errors.AsType[*lockstore.Refused](err)
				require.True(t, ok, "%v", err)
				return refused.QueuePosition
			}
			req.Owner = lockstore.NewOwner()
			acquired(t, s, req)
			first, misses := lockstore.NewOwner(), owner == ""
			if misses {
				owner = lockstore.NewOwner()
				require.Equal(t, 1, place(owner))
				require.NoError(t, s.Release(t.Context(), lease)) // it is handed the key
				require.Equal(t, 1, place(first))
				pass(lockstore.TurnTime + 1200*time.Millisecond)
			} else {
				require.Equal(t, 1, place(first))
			}
			before := service.Requests()
			require.Equal(t, 2, place(owner))
			require.Equal(t, 2, service.Requests()-before, "a read and a write")
			require.NoError(t, s.Leave(t.Context(), key, owner))
			require.Equal(t, 4, service.Requests()-before)
		})
	}
}
