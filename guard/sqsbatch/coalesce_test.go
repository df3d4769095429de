package sqsbatch

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

func TestCoalescing(t *testing.T) {
	opt, ctx := guard.Options{Wait: time.Minute, Coalesce: "index"}, context.Background()
	// waiting lets a run of the message wait for the key "held".
	waiting := func(b *bench, id string) {
		go func() {
			_ = b.Guard.Do(guard.WithEventID(ctx, id), "held", func(context.Context, guard.Lock) error { return nil })
		}()
		synctest.Wait()
	}
	// release ends the lease of occupy.
	release := func(t *testing.T, b *bench) (waited int) {
		status, err := b.Store.Inspect(ctx, "held")
		require.NoError(t, err)
		require.NoError(t, b.Store.Release(ctx, lockstore.Lease{Key: "held", Owner: "another", Fence: status.Fence}))
		return status.Waiting
	}
	on("one run does the work of all messages of a key", t, opt, func(t *testing.T, b *bench) {
		require.Empty(t, b.run(t, ctx, messages("a", "b", "a", "a")...))
		require.ElementsMatch(t, []string{"m1", "m2"}, b.Ran)
		b.Free(t, "a", "b")
	})
	on("if the run fails, all messages of its key do", t, opt, func(t *testing.T, b *bench) {
		require.Equal(t, []string{"m1", "m3"}, b.run(t, ctx, messages("a fail", "b", "a")...))
		require.Equal(t, "1 of 1 messages failed, first m1: own", b.lines(t, "m3")[0]["error"])
	})
	on("Once has a result for each message", t, opt, func(t *testing.T, b *bench) {
		plain, err := guard.New(b.Store, guard.Options{})
		require.NoError(t, err)
		o, err := idempotency.New(plain, idempotency.Options{})
		require.NoError(t, err)
		handler := Wrap(b.Guard, key, Once(o, byMessage, func(context.Context, guard.Lock, events.SQSMessage) error {
			t.Error("the work runs")
			return nil
		}))
		out, err := handler.Handle(ctx, event(t, messages("a", "a")))
		require.NoError(t, err)
		require.Len(t, out.BatchItemFailures, 2)
		require.Contains(t, b.lines(t, "m2")[0]["error"], "Coalesce (boot: LOCK_COALESCE), so one run does the work of many events, and Once")
	})
	on("a message whose work returns the covered answer of another lock fails", t, opt, func(t *testing.T, b *bench) {
		handler := Wrap(b.Guard, key, func(context.Context, guard.Lock, events.SQSMessage) error { return &guard.LockCovered{Key: "another"} })
		out, err := handler.Handle(ctx, event(t, messages("a", "a")))
		require.NoError(t, err)
		require.Len(t, out.BatchItemFailures, 2)
	})
	on("if the lock is busy, all messages of its key are delayed", t, opt, func(t *testing.T, b *bench) {
		b.Occupy(t, "held")
		var delayed []string
		b.delay = func(_ context.Context, m events.SQSMessage, _ time.Duration) error {
			delayed = append(delayed, m.MessageId)
			return nil
		}
		require.Equal(t, []string{"m1", "m2"}, b.run(t, ctx, messages("held", "held")...))
		require.Equal(t, []string{"m1", "m2"}, delayed)
	})
	on("messages that another run covers are done", t, opt, func(t *testing.T, b *bench) {
		b.Occupy(t, "held")
		waiting(b, "another")
		require.Empty(t, b.run(t, ctx, messages("held", "held", "held")...))
		require.Empty(t, b.Ran)
		require.Len(t, b.Asked, 1+3)
		require.Zero(t, b.Log.Len())
		release(t, b)
	})
	on("a store that has covered a message is not down: a key that fails does not stop the rest", t, opt, func(t *testing.T, b *bench) {
		b.slots = 1
		b.Occupy(t, "held")
		waiting(b, "another")
		errs := map[string]error{"down": lockstore.ErrUnavailable}
		b.Fault = func(c storetest.Call) storetest.Fault { return storetest.Fault{Drop: errs[c.Key]} }
		require.Equal(t, []string{"m2"}, b.run(t, ctx, messages("held", "down", "a")...))
		release(t, b)
	})
	on("a message is not covered by its own earlier try", t, opt, func(t *testing.T, b *bench) {
		b.Occupy(t, "held")
		waiting(b, "m2")
		require.Empty(t, b.run(t, ctx, messages("held")...), "m1 is covered by m2's run")
		failed := make(chan []string, 1)
		go func() { failed <- b.run(t, ctx, messages("held", "held", "held")...) }()
		synctest.Wait()
		require.Equal(t, 2, release(t, b), "m1 is covered, and m2 waits behind its place")
		require.Empty(t, <-failed)
		require.Equal(t, []string{"m2"}, b.Ran)
	})
}
