package dynamostore_test

import (
	"flag"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore/internal/fakedynamo"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

// TestMain allows many parallel tests: the cases on the wall clock only wait. The tests that
// compute for long are parallel too, so that they run meanwhile.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "32"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

func TestStoreOnTheFake(t *testing.T) {
	t.Parallel()
	storetest.Run(t, onTheFake, synctest.Test)
}

// TestRuleBook compares the store with the rule book by more random requests than the suite.
//
// VERIFY_SEED=17 VERIFY_SEEDS=1 go test ./lockstore/dynamostore -run TestRuleBook
// replays one seed.
func TestRuleBook(t *testing.T) {
	began := time.Now()
	first, seeds := verifyrecord.Seed(t, 30, 3000)
	storetest.Sequences(t, onTheFake, first, seeds)
	verifyrecord.Write(t, verifyrecord.Result{
		Kind: verifyrecord.Simulation, Name: "random requests over DynamoDB's fake and to the rule book", Seed: first,
		Counts: map[string]int64{"seeds": int64(seeds)}, Took: time.Since(began),
	})
}

func onTheFake(t *testing.T) storetest.Harness {
	service := fakedynamo.New(table)
	return harness(t, service, fakeEndpoint, fakeRows{service})
}
