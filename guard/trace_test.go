package guard

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
)

type seenKey struct{}

// tracer keeps all events. Its hook asks each context that it gets, as a tracer may.
type tracer struct {
	mu     sync.Mutex
	events []TraceEvent
}

func (f *tracer) trace(ctx context.Context, e TraceEvent) context.Context {
	_, _ = ctx.Deadline()
	_ = ctx.Err()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = append(f.events, e)
	seen, _ := ctx.Value(seenKey{}).([]Phase)
	return context.WithValue(ctx, seenKey{}, append(slices.Clone(seen), e.Phase))
}

func (f *tracer) phases() (phases []Phase) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.events {
		phases = append(phases, e.Phase)
	}
	return phases
}

func TestTrace(t *testing.T) {
	ctx := context.Background()
	open := func(t *testing.T, opt Options) (*bench, *tracer) {
		f := &tracer{}
		opt.Trace = f.trace
		return newBench(t, opt), f
	}
	bubble("the values reach the work and the observer", t, func(t *testing.T) {
		var observed any
		b, f := open(t, Options{})
		b.opt.Observe = func(ctx context.Context, _ Report) {
			observed = ctx.Value(seenKey{})
			assert.NoError(t, ctx.Err())
		}
		require.NoError(t, b.Do(ctx, "k", func(ctx context.Context, lock Lock) error {
			require.Equal(t, []Phase{PhaseAsking, PhaseGranted}, ctx.Value(seenKey{}))
			require.Equal(t, lock.Fence, f.events[1].Report.Fence)
			return nil
		}))
		require.Equal(t, []Phase{PhaseAsking, PhaseGranted}, observed)
		require.Equal(t, []Phase{PhaseAsking, PhaseGranted}, f.phases())
		require.Zero(t, f.events[0].Report.Fence)
		require.Equal(t, "k", f.events[0].Report.Key)
	})
	bubble("a run that gets no lock", t, func(t *testing.T) {
		b, f := open(t, Options{})
		_, err := b.store.Store.Acquire(ctx, lockstore.Request{Key: "k", Owner: lockstore.NewOwner(), TTL: time.Minute})
		require.NoError(t, err)
		require.IsType(t, &LockBusy{}, b.Do(ctx, "k", neverRuns(t)))
		require.Equal(t, []Phase{PhaseAsking}, f.phases())
	})
	bubble("renewals", t, func(t *testing.T) {
		b, f := open(t, Options{TTL: 3 * time.Second})
		failed := errors.New("no answer")
		b.store.renew = func(ctx context.Context, n int, r request) (driver.Answer, error) {
			if n == 2 {
				return driver.Answer{}, failed
			}
			return b.store.pass(ctx, r)
		}
		require.NoError(t, b.Do(ctx, "k", func(context.Context, Lock) error { pass(2500 * time.Millisecond); return nil }))
		require.Equal(t, []Phase{PhaseAsking, PhaseGranted, PhaseRenewed, PhaseRenewFailed, PhaseRenewed}, f.phases()[:5])
		require.ErrorIs(t, f.events[3].Err, failed)
		require.Equal(t, f.events[1].Report, f.events[2].Report)
	})
	bubble("a loss, once, whoever finds it", t, func(t *testing.T) {
		b, f := open(t, Options{TTL: time.Second})
		b.store.renew = says(driver.Lost)
		require.IsType(t, &LockLost{}, b.Do(ctx, "k", func(ctx context.Context, _ Lock) error { <-ctx.Done(); return ctx.Err() }))
		require.Equal(t, []Phase{PhaseAsking, PhaseGranted, PhaseLost}, f.phases())
		require.ErrorIs(t, f.events[2].Err, lockstore.ErrLost)
	})
	bubble("a loss that the clocks show", t, func(t *testing.T) {
		b, f := open(t, Options{TTL: time.Second})
		b.store.renew = fails(errCut)
		require.IsType(t, &LockLost{}, b.Do(ctx, "k", func(ctx context.Context, _ Lock) error { <-ctx.Done(); return ctx.Err() }))
		// A renewal may fail at the same moment, and be told after the loss.
		require.Len(t, slices.DeleteFunc(f.phases(), func(s Phase) bool { return s != PhaseLost }), 1)
	})
	bubble("each key of a DoAll, and its own values for its report", t, func(t *testing.T) {
		values := map[string]int{}
		b, f := open(t, Options{})
		b.opt.Observe = func(ctx context.Context, r Report) {
			values[r.Key] = len(ctx.Value(seenKey{}).([]Phase))
		}
		require.NoError(t, b.DoAll(ctx, []string{"b", "a"}, func(ctx context.Context, _ []Lock) error {
			require.Len(t, ctx.Value(seenKey{}), 4)
			return nil
		}))
		require.Equal(t, []Phase{PhaseAsking, PhaseGranted, PhaseAsking, PhaseGranted}, f.phases())
		require.Equal(t, map[string]int{"a": 2, "b": 4}, values)
	})
	bubble("a renewal that the end of the work cuts off has not failed", t, func(t *testing.T) {
		b, f := open(t, Options{TTL: 3 * time.Second})
		b.store.renew = func(ctx context.Context, _ int, _ request) (driver.Answer, error) {
			<-ctx.Done()
			return driver.Answer{}, ctx.Err()
		}
		require.NoError(t, b.Do(ctx, "k", func(context.Context, Lock) error { pass(1100 * time.Millisecond); return nil }))
		require.Equal(t, []Phase{PhaseAsking, PhaseGranted}, f.phases())
	})
	on("a hook that returns no context", t, newBench, Options{Trace: func(context.Context, TraceEvent) context.Context { return nil }}, func(t *testing.T, b *bench) {
		require.NoError(t, b.Do(context.WithValue(ctx, seenKey{}, "caller's"), "k", func(ctx context.Context, _ Lock) error {
			require.Equal(t, "caller's", ctx.Value(seenKey{}))
			return nil
		}))
	})
}
