// Package storetest is the conformance suite of package lockstore: each of its
// promises as a test case that every store passes, and a wrapper, [Faulty],
// that makes any store fail in chosen ways.
//
// A store's test is one call of [Run]. A store without a real network runs in
// virtual time, with synctest.Test: each expiry is exact and takes no time, and
// a goroutine that is left behind fails its case. A store that wraps another
// one passes the suite too.
package storetest

import "testing"

// Run runs every case as a subtest. It calls open for each case, so no case
// sees another's store. run is how a case is run: synctest.Test for a store
// that lives in virtual time, [Direct] or [Parallel] on the wall clock. open
// is called inside it.
func Run(t *testing.T, open func(t *testing.T) Harness, run func(*testing.T, func(*testing.T))) {
	t.Helper()
	for _, tc := range cases() {
		t.Run(tc.name, func(t *testing.T) {
			skipped := false
			run(t, func(t *testing.T) {
				defer func() {
					skipped = t.Skipped()
					if t.Failed() {
						t.Log(tc.explanation)
					}
				}()
				tc.run(newCheck(t, t, open(t)))
			})
			// A skip in a synctest bubble would be counted as passed.
			if skipped {
				t.SkipNow()
			}
		})
	}
}

// Direct runs a case as it is, one after the other.
func Direct(t *testing.T, f func(*testing.T)) {
	t.Helper()
	f(t)
}

// Parallel runs a case with t.Parallel, so that the cases that wait for the
// wall clock wait together, as many at once as go test's flag -parallel says.
// The harness must allow it: its hooks may only touch the store and the keys of
// their own case.
func Parallel(t *testing.T, f func(*testing.T)) {
	t.Helper()
	t.Parallel()
	f(t)
}

type testCase struct {
	name        string // group/what, with the fault it covers
	explanation string // printed on failure: what a store that fails does to its users
	run         func(*check)
}

func cases() []testCase {
	var all []testCase
	for _, group := range [][]testCase{
		acquireCases, holderCases, takeoverCases, renewCases, releaseCases, withdrawCases, closedCases,
		fenceCases, inspectCases, keyCases, invalidCases, errorCases, corruptCases, contentionCases, requestCases,
	} {
		all = append(all, group...)
	}
	return all
}
