package storetest_test

import (
	"testing"
	"testing/synctest"

	"github.com/lambdalock/lambdalock/lockstore/memstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

// The whole conformance test of a store that lives in virtual time.
func ExampleRun() {
	test := func(t *testing.T) {
		storetest.Run(t, func(t *testing.T) storetest.Harness {
			return storetest.Harness{Store: memstore.New(nil)}
		}, synctest.Test)
	}
	_ = test // in a package of its own: func TestStore(t *testing.T)
}
