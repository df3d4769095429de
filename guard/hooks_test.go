package guard

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/pause"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// hook answers a request in the place of the store. n counts the requests that this hook is for.
type hook func(ctx context.Context, n int, r request) (driver.Answer, error)

type request struct {
	Key string
	driver.Request
}

// hooked is a memory store whose requests go through a hook for each kind. A nil hook passes
// the request on.
type hooked struct {
	*lockstore.Store      // without the hooks
	full             bool // the queues have no place for the guard

	acquire, renew, inspect, await, leave, mark, complete hook
	release                                               hook // also of an abandon

	mu          sync.Mutex
	requests    []lockstore.Request
	extended    lockstore.Fence // of the last request, if it extends a lease
	renewals    []time.Duration
	releases    []lockstore.Lease
	polls       int
	awaits      []lockstore.Owner
	leaves      []lockstore.Owner
	marks       int
	completions int
}

func newHooked() *hooked { return &hooked{Store: memstore.New(nil)} }

// guarded is the store with the hooks.
func (h *hooked) guarded() *lockstore.Store {
	return h.WrapDriver(func(driver.Driver) driver.Driver { return hookedDriver{h} })
}

// pass passes a request on.
func (h *hooked) pass(ctx context.Context, r request) (driver.Answer, error) {
	if err := ctx.Err(); err != nil {
		return driver.Answer{}, fmt.Errorf("%w: not sent: %w", lockstore.ErrUnavailable, err)
	}
	if r.Kind == driver.AwaitTurn {
		return h.Driver().Await(ctx, r.Key, r.Request)
	}
	return h.Driver().Do(ctx, r.Key, r.Request)
}

// note notes a request, and returns its hook and its number.
func (h *hooked) note(r request) (hook, int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch r.Kind {
	case driver.Acquire:
		h.requests = append(h.requests, lockstore.Request{Key: r.Key, Owner: r.Owner, TTL: r.TTL, HolderInfo: lockstore.DecodeHolderInfo(r.Holder), JoinQueue: r.Join})
		h.extended = r.Fence
		return h.acquire, len(h.requests)
	case driver.Renew:
		h.renewals = append(h.renewals, r.TTL)
		return h.renew, len(h.renewals)
	case driver.Release, driver.Abandon:
		h.releases = append(h.releases, lockstore.Lease{Key: r.Key, Owner: r.Owner, Fence: r.Fence})
		return h.release, len(h.releases)
	case driver.Inspect:
		h.polls++
		return h.inspect, h.polls
	case driver.AwaitTurn:
		h.awaits = append(h.awaits, r.Owner)
		return h.await, len(h.awaits)
	case driver.Leave:
		h.leaves = append(h.leaves, r.Owner)
		return h.leave, len(h.leaves)
	case driver.MarkStarted:
		h.marks++
		return h.mark, h.marks
	case driver.Complete:
		h.completions++
		return h.complete, h.completions
	}
	return nil, 0
}

type hookedDriver struct{ *hooked }

func (d hookedDriver) Do(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	hook, n := d.note(request{key, r})
	r.Join = r.Join && !d.full
	if hook == nil {
		return d.pass(ctx, request{key, r})
	}
	return hook(ctx, n, request{key, r})
}

func (d hookedDriver) Await(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	return d.Do(ctx, key, r)
}

func (d hookedDriver) Unwrap() driver.Driver { return d.Driver() }

// fails gives no answer.
func fails(err error) hook {
	return func(context.Context, int, request) (driver.Answer, error) { return driver.Answer{}, err }
}

// says gives an answer without details.
func says(o driver.Outcome) hook {
	return func(context.Context, int, request) (driver.Answer, error) { return driver.Answer{Outcome: o}, nil }
}

// silent never answers.
func silent(ctx context.Context, _ int, _ request) (driver.Answer, error) {
	<-ctx.Done()
	return driver.Answer{}, ctx.Err()
}

// loses is a store that gets a request, and whose reply is lost.
func (b *bench) loses(ctx context.Context, _ int, r request) (driver.Answer, error) {
	_, _ = b.store.pass(ctx, r)
	return driver.Answer{}, errLostReply
}

// slow lets time pass after the request.
func (b *bench) slow(d time.Duration) hook {
	return func(ctx context.Context, _ int, r request) (driver.Answer, error) {
		a, err := b.store.pass(ctx, r)
		pass(d)
		return a, err
	}
}

// late lets time pass before the request, which is not applied if its context has ended by then.
func (b *bench) late(d time.Duration) hook {
	return func(ctx context.Context, _ int, r request) (driver.Answer, error) {
		pass(d)
		if ctx.Err() != nil {
			return driver.Answer{}, ctx.Err()
		}
		return b.store.pass(ctx, r)
	}
}

// trusts is a store that lets a lease be trusted for d.
func (b *bench) trusts(d time.Duration) hook {
	return func(ctx context.Context, _ int, r request) (driver.Answer, error) {
		a, err := b.store.pass(ctx, r)
		a.TTL = d
		return a, err
	}
}

// overtaken loses the first request, and another owner takes the key k.
func (b *bench) overtaken(t *testing.T) hook {
	return b.first(1, func(context.Context, int, request) (driver.Answer, error) {
		b.occupy(t, "k", time.Minute)
		return driver.Answer{}, errLostReply
	})
}

// first, from and only use a hook for some requests, and pass the others on.
func (b *bench) first(most int, h hook) hook {
	return b.some(h, func(n int, _ request) bool { return n <= most })
}

func (b *bench) from(first int, h hook) hook {
	return b.some(h, func(n int, _ request) bool { return n >= first })
}

// until uses a hook for so long from now on.
func (b *bench) until(d time.Duration, h hook) hook {
	end := time.Now().Add(d)
	return b.some(h, func(int, request) bool { return time.Now().Before(end) })
}

func (b *bench) only(key string, h hook) hook {
	return b.some(h, func(_ int, r request) bool { return r.Key == key })
}

func (b *bench) some(h hook, which func(int, request) bool) hook {
	return func(ctx context.Context, n int, r request) (driver.Answer, error) {
		if which(n, r) {
			return h(ctx, n, r)
		}
		return b.store.pass(ctx, r)
	}
}

// bench is a guard over a hooked store, with the guard's reports.
type bench struct {
	*Guard
	store *hooked

	mu      sync.Mutex
	reports []Report
	skew    instant // added to the guard's clocks
}

// instant is a moment on both local clocks.
type instant struct{ mono, wall time.Duration }

func newBench(t *testing.T, opt Options) *bench {
	t.Helper()
	b := &bench{store: newHooked()}
	opt.Observe = func(_ context.Context, r Report) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.reports = append(b.reports, r)
	}
	g, err := New(b.store.guarded(), opt)
	require.NoError(t, err)
	system := g.clock.now
	g.clock.now = func() (mono, wall time.Duration) {
		b.mu.Lock()
		defer b.mu.Unlock()
		mono, wall = system()
		return mono + b.skew.mono, wall + b.skew.wall
	}
	b.Guard = g
	return b
}

// newBenchFull is a bench whose runs get no place in a queue, because the queues are full.
func newBenchFull(t *testing.T, opt Options) *bench {
	t.Helper()
	b := newBench(t, opt)
	b.store.full = true
	return b
}

// newBenchAsks is a bench over a store that says only when to ask, as those over casstore do.
func newBenchAsks(t *testing.T, opt Options) *bench {
	t.Helper()
	b := newBench(t, opt)
	b.told(func(a *driver.Answer) { *a = driver.Answer{Outcome: driver.Ask} })
	return b
}

// benches are for what is promised with a place in the queue and without one.
var benches = map[string]func(*testing.T, Options) *bench{", with a place": newBench, ", without a place": newBenchFull}

// shift sets how far the guard's clocks are off.
func (b *bench) shift(by instant) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.skew = by
}

// report is the only report.
func (b *bench) report(t *testing.T) Report {
	t.Helper()
	require.Len(t, b.reports, 1, "one report for each run")
	return b.reports[0]
}

// free requires that another owner can acquire the key now, and that nobody waits for it.
func (b *bench) free(t *testing.T, key string) {
	t.Helper()
	status := b.status(t, key)
	require.Equal(t, lockstore.Free, status.State, "%v", status.Holder)
	require.Zero(t, status.Waiting, "places that are left in the queue")
}

// status is what the store has of the key.
func (b *bench) status(t *testing.T, key string) lockstore.Status {
	t.Helper()
	status, err := b.store.Store.Inspect(context.Background(), key)
	require.NoError(t, err)
	return status
}

// occupy lets another owner hold the key for ttl.
func (b *bench) occupy(t *testing.T, key string, ttl time.Duration) lockstore.Lease {
	t.Helper()
	lease, err := b.store.Store.Acquire(context.Background(), lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: ttl,
		HolderInfo: lockstore.HolderInfo{Name: "another", ID: "r-2"}})
	require.NoError(t, err)
	return lease
}

// occupied lets time pass, and then another owner hold the key.
func (b *bench) occupied(t *testing.T, key string, after time.Duration) lockstore.Lease {
	t.Helper()
	pass(after)
	return b.occupy(t, key, time.Hour)
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func nothing(context.Context, Lock) error { return nil }

func neverRuns(t *testing.T) func(context.Context, Lock) error {
	return func(context.Context, Lock) error {
		t.Error("the work ran")
		return nil
	}
}

var (
	errLostReply = errors.New("connection reset")
	errDown      = errors.Join(lockstore.ErrUnavailable, errors.New("connection refused"))
)

// pass lets time pass for work that does not ask its context.
func pass(d time.Duration) { _ = pause.For(context.Background(), d) }

func bubble(name string, t *testing.T, f func(*testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

// on is a bubble with a bench.
func on[B any](name string, t *testing.T, open func(*testing.T, Options) B, opt Options, f func(*testing.T, B)) {
	bubble(name, t, func(t *testing.T) { f(t, open(t, opt)) })
}
