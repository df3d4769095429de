package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/pause"
	"github.com/lambdalock/lambdalock/lockstore"
)

// Call is one call of the driver of a Faulty store.
type Call struct {
	N   int // 1 for the store's first call
	Key string
	driver.Request
}

// Fault is what happens to one call. Nothing happens with the zero Fault.
type Fault struct {
	// Before is the time until the request arrives. If the call's context ends first, the
	// request does not arrive, and the error matches lockstore.ErrUnavailable.
	Before time.Duration

	// Drop, if not nil, is the error of a call whose request does not arrive. Use
	// lockstore.ErrUnavailable, or another error if the request may arrive later.
	Drop error

	// Late keeps a copy of the request, unless the context ends in Before. It arrives with Deliver.
	Late bool

	// After is the time between the arrival and the answer. If the call's context ends
	// first, the outcome is unknown.
	After time.Duration

	// Cut, if not nil, is the error of a call whose request is applied and whose reply is
	// lost.
	Cut error
}

// Faulty is a store that fails as planned, for tests of programs that use a store. It wraps
// the driver of another store.
type Faulty struct {
	*lockstore.Store
	inner driver.Driver
	plan  func(Call) Fault

	mu    sync.Mutex
	calls int
	late  []func(context.Context) (driver.Answer, error)
}

// NewFaulty wraps store. It calls plan once for each call, never twice at the same time.
// plan must not use the store. A nil plan makes no faults.
func NewFaulty(store *lockstore.Store, plan func(Call) Fault) *Faulty {
	f := &Faulty{plan: plan}
	f.Store = store.WrapDriver(func(d driver.Driver) driver.Driver {
		f.inner = d
		return faultyDriver{f}
	})
	return f
}

// Deliver lets the late duplicates arrive, in the order in which they were sent. It returns the answer to
// each, and the errors of those that got none.
func (f *Faulty) Deliver(ctx context.Context) ([]driver.Answer, error) {
	f.mu.Lock()
	late := f.late
	f.late = nil
	f.mu.Unlock()
	answers, errs := make([]driver.Answer, len(late)), make([]error, len(late))
	for i, apply := range late {
		answers[i], errs[i] = apply(ctx)
	}
	return answers, errors.Join(errs...)
}

type faultyDriver struct{ f *Faulty }

// Do implements driver.Driver.
func (d faultyDriver) Do(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	return d.f.through(ctx, Call{Key: key, Request: r}, func(ctx context.Context) (driver.Answer, error) { return d.f.inner.Do(ctx, key, r) })
}

// Await implements driver.Driver.
func (d faultyDriver) Await(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	return d.f.through(ctx, Call{Key: key, Request: r}, func(ctx context.Context) (driver.Answer, error) { return d.f.inner.Await(ctx, key, r) })
}

// Unwrap is for driver.As. Listings, checks and addresses have no faults.
func (d faultyDriver) Unwrap() driver.Driver { return d.f.inner }

func (f *Faulty) through(ctx context.Context, call Call, apply func(context.Context) (driver.Answer, error)) (driver.Answer, error) {
	fault := f.next(call)
	if err := pass(ctx, fault.Before); err != nil {
		return driver.Answer{}, fmt.Errorf("storetest: the request was not sent: %w: %w", lockstore.ErrUnavailable, err)
	}
	if fault.Late {
		f.mu.Lock()
		f.late = append(f.late, apply)
		f.mu.Unlock()
	}
	if fault.Drop != nil {
		return driver.Answer{}, fault.Drop
	}
	answer, err := apply(ctx)
	if err := pass(ctx, fault.After); err != nil {
		return driver.Answer{}, fmt.Errorf("storetest: the reply did not arrive: %w", err)
	}
	if fault.Cut != nil {
		return driver.Answer{}, fault.Cut
	}
	return answer, err
}

func (f *Faulty) next(call Call) Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	call.N = f.calls
	if f.plan == nil {
		return Fault{}
	}
	return f.plan(call)
}

// pass waits for d, or until the context ends; then it returns the context's error.
func pass(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	return pause.For(ctx, d)
}
