package dynamostore_test

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

// TestOnDynamoDBLocal runs the suite and the expressions on Amazon's program, so that the
// fake cannot differ from it. It runs alone: its hand-overs end by the wall clock.
func TestOnDynamoDBLocal(t *testing.T) {
	endpoint := testservers.DynamoDB(t)
	transport := newTransport(t)
	client := dynamostore.ClientOver(transport, endpoint, 0)
	makeTable(t, client, table)
	makeTable(t, client, dataTable)

	t.Run("expressions", func(t *testing.T) {
		t.Parallel()
		testExpressions(t, client)
	})
	t.Run("check", func(t *testing.T) { testCheck(t, client) })
	t.Run("fenced", func(t *testing.T) { testFenced(t, client) })
	t.Run("complete in a transaction", func(t *testing.T) { testCompleteItem(t, client) })
	t.Run("address", func(t *testing.T) { testAddress(t, client, realRows{client}) })
	makeAppTable(t, client)
	t.Run("an application's table", func(t *testing.T) { testApp(t, client, true) })
	// A table with a sort key, other names and other items: what a table for locks only can do is
	// a part of it. In virtual time the suite runs in a table for locks only.
	t.Run("suite in an application's table", func(t *testing.T) {
		storetest.Run(t, func(t *testing.T) storetest.Harness {
			rows := realApp{t, client}
			h := harnessOf(t, besides(t, transport, rows), endpoint, lockRows{rows}, appTable, appNames)
			h.Sequences = 4 // each waits for long; make verify has a thousand, see TestRuleBookOnDynamoDBLocal
			// FuzzRow and the suite on the fake have all kinds of damage.
			for _, kinds := range []map[string]func(*testing.T, string){h.Foreign, h.Corrupt, h.DamageQueue} {
				maps.DeleteFunc(kinds, func(what string, _ func(*testing.T, string)) bool {
					return !slices.Contains([]string{"nothing of ours", "string in the fence", "no fence", "a text"}, what)
				})
			}
			return h
		}, storetest.Parallel)
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
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, err := client.CreateTable(ctx, &dynamodb.CreateTableInput{
		TableName:            aws.String(name),
		AttributeDefinitions: []types.AttributeDefinition{{AttributeName: aws.String("key"), AttributeType: types.ScalarAttributeTypeS}},
		KeySchema:            []types.KeySchemaElement{{AttributeName: aws.String("key"), KeyType: types.KeyTypeHash}},
		BillingMode:          types.BillingModePayPerRequest,
	})
	require.NoError(t, err)
	_, err = client.UpdateTimeToLive(ctx, &dynamodb.UpdateTimeToLiveInput{
		TableName:               aws.String(name),
		TimeToLiveSpecification: &types.TimeToLiveSpecification{AttributeName: aws.String("ttl"), Enabled: aws.Bool(true)},
	})
	require.NoError(t, err)
}
