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

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore/internal/fakedynamo"
)

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
		service.Fault = on(fakedynamo.Fault{LoseReply: io.ErrUnexpectedEOF}, 1, 3)
		p := newStore(t, service, 0, dynamostore.Options{}).Driver().(driver.Parker)
		require.NoError(t, p.PutAddress(t.Context(), key, "a", driver.Secret("token"), time.Hour))
		_, err := p.TakeAddress(t.Context(), key, "a")
		require.True(t, isUnknown(err), "%v", err)
		require.NotContains(t, err.Error(), "token")
		address, err := p.TakeAddress(t.Context(), key, "a")
		require.NoError(t, err)
		require.Empty(t, address)
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
