package dynamostore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore/internal/fakedynamo"
)

// states are rows that one program has made, by what happened to its lease.
var states = []string{"", "release", "wait", "expire", "wait release", "revoke", "start", "start expire", "complete"}

func makeState(t *testing.T, s *dynamostore.Store, state string) lockstore.Lease {
	lease := held(t, s)
	for what := range strings.FieldsSeq(state) {
		var err error
		switch what {
		case "release":
			err = s.Release(t.Context(), lease)
		case "wait":
			join(t, s)
		case "expire":
			pass(time.Minute + takeoverDelay)
		case "revoke":
			_, err = s.Revoke(t.Context(), lockstore.RevokeRequest{Key: key, Fence: lease.Fence})
		case "start":
			err = s.MarkStarted(t.Context(), lease)
		case "complete":
			err = s.Complete(t.Context(), lease, []byte("result"), lockstore.MaxResultTime)
		}
		require.NoError(t, err, what)
	}
	return lease
}

// transact sends items in one transaction.
func transact(ctx context.Context, client *dynamodb.Client, items ...types.TransactWriteItem) error {
	_, err := client.TransactWriteItems(ctx, &dynamodb.TransactWriteItemsInput{TransactItems: items})
	return err
}

// addsOne adds 1 to a number in the caller's own item.
func addsOne(table string, key item, name string) types.TransactWriteItem {
	return types.TransactWriteItem{Update: &types.Update{
		TableName: &table, Key: key, UpdateExpression: aws.String("ADD " + name + " :one"), ExpressionAttributeValues: item{":one": n("1")},
	}}
}

// Two programs use one table, and name its time to live differently. Each would move its own
// attribute only, and DynamoDB could delete the row by the other. So each refuses the other's
// rows, at the first request, and leaves them as they are.
func TestAnotherNameOfTheTimeToLive(t *testing.T) {
	named := dynamostore.Options{TTL: "expires_at"}
	for _, c := range []struct {
		wrote, asks dynamostore.Options
		says        string
	}{
		{named, dynamostore.Options{}, `has no "ttl", the attribute of its time to live in this store's settings (ttl in the URL); it has "expires_at"`},
		{dynamostore.Options{}, named, `has no "expires_at", the attribute of its time to live in this store's settings (ttl in the URL); it has "ttl"`},
		{named, dynamostore.Options{TTL: "a", OtherTTL: "b"}, `it has "expires_at"`},
	} {
		for _, state := range states {
			bubble(t, fmt.Sprintf("F50 %s of %q, %s", c.asks.TTL, c.wrote.TTL, state), func(t *testing.T) {
				service := fakedynamo.New(table)
				lease := makeState(t, newStore(t, service, 0, c.wrote), state)
				before := service.Row(table, key)
				asks := newStore(t, service, 0, c.asks)
				calls := methods(asks, lease)
				calls["Acquire again"] = func(ctx context.Context) error {
					_, err := asks.Acquire(ctx, lockstore.Request{Key: key, Owner: lease.Owner, TTL: time.Minute})
					return err
				}
				for method, call := range calls {
					for range 2 { // also when the store knows DynamoDB's time and has sent fences
						sent := service.Requests()
						err := call(t.Context())
						require.ErrorIs(t, err, lockstore.ErrCorrupt, method)
						require.ErrorContains(t, err, c.says, method)
						require.NotErrorIs(t, err, lockstore.ErrLost, method)
						require.Equal(t, sent+1, service.Requests(), method)
						require.Equal(t, before, service.Row(table, key), method)
					}
				}
				client := dynamostore.ClientOver(service, fakeEndpoint, 0)
				for what, in := range map[string]types.TransactWriteItem{
					"StillHeld":    asks.StillHeld(key, lease.Fence),
					"CompleteItem": asks.CompleteItem(key, lease.Fence, nil, time.Hour),
				} {
					err := transact(t.Context(), client, in)
					_, cancelled := errors.AsType[*types.TransactionCanceledException](err)
					require.True(t, cancelled, "%s: %v", what, err)
					require.False(t, asks.IsStale(err, lease.Fence), what)
					require.Equal(t, before, service.Row(table, key), what)
				}
				require.NoError(t, asks.List(t.Context(), "", func(p lockstore.Page) error {
					require.Equal(t, 1, p.Damaged)
					require.Empty(t, p.Keys)
					return nil
				}))
			})
		}
	}
}

// The error names numbers that are not a lock's own, and no more than four of them.
func TestNamesInTheErrorOfAnotherTimeToLive(t *testing.T) {
	service := fakedynamo.New(table)
	store := newStore(t, service, 0, dynamostore.Options{})
	row := item{"last": n("1"), "released": s("ME"), "note": s("7"), "balance": n("5")}
	fakeRows{service}.put(t, key, row)
	_, err := store.Inspect(t.Context(), key)
	require.ErrorContains(t, err, `it has "balance":`)
	for i := range 9 {
		row[fmt.Sprint("n", i)] = n("1")
	}
	fakeRows{service}.put(t, key, row)
	_, err = store.Inspect(t.Context(), key)
	require.ErrorContains(t, err, `it has "balance", "n0", "n1", "n2":`)
	fakeRows{service}.put(t, key, item{"last": n("1")})
	_, err = store.Inspect(t.Context(), key)
	require.ErrorContains(t, err, "it has no other number that could be it")
}

// In the middle of a change each write that sets the time to live leaves one attribute in the
// row, also if it had both.
func TestOneTimeToLiveInARow(t *testing.T) {
	changes := dynamostore.Options{TTL: "expires_at", OtherTTL: "ttl"}
	var writes atomic.Int64
	for _, state := range states {
		for method := range methods(nil, lockstore.Lease{}) {
			bubble(t, state+", "+method, func(t *testing.T) {
				service := fakedynamo.New(table)
				lease := makeState(t, newStore(t, service, 0, dynamostore.Options{}), state)
				row := fakeRows{service}.get(t, key)
				row["expires_at"] = n("1")
				fakeRows{service}.put(t, key, row)
				err := methods(newStore(t, service, 0, changes), lease)[method](t.Context())
				require.NotErrorIs(t, err, lockstore.ErrCorrupt)
				now := fakeRows{service}.get(t, key)
				if !assert.ObjectsAreEqual(row, now) {
					require.NotContains(t, now, "ttl")
					require.Greater(t, number(t, now, "expires_at"), time.Now().Add(23*time.Hour).Unix())
					writes.Add(1)
				}
			})
		}
	}
	require.Greater(t, writes.Load(), int64(15))
}
