package dynamostore_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore/internal/fakedynamo"
)

// The trust in a hand-over counts from before the read, however long its reply takes.
func TestSlowReadOfAHandOver(t *testing.T) {
	for _, slow := range []time.Duration{0, 500 * time.Millisecond, 1200 * time.Millisecond, 5 * time.Second} {
		bubble(t, fmt.Sprint("F29 M102 ", slow), func(t *testing.T) {
			service, s := newFake(t)
			lease := held(t, s)
			req := join(t, s)
			require.NoError(t, s.Release(t.Context(), lease))
			pass(time.Second) // a part of the turn is over
			service.Fault = always(fakedynamo.Fault{Out: slow})
			began := time.Now()
			news, err := s.AwaitTurn(t.Context(), req, 0)
			require.NoError(t, err)
			require.Greater(t, news.Lease.Fence, lease.Fence)
			end := began.Add(news.Lease.TTL)
			require.LessOrEqual(t, end.UnixMilli(), number(t, fakeRows{service}.get(t, key), "expires"), "the end of the trust")
			service.Fault = nil
			requireTrustIsOver(t, service, end, dynamostore.Options{})
		})
	}
}

// waitedFor is a lease whose holder knows that somebody waits, and who does.
func waitedFor(t *testing.T) (service *fakedynamo.Service, s *dynamostore.Store, lease lockstore.Lease, req lockstore.Request) {
	service, s = newFake(t)
	lease = held(t, s)
	req = join(t, newStore(t, service, 0, dynamostore.Options{}))
	lease, err := s.Renew(t.Context(), lease, time.Minute)
	require.NoError(t, err)
	return service, s, lease, req
}

// The end of a hand-over is written again if it is too early, because the request was slow.
func TestCorrectionOfAHandOver(t *testing.T) {
	const slow = 3 * time.Second
	bubble(t, "F18 F29", func(t *testing.T) {
		service, s, lease, req := waitedFor(t)
		before, began := service.Requests(), time.Now()
		service.Fault = on(fakedynamo.Fault{In: slow}, before+1)
		go func() { assert.NoError(t, s.Release(t.Context(), lease)) }()
		pass(slow + 100*time.Millisecond)
		require.Equal(t, 2, service.Requests()-before)
		req.Hint = ""
		require.NotZero(t, awaitTurn(t, newStore(t, service, 0, dynamostore.Options{}), &req).Fence)
		require.InDelta(t, began.Add(slow+lockstore.TurnTime).UnixMilli(), number(t, fakeRows{service}.get(t, key), "expires"), 1001)
	})
}

// The clock is set forward while a release hands the key over, before any of its readings. The end may be too late, and is made no
// earlier: whoever was handed the key may have seen it. Nobody trusts the hand-over for longer than it lasts.
func TestClockSetDuringAHandOver(t *testing.T) {
	for before := range 12 {
		bubble(t, fmt.Sprint("F17 reading ", before), func(t *testing.T) {
			service, s, lease, req := waitedFor(t)
			readings := 0
			s.SetNow(func() time.Time {
				if readings++; readings > before {
					return time.Now().Add(20 * time.Second)
				}
				return time.Now()
			})
			require.NoError(t, s.Release(t.Context(), lease))
			asked := time.Now()
			req.Hint = ""
			next := awaitTurn(t, newStore(t, service, 0, dynamostore.Options{}), &req)
			require.NotZero(t, next.Fence)
			requireTrustIsOver(t, service, asked.Add(next.TTL), dynamostore.Options{})
		})
	}
}

// Many give up at the same time, 5 ms away. Each of them ends its place.
func TestManyLeaveAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 64
		service, s := newFake(t)
		held(t, s)
		var waiting []lockstore.Request
		for range n {
			waiting = append(waiting, join(t, s))
		}
		service.Fault = rtt
		before := service.Actions()["UpdateItem"]
		var all sync.WaitGroup
		for _, req := range waiting {
			all.Go(func() { assert.NoError(t, s.Leave(t.Context(), key, req.Owner)) })
		}
		all.Wait()
		require.Zero(t, inspected(t, s).Waiting)
		require.LessOrEqual(t, service.Actions()["UpdateItem"]-before, 5*n)
	})
}

// Without the right to read, a waiter asks once in half a turn and not more often.
func TestAwaitTurnThatCannotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service, s := newFake(t)
		held(t, s)
		req := join(t, s)
		service.Fault = always(refused("AccessDeniedException", ""))
		for range 10 {
			began := time.Now()
			news, err := s.AwaitTurn(t.Context(), req, 0)
			require.NoError(t, err)
			require.True(t, news.Ask)
			require.GreaterOrEqual(t, time.Since(began), lockstore.TurnTime/2-time.Millisecond)
		}
	})
}

// After a long lease, those who wait read as often as if they had just come. So each of them is served soon after the
// one before.
func TestHandOversAfterALongLease(t *testing.T) {
	const clients, long, short, allowed = 8, time.Minute, 100 * time.Millisecond, 60 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		service, s := newFake(t)
		lease := acquired(t, s, request(2*long))
		var all sync.WaitGroup
		for range clients {
			g, err := guard.New(newStore(t, service, 0, dynamostore.Options{}).Store, guard.Options{Wait: time.Hour})
			require.NoError(t, err)
			all.Go(func() {
				assert.NoError(t, g.Do(t.Context(), key, func(context.Context, guard.Lock) error { pass(short); return nil }))
			})
			pass(time.Second)
		}
		pass(long)
		released := time.Now()
		require.NoError(t, s.Release(t.Context(), lease))
		all.Wait()
		first := 2500 * time.Millisecond // it and the next one may just have read
		require.Less(t, time.Since(released), first+clients*(short+allowed))
	})
}
