package dynamostore_test

import (
	"flag"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

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
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		service := fakedynamo.New(table)
		return harness(t, service, fakeEndpoint, fakeRows{service})
	}, synctest.Test)
}
