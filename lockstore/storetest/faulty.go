package storetest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// Op is the kind of a call.
type Op string

// The kinds of calls on a Faulty store. OpAbandon is a Release with Fence 0.
const (
	OpAcquire   Op = "acquire"
	OpRenew     Op = "renew"
	OpRelease   Op = "release"
	OpAbandon   Op = "abandon"
	OpBegin     Op = "begin"
	OpKeep      Op = "keep"
	OpSettle    Op = "settle"
	OpInspect   Op = "inspect"
	OpAwaitTurn Op = "await turn"
	OpLeave     Op = "leave"
)

// Call is one call on a Faulty store.
type Call struct {
	N     int // 1 for the store's first call
	Op    Op
	Key   string
	Owner lockstore.Owner // empty for OpInspect and OpSettle
}

// Fault is what happens to one call. Nothing happens with the zero Fault.
type Fault struct {
	// Before is the time until the request arrives. If the call's context ends first, the
	// request does not arrive, and the error matches lockstore.ErrUnavailable.
	Before time.Duration

	// Drop, if not nil, is the error of a call whose request does not arrive. Use
	// lockstore.ErrUnavailable, or another error if the request may arrive later.
	Drop error

	// Twice applies the request twice. The answer is that of the first time.
	Twice bool

	// Late keeps a copy of the request. It arrives with Deliver.
	Late bool

	// After is the time between the arrival and the answer. If the call's context ends
	// first, the outcome is unknown.
	After time.Duration

	// Cut, if not nil, is the error of a call whose request is applied and whose reply is
	// lost.
	Cut error
}

// Faulty is a store that fails as planned, for tests of programs that use a store. It wraps
// another store.
//
// [lockstore.As] finds lockstore.Inspector, lockstore.Completer, lockstore.Resolver and
// lockstore.Queuer if the wrapped store has them. Their calls follow the plan too.
type Faulty struct {
	store lockstore.Store
	plan  func(Call) Fault

	mu    sync.Mutex
	calls int
	late  []func(context.Context) error
}

var _ lockstore.Store = (*Faulty)(nil)

// NewFaulty wraps store. It calls plan once for each call, never twice at the same time.
// plan must not use the store. A nil plan makes no faults.
func NewFaulty(store lockstore.Store, plan func(Call) Fault) *Faulty {
	return &Faulty{store: store, plan: plan}
}

// Deliver lets the late duplicates arrive, in the order of their calls. It returns the store's
// error for each.
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

// Unwrap returns the wrapped store, with faults in its optional interfaces.
func (f *Faulty) Unwrap() lockstore.Store {
	next := f.store
	if k, ok := lockstore.As[lockstore.Completer](f.store); ok {
		next = faultyKeeper{next, f, k}
	}
	if s, ok := lockstore.As[lockstore.Resolver](f.store); ok {
		next = faultySettler{next, f, s}
	}
	if i, ok := lockstore.As[lockstore.Inspector](f.store); ok {
		next = faultyInspector{next, f, i}
	}
	if q, ok := lockstore.As[lockstore.Queuer](f.store); ok {
		next = faultyQueuer{next, f, q}
	}
	return next
}

// These are types of their own: a Faulty with their methods would have them for every store.
type faultyKeeper struct {
	lockstore.Store
	f *Faulty
	k lockstore.Completer
}

func (w faultyKeeper) MarkStarted(ctx context.Context, lease lockstore.Lease) error {
	return done(ctx, w.f, Call{Op: OpBegin, Key: lease.Key, Owner: lease.Owner}, func(ctx context.Context) error {
		return w.k.MarkStarted(ctx, lease)
	})
}

func (w faultyKeeper) Complete(ctx context.Context, lease lockstore.Lease, data []byte, d time.Duration) error {
	return done(ctx, w.f, Call{Op: OpKeep, Key: lease.Key, Owner: lease.Owner}, func(ctx context.Context) error {
		return w.k.Complete(ctx, lease, data, d)
	})
}

func (w faultyKeeper) Unwrap() lockstore.Store { return w.Store }

type faultySettler struct {
	lockstore.Store
	f *Faulty
	s lockstore.Resolver
}

func (w faultySettler) ResolveEffect(ctx context.Context, key string, fence lockstore.Fence, data []byte, d time.Duration) error {
	return done(ctx, w.f, Call{Op: OpSettle, Key: key}, func(ctx context.Context) error {
		return w.s.ResolveEffect(ctx, key, fence, data, d)
	})
}

func (w faultySettler) ResolveNoEffect(ctx context.Context, key string, fence lockstore.Fence) error {
	return done(ctx, w.f, Call{Op: OpSettle, Key: key}, func(ctx context.Context) error {
		return w.s.ResolveNoEffect(ctx, key, fence)
	})
}

func (w faultySettler) Unwrap() lockstore.Store { return w.Store }

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

type faultyQueuer struct {
	lockstore.Store
	f *Faulty
	q lockstore.Queuer
}

func (w faultyQueuer) AwaitTurn(ctx context.Context, key string, owner lockstore.Owner) error {
	_, err := through(ctx, w.f, Call{Op: OpAwaitTurn, Key: key, Owner: owner}, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, w.q.AwaitTurn(ctx, key, owner)
	})
	return err
}

func (w faultyQueuer) Leave(ctx context.Context, key string, owner lockstore.Owner) error {
	_, err := through(ctx, w.f, Call{Op: OpLeave, Key: key, Owner: owner}, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, w.q.Leave(ctx, key, owner)
	})
	return err
}

func (w faultyQueuer) Unwrap() lockstore.Store { return w.Store }

// through makes a call with the planned fault.
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
		_, _ = apply(ctx) // nobody waits for this answer
	}
	if err := pass(ctx, fault.After); err != nil {
		return none, fmt.Errorf("storetest: the reply did not arrive: %w", err)
	}
	if fault.Cut != nil {
		return none, fault.Cut
	}
	return answer, err
}

// done is through for a call that answers with an error alone.
func done(ctx context.Context, f *Faulty, call Call, apply func(context.Context) error) error {
	_, err := through(ctx, f, call, func(ctx context.Context) (struct{}, error) { return struct{}{}, apply(ctx) })
	return err
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

// pass waits for d, or until the context ends; then it returns the context's error.
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
