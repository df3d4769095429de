// Package storetest is the conformance suite of package lockstore: each of its
// promises as a test case that every store passes, and a wrapper, [Faulty],
// that makes any store fail in chosen ways.
//
// A store's test is one call of [Run]. A store without a real network runs in
// virtual time, with synctest.Test: each expiry is exact and takes no time, and
// a goroutine that is left behind fails its case. A store that wraps another
// one passes the suite too.
//
// # What was skipped
//
// [Harness] needs only Store, but a fifth of the cases is skipped then, a third
// if the store has the three methods alone, and go test says nothing about it
// unless it runs with -v. Run logs a last line that counts them and names what
// was missing, for example
//
//	storetest: 5 of 102 cases skipped: no Hang, no LoseReplies
//
// Of the store behind a real server, set in this order:
//
//   - TakeoverDelay and Margin, if the store's documentation has them: without
//     them cases fail that should pass.
//   - LoseReplies, Hang and Unreachable, by a proxy or by the client's own dialer:
//     lost replies are where stores go wrong.
//   - Delete, Snapshot and ShiftClock: the fence after an eviction, a restored
//     backup and a clock that was set.
//   - Foreign, Corrupt and Dump: entries of other programs stay as they are.
//   - Requests, a counter in the client: it also makes cases check that a
//     refused argument and an ended context send nothing. RequestsPerCall is for a
//     store that has to read before it writes.
//
// A store that is no lockstore.Inspector or lockstore.CooldownReleaser skips the
// cases of what it does not have; that is no fault.
package storetest

import (
	"testing"
	"time"
)

// phases are how far into a second a case begins. A synctest bubble begins with a
// whole second, in which a server's clock that tells whole seconds is exact.
var phases = []time.Duration{0, 700 * time.Millisecond}

// Run runs every case as a subtest. It calls open for each case, so no case
// sees another's store. run is how a case is run: synctest.Test for a store
// that lives in virtual time, [Direct] or [Parallel] on the wall clock. open
// is called inside it. When all are done, Run logs how many were skipped, and
// for want of what.
//
// Where waiting takes no time, in a bubble or with a Sleep of the harness's own,
// each case runs twice, with a store of its own: from the beginning of a second,
// and from 0.7 s after it. On the wall clock it runs once, whenever that is. The
// cases about the end of a lease spread ten leases over a second in any case.
func Run(t *testing.T, open func(t *testing.T) Harness, run func(*testing.T, func(*testing.T))) {
	t.Helper()
	if open == nil || run == nil {
		t.Fatal("storetest: Run needs open, which returns the harness of a case, and run, how a case is run: synctest.Test, Direct or Parallel")
	}
	var sum summary
	t.Cleanup(func() { t.Log(sum.String()) }) // after parallel cases too
	for _, tc := range cases() {
		t.Run(tc.name, func(t *testing.T) {
			outside := time.Now()
			var c *check
			skipped := false
			defer func() { sum.add(c, skipped) }()
			run := run
			for _, phase := range phases {
				run(t, func(t *testing.T) {
					var h Harness
					defer func() {
						skipped = t.Skipped()
						if t.Failed() {
							t.Logf("%s (The case began %v into a second, TakeoverDelay is %v, Margin is %v.)",
								tc.explanation, phase, h.TakeoverDelay, h.Margin)
						}
					}()
					h = open(t)
					if h.Store == nil {
						t.Fatal("storetest: the harness has no Store")
					}
					bubble := time.Now().Unix() < outside.Unix() // it begins in the year 2000
					if !bubble {
						run = Direct // a test can be made parallel once
					}
					c = newCheck(t, t, h, bubble)
					c.at(phase, tc)
				})
				if c == nil || skipped || !c.virtual {
					break
				}
			}
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
		acquireCases, holderCases, takeoverCases, renewCases, releaseCases, abandonCases, closedCases,
		fenceCases, inspectCases, keyCases, invalidCases, errorCases, corruptCases, contentionCases, requestCases,
	} {
		all = append(all, group...)
	}
	return all
}
