package dynamostore_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/leasesim"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

// TestOnDynamoDBLocal runs the suite on Amazon's program, with all kinds of damaged rows, so that the
// fake cannot differ from it where a lock's expressions meet it. It runs alone: its hand-overs end by the wall clock.
func TestOnDynamoDBLocal(t *testing.T) {
	endpoint := testservers.DynamoDB(t)
	transport := newTransport(t)
	client := dynamostore.ClientOver(transport, endpoint, 0)
	makeTable(t, client, table)
	makeTable(t, client, dataTable)
	makeAppTable(t, client)

	t.Run("check", func(t *testing.T) { testCheck(t, client) })
	t.Run("indexes", func(t *testing.T) { testIndexes(t, client) })
	t.Run("fenced", func(t *testing.T) { testFenced(t, client) })
	t.Run("complete in a transaction", func(t *testing.T) { testCompleteItem(t, client) })
	t.Run("address", func(t *testing.T) { testAddress(t, client) })
	t.Run("an application's table", func(t *testing.T) { testApp(t, client) })
	// A table with a sort key, other names and other items: what a table for locks only can do is
	// a part of it. In virtual time the suite runs in a table for locks only. No other item changes.
	t.Run("suite in an application's table", func(t *testing.T) {
		storetest.Run(t, func(t *testing.T) storetest.Harness {
			h := harnessOf(t, transport, endpoint, realRows{client, appTable, lockKey}, appTable, appNames)
			h.Sequences = 4 // each waits for long; make verify has a thousand, see TestRuleBookOnDynamoDBLocal
			return h
		}, storetest.Parallel)
	})
	var others []string
	pages := dynamodb.NewScanPaginator(client, &dynamodb.ScanInput{
		TableName: aws.String(appTable), FilterExpression: aws.String("SK <> :sort OR NOT begins_with(PK, :prefix)"),
		ExpressionAttributeValues: item{":sort": s("lambdalock"), ":prefix": s(appNames.Prefix)},
	})
	for pages.HasMorePages() {
		out, err := pages.NextPage(t.Context())
		require.NoError(t, err)
		for _, other := range out.Items {
			others = append(others, dump(other))
		}
	}
	require.ElementsMatch(t, []string{
		dump(item{"PK": s("LOCK#transaction"), "SK": s(profile), "fence": n("1")}),
		dump(item{"PK": s("user#1"), "SK": s(profile), "logins": n("1")}),
	}, others, "items of testApp")
}

// TestRuleBookOnDynamoDBLocal compares the store with the rule book by random requests to Amazon's
// program.
func TestRuleBookOnDynamoDBLocal(t *testing.T) {
	leasesim.RuleBookOnServers(t, "random requests to DynamoDB Local and to the rule book", 1000, map[string]func(*testing.T) storetest.Harness{
		"DynamoDB Local": func(t *testing.T) storetest.Harness {
			endpoint, transport := testservers.DynamoDB(t), newTransport(t)
			client := dynamostore.ClientOver(transport, endpoint, 0)
			makeTable(t, client, table)
			return harness(t, transport, endpoint, lockTable(client))
		},
	})
}

func newTransport(t testing.TB) *http.Transport {
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(transport.CloseIdleConnections)
	return transport
}

// makeTable makes a lock table like the one in the template.
func makeTable(t testing.TB, client *dynamodb.Client, name string) {
	t.Helper()
	create(t, client, "ttl", &dynamodb.CreateTableInput{
		TableName:            &name,
		AttributeDefinitions: []types.AttributeDefinition{{AttributeName: aws.String("key"), AttributeType: types.ScalarAttributeTypeS}},
		KeySchema:            keys("key", ""),
	})
}

// create makes a table whose time to live is this attribute.
func create(t testing.TB, client *dynamodb.Client, ttl string, in *dynamodb.CreateTableInput) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	in.BillingMode = types.BillingModePayPerRequest
	_, err := client.CreateTable(ctx, in)
	require.NoError(t, err)
	_, err = client.UpdateTimeToLive(ctx, &dynamodb.UpdateTimeToLiveInput{
		TableName: in.TableName, TimeToLiveSpecification: &types.TimeToLiveSpecification{AttributeName: &ttl, Enabled: aws.Bool(true)},
	})
	require.NoError(t, err)
}
