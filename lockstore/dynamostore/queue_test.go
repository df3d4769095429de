package dynamostore_test

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore/internal/fakedynamo"
)

// Of those who found the queue full, the fewer go on when a place is free, the more share the key: each holder writes, too.
func TestFewGoOnWhileManyShare(t *testing.T) {
	bubble(t, "F57", func(t *testing.T) {
		_, s := newFake(t)
		sharing(t, s, lockstore.MaxHolders)
		for range 32 {
			require.Positive(t, refusal(t, s, queued(lockstore.MaxHolders)).QueuePosition)
		}
		joined := 0
		for range 64 {
			req := queued(lockstore.MaxHolders)
			req.Hint = `{"Full":true}`
			if refusal(t, s, req).QueuePosition > 0 {
				joined++
			}
		}
		require.Less(t, joined, 24, "an eighth of them is wanted; with the room of one holder it would be half at least")
	})
}

// join takes a place.
func join(t *testing.T, s *dynamostore.Store) lockstore.Request {
	t.Helper()
	req := queued(1)
	req.Hint = refusal(t, s, req).Hint
	return req
}

// awaitTurn waits as a guard does. The lease has no fence if the owner has to ask.
func awaitTurn(t *testing.T, s *dynamostore.Store, req *lockstore.Request) lockstore.Lease {
	t.Helper()
	for {
		news, err := s.AwaitTurn(t.Context(), *req, 0)
		require.NoError(t, err)
		req.Hint = news.Hint
		if news.Ask || news.Lease.Fence != 0 {
			return news.Lease
		}
	}
}

// A note comes back from a caller, and the clock may have been set since. Whatever they say, a waiter pauses, and reads
// within half a Turn. Without the right to read, it asks then and not before.
func TestPauses(t *testing.T) {
	for _, note := range []lockstore.Hint{
		`{"Place":64}`, `{"Place":64,"Since":"1970-01-01T00:00:00Z","Pace":60000000000,"Steady":true}`, `{"Place":9000000000000000000,"Fence":1,"Pace":9000000000000000000}`,
		`{"Place":-1,"Since":"9999-12-31T23:59:59Z","Fence":-1,"Pace":-1,"Steady":true}`, `{"Place":-1,"Since":"no time"`, "no note",
	} {
		bubble(t, string(note), func(t *testing.T) {
			service, s := newFake(t)
			held(t, s)
			req := join(t, s)
			for _, least := range []time.Duration{time.Millisecond, lockstore.TurnTime/2 - time.Millisecond} {
				req.Hint = note
				began := time.Now()
				news, err := s.AwaitTurn(t.Context(), req, 0)
				require.NoError(t, err)
				require.Greater(t, time.Since(began), least)
				require.LessOrEqual(t, time.Since(began), lockstore.TurnTime/2)
				require.Equal(t, service.Fault != nil, news.Ask)
				service.Fault = always(refused("AccessDeniedException", ""))
			}
		})
	}
}

// As many as come and go at the same time, 5 ms away, do not see each other. A queue has 64 places, at most half of them
// for those who park. Whoever finds it full learns this by one request from then on. Each of those who leave ends its
// place, by few writes.
func TestManyComeAndGoAtOnce(t *testing.T) {
	for _, holders := range []int{1, 2} {
		bubble(t, fmt.Sprint("F57 a key for ", holders), func(t *testing.T) {
			service, s := newFake(t)
			sharing(t, s, holders)
			service.Fault = rtt
			atOnce := func(asks ...lockstore.Request) {
				var all sync.WaitGroup
				for _, req := range asks {
					all.Go(func() {
						_, err := s.Acquire(t.Context(), req)
						assert.ErrorIs(t, err, lockstore.ErrRefused)
					})
				}
				all.Wait()
			}
			var parks, waits []lockstore.Request
			for n := range 34 {
				parks, waits = append(parks, park(fmt.Sprint("run", n))), append(waits, queued(holders))
			}
			atOnce(parks...)
			require.Equal(t, 32, inspected(t, s).Parked)
			atOnce(waits...)
			require.Equal(t, 64, inspected(t, s).Waiting)
			pass(time.Second) // a read may be old
			last := queued(2)
			for range 2 {
				costs(t, service, 0, 1, "the queue is full", func() {
					r := refusal(t, s, last)
					require.Zero(t, r.QueuePosition)
					last.Hint = r.Hint
				})
			}
			if holders > 1 {
				return
			}
			before := service.Actions()["UpdateItem"]
			var all sync.WaitGroup
			for _, req := range append(parks, waits...) {
				all.Go(func() { assert.NoError(t, s.Leave(t.Context(), key, req.Owner)) })
			}
			all.Wait()
			require.Zero(t, inspected(t, s).Waiting)
			require.LessOrEqual(t, service.Actions()["UpdateItem"]-before, 5*64)
		})
	}
}

// Between the read and the write of one that joins, one leaves and another one joins: as many wait, and they are others.
func TestAsManyOthersWait(t *testing.T) {
	for _, parks := range []bool{false, true} {
		bubble(t, fmt.Sprint("F57 parks ", parks), func(t *testing.T) {
			service, s := newFake(t)
			held(t, s)
			other := newStore(t, service, 0, dynamostore.Options{})
			ask, wait := func(n int) lockstore.Request { return coalescing(fmt.Sprint(n)) }, 1
			if parks {
				ask, wait = func(n int) lockstore.Request { return park(fmt.Sprint("run", n)) }, 32
			}
			leaves := join(t, other)
			for n := range wait - 1 {
				require.Positive(t, refusal(t, other, ask(n)).QueuePosition)
			}
			beforeWrite(service, 2, func() (f fakedynamo.Fault) { // the first one is the arrival, or that of the address
				require.NoError(t, other.Leave(t.Context(), key, leaves.Owner))
				require.Positive(t, refusal(t, other, ask(wait)).QueuePosition)
				return f
			})
			r := refusal(t, s, ask(wait+1))
			require.Nil(t, service.Fault)
			require.Zero(t, r.QueuePosition)
			require.Equal(t, !parks, r.Covered)
			require.Equal(t, wait, inspected(t, s).Waiting)
		})
	}
	bubble(t, "F26 an owner that came too late for its turn has one place, also if its write arrives again", func(t *testing.T) {
		service, s := newFake(t)
		lease := held(t, s)
		late := join(t, s)
		join(t, s)
		leaves := join(t, s)
		require.NoError(t, s.Release(t.Context(), lease))
		pass(lockstore.TurnTime + time.Second)
		service.Fault = func(r fakedynamo.Request) (f fakedynamo.Fault) {
			if r.Action == "UpdateItem" {
				f.Repeat = 100 * time.Millisecond
			}
			return f
		}
		require.Equal(t, 3, refusal(t, s, late).QueuePosition)
		service.Fault = nil
		require.NoError(t, s.Leave(t.Context(), key, leaves.Owner))
		service.Wait()
		require.Len(t, service.Row(key)["queue"]["L"], 6, "a place is two elements: of the hand-over that has lapsed, of one that waits, and of this owner")
	})
}

// Whoever joins or leaves a queue of a key that several hold sends one write, also if its owner is a word of the row.
func TestAnyOwnerJoinsSeveral(t *testing.T) {
	for _, owner := range []lockstore.Owner{"e", "owner", "1", `"`} {
		bubble(t, fmt.Sprintf("F57 %q", string(owner)), func(t *testing.T) {
			service, s := newFake(t)
			sharing(t, s, 2)
			req := queued(2)
			isRefused(t, s, req)
			req.Owner = owner
			costs(t, service, 1, 1, "it joins", func() { require.Equal(t, 2, refusal(t, s, req).QueuePosition) })
			costs(t, service, 1, 1, "it leaves", func() { require.NoError(t, s.Leave(t.Context(), key, owner)) })
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
				lease, req := held(t, s), queued(most)
				if released {
					isRefused(t, s, req)
				}
				beforeWrite(service, 1, func() (f fakedynamo.Fault) {
					other := newStore(t, service, 0, dynamostore.Options{})
					if released {
						require.NoError(t, other.Release(t.Context(), lease))
					}
					_, err := other.Acquire(t.Context(), req)
					require.Equal(t, released, err == nil, "%v", err)
					return f
				})
				require.NoError(t, s.Abandon(t.Context(), key, req.Owner))
				require.Nil(t, service.Fault)
				status := inspected(t, s)
				require.Equal(t, released, status.State == lockstore.Free, status.State)
				require.Zero(t, status.Waiting)
			})
		}
	}
}

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
			require.LessOrEqual(t, end.UnixMilli(), number(t, rowsOf(service).get(t, key), "expires"), "the end of the trust")
			service.Fault = nil
			requireTrustIsOver(t, service, end)
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
		require.InDelta(t, began.Add(slow+lockstore.TurnTime).UnixMilli(), number(t, rowsOf(service).get(t, key), "expires"), 1001)
	})
}

// The owner extends its hand-over while the correction is under way, which then makes the lease no shorter.
func TestCorrectionOfAnExtendedHandOver(t *testing.T) {
	const slow = lockstore.TurnTime - 200*time.Millisecond // so the hand-over is not over when the owner extends it
	bubble(t, "F18 F29", func(t *testing.T) {
		service, s, lease, req := waitedFor(t)
		before := service.Requests()
		service.Fault = on(fakedynamo.Fault{In: slow}, before+1, before+2)
		go func() { assert.NoError(t, s.Release(t.Context(), lease)) }()
		pass(slow + 10*time.Millisecond)
		require.Equal(t, 2, service.Requests()-before, "the correction is under way")
		req.Hint = ""
		acquired(t, newStore(t, service, 0, dynamostore.Options{}), req)
		end := number(t, rowsOf(service).get(t, key), "expires")
		pass(slow)
		require.Equal(t, end, number(t, rowsOf(service).get(t, key), "expires"))
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
			requireTrustIsOver(t, service, asked.Add(next.TTL))
		})
	}
}

// coalescing is a request for an event that another event's run of the same work may cover.
func coalescing(event string) lockstore.Request {
	req := queued(1)
	req.Work, req.Event = "reindex-ReindexFunction-1A2B3C4D5E6F", "059f36b4-87a3-44ab-83d2-66197"+event
	req.HolderInfo = lockstore.HolderInfo{Name: req.Work, ID: "8476a536-e9f4-11e8-9739-2dfe598c3fcd"}
	return req
}

func TestCoveredEvents(t *testing.T) {
	// DynamoDB reckons a refused write by the size of the row, one unit for each KB. With the names and ids of functions on AWS that is one unit.
	bubble(t, "a covered event costs one refused write of one unit, and a free key no more than without events", func(t *testing.T) {
		service, s := newFake(t)
		inspected(t, s) // the first request of a process learns the time
		costs(t, service, 2, 0, "a free key", func() { require.NoError(t, s.Release(t.Context(), acquired(t, s, coalescing("1")))) })
		lease := acquired(t, s, coalescing("1"))
		first := coalescing("2")
		costs(t, service, 1, 0, "the first that waits", func() { require.Equal(t, 1, refusal(t, s, first).QueuePosition) })
		row := service.Row(key)
		require.Less(t, rowSize(row), 1024)
		costs(t, service, 1, 0, "an event", func() {
			r := refusal(t, s, coalescing("3"))
			require.True(t, r.Covered)
			require.Zero(t, r.QueuePosition)
			require.Equal(t, lockstore.Held, r.State)
		})
		require.Equal(t, row, service.Row(key))
		costs(t, service, 2, 0, "an event that comes again", func() {
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
	bubble(t, "who found the queue full is not covered by a place that an old read has", func(t *testing.T) {
		_, s := newFake(t)
		lease := held(t, s)
		require.Equal(t, 1, refusal(t, s, coalescing("1")).QueuePosition)
		var full *lockstore.Refused
		for range 64 {
			full = refusal(t, s, queued(1))
		}
		require.Zero(t, full.QueuePosition)
		pass(time.Second)
		require.NoError(t, s.Release(t.Context(), lease)) // the run of the first event may begin
		req := coalescing("2")
		req.Hint = full.Hint
		require.False(t, refusal(t, s, req).Covered)
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

func park(owner string) lockstore.Request {
	return lockstore.Request{Key: key, Owner: lockstore.Owner(owner), TTL: time.Minute, JoinQueue: true, Parked: 30 * time.Second, Address: lockstore.TaskToken("token-of-" + owner)}
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

// An owner replaces its address while somebody takes the old one, or while the time to live deletes its row.
func TestAddressThatIsTakenMeanwhile(t *testing.T) {
	bubble(t, "taken, then deleted", func(t *testing.T) {
		service, s := newFake(t)
		p := s.Driver().(driver.Parker)
		for _, meanwhile := range []func(){
			func() {
				address, err := p.TakeAddress(t.Context(), key, "a")
				require.NoError(t, err)
				require.Equal(t, "old", string(address))
			},
			func() { service.SetRow(s.AddressRow(key, "a"), nil) },
		} {
			require.NoError(t, p.PutAddress(t.Context(), key, "a", driver.HiddenBytes("old"), time.Hour))
			beforeWrite(service, 2, func() (f fakedynamo.Fault) { meanwhile(); return f })
			require.NoError(t, p.PutAddress(t.Context(), key, "a", driver.HiddenBytes("new"), time.Hour))
			address, err := p.TakeAddress(t.Context(), key, "a")
			require.NoError(t, err)
			require.Equal(t, "new", string(address))
		}
	})
}

func TestAddressWhoseReplyIsLost(t *testing.T) {
	bubble(t, "F23", func(t *testing.T) {
		service := fakedynamo.New(table)
		service.Fault = on(fakedynamo.Fault{LoseReply: io.ErrUnexpectedEOF}, 1, 5) // the SDK sends the first again, and it finds its own address
		s := newStore(t, service, 0, dynamostore.Options{})
		p := s.Driver().(driver.Parker)
		require.NoError(t, p.PutAddress(t.Context(), key, "a", driver.HiddenBytes("token"), time.Hour))
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
					row := rowsOf(service).get(t, key)
					queue := row["queue"].(*types.AttributeValueMemberL)
					queue.Value = append(queue.Value, placeOf("late", item{"parked": n("30000")})...)
					rowsOf(service).put(t, key, row)
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
