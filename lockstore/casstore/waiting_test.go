package casstore_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore/castest"
)

// remote is a register whose server is a trip away, and wakes waiters up.
type remote struct {
	*castest.Memory
	trip     time.Duration // on average
	requests atomic.Int64

	mu      sync.Mutex
	waiters map[string]chan struct{}
}

func (r *remote) half() { <-time.After(r.trip/4 + rand.N(r.trip/2)) }

func (r *remote) Read(ctx context.Context, key string, fresh bool) (casstore.Entry, time.Time, error) {
	r.half()
	defer r.half()
	r.requests.Add(1)
	return r.Memory.Read(ctx, key, fresh)
}

func (r *remote) Write(ctx context.Context, key string, value []byte, ifVersion string) (casstore.Entry, error) {
	r.half()
	defer r.half()
	r.requests.Add(1)
	return r.Memory.Write(ctx, key, value, ifVersion)
}

func (r *remote) Listen(_ context.Context, key, owner string) (<-chan struct{}, func(), error) {
	r.half()
	r.half()
	r.mu.Lock()
	defer r.mu.Unlock()
	woken := make(chan struct{})
	r.waiters[key+owner] = woken
	return woken, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.waiters[key+owner] == woken {
			delete(r.waiters, key+owner)
		}
	}, nil
}

func (r *remote) Wake(_ context.Context, key, owner string) error {
	r.half()
	defer r.half()
	r.mu.Lock()
	defer r.mu.Unlock()
	if woken := r.waiters[key+owner]; woken != nil {
		go func() {
			r.half()
			close(woken)
		}()
		delete(r.waiters, key+owner)
	}
	return nil
}

// Processes that want the same key again and again wait equally long, though each of
// them has to write its place into an entry that all the others write, too.
func TestWaitsAreAlike(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const processes, rounds, work = 16, 40, time.Millisecond
		r := &remote{Memory: castest.NewMemory(time.Millisecond), trip: time.Millisecond, waiters: map[string]chan struct{}{}}
		var (
			mu    sync.Mutex
			waits []time.Duration
			all   sync.WaitGroup
		)
		for range processes {
			s := open(t, r)
			all.Go(func() {
				for range rounds {
					req := request(30 * time.Second)
					req.Queue = true
					start := time.Now()
					lease, err := s.Acquire(t.Context(), req)
					for errors.Is(err, lockstore.ErrHeld) {
						if err = s.AwaitTurn(t.Context(), req.Key, req.Owner); err == nil {
							lease, err = s.Acquire(t.Context(), req)
						}
					}
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					waits = append(waits, time.Since(start))
					mu.Unlock()
					<-time.After(work)
					if err := s.Release(t.Context(), lease); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
		slices.Sort(waits)
		require.Len(t, waits, processes*rounds)
		p50, p99 := waits[len(waits)/2], waits[len(waits)*99/100]
		requests := float64(r.requests.Load()) / float64(len(waits))
		t.Logf("wait p50 %v, p99 %v, longest %v; %.1f requests each", p50, p99, waits[len(waits)-1], requests)
		require.LessOrEqual(t, p99, p50*3/2)
		require.Less(t, requests, 15.0)
	})
}

// A Break with Now wakes the first in the queue, as a release does.
func TestBreakNowWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &remote{Memory: castest.NewMemory(time.Millisecond), trip: 2 * time.Millisecond, waiters: map[string]chan struct{}{}}
		operator, waiter := open(t, r), open(t, r)
		lease, err := open(t, r).Acquire(t.Context(), request(time.Minute))
		require.NoError(t, err)
		waits := request(time.Minute)
		waits.Queue = true
		_, err = waiter.Acquire(t.Context(), waits)
		require.ErrorIs(t, err, lockstore.ErrHeld)
		woken := make(chan error)
		go func() { woken <- waiter.AwaitTurn(t.Context(), waits.Key, waits.Owner) }()
		<-time.After(time.Second / 10)
		for _, now := range []bool{false, true} {
			began := time.Now()
			_, err = operator.Break(t.Context(), lockstore.BreakRequest{Key: lease.Key, Fence: lease.Fence, Now: now})
			require.NoError(t, err)
			if now {
				require.NoError(t, <-woken)
				require.Less(t, time.Since(began), 20*time.Millisecond, "it waited for its next look")
			}
		}
		granted, err := waiter.Acquire(t.Context(), waits)
		require.NoError(t, err)
		require.Greater(t, granted.Fence, lease.Fence)
	})
}

// The holder has died, and in the second half of its lease those who wait give up. They make
// room for the holder's renewal, and then they leave.
func TestLeavesBehindADeadHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const waiters = 8
		r := &remote{Memory: castest.NewMemory(time.Millisecond), trip: 10 * time.Millisecond, waiters: map[string]chan struct{}{}}
		_, err := open(t, r).Acquire(t.Context(), request(time.Minute))
		require.NoError(t, err)
		leave := []func(context.Context) error{}
		for range waiters {
			s, req := open(t, r), request(time.Minute)
			req.Queue = true
			_, err := s.Acquire(t.Context(), req)
			var held *lockstore.HeldError
			require.ErrorAs(t, err, &held)
			require.Positive(t, held.Place)
			leave = append(leave, func(ctx context.Context) error { return s.Leave(ctx, req.Key, req.Owner) })
		}
		<-time.After(45 * time.Second)
		r.requests.Store(0)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // the guard's time for a release
		defer cancel()
		began := time.Now()
		var all sync.WaitGroup
		for _, f := range leave {
			all.Go(func() {
				if err := f(ctx); err != nil {
					t.Errorf("Leave: %v; want nil", err)
				}
			})
		}
		all.Wait()
		requests := r.requests.Load()
		t.Logf("%d left in %v by %d requests", waiters, time.Since(began), requests)
		require.Less(t, requests, int64(20*waiters))
		status, err := open(t, r).Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.Zero(t, status.Waiting)
	})
}

// An entry that an earlier version has written can be broken, and a holder of that version
// sees an entry of another owner.
func TestBreakOfAnEarlierEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := castest.NewMemory(time.Millisecond)
		const text = `{"n":1,"fence":1795295118105467,"state":"H","owner":"OWNERAOWNERAOWNERAOWNERAO2","ttl":60000000000,"holder":"v1 1795295118000 me 4f1c"}`
		r.SetValue(t, "key", fmt.Appendf(nil, "lambdalock1 %08x %s", crc32.ChecksumIEEE([]byte(text)), text))
		s := open(t, r)
		status, err := s.Break(t.Context(), lockstore.BreakRequest{Key: "key", Fence: 1795295118105467, By: lockstore.Holder{Name: "an operator"}})
		require.NoError(t, err)
		require.True(t, status.Broken)
		_, err = s.Renew(t.Context(), lockstore.Lease{Key: "key", Owner: "OWNERAOWNERAOWNERAOWNERAO2", Fence: 1795295118105467}, time.Minute)
		require.ErrorIs(t, err, lockstore.ErrLost)
		var fields map[string]any
		_, written, _ := bytes.Cut(r.Value(t, "key")[len("lambdalock1 "):], []byte(" "))
		require.NoError(t, json.Unmarshal(written, &fields))
		for field := range fields { // an earlier version refuses unknown fields
			require.Contains(t, []string{"n", "fence", "state", "owner", "ttl", "begin", "holder", "ended"}, field)
		}
	})
}
