package storetest_test

import (
	"testing"
	"testing/synctest"

	"github.com/lambdalock/lambdalock/lockstore/memstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

// The shortest conformance test, in virtual time. It skips the cases that need more fields
// of the harness.
func ExampleRun() {
	test := func(t *testing.T) {
		storetest.Run(t, func(t *testing.T) storetest.Harness {
			return storetest.Harness{Store: memstore.New(nil)}
		}, synctest.Test)
	}
	_ = test // in your test file: func TestStore(t *testing.T)
}
