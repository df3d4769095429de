package dynamostore_test

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore/internal/fakedynamo"
)

// heldPlace is the place that a refused request gets.
func heldPlace(t *testing.T, s *dynamostore.Store) int {
	t.Helper()
	req := request(time.Minute)
	req.Queue = true
	_, err := s.Acquire(t.Context(), req)
	held, ok := errors.AsType[*lockstore.HeldError](err)
	require.True(t, ok, "%v", err)
	return held.Place
}

func TestPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, fakedynamo.New(table), 0, dynamostore.Options{})
		_, err := s.Acquire(t.Context(), request(time.Minute))
		require.NoError(t, err)
		for n := range 64 {
			require.Equal(t, n+1, heldPlace(t, s))
		}
		require.Zero(t, heldPlace(t, s), "a queue has 64 places")
	})
}

// After a long lease, those who wait read as often as if they had just come. So each of
// them is served soon after the one before.
func TestHandOversAfterALongLease(t *testing.T) {
	const clients, long, short, allowed = 8, time.Minute, 100 * time.Millisecond, 60 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		service := fakedynamo.New(table)
		held, err := newStore(t, service, 0, dynamostore.Options{}).Acquire(t.Context(), request(2*long))
		require.NoError(t, err)
		var all sync.WaitGroup
		for range clients {
			s, req := newStore(t, service, 0, dynamostore.Options{}), request(2*long)
			req.Queue = true
			all.Go(func() {
				for {
					lease, err := s.Acquire(t.Context(), req)
					if err == nil {
						<-time.After(short)
						assert.NoError(t, s.Release(t.Context(), lease))
						return
					}
					if !assert.ErrorIs(t, err, lockstore.ErrHeld) || !assert.NoError(t, s.AwaitTurn(t.Context(), key, req.Owner)) {
						return
					}
				}
			})
			<-time.After(time.Second)
		}
		<-time.After(long)
		released := time.Now()
		require.NoError(t, newStore(t, service, 0, dynamostore.Options{}).Release(t.Context(), held))
		all.Wait()
		first := 400 * time.Millisecond // it may just have read
		require.Less(t, time.Since(released), first+clients*(short+allowed))
	})
}

// The stamp of a writer whose clock is wrong may say that a key will be free later. Up to
// 3 s the key is kept for those who wait; a stamp that is further ahead keeps it for nobody.
func TestStampAhead(t *testing.T) {
	for ahead, kept := range map[time.Duration]bool{-time.Second: true, 2900 * time.Millisecond: true, 4 * time.Second: false} {
		t.Run(fmt.Sprint(ahead), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				service := fakedynamo.New(table)
				fakeRows{service}.put(t, key, item{
					"fence":   n("1"),
					"expires": n(strconv.FormatInt(time.Now().Add(ahead).UnixMilli(), 10)),
					"queue":   &types.AttributeValueMemberL{Value: []types.AttributeValue{s("first")}},
				})
				_, err := newStore(t, service, 0, dynamostore.Options{}).Acquire(t.Context(), request(time.Minute))
				if kept {
					require.ErrorIs(t, err, lockstore.ErrHeld, "kept for the first in line")
				} else {
					require.NoError(t, err, "kept for nobody")
				}
			})
		})
	}
}

func TestLeaveBehindADeadHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := fakedynamo.New(table)
		testLeaveBehindADeadHolder(t, newStore(t, service, 0, dynamostore.Options{}), fakeRows{service})
	})
}

// The first in the queue of a dead holder leaves in its turn. The next one has a whole
// turn, and the dead holder has lost its lease.
func testLeaveBehindADeadHolder(t *testing.T, s *dynamostore.Store, r rows) {
	const key = "dead holder"
	dead := lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: time.Second}
	lease, err := s.Acquire(t.Context(), dead)
	require.NoError(t, err)
	expires := number(t, r.get(t, key), "expires")
	var waiting []lockstore.Request
	for range 3 {
		req := lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: time.Minute, Queue: true}
		_, err := s.Acquire(t.Context(), req)
		require.ErrorIs(t, err, lockstore.ErrHeld)
		waiting = append(waiting, req)
	}
	require.NoError(t, s.AwaitTurn(t.Context(), key, waiting[0].Owner))
	pass(lockstore.Turn * 9 / 10)
	require.NoError(t, s.Leave(t.Context(), key, waiting[0].Owner))
	row := r.get(t, key)
	require.InDelta(t, time.Now().UnixMilli(), number(t, row, "freed"), 1500)
	require.Equal(t, expires, number(t, row, "expires"), "the end of a lease does not change")
	_, err = s.Acquire(t.Context(), dead)
	require.ErrorIs(t, err, lockstore.ErrLost)
	_, err = s.Acquire(t.Context(), waiting[2])
	require.ErrorIs(t, err, lockstore.ErrHeld, "it is another's turn")
	next, err := s.Acquire(t.Context(), waiting[1])
	require.NoError(t, err)
	require.Greater(t, next.Fence, lease.Fence)
	require.Nil(t, r.get(t, key)["freed"])
	require.ErrorIs(t, s.Release(t.Context(), lease), lockstore.ErrLost)
	_, err = s.Renew(t.Context(), lease, time.Minute)
	require.ErrorIs(t, err, lockstore.ErrLost)
}

// The grant of the first in the queue arrives so late that it is undone. The key counts as
// free since the same moment as before.
func TestUndoMovesNobodysTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := fakedynamo.New(table)
		freed := strconv.FormatInt(time.Now().Add(-5*time.Second).UnixMilli(), 10)
		fakeRows{service}.put(t, key, item{
			"fence":   n("1"),
			"expires": n(freed),
			"queue":   &types.AttributeValueMemberL{Value: []types.AttributeValue{s("first"), s("second")}},
		})
		store := newStore(t, service, 0, dynamostore.Options{})
		service.Fault = func(r fakedynamo.Request) fakedynamo.Fault {
			switch {
			case r.N == 2:
				return fakedynamo.Fault{In: 40 * time.Second}
			case r.N > 3: // after the grant and its undo
				return fakedynamo.Fault{Refuse: &fakedynamo.Failure{Status: 400, Code: "AccessDeniedException"}}
			}
			return fakedynamo.Fault{}
		}
		_, err := store.Acquire(t.Context(), lockstore.Request{Key: key, Owner: "first", TTL: time.Minute, Queue: true})
		require.Error(t, err)
		service.Fault = nil
		row := fakeRows{service}.get(t, key)
		require.Nil(t, row["owner"])
		require.Equal(t, n(freed), row["expires"])
		require.Len(t, row["queue"].(*types.AttributeValueMemberL).Value, 2, "the place is there again")
	})
}
