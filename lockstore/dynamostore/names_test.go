package dynamostore_test

import (
	"errors"
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
)

// appTable is a table of an application, which has its own items in it.
const (
	appTable = "app"
	profile  = "profile#1" // sort key of an item that is no lock
)

var appNames = dynamostore.Options{Key: "PK", Sort: "SK", Prefix: "LOCK#", TTL: "expires_at"}

// lockKey is the primary key of a lock's row in that table.
func lockKey(key string) item {
	return item{"PK": s(appNames.Prefix + key), "SK": s(dynamostore.SortValue)}
}

func makeAppTable(t testing.TB, client *dynamodb.Client) {
	t.Helper()
	text := func(name string) types.AttributeDefinition {
		return types.AttributeDefinition{AttributeName: &name, AttributeType: types.ScalarAttributeTypeS}
	}
	create(t, client, "expires_at", &dynamodb.CreateTableInput{
		TableName:            aws.String(appTable),
		AttributeDefinitions: []types.AttributeDefinition{text("PK"), text("SK"), text("state")},
		KeySchema:            []types.KeySchemaElement{{AttributeName: aws.String("PK"), KeyType: types.KeyTypeHash}, {AttributeName: aws.String("SK"), KeyType: types.KeyTypeRange}},
		GlobalSecondaryIndexes: []types.GlobalSecondaryIndex{{
			IndexName: aws.String("by-state"), Projection: &types.Projection{ProjectionType: types.ProjectionTypeAll},
			KeySchema: []types.KeySchemaElement{{AttributeName: aws.String("state"), KeyType: types.KeyTypeHash}},
		}},
	})
}

// testApp is about a transaction, Check, and a store for another table. It runs on DynamoDB Local, see
// TestOnDynamoDBLocal.
func testApp(t *testing.T, client *dynamodb.Client) {
	ctx := t.Context()
	store, err := dynamostore.New(client, appTable, appNames)
	require.NoError(t, err)
	lease, err := store.Acquire(ctx, lockstore.Request{Key: "transaction", Owner: lockstore.NewOwner(), TTL: time.Minute})
	require.NoError(t, err)
	// An item beside a lock's row, with the name of a lock's attribute.
	require.NoError(t, transact(ctx, client, addsOne(appTable, item{"PK": s(appNames.Prefix + "transaction"), "SK": s(profile)}, "fence")))
	require.NoError(t, store.List(ctx, "transaction", func(p lockstore.Page) error {
		require.Len(t, p.Keys, 1)
		require.Zero(t, p.Damaged)
		return nil
	}))
	still := func() error {
		return transact(ctx, client, addsOne(appTable, item{"PK": s("user#1"), "SK": s(profile)}, "logins"), store.StillHeld("transaction", lease.Fence))
	}
	require.NoError(t, still())
	require.NoError(t, store.Release(ctx, lease))
	err = still()
	require.True(t, store.IsStale(err, lease.Fence), "%v", err)
	require.False(t, dynamostore.IsStale(err, lease.Fence), "the function knows the caller's own items only")

	lease, err = store.Acquire(ctx, lockstore.Request{Key: "transaction", Owner: lockstore.NewOwner(), TTL: time.Minute})
	require.NoError(t, err)
	complete := func() error {
		return transact(ctx, client, store.CompleteItem("transaction", lease.Fence, []byte("result"), time.Hour))
	}
	require.NoError(t, complete())
	err = complete()
	require.True(t, store.IsStale(err, lease.Fence), "%v", err)
	_, err = store.Acquire(ctx, lockstore.Request{Key: "transaction", Owner: lockstore.NewOwner(), TTL: time.Minute})
	refused, ok := errors.AsType[*lockstore.Refused](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, lockstore.Completed, refused.State)
	require.Equal(t, "result", string(refused.Result))

	wrong, err := dynamostore.New(client, appTable, dynamostore.Options{})
	require.NoError(t, err)
	_, err = wrong.Acquire(ctx, lockstore.Request{Key: "k", Owner: lockstore.NewOwner(), TTL: time.Minute})
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
	for _, query := range []string{"key=PK&sort=SK&prefix=LOCK%23&ttl=expires_at", "key=id", "ttl=expiry", "otherttl=expires_at", "ttl=expires_at&otherttl=ttl", "prefix=a", "sort=key2", "key=ttl&ttl=key", "prefix=" + strings.Repeat("p", 1024)} {
		require.NoError(t, open(query), query)
	}
	for query, says := range map[string]string{
		"ttl=expires":                         `TTL is "expires", which is another attribute`,
		"key=owner":                           `Key is "owner"`,
		"sort=fence":                          `Sort is "fence"`,
		"sort=kept":                           `Sort is "kept"`,
		"sort=stored":                         `Sort is "stored"`,
		"ttl=begun":                           `TTL is "begun"`,
		"otherttl=expires":                    `OtherTTL is "expires", which is another attribute`,
		"otherttl=ttl":                        `OtherTTL is "ttl"`,
		"ttl=a&otherttl=a":                    `OtherTTL is "a"`,
		"otherttl=":                           "the parameter otherttl is empty",
		"key=PK&sort=PK":                      `Sort is "PK"`,
		"key=ttl":                             `TTL is "ttl"`,
		"key=":                                "the parameter key is empty",
		"sort=":                               "the parameter sort is empty",
		"key=a%0Ab":                           "Key is no name",
		"key=" + strings.Repeat("k", 256):     "Key is no name",
		"prefix=" + strings.Repeat("p", 1025): "Prefix has 1025 bytes",
		"prefix=a%0Ab":                        "Prefix",
		"prefix=%FF":                          "Prefix",
	} {
		err := open(query)
		require.ErrorIs(t, err, lockstore.ErrInvalid, query)
		require.ErrorContains(t, err, says, query)
	}
}
