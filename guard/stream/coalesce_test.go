package stream

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/lockstore"
)

func TestCoalescing(t *testing.T) {
	opt, ctx := guard.Options{Wait: time.Minute, Coalesce: "index"}, context.Background()
	on("one run does the work of the records of a key that follow each other", t, opt, func(t *testing.T, b *bench) {
		require.Empty(t, b.run(t, ctx, "a", "a", "b", "a"))
		require.Equal(t, []string{"1", "3", "4"}, b.Ran)
	})
	on("Once has a result for each record", t, opt, func(t *testing.T, b *bench) {
		plain, err := guard.New(b.Store, guard.Options{})
		require.NoError(t, err)
		o, err := idempotency.New(plain, idempotency.Options{})
		require.NoError(t, err)
		s := shard[record]{b.Guard, key, Once(o, func(_ context.Context, r record) (idempotency.Call, error) {
			return idempotency.NewCall("stream", r.sequence), nil
		}, b.work), func(r record) string { return r.sequence }}
		stop, err := s.run(ctx, func() ([]record, error) { return []record{{"1", "a"}}, nil })
		require.NoError(t, err)
		require.Equal(t, "1", stop)
		require.Empty(t, b.Ran)
		require.Contains(t, b.line(t)["error"], "Coalesce (boot: LOCK_COALESCE), so one run does the work of many events, and Once")
	})
	on("a record whose work returns the covered answer of another lock fails", t, opt, func(t *testing.T, b *bench) {
		work := func(context.Context, guard.Lock, record) error { return &guard.LockCovered{Key: "another"} }
		s := shard[record]{b.Guard, key, work, func(r record) string { return r.sequence }}
		stop, err := s.run(ctx, func() ([]record, error) { return []record{{"1", "a"}, {"2", "a"}}, nil })
		require.NoError(t, err)
		require.Equal(t, "1", stop)
	})
	on("if the run fails, the batch stops at its first record", t, opt, func(t *testing.T, b *bench) {
		require.Equal(t, "2", b.run(t, ctx, "a", "b fail", "b"))
		require.Equal(t, []string{"1", "2"}, b.Ran)
	})
	on("a record that another run covers is done, and not one whose own earlier try waits", t, opt, func(t *testing.T, b *bench) {
		lease, err := b.Store.Acquire(ctx, lockstore.Request{Key: "a", Owner: "another", TTL: time.Hour})
		require.NoError(t, err)
		go func() {
			_ = b.Guard.Do(guard.WithEventID(ctx, "2"), "a", func(context.Context, guard.Lock) error { return nil })
		}()
		synctest.Wait()
		stop := make(chan string, 1)
		go func() { stop <- b.run(t, ctx, "a", "a", "a") }()
		synctest.Wait()
		status, err := b.Store.Inspect(ctx, "a")
		require.NoError(t, err)
		require.Equal(t, 2, status.Waiting, "the first record is covered, and the second waits behind its place")
		require.NoError(t, b.Store.Release(ctx, lease))
		require.Empty(t, <-stop)
		require.Equal(t, []string{"2"}, b.Ran)
	})
}
