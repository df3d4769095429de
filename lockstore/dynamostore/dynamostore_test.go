package dynamostore_test

import (
	"encoding/json"
	"flag"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lambdalock/lambdalock/internal/leasesim"
	"github.com/lambdalock/lambdalock/internal/watchdog"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore/internal/fakedynamo"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
	"github.com/lambdalock/lambdalock/lockstore/storetest/golden"
)

// TestMain allows many parallel tests: the cases on the wall clock only wait. The tests that
// compute for long are parallel too, so that they run meanwhile.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "32"); err != nil {
		panic(err)
	}
	watchdog.Start()
	goleak.VerifyTestMain(m, goleak.IgnoreCurrent())
}

func TestStoreOnTheFake(t *testing.T) {
	t.Parallel()
	storetest.Run(t, onTheFake, synctest.Test)
}

// TestRuleBook compares the store with the rule book by more random requests than the suite (F09 F27).
//
// VERIFY_SEED=17 VERIFY_SEEDS=1 go test ./lockstore/dynamostore -run TestRuleBook
// replays one seed.
func TestRuleBook(t *testing.T) {
	leasesim.RuleBook(t, "random requests over DynamoDB's fake and to the rule book", 30, 3000,
		map[string]func(*testing.T) storetest.Harness{"the fake": onTheFake})
}

// Something comes between the requests of one call, or its replies are lost (F09 F23 F24 F25).
func TestPairs(t *testing.T) {
	t.Parallel()
	leasesim.Pairs(t, "pairs of requests over DynamoDB's fake and to the rule book", onTheFake)
}

func onTheFake(t *testing.T) storetest.Harness {
	service := fakedynamo.New(table)
	return harness(t, service, fakeEndpoint, fakeRows{service})
}

func TestGoldenRows(t *testing.T) {
	golden.Run(t, func(t *testing.T) golden.Storage {
		service := fakedynamo.New(table)
		return golden.Storage{
			Parks: true,
			Open:  func() *lockstore.Store { return newStore(t, service, 0, dynamostore.Options{}).Store },
			Read: func() string {
				text, err := json.Marshal(service.Row(golden.Key))
				require.NoError(t, err)
				return string(text)
			},
			Write: func(text string) {
				var row fakedynamo.Item
				require.NoError(t, json.Unmarshal([]byte(text), &row))
				service.SetRow(golden.Key, row)
			},
		}
	})
}
