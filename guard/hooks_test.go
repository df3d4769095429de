package guard

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/leasesim"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// hooked is a memory store with a hook for each call, in which a test answers instead of
// the store. A nil hook passes the call on.
type hooked struct {
	*memstore.Store
	acquire func(ctx context.Context, n int, req lockstore.Request) (lockstore.Lease, error)
	renew   func(ctx context.Context, n int, lease lockstore.Lease, ttl time.Duration) (time.Duration, error)
	release func(ctx context.Context, n int, lease lockstore.Lease) error
	inspect func(ctx context.Context, n int, key string) (lockstore.Status, error)
	await   func(ctx context.Context, n int, owner lockstore.Owner) error
	leave   func(ctx context.Context, n int, owner lockstore.Owner) error

	mu       sync.Mutex
	requests []lockstore.Request
	renewals []time.Duration
	releases []lockstore.Lease
	polls    int
	awaits   []lockstore.Owner
	leaves   []lockstore.Owner
}

func (h *hooked) Acquire(ctx context.Context, req lockstore.Request) (lockstore.Lease, error) {
	h.mu.Lock()
	h.requests = append(h.requests, req)
	n := len(h.requests)
	h.mu.Unlock()
	if h.acquire != nil {
		return h.acquire(ctx, n, req)
	}
	return h.Store.Acquire(ctx, req)
}

func (h *hooked) Renew(ctx context.Context, lease lockstore.Lease, ttl time.Duration) (time.Duration, error) {
	h.mu.Lock()
	h.renewals = append(h.renewals, ttl)
	n := len(h.renewals)
	h.mu.Unlock()
	if h.renew != nil {
		return h.renew(ctx, n, lease, ttl)
	}
	return h.Store.Renew(ctx, lease, ttl)
}

func (h *hooked) Release(ctx context.Context, lease lockstore.Lease) error {
	h.mu.Lock()
	h.releases = append(h.releases, lease)
	n := len(h.releases)
	h.mu.Unlock()
	if h.release != nil {
		return h.release(ctx, n, lease)
	}
	return h.Store.Release(ctx, lease)
}

func (h *hooked) Inspect(ctx context.Context, key string) (lockstore.Status, error) {
	h.mu.Lock()
	h.polls++
	n := h.polls
	h.mu.Unlock()
	if h.inspect != nil {
		return h.inspect(ctx, n, key)
	}
	return h.Store.Inspect(ctx, key)
}

func (h *hooked) AwaitTurn(ctx context.Context, key string, owner lockstore.Owner) error {
	h.mu.Lock()
	h.awaits = append(h.awaits, owner)
	n := len(h.awaits)
	h.mu.Unlock()
	if h.await != nil {
		return h.await(ctx, n, owner)
	}
	return h.Store.AwaitTurn(ctx, key, owner)
}

func (h *hooked) Leave(ctx context.Context, key string, owner lockstore.Owner) error {
	h.mu.Lock()
	h.leaves = append(h.leaves, owner)
	n := len(h.leaves)
	h.mu.Unlock()
	if h.leave != nil {
		return h.leave(ctx, n, owner)
	}
	return h.Store.Leave(ctx, key, owner)
}

// noQueue is a store that keeps no queue.
type noQueue struct {
	lockstore.Store
	lockstore.Inspector
}

// bench is a guard over a hooked store, with the guard's reports.
type bench struct {
	*Guard
	store *hooked

	mu      sync.Mutex
	reports []Report
	skew    instant // added to the guard's clocks
}

func newBench(t *testing.T, opt Options) *bench {
	t.Helper()
	store := &hooked{Store: memstore.New(nil)}
	return benchOver(t, store, store, opt)
}

// newBenchWithoutQueue is a bench whose guard finds no queue in the store.
func newBenchWithoutQueue(t *testing.T, opt Options) *bench {
	t.Helper()
	store := &hooked{Store: memstore.New(nil)}
	return benchOver(t, store, noQueue{store, store}, opt)
}

// benches are for what is promised with a queue and without one.
var benches = map[string]func(*testing.T, Options) *bench{", in a queue": newBench, ", without a queue": newBenchWithoutQueue}

func benchOver(t *testing.T, hooks *hooked, store lockstore.Store, opt Options) *bench {
	t.Helper()
	b := &bench{store: hooks}
	opt.Observe = func(_ context.Context, r Report) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.reports = append(b.reports, r)
	}
	g, err := New(store, opt)
	require.NoError(t, err)
	system := g.clock.now
	g.clock.now = func() instant {
		b.mu.Lock()
		defer b.mu.Unlock()
		i := system()
		return instant{i.mono + b.skew.mono, i.wall + b.skew.wall}
	}
	b.Guard = g
	return b
}

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
	status, err := b.store.Store.Inspect(context.Background(), key)
	require.NoError(t, err)
	require.False(t, status.Held, "the key is still held by %v", status.Holder)
	require.Zero(t, status.Waiting, "places that are left in the queue")
}

// waiting is the number of places in the key's queue.
func (b *bench) waiting(t *testing.T, key string) int {
	t.Helper()
	status, err := b.store.Store.Inspect(context.Background(), key)
	require.NoError(t, err)
	return status.Waiting
}

// occupy lets another owner hold the key for ttl.
func (b *bench) occupy(t *testing.T, key string, ttl time.Duration) lockstore.Lease {
	t.Helper()
	lease, err := b.store.Store.Acquire(context.Background(), lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: ttl,
		HolderInfo: lockstore.HolderInfo{Name: "another", ID: "r-2"}})
	require.NoError(t, err)
	return lease
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
var pass = leasesim.Pass

func bubble(name string, t *testing.T, f func(*testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}
