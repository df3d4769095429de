package dynamostore_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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

// The process that hands over does not know the time: its clock was set since its last reply, or it is new. It reads first.
func TestHandOverByAWrongClock(t *testing.T) {
	for _, by := range []time.Duration{10 * time.Minute, -30 * time.Second, 15 * time.Second} {
		for _, cold := range []bool{false, true} {
			bubble(t, fmt.Sprint("F15 F16 F17 F18 ", by, " new ", cold), func(t *testing.T) {
				service, s, lease, req := waitedFor(t)
				if cold {
					s = newStore(t, service, by, dynamostore.Options{})
				}
				s.SetNow(func() time.Time { return time.Now().Add(by) })
				before := service.Requests()
				require.NoError(t, s.Release(t.Context(), lease))
				require.Equal(t, 2, service.Requests()-before)
				require.InDelta(t, time.Now().Add(lockstore.TurnTime).UnixMilli(), number(t, fakeRows{service}.get(t, key), "expires"), 1001)
				require.NotZero(t, awaitTurn(t, newStore(t, service, 0, dynamostore.Options{}), &req).Fence)
			})
		}
	}
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
		req.Hint = "read" // at once
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
			req.Hint = "read" // at once
			next := awaitTurn(t, newStore(t, service, 0, dynamostore.Options{}), &req)
			require.NotZero(t, next.Fence)
			requireTrustIsOver(t, service, asked.Add(next.TTL), dynamostore.Options{})
		})
	}
}

// Before a write of a request a request of another process changes the queue. The reader that is the first then
// has the key, or its next read hands it the key.
func TestQueueChangesDuringARequest(t *testing.T) {
	for _, c := range []struct {
		holders         int
		asks, meanwhile string
		write           int // before which of its writes
	}{
		{1, "release", "leave", 1},
		{1, "release", "leave", 2}, // the first one shows that somebody waits
		{2, "release", "leave", 1},
		{3, "leave", "join", 1},
		{3, "abandon", "join", 1},
		{lockstore.MaxHolders, "join", "leave", 1},
	} {
		bubble(t, fmt.Sprintf("F57 %s, before its write %d %s, of a key for %d", c.asks, c.write, c.meanwhile, c.holders), func(t *testing.T) {
			service, s := newFake(t)
			other, reader := newStore(t, service, 0, dynamostore.Options{}), queued(c.holders)
			lease, writer := acquired(t, s, reader), join(t, s)
			reader.Owner = lockstore.NewOwner()
			var got lockstore.Lease // the reader's
			ask := func(s *dynamostore.Store, what string) {
				var err error
				switch what {
				case "release":
					err = s.Release(t.Context(), lease)
				case "leave":
					err = s.Leave(t.Context(), key, writer.Owner)
				case "abandon":
					err = s.Abandon(t.Context(), key, writer.Owner)
				case "join":
					got, err = s.Acquire(t.Context(), reader)
					if refused, ok := errors.AsType[*lockstore.Refused](err); ok {
						reader.Hint, err = refused.Hint, nil
					}
				}
				require.NoError(t, err)
			}
			if c.asks == "release" {
				reader.MaxHolders = 1
				ask(other, "join")
			}
			beforeWrite(service, c.write, func() (f fakedynamo.Fault) { ask(other, c.meanwhile); return f })
			ask(s, c.asks)
			require.Nil(t, service.Fault, "the other request came")
			if got.Fence == 0 {
				got = awaitTurn(t, other, &reader)
			}
			require.NotZero(t, got.Fence)
		})
	}
}

// StillHeld knows each of those who share a key, and a transaction whose lease is over is stale. CompleteItem
// wants a lease that is alone.
func TestStillHeldOfSeveral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service, s := newFake(t)
		client := dynamostore.ClientOver(service, fakeEndpoint, 0)
		leases := sharing(t, s, 3)
		_, err := s.Revoke(t.Context(), lockstore.RevokeRequest{Key: key, Fence: leases[1].Fence})
		require.NoError(t, err)
		require.NoError(t, s.Release(t.Context(), leases[2]))
		require.NoError(t, transact(t.Context(), client, s.StillHeld(key, leases[0].Fence)))
		err = transact(t.Context(), client, s.CompleteItem(key, leases[0].Fence, nil, time.Hour))
		require.Error(t, err)
		require.False(t, s.IsStale(err, leases[0].Fence))
		for _, lease := range leases[1:] {
			err := transact(t.Context(), client, s.StillHeld(key, lease.Fence))
			require.True(t, s.IsStale(err, lease.Fence), "%v", err)
		}
	})
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
