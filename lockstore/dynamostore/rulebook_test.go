package dynamostore_test

import (
	"testing"

	"github.com/lambdalock/lambdalock/internal/leasesim"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

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
