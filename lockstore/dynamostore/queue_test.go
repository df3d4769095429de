package dynamostore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore/internal/fakedynamo"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

func TestPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service, s := newFake(t)
		held(t, s)
		place := func() int {
			req := request(time.Minute)
			req.JoinQueue = true
			_, err := s.Acquire(t.Context(), req)
			refused, ok := errors.AsType[*lockstore.Refused](err)
			require.True(t, ok, "%v", err)
			return refused.QueuePosition
		}
		for n := range 64 {
			require.Equal(t, n+1, place())
		}
		before := service.Requests()
		require.Zero(t, place(), "a queue has 64 places")
		require.Equal(t, 1, service.Requests()-before, "nobody asks for a place in a full queue")
	})
}

// A waiter is handed the key by its own read. One request extends the lease. A dead holder's key is
// taken over after a read.
func TestRequestsAfterAwaitTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service, s := newFake(t)
		holder := held(t, s)
		first, second := join(t, s), join(t, s)
		before := service.Actions()
		require.NoError(t, s.Release(t.Context(), holder))
		require.Equal(t, 2, service.Actions()["UpdateItem"]-before["UpdateItem"], "the holder did not know that somebody waits")
		began := time.Now()
		lease := awaitTurn(t, s, &first)
		trusted := lease.TTL - time.Since(began)
		require.Equal(t, number(t, fakeRows{service}.get(t, key), "fence"), int64(lease.Fence))
		require.Greater(t, lease.Fence, holder.Fence)
		require.Greater(t, trusted, lockstore.Turn-dateSteps)
		require.LessOrEqual(t, trusted, lockstore.Turn-dynamostore.Margin)

		before = service.Actions()
		first.Fence = lease.Fence
		lease = acquired(t, s, first)
		require.Greater(t, lease.TTL, 50*time.Second)
		require.NoError(t, s.Release(t.Context(), lease))
		require.Equal(t, 2, service.Actions()["UpdateItem"]-before["UpdateItem"], "the extension and the hand-over")
		require.Equal(t, before["GetItem"], service.Actions()["GetItem"])

		lease = awaitTurn(t, s, &second)
		third := join(t, s)
		pass(lockstore.Turn + dateSteps)
		_, err := s.Acquire(t.Context(), second)
		refused, ok := errors.AsType[*lockstore.Refused](err)
		require.True(t, ok && refused.QueuePosition == 2, "its hand-over has lapsed, and it asks like any other: %v", err)
		news, err := s.AwaitTurn(t.Context(), lockstore.Place{Key: key, Owner: second.Owner, Note: refused.Note})
		require.NoError(t, err)
		require.False(t, news.Ask || news.Lease.Fence != 0, "it has to wait for its new turn")
		require.NoError(t, s.Leave(t.Context(), key, second.Owner))
		require.Zero(t, awaitTurn(t, s, &third).Fence, "nobody has handed it the key")
		before = service.Actions()
		next := acquired(t, s, third)
		require.Greater(t, next.Fence, lease.Fence)
		require.Equal(t, map[string]int{"UpdateItem": before["UpdateItem"] + 1, "GetItem": before["GetItem"] + 1}, service.Actions())
	})
}

// dateSteps is by how much a Date, and a clock that it has corrected, may be off.
const dateSteps = 2 * time.Second

// join takes a place.
func join(t *testing.T, s *dynamostore.Store) lockstore.Request {
	t.Helper()
	req := request(time.Minute)
	req.JoinQueue = true
	_, err := s.Acquire(t.Context(), req)
	refused, ok := errors.AsType[*lockstore.Refused](err)
	require.True(t, ok, "%v", err)
	req.Note = refused.Note
	return req
}

// awaitTurn waits as a guard does. The lease has no fence if the owner has to ask.
func awaitTurn(t *testing.T, s *dynamostore.Store, req *lockstore.Request) lockstore.Lease {
	t.Helper()
	for {
		news, err := s.AwaitTurn(t.Context(), lockstore.Place{Key: req.Key, Owner: req.Owner, Note: req.Note})
		require.NoError(t, err)
		req.Note = news.Note
		if news.Ask || news.Lease.Fence != 0 {
			return news.Lease
		}
	}
}

// How often a waiting owner reads the row, with the shortest pauses and with the longest.
func TestPausesOfAwaitTurn(t *testing.T) {
	for place, first := range map[int]time.Duration{ // the longest pause at first; after a minute it is half a Turn
		1: 5 * time.Millisecond, 3: 55 * time.Millisecond, 21: 505 * time.Millisecond,
	} {
		for _, longest := range []bool{false, true} {
			bubble(t, fmt.Sprint("place ", place, " longest ", longest), func(t *testing.T) {
				service, s := newFake(t)
				part := 7. / 8
				if longest {
					part = 1
				}
				s.SetRandom(func(most time.Duration) time.Duration {
					if longest {
						return most
					}
					return 0
				})
				acquired(t, s, request(time.Hour))
				for range place - 1 {
					join(t, s)
				}
				req := join(t, s)
				var reads []time.Time
				service.Fault = func(fakedynamo.Request) fakedynamo.Fault {
					reads = append(reads, time.Now())
					return fakedynamo.Fault{}
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				require.ErrorIs(t, storetest.AwaitTurn(ctx, s.Store, key, req.Owner), context.DeadlineExceeded)
				last := len(reads) - 1
				require.InEpsilon(t, part*float64(first), float64(reads[1].Sub(reads[0])), 0.02)
				require.InEpsilon(t, part*float64(lockstore.Turn/2), float64(reads[last].Sub(reads[last-1])), 0.001)
			})
		}
	}
}

// A note comes back from a caller, and the clock may have been set since. Whatever they say, a waiter pauses, and reads
// within half a Turn.
func TestPauseAfterAnyNote(t *testing.T) {
	for _, note := range []lockstore.Note{"place 64", "place 64 0 0 60000000 true", "place 9000000000000000000 1 1 1 false", "place -1 9000000000000000000 -1 -1 true"} {
		bubble(t, string(note), func(t *testing.T) {
			_, s := newFake(t)
			held(t, s)
			req := join(t, s)
			began := time.Now()
			_, err := s.AwaitTurn(t.Context(), lockstore.Place{Key: key, Owner: req.Owner, Note: note})
			require.NoError(t, err)
			require.Greater(t, time.Since(began), time.Millisecond)
			require.LessOrEqual(t, time.Since(began), lockstore.Turn/2)
		})
	}
}

// Behind a lease whose work has started a place takes a write of its own, because the key may be in doubt. The row
// changes between the refusal of the acquire and this write, or it fails: the refusal is certain, unless the owner may
// have a place.
func TestPlaceByAWriteOfItsOwn(t *testing.T) {
	var full []any
	for n := range 65 {
		full = append(full, map[string]any{"S": fmt.Sprint("owner", n)})
	}
	const queueFull, granted, abandoned, slow, hangs = "F57 the queue is full", "F26 a copy of the acquire was granted the key", "F26 the acquire was abandoned", "F31 it is throttled", "F28 it hangs"
	for name, fault := range map[string]fakedynamo.Fault{queueFull: {}, granted: {}, abandoned: {}, slow: throttled, hangs: {In: time.Hour}} {
		bubble(t, name, func(t *testing.T) {
			service, s := newFake(t)
			require.NoError(t, s.MarkStarted(t.Context(), held(t, s)))
			req := request(time.Minute)
			req.JoinQueue = true
			me := fakedynamo.Value{"S": string(req.Owner)}
			service.Fault = func(r fakedynamo.Request) (f fakedynamo.Fault) {
				if r.N < 4 {
					return f
				}
				row := service.Row(table, key)
				switch name {
				case queueFull:
					row["queue"] = fakedynamo.Value{"L": full}
				case granted:
					row["owner"], row["fence"] = me, fakedynamo.Value{"N": "7"}
				case abandoned:
					row["released"] = me
				}
				service.SetRow(table, key, row)
				return fault
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			lease, err := s.Acquire(ctx, req)
			service.Wait()
			switch name {
			case granted:
				require.NoError(t, err)
				require.Equal(t, lockstore.Fence(7), lease.Fence)
			case abandoned:
				require.ErrorIs(t, err, lockstore.ErrLost)
			case hangs:
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.True(t, isUnknown(err), "%v", err)
			default:
				refused, ok := errors.AsType[*lockstore.Refused](err)
				require.True(t, ok, "%v", err)
				require.Zero(t, refused.QueuePosition)
			}
		})
	}
}

// An acquire whose outcome is unknown is abandoned. Between the read and the write of the abandon, the
// acquire arrives and takes a place, or the key. The abandon ends what it has taken.
func TestAcquireArrivesDuringItsAbandon(t *testing.T) {
	for _, most := range []int{1, 2} {
		for _, released := range []bool{false, true} {
			bubble(t, fmt.Sprintf("F26 MaxHolders %d, the turn of its place has come %v", most, released), func(t *testing.T) {
				service, s := newFake(t)
				lease := held(t, s)
				req := request(time.Minute)
				req.MaxHolders, req.JoinQueue = most, true
				if released {
					isRefused(t, s, req)
				}
				service.Fault = func(r fakedynamo.Request) fakedynamo.Fault {
					if strings.Contains(r.Update, "#abandoned") {
						service.Fault = nil
						other := newStore(t, service, 0, dynamostore.Options{})
						if released {
							require.NoError(t, other.Release(t.Context(), lease))
						}
						_, err := other.Acquire(t.Context(), req)
						require.Equal(t, released, err == nil, "%v", err)
					}
					return fakedynamo.Fault{}
				}
				require.NoError(t, s.Release(t.Context(), lockstore.Lease{Key: key, Owner: req.Owner}))
				status, err := s.Inspect(t.Context(), key)
				require.NoError(t, err)
				require.Equal(t, released, status.State == lockstore.Free, status.State)
				require.Zero(t, status.Waiting)
			})
		}
	}
}
