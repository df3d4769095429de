package dynamostore_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
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

// appTable is a table of an application, which has its own items in it.
const (
	appTable = "app"
	profile  = "profile#1" // sort key of an item that is no lock
)

var appNames = dynamostore.Options{Key: "PK", Sort: "SK", Prefix: "LOCK#", TTL: "expires_at"}

// lockKey is the primary key of a lock's row in that table.
func lockKey(key string) item {
	return item{"PK": s(appNames.Prefix + key), "SK": s("lambdalock")}
}

func makeAppTable(t testing.TB, client *dynamodb.Client) {
	t.Helper()
	text := func(name string) types.AttributeDefinition {
		return types.AttributeDefinition{AttributeName: &name, AttributeType: types.ScalarAttributeTypeS}
	}
	create(t, client, "expires_at", &dynamodb.CreateTableInput{
		TableName:              aws.String(appTable),
		AttributeDefinitions:   []types.AttributeDefinition{text("PK"), text("SK"), text("state")},
		KeySchema:              keys("PK", "SK"),
		GlobalSecondaryIndexes: []types.GlobalSecondaryIndex{{IndexName: aws.String("by-state"), Projection: &types.Projection{ProjectionType: types.ProjectionTypeAll}, KeySchema: keys("state", "")}},
	})
}

// appStore keeps its locks in appTable, which can do all that a table for locks alone can do.
func appStore(t testing.TB, client *dynamodb.Client) *dynamostore.Store {
	s, err := dynamostore.New(client, appTable, appNames)
	require.NoError(t, err)
	return s
}

// testApp is about other items in the table, Check, and stores with other settings. It runs on DynamoDB Local, see
// TestOnDynamoDBLocal.
func testApp(t *testing.T, client *dynamodb.Client) {
	ctx, store := t.Context(), appStore(t, client)
	const key = "transaction"
	again := lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: time.Minute}
	lease := acquired(t, store, again)
	beside := item{"PK": s(appNames.Prefix + key), "SK": s(profile)} // with the name of a lock's attribute
	require.NoError(t, transact(ctx, client, addsOne(appTable, beside, "fence"), addsOne(appTable, item{"PK": s("user#1"), "SK": s(profile)}, "logins"), store.StillHeld(key, lease.Fence)))
	all := listed(t, store, key)
	require.Len(t, all.Keys, 1)
	require.Zero(t, all.Damaged)

	named := appNames
	named.TTL = "other"
	other, err := dynamostore.New(client, appTable, named)
	require.NoError(t, err)
	for what, in := range map[string]types.TransactWriteItem{
		"StillHeld": other.StillHeld(key, lease.Fence), "CompleteItem": other.CompleteItem(key, lease.Fence, nil, time.Hour),
	} {
		err := transact(ctx, client, in)
		_, cancelled := errors.AsType[*types.TransactionCanceledException](err)
		require.True(t, cancelled, "F50 %s: %v", what, err)
		require.False(t, other.IsStale(err, lease.Fence), what)
	}
	require.Equal(t, lease.Fence, acquired(t, store, again).Fence, "it is as it was")

	wrong, err := dynamostore.New(client, appTable, dynamostore.Options{})
	require.NoError(t, err)
	_, err = wrong.Acquire(ctx, again)
	require.ErrorIs(t, err, lockstore.ErrCorrupt)
	require.ErrorContains(t, err, `the partition key "key" of type S and no sort key`)
	findings, err := store.Check(ctx)
	require.NoError(t, err)
	require.Empty(t, findings, "a lock's row is in no index")
	findings, err = wrong.Check(ctx)
	require.NoError(t, err)
	require.Len(t, findings, 2)
	assert.Contains(t, findings[0].Problem, "PK S HASH, SK S RANGE")
	assert.Contains(t, findings[1].Problem, `on the attribute "expires_at", and this store writes "ttl"`)
}

func TestNames(t *testing.T) {
	local := map[string]string{}
	open := func(query string) error {
		_, err := dynamostore.Open(t.Context(), config(t, "dynamodb://app?endpoint=http://127.0.0.1:8000&"+query, local))
		return err
	}
	for _, query := range []string{"key=PK&sort=SK&prefix=LOCK%23&ttl=expires_at", "key=id", "ttl=expiry", "prefix=a", "sort=key2", "key=ttl&ttl=key", "prefix=" + strings.Repeat("p", 1024)} {
		require.NoError(t, open(query), query)
	}
	for query, says := range map[string]string{
		"ttl=expires":                         `TTL is "expires", which is another attribute`,
		"key=owner":                           `Key is "owner"`,
		"sort=fence":                          `Sort is "fence"`,
		"sort=result":                         `Sort is "result"`,
		"sort=size":                           `Sort is "size"`,
		"ttl=started":                         `TTL is "started"`,
		"key=PK&sort=PK":                      `Sort is "PK"`,
		"key=ttl":                             `TTL is "ttl"`,
		"key=":                                "the parameter key without a value",
		"sort=":                               "the parameter sort without a value",
		"key=" + strings.Repeat("k", 256):     "Key is no name",
		"prefix=" + strings.Repeat("p", 1025): "Prefix has 1025 bytes",
		"prefix=%FF":                          "Prefix",
	} {
		err := open(query)
		require.ErrorIs(t, err, lockstore.ErrInvalid, query)
		require.ErrorContains(t, err, says, query)
	}
}

// states are rows that one program has made, by what happened to its lease.
var states = []string{"held", "release", "wait", "expire", "wait release", "revoke", "start", "start expire", "complete"}

func makeState(t *testing.T, s *dynamostore.Store, state string) lockstore.Lease {
	lease := held(t, s)
	for what := range strings.FieldsSeq(state) {
		var err error
		switch what {
		case "held":
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
		default:
			t.Fatal(what)
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
	} {
		for _, state := range states {
			bubble(t, fmt.Sprintf("F50 %s of %s, %s", cmp.Or(c.asks.TTL, "ttl"), cmp.Or(c.wrote.TTL, "ttl"), state), func(t *testing.T) {
				service := fakedynamo.New(table)
				lease := makeState(t, newStore(t, service, 0, c.wrote), state)
				before := service.Row(key)
				pass(time.Second) // a read may bring an older row
				asks := newStore(t, service, 0, c.asks)
				calls := methods(asks, lease)
				calls["Revoke at once"] = func(ctx context.Context) error {
					_, err := asks.Revoke(ctx, lockstore.RevokeRequest{Key: key, Fence: lease.Fence, OpenAtOnce: true})
					return err
				}
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
						require.Equal(t, before, service.Row(key), method)
					}
				}
				all := listed(t, asks, "")
				require.Equal(t, 1, all.Damaged)
				require.Empty(t, all.Keys)
			})
		}
	}
}
