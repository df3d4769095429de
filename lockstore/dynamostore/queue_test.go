package dynamostore_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
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
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

// heldPlace is the place that a refused request gets.
func heldPlace(t *testing.T, s *dynamostore.Store) int {
	t.Helper()
	req := request(time.Minute)
	req.JoinQueue = true
	_, err := s.Acquire(t.Context(), req)
	held, ok := errors.AsType[*lockstore.Refused](err)
	require.True(t, ok, "%v", err)
	return held.QueuePosition
}

func TestPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := fakedynamo.New(table)
		s := newStore(t, service, 0, dynamostore.Options{})
		_, err := s.Acquire(t.Context(), request(time.Minute))
		require.NoError(t, err)
		for n := range 64 {
			require.Equal(t, n+1, heldPlace(t, s))
		}
		before := service.Requests()
		require.Zero(t, heldPlace(t, s), "a queue has 64 places")
		require.Equal(t, 1, service.Requests()-before, "nobody asks for a place in a full queue")
	})
}

// After AwaitTurn the first request takes the key.
func TestRequestsAfterAwaitTurn(t *testing.T) {
	for name, ends := range map[string]func(*testing.T, *dynamostore.Store, lockstore.Lease) error{
		"a free key": func(t *testing.T, s *dynamostore.Store, lease lockstore.Lease) error {
			return s.Release(t.Context(), lease)
		},
		"a dead holder": func(*testing.T, *dynamostore.Store, lockstore.Lease) error {
			pass(time.Minute + takeoverDelay)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				service := fakedynamo.New(table)
				s := newStore(t, service, 0, dynamostore.Options{})
				lease, err := s.Acquire(t.Context(), request(time.Minute))
				require.NoError(t, err)
				req := request(time.Minute)
				req.JoinQueue = true
				_, err = s.Acquire(t.Context(), req)
				require.ErrorIs(t, err, lockstore.ErrRefused)
				require.NoError(t, ends(t, s, lease))
				require.NoError(t, storetest.AwaitTurn(t.Context(), s.Store, key, req.Owner))
				before := service.Requests()
				_, err = s.Acquire(t.Context(), req)
				require.NoError(t, err)
				require.Equal(t, 1, service.Requests()-before)
			})
		})
	}
}

// How often a waiting owner reads the row, with the shortest pauses and with the longest.
func TestPausesOfAwaitTurn(t *testing.T) {
	for _, c := range []struct {
		place                  int
		first, last            time.Duration // the pause at first, and after a minute
		longestFirst, longLast time.Duration
	}{
		{1, 18750 * time.Microsecond, 225 * time.Millisecond, 31250 * time.Microsecond, 375 * time.Millisecond},
		{3, 56250 * time.Microsecond, 225 * time.Millisecond, 93750 * time.Microsecond, 375 * time.Millisecond},
		{21, 375 * time.Millisecond, 375 * time.Millisecond, 625 * time.Millisecond, 625 * time.Millisecond},
	} {
		for _, longest := range []bool{false, true} {
			t.Run(fmt.Sprint("place ", c.place, " longest ", longest), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					service := fakedynamo.New(table)
					s := newStore(t, service, 0, dynamostore.Options{})
					want := []time.Duration{c.first, c.last}
					s.SetRandom(func(time.Duration) time.Duration { return 0 })
					if longest {
						want = []time.Duration{c.longestFirst, c.longLast}
						s.SetRandom(func(most time.Duration) time.Duration { return most })
					}
					_, err := s.Acquire(t.Context(), request(time.Hour))
					require.NoError(t, err)
					for range c.place - 1 {
						heldPlace(t, s)
					}
					req := request(time.Minute)
					req.JoinQueue = true
					_, err = s.Acquire(t.Context(), req)
					require.ErrorIs(t, err, lockstore.ErrRefused)
					var reads []time.Time
					service.Fault = func(fakedynamo.Request) fakedynamo.Fault {
						reads = append(reads, time.Now())
						return fakedynamo.Fault{}
					}
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					require.ErrorIs(t, storetest.AwaitTurn(ctx, s.Store, key, req.Owner), context.DeadlineExceeded)
					last := len(reads) - 1
					require.Equal(t, want, []time.Duration{reads[1].Sub(reads[0]), reads[last].Sub(reads[last-1])})
				})
			})
		}
	}
}

func TestLeaveThatIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := fakedynamo.New(table)
		s := newStore(t, service, 0, dynamostore.Options{})
		_, err := s.Acquire(t.Context(), request(time.Hour))
		require.NoError(t, err)
		var waiting []lockstore.Request
		for range 2 {
			req := request(time.Minute)
			req.JoinQueue = true
			_, err := s.Acquire(t.Context(), req)
			require.ErrorIs(t, err, lockstore.ErrRefused)
			waiting = append(waiting, req)
		}
		places := func() int {
			status, err := s.Inspect(t.Context(), key)
			require.NoError(t, err)
			return status.Waiting
		}
		writes := func(then func() fakedynamo.Fault) func(fakedynamo.Request) fakedynamo.Fault {
			return func(r fakedynamo.Request) fakedynamo.Fault {
				if r.Action == "UpdateItem" {
					return then()
				}
				return fakedynamo.Fault{}
			}
		}
		service.Fault = writes(func() fakedynamo.Fault {
			return fakedynamo.Fault{Refuse: &fakedynamo.Failure{Status: 400, Code: "AccessDeniedException", Message: "not allowed"}}
		})
		require.ErrorContains(t, s.Leave(t.Context(), key, waiting[1].Owner), "not allowed")
		service.Fault = nil
		require.Equal(t, 2, places())

		// The owner before leaves between the read and the write: the write is sent again.
		service.Fault = writes(func() fakedynamo.Fault {
			service.Fault = nil
			require.NoError(t, newStore(t, service, 0, dynamostore.Options{}).Leave(t.Context(), key, waiting[0].Owner))
			return fakedynamo.Fault{}
		})
		require.NoError(t, s.Leave(t.Context(), key, waiting[1].Owner))
		require.Zero(t, places())
	})
}

// The row changes between the refusal of an acquire and its request for a place.
func TestRefusedPlace(t *testing.T) {
	text := func(o lockstore.Owner) fakedynamo.Value { return fakedynamo.Value{"S": string(o)} }
	for name, c := range map[string]struct {
		change   func(row fakedynamo.Item, me lockstore.Owner)
		requests int
		check    func(t *testing.T, lease lockstore.Lease, err error)
	}{
		"F57 the queue is full": {func(row fakedynamo.Item, _ lockstore.Owner) {
			var full []any
			for n := range 64 {
				full = append(full, map[string]any{"S": fmt.Sprint("owner", n)})
			}
			row["queue"] = fakedynamo.Value{"L": full}
		}, 2, func(t *testing.T, _ lockstore.Lease, err error) {
			held, ok := errors.AsType[*lockstore.Refused](err)
			require.True(t, ok, "%v", err)
			require.Zero(t, held.QueuePosition)
		}},
		"F26 a copy of the acquire was granted the key": {func(row fakedynamo.Item, me lockstore.Owner) {
			row["owner"], row["fence"] = text(me), fakedynamo.Value{"N": "7"}
		}, 3, func(t *testing.T, lease lockstore.Lease, err error) {
			require.NoError(t, err)
			require.Equal(t, lockstore.Fence(7), lease.Fence)
		}},
		"F26 the acquire was abandoned": {func(row fakedynamo.Item, me lockstore.Owner) {
			row["released"] = text(me)
		}, 2, func(t *testing.T, _ lockstore.Lease, err error) { require.ErrorIs(t, err, lockstore.ErrLost) }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				service := fakedynamo.New(table)
				s := newStore(t, service, 0, dynamostore.Options{})
				_, err := s.Acquire(t.Context(), request(time.Minute))
				require.NoError(t, err)
				req := request(time.Minute)
				req.JoinQueue = true
				service.Fault = func(r fakedynamo.Request) fakedynamo.Fault {
					if r.N == 3 {
						row := service.Row(table, key)
						c.change(row, req.Owner)
						service.SetRow(table, key, row)
					}
					return fakedynamo.Fault{}
				}
				lease, err := s.Acquire(t.Context(), req)
				c.check(t, lease, err)
				require.Equal(t, c.requests, service.Requests()-1)
			})
		})
	}
}

// The refusal of an acquire is certain, also if its request for a place fails.
func TestPlaceThatIsNotAsked(t *testing.T) {
	for name, fault := range map[string]fakedynamo.Fault{
		"F31 it is throttled": {Refuse: &fakedynamo.Failure{Status: 400, Code: "ThrottlingException"}},
		"F28 it hangs":        {In: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				service := fakedynamo.New(table)
				s := newStore(t, service, 0, dynamostore.Options{})
				_, err := s.Acquire(t.Context(), request(time.Minute))
				require.NoError(t, err)
				service.Fault = func(r fakedynamo.Request) fakedynamo.Fault {
					if r.N > 2 {
						return fault
					}
					return fakedynamo.Fault{}
				}
				req := request(time.Minute)
				req.JoinQueue = true
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, err = s.Acquire(ctx, req)
				service.Wait()
				if fault.In > 0 { // it may have a place
					require.ErrorIs(t, err, context.DeadlineExceeded)
					require.NotErrorIs(t, err, lockstore.ErrRefused)
					require.NotErrorIs(t, err, lockstore.ErrUnavailable)
					return
				}
				refused, ok := errors.AsType[*lockstore.Refused](err)
				require.True(t, ok, "%v", err)
				require.Equal(t, lockstore.Held, refused.State)
				require.Zero(t, refused.QueuePosition)
			})
		})
	}
}

// An acquire whose outcome is unknown is abandoned. While the abandon gives up the owner's place,
// the key is released, and the acquire arrives. The abandon ends its lease, too.
func TestAcquireArrivesDuringItsAbandon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := fakedynamo.New(table)
		s, other := newStore(t, service, 0, dynamostore.Options{}), newStore(t, service, 0, dynamostore.Options{})
		lease, err := s.Acquire(t.Context(), request(time.Minute))
		require.NoError(t, err)
		req := request(time.Minute)
		req.JoinQueue = true
		_, err = s.Acquire(t.Context(), req)
		require.ErrorIs(t, err, lockstore.ErrRefused)
		service.Fault = func(r fakedynamo.Request) fakedynamo.Fault {
			if strings.HasPrefix(r.Update, "REMOVE #queue") {
				service.Fault = nil
				require.NoError(t, other.Release(t.Context(), lease))
				_, err := other.Acquire(t.Context(), req)
				require.NoError(t, err, "F26")
			}
			return fakedynamo.Fault{}
		}
		require.NoError(t, s.Release(t.Context(), lockstore.Lease{Key: key, Owner: req.Owner}))
		status, err := s.Inspect(t.Context(), key)
		require.NoError(t, err)
		require.Equal(t, lockstore.Free, status.State)
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
			req.JoinQueue = true
			all.Go(func() {
				for {
					lease, err := s.Acquire(t.Context(), req)
					if err == nil {
						<-time.After(short)
						assert.NoError(t, s.Release(t.Context(), lease))
						return
					}
					if !assert.ErrorIs(t, err, lockstore.ErrRefused) || !assert.NoError(t, storetest.AwaitTurn(t.Context(), s.Store, key, req.Owner)) {
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
					"ttl":     n("1"),
					"expires": n(strconv.FormatInt(time.Now().Add(ahead).UnixMilli(), 10)),
					"queue":   &types.AttributeValueMemberL{Value: []types.AttributeValue{s("first")}},
				})
				_, err := newStore(t, service, 0, dynamostore.Options{}).Acquire(t.Context(), request(time.Minute))
				if kept {
					require.ErrorIs(t, err, lockstore.ErrRefused, "kept for the first in line")
				} else {
					require.NoError(t, err, "kept for nobody")
				}
			})
		})
	}
}

// The holder died long ago, and its key is free since the first in the queue left in its turn.
func TestTurnsBehindADeadHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := fakedynamo.New(table)
		ago := func(d time.Duration) types.AttributeValue {
			return n(strconv.FormatInt(time.Now().Add(-d).UnixMilli(), 10))
		}
		fakeRows{service}.put(t, key, item{
			"fence": n("1"), "ttl": n("1"), "owner": s("dead"), "expires": ago(time.Minute), "freed": ago(time.Second),
			"queue": &types.AttributeValueMemberL{Value: []types.AttributeValue{s("first"), s("second")}},
		})
		store := newStore(t, service, 0, dynamostore.Options{})
		_, err := store.Acquire(t.Context(), lockstore.Request{Key: key, Owner: "second", TTL: time.Minute, JoinQueue: true})
		require.ErrorIs(t, err, lockstore.ErrRefused, "it is the turn of the first")
		_, err = store.Acquire(t.Context(), lockstore.Request{Key: key, Owner: "first", TTL: time.Minute, JoinQueue: true})
		require.NoError(t, err)
	})
}

// A free key that is kept for others gives a place, too.
func TestPlaceBehindAFreeKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := fakedynamo.New(table)
		fakeRows{service}.put(t, key, item{
			"fence": n("1"), "ttl": n("1"), "expires": n(strconv.FormatInt(time.Now().UnixMilli(), 10)),
			"queue": &types.AttributeValueMemberL{Value: []types.AttributeValue{s("first")}},
		})
		require.Equal(t, 2, heldPlace(t, newStore(t, service, 0, dynamostore.Options{})))
	})
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
		req := lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: time.Minute, JoinQueue: true}
		_, err := s.Acquire(t.Context(), req)
		require.ErrorIs(t, err, lockstore.ErrRefused)
		waiting = append(waiting, req)
	}
	require.NoError(t, storetest.AwaitTurn(t.Context(), s.Store, key, waiting[0].Owner))
	early := lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: time.Minute, JoinQueue: true}
	_, err = s.Acquire(t.Context(), early)
	require.ErrorIs(t, err, lockstore.ErrRefused)
	require.NoError(t, s.Leave(t.Context(), key, early.Owner))
	require.Nil(t, r.get(t, key)["freed"], "its turn had not begun")
	pass(lockstore.Turn * 9 / 10)
	require.NoError(t, s.Leave(t.Context(), key, waiting[0].Owner))
	row := r.get(t, key)
	require.InDelta(t, time.Now().UnixMilli(), number(t, row, "freed"), 1500)
	require.Equal(t, expires, number(t, row, "expires"), "the end of a lease does not change")
	_, err = s.Acquire(t.Context(), dead)
	require.ErrorIs(t, err, lockstore.ErrLost)
	_, err = s.Acquire(t.Context(), waiting[2])
	require.ErrorIs(t, err, lockstore.ErrRefused, "it is another's turn")
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
			"ttl":     n("1"),
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
		_, err := store.Acquire(t.Context(), lockstore.Request{Key: key, Owner: "first", TTL: time.Minute, JoinQueue: true})
		require.Error(t, err)
		service.Fault = nil
		row := fakeRows{service}.get(t, key)
		require.Nil(t, row["owner"])
		require.Equal(t, n(freed), row["expires"])
		require.Len(t, row["queue"].(*types.AttributeValueMemberL).Value, 2, "the place is there again")
	})
}
