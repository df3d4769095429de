package redisstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/leasesim"
	"github.com/lambdalock/lambdalock/internal/pause"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

func TestLanes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &lanes{room: 1}
		require.NoError(t, l.enter(t.Context(), driver.Request{Kind: driver.Inspect}))
		var mu sync.Mutex
		var order []string
		add := func(name string) {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, name)
		}
		enter := func(ctx context.Context, name string, r driver.Request) {
			synctest.Wait() // the one before waits
			go func() {
				if err := l.enter(ctx, r); err != nil {
					require.ErrorIs(t, err, lockstore.ErrUnavailable)
					require.ErrorIs(t, err, context.DeadlineExceeded)
					add(name + " left")
					return
				}
				add(name)
				leasesim.Pass(time.Second)
				l.leave()
			}()
		}
		short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		enter(t.Context(), "look", driver.Request{Kind: driver.Inspect})
		enter(t.Context(), "ask", driver.Request{Kind: driver.Acquire})
		enter(short, "short", driver.Request{Kind: driver.Acquire})
		enter(t.Context(), "wait", driver.Request{Kind: driver.AwaitTurn})
		enter(t.Context(), "leave", driver.Request{Kind: driver.Leave})
		enter(t.Context(), "abandon", driver.Request{Kind: driver.Abandon})
		enter(t.Context(), "renew", driver.Request{Kind: driver.Renew})
		enter(t.Context(), "extend", driver.Request{Kind: driver.Acquire, Fence: 1})
		enter(t.Context(), "release", driver.Request{Kind: driver.Release})
		leasesim.Pass(time.Second)
		l.leave()
		leasesim.Pass(time.Minute)
		synctest.Wait() // all have ended
		mu.Lock()
		defer mu.Unlock()
		l.mu.Lock()
		defer l.mu.Unlock()
		require.Equal(t, []string{"short left", "renew", "extend", "release", "leave", "abandon", "ask", "wait", "look"}, order)
		require.Equal(t, 1, l.room)

		var none *lanes
		require.NoError(t, none.enter(t.Context(), driver.Request{}))
		none.leave()
	})
}

// far is a store 5 ms away, with few connections for many runs. As redisstore, it lets waiters block in half of the
// connections; the others look each 50 to 150 ms.
type far struct {
	driver.Driver
	lanes *lanes
	slots chan struct{}
	flat  bool // no request goes before another

	mu       sync.Mutex
	extended map[driver.Owner]time.Time // when each lease was made longer last
	renewals int
	apart    time.Duration // the longest time from there to a renewal's answer
}

const roundTrip = 5 * time.Millisecond

func (f *far) Unwrap() driver.Driver { return f.Driver }

func (f *far) Do(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	in := r
	if f.flat {
		in.Kind = driver.Inspect
	}
	if err := f.lanes.enter(ctx, in); err != nil {
		return driver.Answer{}, err
	}
	defer f.lanes.leave()
	leasesim.Pass(roundTrip / 2)
	a, err := f.Driver.Do(context.WithoutCancel(ctx), key, r)
	leasesim.Pass(roundTrip / 2)
	if a.Outcome == driver.Granted && (r.Kind == driver.Acquire || r.Kind == driver.Renew) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if r.Kind == driver.Renew {
			f.renewals++
			f.apart = max(f.apart, time.Since(f.extended[r.Owner]))
		}
		f.extended[r.Owner] = time.Now()
	}
	return a, err
}

func (f *far) Await(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	select {
	case f.slots <- struct{}{}:
		defer func() { <-f.slots }()
	default:
		return driver.Answer{Outcome: driver.Ask, Note: r.Note}, pause.For(ctx, pollTime/2+rand.N(pollTime))
	}
	if err := f.lanes.enter(ctx, r); err != nil {
		return driver.Answer{}, err
	}
	defer f.lanes.leave()
	leasesim.Pass(roundTrip)
	block, cancel := context.WithTimeout(ctx, 750*time.Millisecond)
	defer cancel()
	a, err := f.Driver.Await(block, key, r)
	if err != nil && ctx.Err() == nil {
		return driver.Answer{Outcome: driver.Ask, Note: r.Note}, nil
	}
	return a, err
}

// TestLoad is more runs at once in one process than the connections can serve: F57 F58.
func TestLoad(t *testing.T) {
	runs, connections, wait := 2000, 10, 20*time.Second
	if verifyrecord.WithRaceDetector { // it is ten times as slow
		runs, connections = 400, 2
	}
	bubble := func(name string, f func(*testing.T)) {
		t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
	}
	// load returns how many runs ended in each way, and how many work and have not released their key.
	load := func(t *testing.T, keys int, flat bool) (outcomes map[guard.Outcome]int, unreleased int) {
		store := memstore.New(nil)
		away := &far{lanes: &lanes{room: connections}, slots: make(chan struct{}, connections/2), flat: flat, extended: map[driver.Owner]time.Time{}}
		var mu sync.Mutex
		outcomes = map[guard.Outcome]int{}
		g, err := guard.New(store.WrapDriver(func(d driver.Driver) driver.Driver { away.Driver = d; return away }), guard.Options{
			TTL: 3 * time.Second, Wait: wait,
			Observe: func(_ context.Context, r guard.Report) {
				mu.Lock()
				defer mu.Unlock()
				outcomes[r.Outcome]++
				assert.LessOrEqual(t, r.WaitTime, wait+time.Second)
				if r.Fence != 0 && r.ReleaseErr != nil {
					unreleased++
				}
			},
		})
		require.NoError(t, err)
		var all sync.WaitGroup
		for n := range runs {
			all.Go(func() {
				work := 20 * time.Millisecond
				if keys > 1 && n%100 == 0 || n == 0 { // it renews
					work = 5 * time.Second
				} else if keys == 1 {
					leasesim.Pass(time.Millisecond) // the first has the key
				}
				_ = g.Do(context.Background(), fmt.Sprint("k", n%keys), func(ctx context.Context, _ guard.Lock) error {
					leasesim.Pass(work)
					return context.Cause(ctx)
				})
			})
		}
		all.Wait()
		if !flat {
			for n := range keys {
				status, err := store.Inspect(t.Context(), fmt.Sprint("k", n))
				require.NoError(t, err)
				require.Equal(t, lockstore.Free, status.State)
				require.Zero(t, status.Waiting)
			}
		}
		return outcomes, unreleased
	}
	bubble("F58 2,000 runs on 2,000 keys: all run and release their keys", func(t *testing.T) {
		outcomes, unreleased := load(t, runs, false)
		require.Equal(t, map[guard.Outcome]int{guard.OutcomeOK: runs}, outcomes)
		require.Zero(t, unreleased)
	})
	bubble("F57 2,000 runs on one key: each runs and releases it, or is told busy in time", func(t *testing.T) {
		outcomes, unreleased := load(t, 1, false)
		require.Equal(t, runs, outcomes[guard.OutcomeOK]+outcomes[guard.OutcomeBusy])
		require.Greater(t, outcomes[guard.OutcomeOK], runs/40)
		require.Zero(t, unreleased)
	})
	bubble("if holders had no connections before the others, many keys would stay closed", func(t *testing.T) {
		_, unreleased := load(t, runs, true)
		require.Greater(t, unreleased, runs/20)
	})
}

// 20 runs hold a key and renew their leases, and each second 100 others come for 10 ms, all in one process with one
// connection. A renewal is due after a third of the lease, and none is later than by another third.
func TestHoldersRenewInTimeAmongManyArrivals(t *testing.T) {
	const holders, ttl, lasts = 20, 3 * time.Second, 10 * time.Second
	synctest.Test(t, func(t *testing.T) {
		away := &far{lanes: &lanes{room: 1}, extended: map[driver.Owner]time.Time{}}
		store := memstore.New(nil).WrapDriver(func(d driver.Driver) driver.Driver { away.Driver = d; return away })
		g, err := guard.New(store, guard.Options{TTL: ttl, Wait: lasts})
		require.NoError(t, err)
		g = g.WithMaxHolders(lockstore.MaxHolders)
		var all sync.WaitGroup
		comes := func(work time.Duration) {
			all.Go(func() {
				err := g.Do(t.Context(), "k", func(ctx context.Context, _ guard.Lock) error {
					_ = pause.For(ctx, work)
					return context.Cause(ctx)
				})
				assert.NoError(t, err)
			})
		}
		for range holders {
			comes(lasts)
		}
		random := rand.New(rand.NewPCG(1, 1))
		for end := time.Now().Add(lasts); time.Now().Before(end); {
			leasesim.Pass(time.Duration(random.ExpFloat64() * float64(10*time.Millisecond)))
			comes(10 * time.Millisecond)
		}
		all.Wait()
		t.Logf("%d renewals, at most %v after the one before", away.renewals, away.apart)
		require.Greater(t, away.renewals, holders)
		require.LessOrEqual(t, away.apart, 2*ttl/3)
	})
}

// More runs at once in one process than its connections can serve: a holder's requests go first. TestLoad has the
// numbers, in virtual time. The wait is so long that a busy machine serves all.
func TestLoadOnAServer(t *testing.T) {
	for keys, runs := range map[int]int{1: 100, 200: 200} {
		t.Run(fmt.Sprintf("F57 F58 %d runs, keys: %d", runs, keys), func(t *testing.T) {
			store, err := Open(t.Context(), config(t, "redis://"+testservers.Redis(t)+"?connections=4"))
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, driverOf(store).client.Close()) })
			var reports atomic.Int64
			g, err := guard.New(store, guard.Options{TTL: time.Minute, Wait: time.Minute, Observe: func(_ context.Context, r guard.Report) {
				reports.Add(1)
				assert.Equal(t, guard.OutcomeOK, r.Outcome, r.Err)
			}})
			require.NoError(t, err)
			var all sync.WaitGroup
			for n := range runs {
				all.Go(func() {
					_ = g.Do(t.Context(), fmt.Sprintf("load/%d/%d", keys, n%keys), func(ctx context.Context, _ guard.Lock) error {
						<-time.After(10 * time.Millisecond)
						return context.Cause(ctx)
					})
				})
			}
			all.Wait()
			require.EqualValues(t, runs, reports.Load())
		})
	}
}
