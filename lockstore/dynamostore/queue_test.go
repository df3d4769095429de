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
		service, s := newFake(t)
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

// A waiter is handed the key by its own read. One request extends the lease. A dead holder's key is
// taken over after a read.
func TestRequestsAfterAwaitTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service, s := newFake(t)
		holder, err := s.Acquire(t.Context(), request(time.Minute))
		require.NoError(t, err)
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
		lease, err = s.Acquire(t.Context(), first)
		require.NoError(t, err)
		require.Greater(t, lease.TTL, 50*time.Second)
		require.NoError(t, s.Release(t.Context(), lease))
		require.Equal(t, 2, service.Actions()["UpdateItem"]-before["UpdateItem"], "the extension and the hand-over")
		require.Equal(t, before["GetItem"], service.Actions()["GetItem"])

		lease = awaitTurn(t, s, &second)
		third := join(t, s)
		pass(lockstore.Turn + dateSteps)
		_, err = s.Acquire(t.Context(), second)
		refused, ok := errors.AsType[*lockstore.Refused](err)
		require.True(t, ok && refused.QueuePosition == 2, "its hand-over has lapsed, and it asks like any other: %v", err)
		news, err := s.AwaitTurn(t.Context(), lockstore.Place{Key: key, Owner: second.Owner, Note: refused.Note})
		require.NoError(t, err)
		require.False(t, news.Ask || news.Lease.Fence != 0, "it has to wait for its new turn")
		require.NoError(t, s.Leave(t.Context(), key, second.Owner))
		require.Zero(t, awaitTurn(t, s, &third).Fence, "nobody has handed it the key")
		before = service.Actions()
		next, err := s.Acquire(t.Context(), third)
		require.NoError(t, err)
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
	for _, c := range []struct {
		place int
		first time.Duration // the longest pause at first; after a minute it is half a Turn
	}{
		{1, 5 * time.Millisecond},
		{3, 55 * time.Millisecond},
		{21, 505 * time.Millisecond},
	} {
		for _, longest := range []bool{false, true} {
			bubble(t, fmt.Sprint("place ", c.place, " longest ", longest), func(t *testing.T) {
				service, s := newFake(t)
				want := []float64{7. / 8 * float64(c.first), 7. / 8 * float64(lockstore.Turn/2)}
				s.SetRandom(func(time.Duration) time.Duration { return 0 })
				if longest {
					want = []float64{float64(c.first), float64(lockstore.Turn / 2)}
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
				require.InEpsilon(t, want[0], float64(reads[1].Sub(reads[0])), 0.02)
				require.InEpsilon(t, want[1], float64(reads[last].Sub(reads[last-1])), 0.001)
			})
		}
	}
}

// A note comes back from a caller, and the clock may have been set since. Whatever they say, a waiter pauses, and reads
// within half a Turn.
func TestPauseAfterAnyNote(t *testing.T) {
	for _, note := range []string{"place 64", "place 64 0 0 60000000 true", "place 9000000000000000000 1 1 1 false", "place -1 9000000000000000000 -1 -1 true"} {
		bubble(t, note, func(t *testing.T) {
			s := newStore(t, fakedynamo.New(table), 0, dynamostore.Options{})
			_, err := s.Acquire(t.Context(), request(time.Hour))
			require.NoError(t, err)
			req := request(time.Minute)
			req.JoinQueue = true
			_, err = s.Acquire(t.Context(), req)
			require.ErrorIs(t, err, lockstore.ErrRefused)
			began := time.Now()
			_, err = s.AwaitTurn(t.Context(), lockstore.Place{Key: key, Owner: req.Owner, Note: lockstore.Note(note)})
			require.NoError(t, err)
			require.Greater(t, time.Since(began), time.Millisecond)
			require.LessOrEqual(t, time.Since(began), lockstore.Turn/2)
		})
	}
}

// startWork takes a lease whose work has started. Behind it a place takes a write of its own, because the
// key may be in doubt.
func startWork(t *testing.T, s *dynamostore.Store) {
	t.Helper()
	lease, err := s.Acquire(t.Context(), request(time.Minute))
	require.NoError(t, err)
	require.NoError(t, s.MarkStarted(t.Context(), lease))
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
			full := []any{map[string]any(row["owner"])}
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
		bubble(t, name, func(t *testing.T) {
			service, s := newFake(t)
			startWork(t, s)
			req := request(time.Minute)
			req.JoinQueue = true
			service.Fault = func(r fakedynamo.Request) fakedynamo.Fault {
				if r.N == 4 {
					row := service.Row(table, key)
					c.change(row, req.Owner)
					service.SetRow(table, key, row)
				}
				return fakedynamo.Fault{}
			}
			lease, err := s.Acquire(t.Context(), req)
			c.check(t, lease, err)
			require.Equal(t, c.requests, service.Requests()-2)
		})
	}
}

// The refusal of an acquire is certain, also if its request for a place fails.
func TestPlaceThatIsNotAsked(t *testing.T) {
	for name, fault := range map[string]fakedynamo.Fault{
		"F31 it is throttled": {Refuse: &fakedynamo.Failure{Status: 400, Code: "ThrottlingException"}},
		"F28 it hangs":        {In: time.Hour},
	} {
		bubble(t, name, func(t *testing.T) {
			service, s := newFake(t)
			startWork(t, s)
			service.Fault = func(r fakedynamo.Request) fakedynamo.Fault {
				if r.N > 3 {
					return fault
				}
				return fakedynamo.Fault{}
			}
			req := request(time.Minute)
			req.JoinQueue = true
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := s.Acquire(ctx, req)
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
	}
}

// An acquire whose outcome is unknown is abandoned. Between the read and the write of the abandon, the
// acquire arrives and takes a place, or the key. The abandon ends what it has taken.
func TestAcquireArrivesDuringItsAbandon(t *testing.T) {
	for name, c := range map[string]struct {
		maxHolders      int
		waits, released bool // before the abandon; while it writes
	}{
		"F26 it takes the place's turn":               {1, true, true},
		"F26 it takes a place":                        {1, false, false},
		"F26 it takes a place, MaxHolders 2":          {2, false, false},
		"F26 it takes the place's turn, MaxHolders 2": {2, true, true},
	} {
		bubble(t, name, func(t *testing.T) {
			service := fakedynamo.New(table)
			s, other := newStore(t, service, 0, dynamostore.Options{}), newStore(t, service, 0, dynamostore.Options{})
			lease, err := s.Acquire(t.Context(), request(time.Minute))
			require.NoError(t, err)
			req := request(time.Minute)
			req.MaxHolders, req.JoinQueue = c.maxHolders, true
			if c.waits {
				_, err = s.Acquire(t.Context(), req)
				require.ErrorIs(t, err, lockstore.ErrRefused)
			}
			service.Fault = func(r fakedynamo.Request) fakedynamo.Fault {
				if strings.Contains(r.Update, "#abandoned") {
					service.Fault = nil
					if c.released {
						require.NoError(t, other.Release(t.Context(), lease))
					}
					_, err := other.Acquire(t.Context(), req)
					require.Equal(t, c.released, err == nil, "%v", err)
				}
				return fakedynamo.Fault{}
			}
			require.NoError(t, s.Release(t.Context(), lockstore.Lease{Key: key, Owner: req.Owner}))
			status, err := s.Inspect(t.Context(), key)
			require.NoError(t, err)
			require.Equal(t, c.released, status.State == lockstore.Free, status.State)
			require.Zero(t, status.Waiting)
		})
	}
}
