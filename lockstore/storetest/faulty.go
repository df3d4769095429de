package storetest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// Op names what a call asks for.
type Op string

// The calls that a Faulty store sees. A Release with Fence 0 is an abandon.
const (
	OpAcquire      Op = "acquire"
	OpRenew        Op = "renew"
	OpRelease      Op = "release"
	OpAbandon      Op = "abandon"
	OpReleaseAfter Op = "release after"
	OpInspect      Op = "inspect"
)

// Call is one call on a Faulty store.
type Call struct {
	N     int // 1 is the store's first call
	Op    Op
	Key   string
	Owner lockstore.Owner // empty for OpInspect
}

// Fault says what happens to one call. The zero Fault lets it through.
type Fault struct {
	// Before passes before the request arrives. When the call's context ends
	// first, the request does not arrive and the call says so.
	Before time.Duration

	// Drop, if not nil, is the answer of a request that does not arrive:
	// lockstore.ErrUnavailable, or any other error for one that may arrive later.
	Drop error

	// Twice applies the request twice; the answer is the first one.
	Twice bool

	// Late keeps a copy of the request, which arrives with Deliver.
	Late bool

	// After passes between the request's arrival and its answer. When the call's
	// context ends first, the outcome is unknown.
	After time.Duration

	// Cut, if not nil, is the answer of a request that was applied and whose
	// reply was lost.
	Cut error
}

// Faulty is a store that fails as planned. It wraps a real one and is for tests
// of whatever uses a store.
//
// [lockstore.As] finds lockstore.Inspector and lockstore.CooldownReleaser on it
// if the wrapped store has them, and their calls follow the plan too.
type Faulty struct {
	store lockstore.Store
	plan  func(Call) Fault

	mu    sync.Mutex
	calls int
	late  []func(context.Context) error
}

var _ lockstore.Store = (*Faulty)(nil)

// NewFaulty wraps store. plan is asked once for each call, one call at a time,
// and must not use the store itself; nil lets every call through.
func NewFaulty(store lockstore.Store, plan func(Call) Fault) *Faulty {
	return &Faulty{store: store, plan: plan}
}

// Calls returns how many calls the store has had so far.
func (f *Faulty) Calls() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

// Deliver lets the copies that were kept arrive, in the order of their calls,
// and returns what the store said to each.
func (f *Faulty) Deliver(ctx context.Context) []error {
	f.mu.Lock()
	late := f.late
	f.late = nil
	f.mu.Unlock()
	errs := make([]error, len(late))
	for i, apply := range late {
		errs[i] = apply(ctx)
	}
	return errs
}

// Acquire implements lockstore.Store.
func (f *Faulty) Acquire(ctx context.Context, req lockstore.Request) (lockstore.Lease, error) {
	return through(ctx, f, Call{Op: OpAcquire, Key: req.Key, Owner: req.Owner}, func(ctx context.Context) (lockstore.Lease, error) {
		return f.store.Acquire(ctx, req)
	})
}

// Renew implements lockstore.Store.
func (f *Faulty) Renew(ctx context.Context, lease lockstore.Lease, ttl time.Duration) (time.Duration, error) {
	return through(ctx, f, Call{Op: OpRenew, Key: lease.Key, Owner: lease.Owner}, func(ctx context.Context) (time.Duration, error) {
		return f.store.Renew(ctx, lease, ttl)
	})
}

// Release implements lockstore.Store.
func (f *Faulty) Release(ctx context.Context, lease lockstore.Lease) error {
	op := OpRelease
	if lease.Fence == 0 {
		op = OpAbandon
	}
	_, err := through(ctx, f, Call{Op: op, Key: lease.Key, Owner: lease.Owner}, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, f.store.Release(ctx, lease)
	})
	return err
}

// Unwrap leads to the wrapped store, over the optional interfaces that it has.
func (f *Faulty) Unwrap() lockstore.Store {
	next := f.store
	if d, ok := lockstore.As[lockstore.CooldownReleaser](f.store); ok {
		next = faultyDelayed{next, f, d}
	}
	if i, ok := lockstore.As[lockstore.Inspector](f.store); ok {
		next = faultyInspector{next, f, i}
	}
	return next
}

// A wrapper that had the optional methods itself would promise them for stores
// that lack them, so each is a step of its own on the way to the wrapped store.
type faultyDelayed struct {
	lockstore.Store
	f *Faulty
	d lockstore.CooldownReleaser
}

func (w faultyDelayed) ReleaseAfter(ctx context.Context, lease lockstore.Lease, d time.Duration) error {
	_, err := through(ctx, w.f, Call{Op: OpReleaseAfter, Key: lease.Key, Owner: lease.Owner}, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, w.d.ReleaseAfter(ctx, lease, d)
	})
	return err
}

func (w faultyDelayed) Unwrap() lockstore.Store { return w.Store }

type faultyInspector struct {
	lockstore.Store
	f *Faulty
	i lockstore.Inspector
}

func (w faultyInspector) Inspect(ctx context.Context, key string) (lockstore.Status, error) {
	return through(ctx, w.f, Call{Op: OpInspect, Key: key}, func(ctx context.Context) (lockstore.Status, error) {
		return w.i.Inspect(ctx, key)
	})
}

func (w faultyInspector) Unwrap() lockstore.Store { return w.Store }

// through applies a call as the plan says.
func through[T any](ctx context.Context, f *Faulty, call Call, apply func(context.Context) (T, error)) (T, error) {
	var none T
	fault := f.next(call, func(ctx context.Context) error {
		_, err := apply(ctx)
		return err
	})
	if err := pass(ctx, fault.Before); err != nil {
		return none, fmt.Errorf("storetest: the request was not sent: %w: %w", lockstore.ErrUnavailable, err)
	}
	if fault.Drop != nil {
		return none, fault.Drop
	}
	answer, err := apply(ctx)
	if fault.Twice {
		_, _ = apply(ctx) // a duplicate has nobody to answer to
	}
	if err := pass(ctx, fault.After); err != nil {
		return none, fmt.Errorf("storetest: the reply did not arrive: %w", err)
	}
	if fault.Cut != nil {
		return none, fault.Cut
	}
	return answer, err
}

func (f *Faulty) next(call Call, apply func(context.Context) error) Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	call.N = f.calls
	if f.plan == nil {
		return Fault{}
	}
	fault := f.plan(call)
	if fault.Late {
		f.late = append(f.late, apply)
	}
	return fault
}

// pass lets d pass, and returns the context's error if that comes first.
func pass(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
