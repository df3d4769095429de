package dynamostore_test

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore/internal/fakedynamo"
)

// Somebody takes the last place of the queue between the read and the write of another: this one gets no place, and is told so. From
// then on one request is enough for a refusal.
func TestLastPlaceInsideAJoin(t *testing.T) {
	for _, holders := range []int{1, 2} {
		bubble(t, fmt.Sprint("F57 of a key for ", holders), func(t *testing.T) {
			service, s := newFake(t)
			sharing(t, s, holders)
			joins := func() int { return refusal(t, s, queued(2)).QueuePosition }
			for n := range 63 {
				require.Equal(t, n+1, joins())
			}
			last := 0
			beforeWrite(service, 1, func() (f fakedynamo.Fault) { last = joins(); return f })
			require.Zero(t, joins())
			require.Equal(t, 64, last)
			require.Equal(t, 64, inspected(t, s).Waiting)
			before := service.Requests()
			require.Zero(t, joins())
			require.Equal(t, 1, service.Requests()-before)
		})
	}
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
// within half a Turn.
func TestPauseAfterAnyNote(t *testing.T) {
	for _, note := range []lockstore.Hint{"place 64", "place 64 0 0 60000000 true", "place 9000000000000000000 1 1 1 false", "place -1 9000000000000000000 -1 -1 true"} {
		bubble(t, string(note), func(t *testing.T) {
			_, s := newFake(t)
			held(t, s)
			req := join(t, s)
			began := time.Now()
			req.Hint = note
			_, err := s.AwaitTurn(t.Context(), req, 0)
			require.NoError(t, err)
			require.Greater(t, time.Since(began), time.Millisecond)
			require.LessOrEqual(t, time.Since(began), lockstore.TurnTime/2)
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
		return map[string]error{"put": p.PutAddress(ctx, key, owner, driver.HiddenBytes("new"), time.Hour), "take": taken}
	}

	for range 2 { // also in the row of one that was taken
		require.NoError(t, p.PutAddress(ctx, key, owner, driver.HiddenBytes("one"), time.Hour))
		row := r.get(t, name)
		require.InDelta(t, time.Now().Add(time.Hour).Unix(), number(t, row, "ttl"), 5)
		require.NotContains(t, dump(row), owner)
		got, err := p.TakeAddress(ctx, key, owner)
		require.NoError(t, err)
		require.Equal(t, "one", string(got))
		require.NotContains(t, r.get(t, name), "result")
	}

	named := newStoreOver(t, client, 0, dynamostore.Options{TTL: "other"}).Driver().(driver.Parker)
	require.ErrorIs(t, named.PutAddress(ctx, key, owner, driver.HiddenBytes("new"), time.Hour), lockstore.ErrCorrupt, "F50")
	_, err := named.TakeAddress(ctx, key, owner)
	require.ErrorIs(t, err, lockstore.ErrCorrupt, "F50")

	for _, row := range []item{{}, {"balance": n("7")}, {"balance": n("7"), "ttl": n("99999999999")}, {"result": s("7"), "ttl": n("99999999999")}} {
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
		status := inspected(t, s)
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
					queue.Value = append(queue.Value, placeOf("late", item{"parked": n("30000")})...)
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
