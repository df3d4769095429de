package dynamostore_test

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"regexp"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/leasesim"
	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

// hasExpressions are the cases of the suite that have all kinds of expressions and rows, and do not wait for long.
var hasExpressions = regexp.MustCompile(`/(rules/random|corrupt|complete|parked|list|queue/a_)`)

// TestOnDynamoDBLocal runs the suite on Amazon's program, with all kinds of damaged rows, so that the
// fake cannot differ from it where a lock's expressions meet it. It runs alone: its hand-overs end by the wall clock.
func TestOnDynamoDBLocal(t *testing.T) {
	endpoint := testservers.DynamoDB(t)
	transport := newTransport(t)
	client := dynamostore.ClientOver(transport, endpoint)
	makeTable(t, client, table, dynamostore.Options{}, "")
	makeTable(t, client, dataTable, dynamostore.Options{}, "")
	makeTable(t, client, appTable, appNames, "state")

	t.Run("check", func(t *testing.T) { testCheck(t, client) })
	t.Run("fenced", func(t *testing.T) { testFenced(t, client) })
	t.Run("transactions", func(t *testing.T) { testTransactions(t, client) })
	t.Run("address", func(t *testing.T) { testAddress(t, client) })
	t.Run("an application's table", func(t *testing.T) { testApp(t, client) })
	// A table with a sort key, other names and other items: what a table for locks only can do is
	// a part of it. In virtual time the suite runs in a table for locks only. No other item changes.
	t.Run("suite in an application's table", func(t *testing.T) {
		storetest.Run(t, func(t *testing.T) storetest.Harness {
			h := harnessOf(t, transport, endpoint, rows{t.Context(), client, appTable, lockKey}, appTable, appNames)
			if !verifyrecord.Full() {
				h.Sequences = 4                  // each waits for long; make verify has a thousand, see TestRuleBookOnDynamoDBLocal
				h.Delay, h.ShiftClock = nil, nil // what needs them waits for longer than all others
			}
			return h
		}, func(t *testing.T, f func(*testing.T)) {
			if !verifyrecord.Full() && !hasExpressions.MatchString(t.Name()) {
				t.Skip("it waits, or sends what other cases send, too: make verify has it")
			}
			storetest.Parallel(t, f)
		})
	})
	for key, has := range map[string]item{"LOCK#transaction": {"fence": n("1")}, "user#1": {"logins": n("1")}} { // items of testApp
		others := rows{t.Context(), client, appTable, func(key string) item { return item{"PK": s(key), "SK": s(profile)} }}
		maps.Copy(has, others.key(key))
		require.Equal(t, dump(has), dump(others.get(t, key)))
	}
}

// TestRuleBookOnDynamoDBLocal compares the store with the rule book by random requests to Amazon's
// program.
func TestRuleBookOnDynamoDBLocal(t *testing.T) {
	leasesim.RuleBookOnServers(t, "random requests to DynamoDB Local and to the rule book", 1000, map[string]func(*testing.T) storetest.Harness{
		"DynamoDB Local": func(t *testing.T) storetest.Harness {
			endpoint, transport := testservers.DynamoDB(t), newTransport(t)
			client := dynamostore.ClientOver(transport, endpoint)
			makeTable(t, client, table, dynamostore.Options{}, "")
			return harness(t, transport, endpoint, lockTable(client))
		},
	})
}

func newTransport(t testing.TB) *http.Transport {
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(transport.CloseIdleConnections)
	return transport
}

// makeTable makes a table like the one in the template, with these names. index is "" or the key of an index.
func makeTable(t testing.TB, client *dynamodb.Client, name string, opt dynamostore.Options, index string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	key, ttl := cmp.Or(opt.Key, "key"), cmp.Or(opt.TTL, "ttl")
	in := &dynamodb.CreateTableInput{TableName: &name, BillingMode: types.BillingModePayPerRequest, KeySchema: keys(key, opt.Sort)}
	for _, text := range []string{key, opt.Sort, index} {
		if text != "" {
			in.AttributeDefinitions = append(in.AttributeDefinitions, types.AttributeDefinition{AttributeName: &text, AttributeType: types.ScalarAttributeTypeS})
		}
	}
	if index != "" {
		all := &types.Projection{ProjectionType: types.ProjectionTypeAll}
		in.GlobalSecondaryIndexes = []types.GlobalSecondaryIndex{{IndexName: aws.String("theirs"), Projection: all, KeySchema: keys(index, "")}}
	}
	_, err := client.CreateTable(ctx, in)
	require.NoError(t, err)
	_, err = client.UpdateTimeToLive(ctx, &dynamodb.UpdateTimeToLiveInput{
		TableName: &name, TimeToLiveSpecification: &types.TimeToLiveSpecification{AttributeName: &ttl, Enabled: aws.Bool(true)},
	})
	require.NoError(t, err)
}

// testCheck runs on DynamoDB Local, see TestOnDynamoDBLocal. It is about tables that are wrong, and what the service says to them.
func testCheck(t *testing.T, client *dynamodb.Client) {
	open := func(name string) (*dynamostore.Store, []lockstore.Finding, error) {
		s, err := dynamostore.New(client, name, dynamostore.Options{})
		require.NoError(t, err)
		findings, err := s.Check(t.Context())
		return s, findings, err
	}
	_, findings, err := open(table)
	require.NoError(t, err)
	require.Empty(t, findings)

	_, findings, err = open(appTable)
	require.NoError(t, err)
	require.Len(t, findings, 2)
	assert.Contains(t, findings[0].Problem, `"PK" of type S and the sort key "SK" of type S`)
	assert.Contains(t, findings[1].Problem, `on the attribute "expires_at", and this store writes "ttl"`)
	_, _, err = open("missing")
	require.ErrorIs(t, err, lockstore.ErrCorrupt)
	for name, says := range map[string]string{appTable: `the partition key "key" of type S and no sort key`, "missing": "does not exist"} {
		s, _, _ := open(name)
		for method, call := range methods(s, lockstore.Lease{Key: "k", Owner: lockstore.NewOwner(), Fence: 1}) {
			err := call(t.Context())
			require.ErrorIs(t, err, lockstore.ErrCorrupt, "F44 "+method)
			require.ErrorContains(t, err, says, method)
		}
	}

	// DynamoDB refuses a write that does not fit an index.
	makeTable(t, client, "indexed", dynamostore.Options{}, "queue")
	s, findings, err := open("indexed")
	require.NoError(t, err)
	require.Len(t, findings, 1)
	require.Contains(t, findings[0].Problem, `the index "theirs" has the key "queue"`)
	_, err = s.Acquire(t.Context(), request(time.Minute))
	require.ErrorIs(t, err, lockstore.ErrUnavailable)
	require.ErrorContains(t, err, "Check names the index")
}

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

	findings, err := store.Check(ctx)
	require.NoError(t, err)
	require.Empty(t, findings, "a lock's row is in no index")
}

// testAddress is about the row of an address. It runs on DynamoDB Local, see TestOnDynamoDBLocal.
func testAddress(t *testing.T, client *dynamodb.Client) {
	ctx, r := t.Context(), lockTable(client)
	store := newStoreOver(t, client, 0, dynamostore.Options{})
	p := store.Driver().(driver.Parker)
	const key, owner = "address/7", "OWNEROWNEROWNER"
	name := store.AddressRow(key, owner)
	require.Error(t, lockstore.ValidateKey(name))
	require.NoError(t, p.PutAddress(ctx, key, owner, driver.HiddenBytes("one"), time.Hour))
	row := r.get(t, name)
	require.InDelta(t, time.Now().Add(time.Hour).Unix(), number(t, row, "ttl"), 5)
	require.NotContains(t, dump(row), owner)

	// A row of a store with another name of the time to live, and others that are none (F50).
	row["other"] = row["ttl"]
	delete(row, "ttl")
	for _, row := range []item{row, {}, {"balance": n("7")}, {"balance": n("7"), "ttl": n("99999999999")}, {"result": s("7"), "ttl": n("99999999999")}} {
		r.put(t, name, row)
		before := dump(r.get(t, name))
		_, err := p.TakeAddress(ctx, key, owner)
		require.ErrorIs(t, err, lockstore.ErrCorrupt, before)
		require.ErrorIs(t, p.PutAddress(ctx, key, owner, driver.HiddenBytes("new"), time.Hour), lockstore.ErrCorrupt, before)
		require.Equal(t, before, dump(r.get(t, name)))
	}
	r.put(t, name, nil)
}
