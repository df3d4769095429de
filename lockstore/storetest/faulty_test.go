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
	"github.com/lambdalock/lambdalock/lockstore/driver"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

// The reply to an acquire is lost. The caller sends the acquire again and gets its lease.
func ExampleFaulty() {
	store := storetest.NewFaulty(memstore.New(nil), func(c storetest.Call) storetest.Fault {
		if c.Kind == driver.Acquire && c.N == 1 {
			return storetest.Fault{Cut: io.ErrUnexpectedEOF}
		}
		return storetest.Fault{}
	})

	ctx := context.Background()
	req := lockstore.Request{Key: "account/7", Owner: lockstore.NewOwner(), TTL: time.Minute}
	_, err := store.Acquire(ctx, req)
	fmt.Println(err, "- refused:", errors.Is(err, lockstore.ErrRefused))
	_, err = store.Acquire(ctx, req)
	fmt.Println(err)
	// Output:
	// unexpected EOF - refused: false
	// <nil>
}

// An acquire arrives after its caller has abandoned it.
func ExampleFaulty_Deliver() {
	store := storetest.NewFaulty(memstore.New(nil), func(c storetest.Call) storetest.Fault {
		if c.Kind == driver.Acquire {
			return storetest.Fault{Drop: context.DeadlineExceeded, Late: true}
		}
		return storetest.Fault{}
	})

	ctx := context.Background()
	req := lockstore.Request{Key: "account/7", Owner: lockstore.NewOwner(), TTL: time.Minute}
	_, err := store.Acquire(ctx, req)
	fmt.Println("acquire:", err)
	fmt.Println("abandon:", store.Release(ctx, lockstore.Lease{Key: req.Key, Owner: req.Owner}))
	answers, err := store.Deliver(ctx)
	fmt.Println("late acquire is lost:", answers[0].Outcome == driver.Lost, err)
	// Output:
	// acquire: context deadline exceeded
	// abandon: <nil>
	// late acquire is lost: true <nil>
}

func TestFaultyPassesTheSuite(t *testing.T) {
	for name, always := range map[string]storetest.Fault{
		"each request twice, all are idempotent": {Twice: true},
		"F29 slow requests and replies":          {Before: 30 * time.Millisecond, After: 40 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			storetest.Run(t, func(*testing.T) storetest.Harness {
				var hangs atomic.Bool
				store := storetest.NewFaulty(memstore.New(nil), func(storetest.Call) storetest.Fault {
					fault := always
					if hangs.Load() {
						fault.After = time.Hour
					}
					return fault
				})
				return storetest.Harness{Store: store.Store, Hang: func(*testing.T) func() {
					hangs.Store(true)
					return func() { hangs.Store(false) }
				}}
			}, synctest.Test)
		})
	}
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
	require.ErrorIs(t, err, lockstore.ErrUnavailable, "F22")
	_, err = store.Acquire(t.Context(), request())
	require.NoError(t, err)
}

// A call has the error of Cut and no answer, and its request is applied.
func TestFaultyCut(t *testing.T) {
	inner := memstore.New(nil)
	store := storetest.NewFaulty(inner, func(storetest.Call) storetest.Fault {
		return storetest.Fault{Cut: io.ErrUnexpectedEOF}
	})
	ctx, req := t.Context(), request()
	lease, err := store.Acquire(ctx, req)
	require.Equal(t, io.ErrUnexpectedEOF, err)
	assert.Zero(t, lease)
	status, err := inner.Inspect(ctx, req.Key)
	require.NoError(t, err)
	assert.Equal(t, lockstore.Held, status.State)
	lease = lockstore.Lease{Key: req.Key, Owner: req.Owner, Fence: 1}
	require.Equal(t, io.ErrUnexpectedEOF, store.Release(ctx, lease))
	require.Equal(t, io.ErrUnexpectedEOF, storetest.AwaitTurn(ctx, store.Store, req.Key, req.Owner))
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
				assert.Equal(t, name == "before", status.State == lockstore.Held)
				assert.Equal(t, name == "before", errors.Is(err, lockstore.ErrUnavailable), "only a request that did not arrive is unavailable")
			})
		})
	}
}

// A listing has no faults, and is that of the store inside.
func TestFaultyLists(t *testing.T) {
	inner := memstore.New(nil)
	req := request()
	_, err := inner.Acquire(t.Context(), req)
	require.NoError(t, err)
	store := storetest.NewFaulty(inner, func(storetest.Call) storetest.Fault { return storetest.Fault{Drop: io.ErrUnexpectedEOF} })
	var keys []string
	require.NoError(t, store.List(t.Context(), "", func(p lockstore.Page) error {
		for _, s := range p.Keys {
			keys = append(keys, s.Key)
		}
		return nil
	}))
	assert.Equal(t, []string{req.Key}, keys)
}
