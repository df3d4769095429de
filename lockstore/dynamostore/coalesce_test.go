package dynamostore_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore/internal/fakedynamo"
)

// coalescing is a request for an event that another event's run of the same work may cover.
func coalescing(event string) lockstore.Request {
	req := queued(1)
	req.Work, req.Event = "index", event
	return req
}

func TestCoveredEvents(t *testing.T) {
	bubble(t, "a covered event costs one refused write, and a free key no more than without events", func(t *testing.T) {
		service, s := newFake(t)
		costs := func(what string, writes, reads int, do func()) {
			t.Helper()
			before := service.Actions()
			do()
			require.Equal(t, writes, service.Actions()["UpdateItem"]-before["UpdateItem"], "%s: writes", what)
			require.Equal(t, reads, service.Actions()["GetItem"]-before["GetItem"], "%s: reads", what)
		}
		inspected(t, s) // the first request of a process learns the time
		costs("a free key", 2, 0, func() { require.NoError(t, s.Release(t.Context(), acquired(t, s, coalescing("1")))) })
		lease := acquired(t, s, coalescing("1"))
		first := coalescing("2")
		costs("the first that waits", 1, 0, func() { require.Equal(t, 1, refusal(t, s, first).QueuePosition) })
		costs("an event", 1, 0, func() {
			r := refusal(t, s, coalescing("3"))
			require.True(t, r.Covered)
			require.Zero(t, r.QueuePosition)
			require.Equal(t, lockstore.Held, r.State)
		})
		costs("an event that comes again", 2, 0, func() {
			r := refusal(t, s, coalescing("2"))
			require.False(t, r.Covered)
			require.Equal(t, 2, r.QueuePosition)
		})
		require.Equal(t, 2, inspected(t, s).Waiting)
		require.NoError(t, s.Release(t.Context(), lease))
		first.Hint = ""
		require.NoError(t, s.Release(t.Context(), acquired(t, s, first)))
		require.Equal(t, 0, inspected(t, s).Waiting, "the other try was handed the key")
		require.False(t, refusal(t, s, coalescing("3")).Covered, "it may have begun")
	})
	bubble(t, "two events meet: one of them waits for both", func(t *testing.T) {
		service, s := newFake(t)
		held(t, s)
		require.Equal(t, 1, refusal(t, s, queued(1)).QueuePosition) // it covers nobody
		beforeWrite(service, 2, func() (f fakedynamo.Fault) {
			require.Equal(t, 2, refusal(t, s, coalescing("1")).QueuePosition)
			return f
		})
		require.True(t, refusal(t, s, coalescing("2")).Covered)
		require.Equal(t, 2, inspected(t, s).Waiting)
	})
	bubble(t, "who found the queue full is covered as soon as another event has a place", func(t *testing.T) {
		_, s := newFake(t)
		held(t, s)
		const places = 64
		var last lockstore.Request
		for range places {
			last = queued(1)
			require.NotZero(t, refusal(t, s, last).QueuePosition)
		}
		req := coalescing("1")
		r := refusal(t, s, req)
		require.Zero(t, r.QueuePosition)
		require.NoError(t, s.Leave(t.Context(), key, last.Owner))
		require.Equal(t, places, refusal(t, s, coalescing("2")).QueuePosition)
		pass(time.Second) // a read may be old
		req.Hint = r.Hint
		require.True(t, refusal(t, s, req).Covered)
	})
	bubble(t, "F31 what a throttled acquire reads may be old, and covers nobody", func(t *testing.T) {
		service, s := newFake(t)
		held(t, s)
		require.Equal(t, 1, refusal(t, s, coalescing("1")).QueuePosition)
		pass(time.Second)
		service.Fault = func(r fakedynamo.Request) (f fakedynamo.Fault) {
			if r.Action == "UpdateItem" {
				f = throttled
			}
			return f
		}
		req := coalescing("2")
		r := refusal(t, s, req)
		require.False(t, r.Covered)
		require.Zero(t, r.QueuePosition)
		service.Fault = nil
		req.Hint = r.Hint
		require.True(t, refusal(t, s, req).Covered)
	})
}
