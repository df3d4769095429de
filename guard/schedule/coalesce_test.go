package schedule

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// A run that coalesces is not skipped because of a run that began before it: Lambda has to send its event again.
func TestCoalescing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New(nil)
		id := func(ctx context.Context) string { return ctx.Value(requestID{}).(string) }
		g, err := guard.New(store, guard.Options{Wait: 5 * time.Second, Coalesce: "nightly", EventID: id, HolderInfo: func(ctx context.Context) lockstore.HolderInfo {
			return lockstore.HolderInfo{ID: id(ctx)}
		}})
		require.NoError(t, err)
		runs := 0
		handler := Wrap(g, key, func(context.Context, guard.Lock, event) error {
			runs++
			return nil
		})
		var last Result
		send := func(id string) (err error) {
			result, err := handler.Handle(request(id), []byte(`{"id": "1"}`))
			if id == "r-3" {
				last = result
			}
			return err
		}
		held, err := store.Acquire(t.Context(), lockstore.Request{Key: key, Owner: "another", TTL: time.Minute, HolderInfo: lockstore.HolderInfo{ID: "r-1"}})
		require.NoError(t, err)
		first := make(chan error)
		go func() { first <- send("r-2") }()
		synctest.Wait()
		require.NoError(t, send("r-3"), "the run of r-2 begins later, and Lambda sends r-2 again if it fails")
		require.Equal(t, Result{Skipped: true, Holder: lockstore.HolderInfo{ID: "r-1"}}, last)
		require.IsType(t, &guard.LockBusy{}, <-first, "the other run began before this event")
		go func() { first <- send("r-2") }()
		synctest.Wait()
		require.NoError(t, store.Release(t.Context(), held))
		require.NoError(t, <-first)
		require.Equal(t, 1, runs)

		inner := &guard.LockCovered{Key: "another"}
		_, err = Wrap(g, key, func(context.Context, guard.Lock, event) error { return inner }).Handle(request("r-5"), []byte(`{"id": "1"}`))
		require.ErrorIs(t, err, inner, "the work has begun")

		plain, err := guard.New(store, guard.Options{})
		require.NoError(t, err)
		o, err := idempotency.New(plain, idempotency.Options{})
		require.NoError(t, err)
		handler = Wrap(g, key, Once(o, func(context.Context, event) (idempotency.Call, error) { return idempotency.NewCall("event", "1"), nil },
			func(context.Context, guard.Lock, event) error {
				t.Error("the work runs")
				return nil
			}))
		require.ErrorContains(t, send("r-4"), "guard.Options.Coalesce (boot: LOCK_COALESCE), so one run does the work of many events, and Once has a result for each event; want only one of them")
	})
}
