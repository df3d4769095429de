package storetest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
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
	fmt.Println("abandon:", store.Abandon(ctx, req.Key, req.Owner))
	answers, err := store.Deliver(ctx)
	fmt.Println("late acquire is lost:", answers[0].Outcome == driver.Lost, err)
	// Output:
	// acquire: context deadline exceeded
	// abandon: <nil>
	// late acquire is lost: true <nil>
}

// Slow replies make nothing wrong (F29).
func TestFaultyPassesTheSuite(t *testing.T) {
	storetest.Run(t, func(*testing.T) storetest.Harness {
		var hangs atomic.Bool
		store := storetest.NewFaulty(memstore.New(nil), func(storetest.Call) storetest.Fault {
			fault := storetest.Fault{Before: 30 * time.Millisecond, After: 40 * time.Millisecond}
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
}

func request() lockstore.Request {
	return lockstore.Request{Key: "k", Owner: lockstore.NewOwner(), TTL: time.Minute}
}

// A call of one second with a fault: whether its request is applied, and its error.
func TestFaults(t *testing.T) {
	for name, c := range map[string]struct {
		fault   storetest.Fault
		applied bool
		takes   time.Duration
		err     []error
	}{
		"nothing":         {storetest.Fault{}, true, 0, nil},
		"a slow one":      {storetest.Fault{Before: 400 * time.Millisecond, After: 400 * time.Millisecond}, true, 800 * time.Millisecond, nil},
		"F22 dropped":     {storetest.Fault{Drop: lockstore.ErrUnavailable}, false, 0, []error{lockstore.ErrUnavailable}},
		"F23 cut":         {storetest.Fault{Cut: io.ErrUnexpectedEOF}, true, 0, []error{io.ErrUnexpectedEOF}},
		"F28 not arrived": {storetest.Fault{Before: 3 * time.Second}, false, time.Second, []error{context.DeadlineExceeded, lockstore.ErrUnavailable}},
		"F28 not sent":    {storetest.Fault{Before: 3 * time.Second, Late: true}, false, time.Second, []error{context.DeadlineExceeded, lockstore.ErrUnavailable}},
		"F28 no answer":   {storetest.Fault{After: 3 * time.Second}, true, time.Second, []error{context.DeadlineExceeded}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				inner := memstore.New(nil)
				store := storetest.NewFaulty(inner, func(storetest.Call) storetest.Fault { return c.fault })
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				start := time.Now()
				lease, err := store.Acquire(ctx, request())
				assert.Equal(t, c.takes, time.Since(start))
				for _, known := range []error{context.DeadlineExceeded, io.ErrUnexpectedEOF, lockstore.ErrUnavailable} {
					assert.Equal(t, slices.Contains(c.err, known), errors.Is(err, known), "%v", err)
				}
				assert.Equal(t, err == nil, lease.Fence > 0)
				_, err = store.Deliver(t.Context())
				require.NoError(t, err)
				status, err := inner.Inspect(t.Context(), "k")
				require.NoError(t, err)
				assert.Equal(t, c.applied, status.State == lockstore.Held)
			})
		})
	}
}
