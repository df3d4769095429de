package guard

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/doonce"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// 1,000 events come within two seconds. The work counts the events that have come when it begins, and takes 200 ms.
func TestOneWaitsForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		outcomes := map[Outcome]int{}
		g, err := New(memstore.New(nil), Options{Wait: time.Minute, Coalesce: "index", Observe: func(_ context.Context, r Report) {
			mu.Lock()
			defer mu.Unlock()
			outcomes[r.Outcome]++
		}})
		require.NoError(t, err)
		var came, counted atomic.Int64
		done := make(chan error, 1000)
		for n := range 1000 {
			<-time.After(2 * time.Millisecond)
			came.Add(1)
			go func() {
				done <- g.Do(WithEventID(context.Background(), fmt.Sprint("event ", n)), "k", func(context.Context, Lock) error {
					counted.Store(came.Load())
					<-time.After(200 * time.Millisecond)
					return nil
				})
			}()
			synctest.Wait()
		}
		for range 1000 {
			if err := <-done; err != nil {
				assert.IsType(t, &LockCovered{}, err)
			}
		}
		assert.EqualValues(t, 1000, counted.Load())
		assert.Equal(t, 1000, outcomes[OutcomeOK]+outcomes[OutcomeCovered], "%v", outcomes)
		assert.LessOrEqual(t, outcomes[OutcomeOK], 12)
	})
}

func TestCoveredRun(t *testing.T) {
	on("the run that waits covers another event, and not its own", t, newBench, Options{Wait: time.Minute, Coalesce: "index"}, func(t *testing.T, b *bench) {
		lease := b.occupy(t, "k", time.Hour)
		waits := make(chan error)
		go func() { waits <- b.Do(WithEventID(context.Background(), "1"), "k", nothing) }()
		synctest.Wait()
		err := b.Do(WithEventID(context.Background(), "2"), "k", neverRuns(t))
		covered, ok := err.(*LockCovered)
		require.True(t, ok, "%v", err)
		require.Equal(t, "k", covered.Key)
		require.Equal(t, "index", covered.Work)
		require.ErrorIs(t, err, lockstore.ErrRefused)
		require.Equal(t, "another", covered.Holder.Name)
		require.EqualError(t, err, `lock "k": another run of index waits behind another (r-2), and has not begun; it does what this event asks for`)
		r := b.report(t)
		require.Equal(t, OutcomeCovered, r.Outcome)
		require.Equal(t, lockstore.Held, r.KeyState)
		require.False(t, r.NoPlace)
		require.Equal(t, 1, r.Calls, "it sends one request, and no leave")
		require.Equal(t, 1, b.status(t, "k").Waiting)

		again := make(chan error)
		go func() { again <- b.Do(WithEventID(context.Background(), "1"), "k", nothing) }()
		synctest.Wait()
		require.Equal(t, 2, b.status(t, "k").Waiting, "the first try of this event may be dead")
		_, err = b.Acquire(context.Background(), LeaseRequest{Key: "k", TTL: time.Minute, Wait: time.Minute, Coalesce: "index", EventID: "3"})
		require.IsType(t, &LockCovered{}, err)
		require.NoError(t, b.store.Store.Release(context.Background(), lease))
		require.NoError(t, <-waits)
		require.NoError(t, <-again)
	})
}

// Work that returns the covered answer of another lock has begun, and its own run is not covered: an adapter would take it for a success.
func TestWorkThatReturnsACoveredAnswer(t *testing.T) {
	on("of another lock", t, newBench, Options{Wait: time.Minute, Coalesce: "index"}, func(t *testing.T, b *bench) {
		inner := &LockCovered{Key: "inner", Work: "index"}
		returns := func(context.Context, Lock) error { return inner }
		check := func(err error) {
			t.Helper()
			_, covered := err.(*LockCovered)
			require.False(t, covered, "%v", err)
			require.ErrorIs(t, err, inner)
			require.ErrorContains(t, err, "the work: ")
		}
		check(b.Do(WithEventID(t.Context(), "1"), "k", returns))
		require.Equal(t, OutcomeError, b.report(t).Outcome)
		plain, err := New(b.store.Store, Options{})
		require.NoError(t, err)
		check(plain.Do(t.Context(), "k", returns))
		check(plain.DoAll(t.Context(), []string{"k"}, func(context.Context, []Lock) error { return inner }))
	})
}

func TestCoalescingThatCannotBe(t *testing.T) {
	store, ctx := memstore.New(nil), t.Context()
	_, err := New(store, Options{Coalesce: "index"})
	require.EqualError(t, err, `guard: Coalesce is "index" but Wait is 0; want a Wait, only who waits is covered`)
	g, err := New(store, Options{Coalesce: "index", Wait: time.Minute})
	require.NoError(t, err)
	invalid := func(err error, says string) {
		t.Helper()
		require.IsType(t, &LockBadRequest{}, err)
		require.ErrorContains(t, err, says)
	}
	require.EqualError(t, g.Do(WithEventID(ctx, ""), "k", neverRuns(t)), `guard: Coalesce is "index", and the event of this run has no id; want one of WithEventID or Options.EventID`)
	named, err := New(store, Options{Coalesce: "index", Wait: time.Minute, EventID: func(context.Context) string { return "1" }})
	require.NoError(t, err)
	require.NoError(t, named.Do(ctx, "k", nothing))
	says := `guard: Coalesce (boot: LOCK_COALESCE) is "index"; `
	require.ErrorContains(t, g.DoAll(ctx, []string{"k"}, noWork(t)), says+"DoAll wants none")
	require.ErrorContains(t, g.DoOnce(ctx, "k", doonce.Options{}, func(context.Context, Lock) (doonce.Completion, error) {
		t.Error("the work runs")
		return doonce.Completion{}, nil
	}), says+"DoOnce wants none")
	require.ErrorContains(t, g.WithCooldown(time.Minute).Do(ctx, "k", neverRuns(t)), says+"a cooldown wants none")
	require.ErrorContains(t, g.Complete(ctx, lockstore.Lease{Key: "k", Owner: "1", Fence: 1}, time.Minute), says+"a cooldown wants none")
	for says, req := range map[string]LeaseRequest{
		`Coalesce is "index" and EventID is ""; want both or none`: {Coalesce: "index", Wait: time.Minute},
		`Coalesce is "" and EventID is "1"; want both or none`:     {EventID: "1", Wait: time.Minute},
		`Coalesce is "index" but Wait is 0`:                        {Coalesce: "index", EventID: "1"},
	} {
		req.Key, req.TTL = "k", time.Minute
		_, err := g.Acquire(ctx, req)
		invalid(err, says)
	}
	for _, work := range []string{"two words", "ä", strings.Repeat("x", 65)} {
		says := fmt.Sprintf("%q; want 1 to 64 characters of printable ASCII without spaces", work)
		_, err = New(store, Options{Coalesce: work, Wait: time.Minute})
		require.EqualError(t, err, "guard: Coalesce is "+says)
		_, err = g.Acquire(ctx, LeaseRequest{Key: "k", TTL: time.Minute, Wait: time.Minute, Coalesce: work, EventID: "1"})
		invalid(err, "guard: Coalesce is "+says)
	}
}

func noWork(t *testing.T) func(context.Context, []Lock) error {
	return func(context.Context, []Lock) error {
		t.Error("the work runs")
		return errors.New("the work runs")
	}
}
