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

// A store whose replies to acquires are lost: the caller asks again and gets
// its own lease.
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

// An acquire that arrives after its caller has given up and abandoned it.
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

func TestFaultyWithoutAPlanPassesTheSuite(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		return faultyHarness(nil)
	}, synctest.Test)
}

// A store that gets each request twice passes too: every request is idempotent.
func TestFaultyThatDuplicatesPassesTheSuite(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		return faultyHarness(&storetest.Fault{Twice: true})
	}, synctest.Test)
}

// And one that is slow both ways, for the time that may be trusted is counted
// from before the request.
func TestFaultyThatIsSlowPassesTheSuiteF29(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		return faultyHarness(&storetest.Fault{Before: 30 * time.Millisecond, After: 40 * time.Millisecond})
	}, synctest.Test)
}

// faultyHarness has the fault on each call, and two more that cases ask for.
func faultyHarness(always *storetest.Fault) storetest.Harness {
	var cut, hang atomic.Bool
	var shift atomic.Int64
	store := memstore.New(func() time.Time { return time.Now().Add(time.Duration(shift.Load())) })
	var plan func(storetest.Call) storetest.Fault
	if always != nil {
		plan = func(storetest.Call) storetest.Fault {
			fault := *always
			if cut.Load() {
				fault.Cut = io.ErrUnexpectedEOF
			}
			if hang.Load() {
				fault.After = time.Hour
			}
			return fault
		}
	}
	h := storetest.Harness{
		Store: storetest.NewFaulty(store, plan),
		Unreachable: func(*testing.T) lockstore.Store {
			return storetest.NewFaulty(store, func(storetest.Call) storetest.Fault {
				return storetest.Fault{Drop: lockstore.ErrUnavailable}
			})
		},
		ShiftClock: func(_ *testing.T, d time.Duration) { shift.Store(int64(d)) },
	}
	if always != nil {
		h.LoseReplies = func(*testing.T) func() {
			cut.Store(true)
			return func() { cut.Store(false) }
		}
		h.Hang = func(*testing.T) func() {
			hang.Store(true)
			return func() { hang.Store(false) }
		}
	}
	return h
}

func request() lockstore.Request {
	return lockstore.Request{Key: "k", Owner: lockstore.NewOwner(), TTL: time.Minute}
}

// once plans a fault for the first call of an operation.
func once(op storetest.Op, fault storetest.Fault) func(storetest.Call) storetest.Fault {
	done := false
	return func(c storetest.Call) storetest.Fault {
		if c.Op != op || done {
			return storetest.Fault{}
		}
		done = true
		return fault
	}
}

func TestFaultyDropIsNotApplied(t *testing.T) {
	store := storetest.NewFaulty(memstore.New(nil), once(storetest.OpAcquire, storetest.Fault{Drop: lockstore.ErrUnavailable}))
	_, err := store.Acquire(t.Context(), request())
	require.ErrorIs(t, err, lockstore.ErrUnavailable)
	_, err = store.Acquire(t.Context(), request())
	require.NoError(t, err)
	assert.Equal(t, 2, store.Calls())
}

func TestFaultyCutIsApplied(t *testing.T) {
	req := request()
	for _, op := range []storetest.Op{storetest.OpAcquire, storetest.OpRenew, storetest.OpRelease, storetest.OpAbandon, storetest.OpReleaseAfter, storetest.OpInspect} {
		t.Run(string(op), func(t *testing.T) {
			inner := memstore.New(nil)
			store := storetest.NewFaulty(inner, once(op, storetest.Fault{Cut: io.ErrUnexpectedEOF}))
			inspector, ok := lockstore.As[lockstore.Inspector](store)
			require.True(t, ok)
			delayed, ok := lockstore.As[lockstore.CooldownReleaser](store)
			require.True(t, ok)

			lease, err := store.Acquire(t.Context(), req)
			if op == storetest.OpAcquire {
				require.Equal(t, io.ErrUnexpectedEOF, err)
				assert.Zero(t, lease)
				status, err := inner.Inspect(t.Context(), req.Key)
				require.NoError(t, err)
				assert.True(t, status.Held, "the acquire was applied")
				return
			}
			require.NoError(t, err)
			switch op {
			case storetest.OpRenew:
				trusted, err := store.Renew(t.Context(), lease, time.Hour)
				require.Equal(t, io.ErrUnexpectedEOF, err)
				assert.Zero(t, trusted)
				status, err := inner.Inspect(t.Context(), req.Key)
				require.NoError(t, err)
				assert.Greater(t, status.Remaining, 30*time.Minute, "the renewal was applied")
			case storetest.OpInspect:
				status, err := inspector.Inspect(t.Context(), req.Key)
				require.Equal(t, io.ErrUnexpectedEOF, err)
				assert.Zero(t, status)
			case storetest.OpReleaseAfter:
				require.Equal(t, io.ErrUnexpectedEOF, delayed.ReleaseAfter(t.Context(), lease, time.Hour))
				_, err := inner.Renew(t.Context(), lease, time.Minute)
				require.ErrorIs(t, err, lockstore.ErrLost)
			default:
				if op == storetest.OpAbandon {
					lease.Fence = 0
				}
				require.Equal(t, io.ErrUnexpectedEOF, store.Release(t.Context(), lease))
				status, err := inner.Inspect(t.Context(), req.Key)
				require.NoError(t, err)
				assert.False(t, status.Held, "the release was applied")
			}
		})
	}
}

func TestFaultyLateCopyArrivesOnCommandF26(t *testing.T) {
	inner := memstore.New(nil)
	store := storetest.NewFaulty(inner, once(storetest.OpAcquire, storetest.Fault{Late: true}))
	req := request()
	lease, err := store.Acquire(t.Context(), req)
	require.NoError(t, err)
	require.NoError(t, store.Release(t.Context(), lease))

	errs := store.Deliver(t.Context())
	require.Len(t, errs, 1)
	require.ErrorIs(t, errs[0], lockstore.ErrLost)
	status, err := inner.Inspect(t.Context(), req.Key)
	require.NoError(t, err)
	assert.False(t, status.Held)
	assert.Empty(t, store.Deliver(t.Context()), "a copy arrives once")
}

func TestFaultyDelays(t *testing.T) {
	for name, tc := range map[string]struct {
		fault   storetest.Fault
		applied bool
	}{
		"before": {storetest.Fault{Before: 3 * time.Second}, false},
		"after":  {storetest.Fault{After: 3 * time.Second}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				inner := memstore.New(nil)
				store := storetest.NewFaulty(inner, func(c storetest.Call) storetest.Fault { return tc.fault })
				start := time.Now()
				req := request()
				_, err := store.Acquire(t.Context(), req)
				require.NoError(t, err)
				assert.Equal(t, 3*time.Second, time.Since(start))

				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				start = time.Now()
				other := request()
				other.Key = "other"
				_, err = store.Acquire(ctx, other)
				assert.Equal(t, time.Second, time.Since(start), "the delay ends with the context")
				require.ErrorIs(t, err, context.DeadlineExceeded)
				assert.Equal(t, !tc.applied, errors.Is(err, lockstore.ErrUnavailable), "only a request that was not sent is unavailable")
				status, err := inner.Inspect(t.Context(), other.Key)
				require.NoError(t, err)
				assert.Equal(t, tc.applied, status.Held)
			})
		})
	}
}

// bare has no optional interface.
type bare struct{ lockstore.Store }

// A store with the three methods alone passes; what it lacks is skipped.
func TestThreeMethodsAreAStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		return storetest.Harness{Store: bare{memstore.New(nil)}}
	}, synctest.Test)
}

func TestFaultyPromisesOnlyWhatTheStoreHas(t *testing.T) {
	inner := memstore.New(nil)
	store := storetest.NewFaulty(bare{inner}, nil)
	_, ok := lockstore.As[lockstore.Inspector](store)
	assert.False(t, ok)
	_, ok = lockstore.As[lockstore.CooldownReleaser](store)
	assert.False(t, ok)

	found, ok := lockstore.As[*memstore.Store](storetest.NewFaulty(inner, nil))
	require.True(t, ok)
	assert.Same(t, inner, found)
}
