package storetest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

// The reply to an acquire is lost. The caller sends the acquire again and gets its lease.
func ExampleFaulty() {
	store := storetest.NewFaulty(memstore.New(nil), func(c storetest.Call) storetest.Fault {
		if c.Op == storetest.OpAcquire && c.N == 1 {
			return storetest.Fault{Cut: io.ErrUnexpectedEOF}
		}
		return storetest.Fault{}
	})

	ctx := context.Background()
	req := lockstore.Request{Key: "account/7", Owner: lockstore.NewOwner(), TTL: time.Minute}
	_, err := store.Acquire(ctx, req)
	fmt.Println(err, "- held:", errors.Is(err, lockstore.ErrHeld))
	_, err = store.Acquire(ctx, req)
	fmt.Println(err)
	// Output:
	// unexpected EOF - held: false
	// <nil>
}

// An acquire arrives after its caller has abandoned it.
func ExampleFaulty_Deliver() {
	store := storetest.NewFaulty(memstore.New(nil), func(c storetest.Call) storetest.Fault {
		if c.Op == storetest.OpAcquire {
			return storetest.Fault{Drop: context.DeadlineExceeded, Late: true}
		}
		return storetest.Fault{}
	})

	ctx := context.Background()
	req := lockstore.Request{Key: "account/7", Owner: lockstore.NewOwner(), TTL: time.Minute}
	_, err := store.Acquire(ctx, req)
	fmt.Println("acquire:", err)
	fmt.Println("abandon:", store.Release(ctx, lockstore.Lease{Key: req.Key, Owner: req.Owner}))
	for _, err := range store.Deliver(ctx) {
		fmt.Println("late acquire is lost:", errors.Is(err, lockstore.ErrLost))
	}
	// Output:
	// acquire: context deadline exceeded
	// abandon: <nil>
	// late acquire is lost: true
}

func TestFaultyPassesTheSuite(t *testing.T) {
	for name, always := range map[string]*storetest.Fault{
		"without a plan":                         nil,
		"each request twice, all are idempotent": {Twice: true},
		"F29 slow requests and replies":          {Before: 30 * time.Millisecond, After: 40 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			storetest.Run(t, func(*testing.T) storetest.Harness { return faultyHarness(always) }, synctest.Test)
		})
	}
}

// faultyHarness has the fault in each call, and the faults that cases of the suite need.
func faultyHarness(always *storetest.Fault) storetest.Harness {
	var cut, hang atomic.Bool
	var shift atomic.Int64
	store := memstore.New(func() time.Time { return time.Now().Add(time.Duration(shift.Load())) })
	on := func(fault *atomic.Bool) func(*testing.T) func() {
		return func(*testing.T) func() {
			fault.Store(true)
			return func() { fault.Store(false) }
		}
	}
	h := storetest.Harness{
		Store: storetest.NewFaulty(store, nil),
		Unreachable: func(*testing.T) lockstore.Store {
			return storetest.NewFaulty(store, func(storetest.Call) storetest.Fault {
				return storetest.Fault{Drop: lockstore.ErrUnavailable}
			})
		},
		ShiftClock: func(_ *testing.T, d time.Duration) { shift.Store(int64(d)) },
	}
	if always != nil {
		h.LoseReplies, h.Hang = on(&cut), on(&hang)
		h.Store = storetest.NewFaulty(store, func(storetest.Call) storetest.Fault {
			fault := *always
			if cut.Load() {
				fault.Cut = io.ErrUnexpectedEOF
			}
			if hang.Load() {
				fault.After = time.Hour
			}
			return fault
		})
	}
	return h
}

func request() lockstore.Request {
	return lockstore.Request{Key: "k", Owner: lockstore.NewOwner(), TTL: time.Minute}
}

// once plans a fault for the first call.
func once(fault storetest.Fault) func(storetest.Call) storetest.Fault {
	return func(c storetest.Call) storetest.Fault {
		if c.N == 1 {
			return fault
		}
		return storetest.Fault{}
	}
}

func TestFaultyDropIsNotApplied(t *testing.T) {
	store := storetest.NewFaulty(memstore.New(nil), once(storetest.Fault{Drop: lockstore.ErrUnavailable}))
	_, err := store.Acquire(t.Context(), request())
	require.ErrorIs(t, err, lockstore.ErrUnavailable)
	_, err = store.Acquire(t.Context(), request())
	require.NoError(t, err)
}

// Each kind of call has the error of Cut and no answer. The suite's case of lost replies
// checks that Cut applies the requests.
func TestFaultyCut(t *testing.T) {
	store := storetest.NewFaulty(memstore.New(nil), func(storetest.Call) storetest.Fault {
		return storetest.Fault{Cut: io.ErrUnexpectedEOF}
	})
	inspector, _ := lockstore.As[lockstore.Inspector](store)
	keeper, _ := lockstore.As[lockstore.Completer](store)
	settler, _ := lockstore.As[lockstore.Resolver](store)
	ctx, req := t.Context(), request()
	lease, err := store.Acquire(ctx, req)
	require.Equal(t, io.ErrUnexpectedEOF, err)
	assert.Zero(t, lease)
	lease = lockstore.Lease{Key: req.Key, Owner: req.Owner, Fence: 1}
	_, err = store.Renew(ctx, lease, time.Hour)
	require.Equal(t, io.ErrUnexpectedEOF, err)
	_, err = inspector.Inspect(ctx, req.Key)
	require.Equal(t, io.ErrUnexpectedEOF, err)
	require.Equal(t, io.ErrUnexpectedEOF, store.Release(ctx, lease))
	require.Equal(t, io.ErrUnexpectedEOF, keeper.MarkStarted(ctx, lease))
	require.Equal(t, io.ErrUnexpectedEOF, keeper.Complete(ctx, lease, nil, time.Hour))
	require.Equal(t, io.ErrUnexpectedEOF, settler.ResolveEffect(ctx, req.Key, 1, nil, time.Hour))
	require.Equal(t, io.ErrUnexpectedEOF, settler.ResolveNoEffect(ctx, req.Key, 1))
}

func TestFaultyLateCopyArrivesOnce(t *testing.T) {
	store := storetest.NewFaulty(memstore.New(nil), once(storetest.Fault{Late: true}))
	lease, err := store.Acquire(t.Context(), request())
	require.NoError(t, err)
	require.NoError(t, store.Release(t.Context(), lease))
	errs := store.Deliver(t.Context())
	require.Len(t, errs, 1)
	require.ErrorIs(t, errs[0], lockstore.ErrLost, "F26")
	assert.Empty(t, store.Deliver(t.Context()))
}

func TestFaultyDelays(t *testing.T) {
	for name, fault := range map[string]storetest.Fault{
		"before": {Before: 3 * time.Second},
		"after":  {After: 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				inner := memstore.New(nil)
				store := storetest.NewFaulty(inner, func(c storetest.Call) storetest.Fault { return fault })
				start := time.Now()
				lease, err := store.Acquire(t.Context(), request())
				require.NoError(t, err)
				assert.Equal(t, 3*time.Second, time.Since(start))

				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				err = store.Release(ctx, lease)
				assert.Equal(t, 4*time.Second, time.Since(start), "the delay ends with the context")
				require.ErrorIs(t, err, context.DeadlineExceeded)
				status, statusErr := inner.Inspect(t.Context(), lease.Key)
				require.NoError(t, statusErr)
				assert.Equal(t, name == "before", status.Held)
				assert.Equal(t, name == "before", errors.Is(err, lockstore.ErrUnavailable), "only a request that did not arrive is unavailable")
			})
		})
	}
}

// threeMethods is a store without optional interfaces.
type threeMethods struct{ lockstore.Store }

// A store with the three methods alone passes the suite. The other cases are skipped.
func TestThreeMethodsAreAStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		return storetest.Harness{Store: threeMethods{memstore.New(nil)}}
	}, synctest.Test)
}

func TestFaultyHasTheStoresInterfaces(t *testing.T) {
	inner := memstore.New(nil)
	store := storetest.NewFaulty(threeMethods{inner}, nil)
	_, ok := lockstore.As[lockstore.Inspector](store)
	assert.False(t, ok)
	_, ok = lockstore.As[lockstore.Completer](store)
	assert.False(t, ok)
	_, ok = lockstore.As[lockstore.Resolver](store)
	assert.False(t, ok)

	found, ok := lockstore.As[*memstore.Store](storetest.NewFaulty(inner, nil))
	require.True(t, ok)
	assert.Same(t, inner, found)
}
