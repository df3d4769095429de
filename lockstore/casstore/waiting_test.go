package casstore_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/pause"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore/castest"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

// waking is a KV that wakes waiters up.
type waking struct {
	*castest.Memory

	mu      sync.Mutex
	waiters map[string]chan string
}

func newWaking() *waking {
	return &waking{Memory: castest.NewMemory(time.Millisecond), waiters: map[string]chan string{}}
}

func (w *waking) Listen(_ context.Context, key, owner string, _ time.Time) (<-chan string, bool, func(), error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	woken := make(chan string, 1)
	w.waiters[key+owner] = woken
	return woken, false, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.waiters[key+owner] == woken {
			delete(w.waiters, key+owner)
		}
	}, nil
}

func (w *waking) WriteAndWake(ctx context.Context, key string, value []byte, ifVersion string, notes map[string]string) (casstore.Entry, error) {
	e, err := w.Write(ctx, key, value, ifVersion)
	if err == nil {
		w.wake(key, notes)
	}
	return e, err
}

func (w *waking) wake(key string, notes map[string]string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for owner, note := range notes {
		if woken := w.waiters[key+owner]; woken != nil {
			woken <- note
			delete(w.waiters, key+owner)
		}
	}
}

func onWaking(t *testing.T) storetest.Harness {
	w := newWaking()
	return castest.Harness(t, w, casstore.Options{}, w)
}

// delayed is a KV whose requests take time.
type delayed struct {
	*waking
	there    func(ctx context.Context, requests int) error
	back     func()
	requests atomic.Int64 // reads and writes
}

// newRemote is a KV whose server is a trip away, on average.
func newRemote(trip time.Duration) *delayed {
	half := func() { <-time.After(trip/4 + rand.N(trip/2)) }
	return &delayed{waking: newWaking(), there: func(context.Context, int) error { half(); return nil }, back: half}
}

// newNarrow is a KV of one connection to a server that serves one request after the other.
func newNarrow(each time.Duration) *delayed {
	var mu sync.Mutex
	free := time.Now() // when the server has served all that it has
	serve := func(ctx context.Context, requests int) error {
		mu.Lock()
		free = free.Add(max(0, time.Since(free)) + time.Duration(requests)*each)
		served := free
		mu.Unlock()
		return pause.For(ctx, time.Until(served)) // the server serves it also when ctx has ended
	}
	return &delayed{waking: newWaking(), there: serve, back: func() {}}
}

// Read implements casstore.KV. A fresh read is two requests, as on ZooKeeper.
func (d *delayed) Read(ctx context.Context, key string, fresh bool) (casstore.Entry, time.Time, error) {
	requests := 1
	if fresh {
		requests = 2
	}
	if err := d.there(ctx, requests); err != nil {
		return casstore.Entry{}, time.Time{}, err
	}
	defer d.back()
	d.requests.Add(1)
	return d.Memory.Read(ctx, key, fresh)
}

func (d *delayed) Write(ctx context.Context, key string, value []byte, ifVersion string) (casstore.Entry, error) {
	return d.WriteAndWake(ctx, key, value, ifVersion, nil)
}

func (d *delayed) WriteAndWake(ctx context.Context, key string, value []byte, ifVersion string, notes map[string]string) (casstore.Entry, error) {
	if err := d.there(ctx, 1); err != nil {
		return casstore.Entry{}, err
	}
	defer d.back()
	d.requests.Add(1)
	e, err := d.Memory.Write(ctx, key, value, ifVersion)
	if err == nil && len(notes) > 0 {
		go func() {
			d.back()
			d.wake(key, notes)
		}()
	}
	return e, err
}

func (d *delayed) Listen(ctx context.Context, key, owner string, since time.Time) (<-chan string, bool, func(), error) {
	if err := d.there(ctx, 2); err != nil {
		return nil, false, nil, err
	}
	d.back()
	return d.waking.Listen(ctx, key, owner, since)
}

// Processes that want the same key again and again wait equally long, though each of
// them has to write its place into an entry that all the others write, too.
func TestWaitsAreAlike(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const processes, rounds, work = 16, 20, time.Millisecond
		r := newRemote(time.Millisecond)
		var (
			mu    sync.Mutex
			waits []time.Duration
			all   sync.WaitGroup
		)
		for range processes {
			g, err := guard.New(open(t, r), guard.Options{Wait: time.Minute, Observe: func(_ context.Context, r guard.Report) {
				mu.Lock()
				defer mu.Unlock()
				waits = append(waits, r.WaitTime)
				assert.NoError(t, r.ReleaseErr)
			}})
			require.NoError(t, err)
			all.Go(func() {
				for range rounds {
					assert.NoError(t, g.Do(t.Context(), "k", func(ctx context.Context, _ guard.Lock) error { return pause.For(ctx, work) }))
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
		require.Less(t, requests, 8.0)
	})
}

// The holder has died, and in the second half of its lease those who wait give up. They make
// room for the holder's renewal, and then they leave.
func TestLeavesBehindADeadHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const waiters = 8
		r := newRemote(10 * time.Millisecond)
		take(t, open(t, r), time.Minute)
		leave := []func(context.Context) error{}
		for range waiters {
			s := open(t, r)
			req, _ := join(t, s, time.Minute)
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

// hanging is a KV whose Listen hangs until its context ends, or comes late.
type hanging struct {
	*waking
	listen time.Duration // how late; 0 is never
}

func (h *hanging) Listen(ctx context.Context, key, owner string, since time.Time) (<-chan string, bool, func(), error) {
	if h.listen == 0 {
		<-ctx.Done()
		return nil, false, nil, ctx.Err()
	}
	<-time.After(h.listen)
	return h.waking.Listen(ctx, key, owner, since)
}

// waits is the waiter of a key, and its holder.
func waits(t *testing.T, kv casstore.KV) (holder, waiter *lockstore.Store, lease lockstore.Lease, req lockstore.Request) {
	holder, waiter = open(t, kv), open(t, kv)
	lease = take(t, holder, time.Minute)
	req, _ = join(t, waiter, time.Minute)
	return holder, waiter, lease, req
}

// A waiter reads while Listen hangs. One that is late is used from then on, and what was released meanwhile is not missed. Whoever
// has begun to listen stops, also if Listen returns after the end of the wait.
func TestListen(t *testing.T) {
	const never = time.Hour
	for what, c := range map[string]struct{ listen, released, ends time.Duration }{
		"it hangs":                         {0, 0, 260 * time.Millisecond},
		"late, after the release":          {time.Second, 500 * time.Millisecond, 600 * time.Millisecond},
		"late, before the release":         {time.Second, 1500 * time.Millisecond, 1510 * time.Millisecond},
		"late, after the end of the wait":  {time.Second, never, 700 * time.Millisecond},
		"late, before the end of the wait": {time.Second, never, 1300 * time.Millisecond},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &hanging{waking: newWaking(), listen: c.listen}
				holder, waiter, lease, req := waits(t, h)
				ctx, cancel := context.WithTimeout(t.Context(), c.ends)
				defer cancel()
				if c.released != never {
					time.AfterFunc(c.released, func() { _ = holder.Release(t.Context(), lease) })
					synctest.Wait()
				}
				err := storetest.AwaitTurn(ctx, waiter, req.Key, req.Owner)
				require.Equal(t, c.released == never, errors.Is(err, context.DeadlineExceeded), "%v", err)
				<-time.After(time.Second) // Listen may go on
				synctest.Wait()
				require.Empty(t, h.waiters)
			})
		})
	}
}

// A waiter whose read fails pauses before it asks.
func TestReadOfAWaiterFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newRemote(time.Millisecond)
		_, waiter, _, req := waits(t, d)
		d.there = func(context.Context, int) error { return lockstore.ErrUnavailable }
		began := time.Now()
		news, err := waiter.AwaitTurn(t.Context(), req, 0)
		require.NoError(t, err)
		require.True(t, news.Ask)
		require.Equal(t, 300*time.Millisecond, time.Since(began))
	})
}

// After the renewal of a holder that had a conflict, others of its process take places again, also if another call has been under way all the time.
func TestPlaceAfterAConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newRemote(time.Millisecond)
		s, _, lease, _ := waits(t, d) // the waiter's write is the conflict
		answers := d.there
		d.there = func(ctx context.Context, _ int) error { <-ctx.Done(); return ctx.Err() }
		go func() { _, _ = s.Inspect(t.Context(), "k") }()
		synctest.Wait()
		d.there = answers
		_, err := s.Renew(t.Context(), lease, time.Minute)
		require.NoError(t, err)
		join(t, s, time.Minute)
	})
}

// keeping is a KV that keeps wake-ups until their owners listen, so that a Listen misses none. It passes notes on as change makes them.
type keeping struct {
	*castest.Memory
	reads  int
	change func(note string) string
	notes  map[string]chan string
}

func (k *keeping) note(owner string) chan string {
	if k.notes[owner] == nil {
		k.notes[owner] = make(chan string, 1)
	}
	return k.notes[owner]
}

func (k *keeping) Listen(_ context.Context, _, owner string, _ time.Time) (<-chan string, bool, func(), error) {
	return k.note(owner), true, func() {}, nil
}

// Read implements casstore.KV. Each answer has the time.
func (k *keeping) Read(ctx context.Context, key string, _ bool) (casstore.Entry, time.Time, error) {
	k.reads++
	return k.Memory.Read(ctx, key, true)
}

func (k *keeping) WriteAndWake(ctx context.Context, key string, value []byte, ifVersion string, notes map[string]string) (casstore.Entry, error) {
	for owner, note := range notes {
		k.note(owner) <- k.change(note)
	}
	return k.Write(ctx, key, value, ifVersion)
}

// An owner that is handed the key with a note reads nothing. It does not trust a note that is not for it, or was changed, nor one of a
// lease that may have begun before its last Acquire. It trusts none for longer than the turn without the margin.
func TestNotes(t *testing.T) {
	const margin = 100 * time.Millisecond
	asItIs := func(note string) string { return note }
	others := "" // a note to another owner
	for _, c := range []struct {
		what    string
		change  func(note string) string
		again   bool // the owner asks again while the release is under way
		elapsed time.Duration
		granted bool
		reads   int
	}{
		{"a note", func(note string) string { others = note; return note }, false, 0, true, 0},
		{"just in time", asItIs, false, driver.TurnTime - driver.LeastTrust - margin, true, 0},
		{"a late one", asItIs, false, driver.TurnTime - driver.LeastTrust - margin + 1, false, 0},
		{"the owner was refused again", asItIs, true, 0, false, 0},
		{"no note", func(string) string { return "" }, false, 0, true, 1},
		{"that of another owner", func(string) string { return others }, false, 0, true, 1},
		{"that of another lease", func(note string) string { return strings.Replace(note, " ", " 1", 1) }, false, 0, true, 1},
		{"from another time", func(note string) string { return "1" + note }, false, 0, true, 1},
	} {
		t.Run(c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := &keeping{Memory: castest.NewMemory(time.Second), notes: map[string]chan string{}}
				holder := open(t, k)
				waiter, err := casstore.New(k, casstore.Options{Margin: margin})
				require.NoError(t, err)
				lease := take(t, holder, time.Minute)
				req, refused := join(t, waiter, time.Minute)
				k.change = func(note string) string {
					if c.again {
						<-time.After(10 * time.Millisecond)
						_, err := waiter.Acquire(t.Context(), req)
						require.ErrorAs(t, err, &refused)
					}
					return c.change(note)
				}
				<-time.After(2 * time.Second) // so that the release is in a later second than the Acquire
				require.NoError(t, holder.Release(t.Context(), lease))
				k.reads, req.Hint = 0, refused.Hint
				news, err := waiter.AwaitTurn(t.Context(), req, c.elapsed)
				require.NoError(t, err)
				require.Equal(t, c.reads, k.reads)
				require.Equal(t, c.granted, news.Lease.Fence > lease.Fence)
				require.Equal(t, !c.granted, news.Ask)
				if c.granted {
					require.Equal(t, driver.TurnTime-c.elapsed-margin, news.Lease.TTL)
					require.NoError(t, waiter.Release(t.Context(), news.Lease))
				}
			})
		})
	}
}

// Many runs of one process wait for a key that a run of the same process holds: it keeps its lease, and every run
// that has worked releases the key.
func TestManyWaitersOfOneProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const runs, hold = 300, 8 * time.Second
		g, err := guard.New(open(t, newNarrow(3*time.Millisecond)), guard.Options{TTL: 6 * time.Second, Wait: time.Minute, Observe: func(_ context.Context, r guard.Report) {
			assert.NoError(t, r.ReleaseErr, "it was not released")
		}})
		require.NoError(t, err)
		var all sync.WaitGroup
		holds := make(chan struct{})
		run := func(work func(context.Context) error) {
			all.Go(func() {
				assert.NoError(t, g.Do(t.Context(), "k", func(ctx context.Context, _ guard.Lock) error { return work(ctx) }))
			})
		}
		run(func(ctx context.Context) error {
			close(holds)
			return pause.For(ctx, hold)
		})
		<-holds
		for range runs {
			run(func(ctx context.Context) error { return pause.For(ctx, time.Millisecond) })
		}
		all.Wait()
	})
}
