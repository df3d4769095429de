package dynamostore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore/internal/fakedynamo"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

// Somebody takes the last place of the queue between the read and the write of another: this one gets no place, and is told so.
func TestLastPlaceInsideAJoin(t *testing.T) {
	for _, shared := range []bool{false, true} {
		bubble(t, fmt.Sprintf("F57 shared %t", shared), func(t *testing.T) {
			service, s := newFake(t)
			joins := func(most int) int {
				req := request(time.Minute)
				req.JoinQueue, req.MaxHolders = true, most
				_, err := s.Acquire(t.Context(), req)
				refused, ok := errors.AsType[*lockstore.Refused](err)
				require.True(t, ok, "%v", err)
				return refused.QueuePosition
			}
			if shared {
				for range 2 {
					first := request(time.Minute)
					first.MaxHolders = 2
					acquired(t, s, first)
				}
			} else {
				acquired(t, s, request(time.Minute))
			}
			for n := range 63 {
				require.Equal(t, n+1, joins(2))
			}
			writes, last := 0, 0
			service.Fault = func(r fakedynamo.Request) (f fakedynamo.Fault) {
				if r.Action == "UpdateItem" {
					if writes++; writes == 1 {
						last = joins(2)
					}
				}
				return f
			}
			require.Zero(t, joins(2))
			require.Equal(t, 64, last)
			status, err := s.Inspect(t.Context(), key)
			require.NoError(t, err)
			require.Equal(t, 64, status.Waiting)
		})
	}
}

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
		1:  5 * time.Millisecond,
		3:  55 * time.Millisecond,
		21: 505 * time.Millisecond,
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
	type value = fakedynamo.Value
	stillHeld := func(t *testing.T, _ lockstore.Lease, err error) {
		answer, ok := errors.AsType[*lockstore.Refused](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, lockstore.Held, answer.State)
		require.Zero(t, answer.QueuePosition)
	}
	for name, c := range map[string]struct {
		change   func(row fakedynamo.Item, me value)
		fault    fakedynamo.Fault
		requests int // 0 is not known
		check    func(t *testing.T, lease lockstore.Lease, err error)
	}{
		"F57 the queue is full": {
			change:   func(row fakedynamo.Item, _ value) { row["queue"] = value{"L": full} },
			requests: 2, check: stillHeld,
		},
		"F26 a copy of the acquire was granted the key": {
			change:   func(row fakedynamo.Item, me value) { row["owner"], row["fence"] = me, value{"N": "7"} },
			requests: 3,
			check: func(t *testing.T, lease lockstore.Lease, err error) {
				require.NoError(t, err)
				require.Equal(t, lockstore.Fence(7), lease.Fence)
			},
		},
		"F26 the acquire was abandoned": {
			change:   func(row fakedynamo.Item, me value) { row["released"] = me },
			requests: 2,
			check:    func(t *testing.T, _ lockstore.Lease, err error) { require.ErrorIs(t, err, lockstore.ErrLost) },
		},
		"F31 it is throttled": {fault: throttled, check: stillHeld},
		"F28 it hangs": {fault: fakedynamo.Fault{In: time.Hour}, check: func(t *testing.T, _ lockstore.Lease, err error) {
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.True(t, isUnknown(err), "%v", err)
		}},
	} {
		bubble(t, name, func(t *testing.T) {
			service, s := newFake(t)
			require.NoError(t, s.MarkStarted(t.Context(), held(t, s)))
			req := request(time.Minute)
			req.JoinQueue = true
			service.Fault = func(r fakedynamo.Request) (f fakedynamo.Fault) {
				if r.N < 4 {
					return f
				}
				if c.change != nil {
					row := service.Row(table, key)
					c.change(row, value{"S": string(req.Owner)})
					service.SetRow(table, key, row)
				}
				return c.fault
			}
			before := service.Requests()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			lease, err := s.Acquire(ctx, req)
			service.Wait()
			c.check(t, lease, err)
			if c.requests > 0 {
				require.Equal(t, c.requests, service.Requests()-before)
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

// testAddress is about the row of an address. It runs on DynamoDB Local, see TestOnDynamoDBLocal.
func testAddress(t *testing.T, client *dynamodb.Client) {
	ctx, r := t.Context(), lockTable(client)
	store := newStoreOver(t, client, 0, dynamostore.Options{})
	p := store.Driver().(driver.Parker)
	const key, owner = "address/7", "OWNEROWNEROWNER"
	name := store.AddressRow(key, owner)
	require.Error(t, lockstore.ValidateKey(name))
	both := func() map[string]error {
		_, taken := p.TakeAddress(ctx, key, owner)
		return map[string]error{"put": p.PutAddress(ctx, key, owner, driver.Secret("new"), time.Hour), "take": taken}
	}

	for range 2 { // also in the row of one that was taken
		require.NoError(t, p.PutAddress(ctx, key, owner, driver.Secret("one"), time.Hour))
		row := r.get(t, name)
		require.InDelta(t, time.Now().Add(time.Hour).Unix(), number(t, row, "ttl"), 5)
		require.NotContains(t, dump(row), owner)
		got, err := p.TakeAddress(ctx, key, owner)
		require.NoError(t, err)
		require.Equal(t, "one", string(got))
		require.NotContains(t, r.get(t, name), "kept")
	}

	named := newStoreOver(t, client, 0, dynamostore.Options{TTL: "other"}).Driver().(driver.Parker)
	require.ErrorIs(t, named.PutAddress(ctx, key, owner, driver.Secret("new"), time.Hour), lockstore.ErrCorrupt, "F50")
	_, err := named.TakeAddress(ctx, key, owner)
	require.ErrorIs(t, err, lockstore.ErrCorrupt, "F50")

	for _, row := range []item{{}, {"balance": n("7")}, {"balance": n("7"), "ttl": n("99999999999")}, {"kept": s("7"), "ttl": n("99999999999")}} {
		r.put(t, name, row)
		before := dump(r.get(t, name))
		for what, err := range both() {
			require.ErrorIs(t, err, lockstore.ErrCorrupt, "%s, %s", what, before)
		}
		require.Equal(t, before, dump(r.get(t, name)))
	}
	r.put(t, name, nil)
}

// A policy may name the beginning of the keys, and DynamoDB bounds their length.
func TestNameOfAnAddress(t *testing.T) {
	for _, prefix := range []string{"", strings.Repeat("p", 1024)} {
		store := newStore(t, fakedynamo.New(table), 0, dynamostore.Options{Prefix: prefix})
		names := map[string]bool{}
		for _, key := range []string{"a", "b", strings.Repeat("é", 512), strings.Repeat("k", 1023) + "1", strings.Repeat("k", 1023) + "2"} {
			for _, owner := range []driver.Owner{"OWNEROWNEROWNER", "other"} {
				name := store.AddressRow(key, owner)
				names[name] = true
				require.LessOrEqual(t, len(prefix+name), 2048)
				require.True(t, strings.HasPrefix(name, key[:min(len(key), 900)]), name)
				require.Equal(t, name, strings.ToValidUTF8(name, "?"))
				require.NotContains(t, name, string(owner))
			}
		}
		require.Len(t, names, 10)
	}
}

func TestAddressWhoseReplyIsLost(t *testing.T) {
	bubble(t, "F23", func(t *testing.T) {
		service := fakedynamo.New(table)
		service.Fault = on(fakedynamo.Fault{LoseReply: io.ErrUnexpectedEOF}, 1, 5) // the SDK sends the first again, and it finds its own address
		s := newStore(t, service, 0, dynamostore.Options{})
		p := s.Driver().(driver.Parker)
		require.NoError(t, p.PutAddress(t.Context(), key, "a", driver.Secret("token"), time.Hour))
		require.Zero(t, listed(t, s, ""), "the row of an address is neither a lock nor damaged")
		_, err := p.TakeAddress(t.Context(), key, "a")
		require.True(t, isUnknown(err), "%v", err)
		require.NotContains(t, err.Error(), "token")
		address, err := p.TakeAddress(t.Context(), key, "a")
		require.NoError(t, err)
		require.Empty(t, address)
		require.Zero(t, listed(t, s, ""), "nor is it when the address is taken")
	})
}

func park(owner string) lockstore.Request {
	return lockstore.Request{Key: key, Owner: lockstore.Owner(owner), TTL: time.Minute, JoinQueue: true, Parked: 30 * time.Second, Address: lockstore.TaskToken("token-of-" + owner)}
}

// Those who park at the same time do not see each other, and have half of the places together.
func TestManyParkAtOnce(t *testing.T) {
	bubble(t, "60", func(t *testing.T) {
		service := fakedynamo.New(table)
		service.Fault = rtt
		s := newStore(t, service, 0, dynamostore.Options{})
		held(t, s)
		var all sync.WaitGroup
		for n := range 60 {
			all.Go(func() {
				_, err := s.Acquire(t.Context(), park(fmt.Sprint("run", n)))
				assert.ErrorIs(t, err, lockstore.ErrRefused)
			})
		}
		all.Wait()
		status, err := s.Inspect(t.Context(), key)
		require.NoError(t, err)
		require.Equal(t, []int{32, 32}, []int{status.Waiting, status.Parked})
	})
}

// The answer names who is parked, also if the first reply was lost, or if one has joined after the row was read.
func TestWhoIsWoken(t *testing.T) {
	for _, what := range []string{"F23 a release whose reply is lost", "F23 a release of a revoked lease whose reply is lost", "one joins before it is resolved"} {
		bubble(t, what, func(t *testing.T) {
			service, store := newFake(t)
			lease := held(t, store)
			_, err := store.Acquire(t.Context(), park("first"))
			require.ErrorIs(t, err, lockstore.ErrRefused)
			q := driver.Request{Kind: driver.Release, Owner: lease.Owner, Fence: lease.Fence}
			outcome, wake, fault := driver.Done, []driver.Owner{"first"}, fakedynamo.Fault{LoseReply: io.ErrUnexpectedEOF}
			switch {
			case strings.Contains(what, "revoked"):
				_, err := store.Revoke(t.Context(), lockstore.RevokeRequest{Key: key, Fence: lease.Fence, By: lockstore.HolderInfo{Name: "me"}})
				require.NoError(t, err)
				outcome = driver.Lost
			case strings.Contains(what, "resolved"):
				require.NoError(t, store.MarkStarted(t.Context(), lease))
				pass(2 * time.Minute)
				q = driver.Request{Kind: driver.Resolve, Fence: lease.Fence, TTL: time.Minute, Effect: true}
				wake, fault = append(wake, "late"), fakedynamo.Fault{}
			}
			last := service.Requests() + 2 // the write that changes the row
			service.Fault = func(r fakedynamo.Request) (f fakedynamo.Fault) {
				if r.N == last {
					f = fault
				}
				if r.N == last && q.Kind == driver.Resolve {
					row := fakeRows{service}.get(t, key)
					queue := row["queue"].(*types.AttributeValueMemberL)
					queue.Value = append(queue.Value, s("late 1 30000"))
					fakeRows{service}.put(t, key, row)
				}
				return f
			}
			a, err := store.Driver().Do(t.Context(), key, q)
			require.NoError(t, err)
			require.Equal(t, outcome, a.Outcome)
			require.Equal(t, wake, a.Wake)
		})
	}
}

// A renewal for less than what is left of a parked place's turn extends the hand-over, too.
func TestRenewOfAParkedHandOver(t *testing.T) {
	bubble(t, "10s", func(t *testing.T) {
		s := newStore(t, fakedynamo.New(table), 0, dynamostore.Options{})
		lease := held(t, s)
		_, err := s.Acquire(t.Context(), park("first"))
		require.ErrorIs(t, err, lockstore.ErrRefused)
		require.NoError(t, s.Release(t.Context(), lease))
		status, err := s.Inspect(t.Context(), key)
		require.NoError(t, err)
		require.Equal(t, lockstore.Reserved, status.State)
		pass(10 * time.Second)
		renewed, err := s.Renew(t.Context(), lockstore.Lease{Key: key, Owner: "first", Fence: status.Fence}, 10*time.Second)
		require.NoError(t, err)
		require.Greater(t, renewed.TTL, 29*time.Second, "as the rule book says, a whole turn from now on")
		status, err = s.Inspect(t.Context(), key)
		require.NoError(t, err)
		require.Equal(t, lockstore.Held, status.State)
	})
}
