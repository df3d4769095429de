// Package storetest is the conformance suite of package lockstore: it checks each promise
// of a store. It also has [Faulty], a wrapper that makes any store fail in chosen ways.
//
// The cases lock/... say in a few lines each what a store has to do. The cases rules/... compare the store with
// package rules, the rule book, by requests in any order. The others are about what this comparison does not see.
//
// A store's test is one call of [Run]. If the store needs no real network, run it in
// virtual time, with synctest.Test. Then waiting takes no time, each expiry is exact, and
// a goroutine that does not end fails its case. A store that wraps another store passes
// the suite too.
//
// # Skipped cases
//
// [Harness] needs only Store. Each other field switches more cases on. Run logs a last
// line with the number of skipped cases and the reasons, for example
//
//	storetest: 2 of 51 cases skipped: no Hang, no LoseReplies
//
// go test shows this line with -v. For a store on a real server, set the fields in this
// order:
//
//   - TakeoverDelay and Margin, if the store's documentation names them. Without them
//     cases fail that should pass.
//   - LoseReplies, Hang and Unreachable, with a proxy or with the client's own dialer.
//     Most mistakes of stores are about lost replies.
//   - Delete, Snapshot and ShiftClock: the fence after an eviction, after a restored backup
//     and after a step of the clock.
//   - Foreign, Corrupt and Dump: entries of other programs stay as they are.
//   - Requests, a counter in the client. A store that reads before it writes needs
//     RequestsPerCall too.
//
// A store that cannot list its keys, or keeps no addresses of parked owners, skips those cases. That is no mistake.
//
// On the wall clock nothing waits for minutes. There the suite checks what the store says of leases of hours, and
// skips the cases that are about waiting ("no virtual time"). A store on a real server has them if its test can set the
// server's clock, or if its test has a fake of the server, in a bubble.
package storetest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/rules"
)

// A store that asks the rule book is stopped when the book leaves its invariant.
func init() { rules.Strict = true }

// phase is how far into a second a case begins if waiting takes no time. A synctest bubble begins at a whole second, when a clock with
// whole seconds is exact.
const phase = 700 * time.Millisecond

// Run runs every case as a subtest. It calls open for each case, so each case has its own
// store. run is how a case runs: synctest.Test for a store in virtual time,
// [Parallel] for the wall clock. Run calls open inside run. At the end it logs how many
// cases were skipped, and why.
func Run(t *testing.T, open func(t *testing.T) Harness, run func(*testing.T, func(*testing.T))) {
	t.Helper()
	if open == nil || run == nil {
		t.Fatal("storetest: Run needs open, which returns the harness of a case, and run, how a case runs: synctest.Test or Parallel")
	}
	var mu sync.Mutex
	var ended []string                          // what each case that has ended would have needed, "" if it has run
	t.Cleanup(func() { t.Log(summary(ended)) }) // after parallel cases too
	for _, tc := range cases() {
		t.Run(tc.name, func(t *testing.T) {
			outside, missing := time.Now(), ""
			defer func() {
				mu.Lock()
				ended = append(ended, missing)
				mu.Unlock()
			}()
			run(t, func(t *testing.T) {
				var h Harness
				c := &check{missing: "harness"} // if open skips the case
				defer func() {
					if t.Skipped() {
						missing = c.missing
					} else if t.Failed() {
						t.Logf("%s (TakeoverDelay is %v, Margin is %v.)", tc.explanation, h.TakeoverDelay, h.Margin)
					}
				}()
				if h = open(t); h.Store == nil {
					t.Fatal("storetest: the harness has no Store")
				}
				c = newCheck(t, t, h, time.Now().Unix() < outside.Unix()) // a bubble begins in the year 2000
				c.run(tc)
			})
			if missing != "" { // go test counts a skip inside a synctest bubble as passed
				t.SkipNow()
			}
		})
	}
}

// summary is the last line of Run, with the reasons for which cases were skipped.
func summary(ended []string) string {
	skipped := slices.DeleteFunc(slices.Sorted(slices.Values(ended)), func(missing string) bool { return missing == "" })
	text := fmt.Sprintf("storetest: %d of %d cases skipped", len(skipped), len(ended))
	if len(skipped) > 0 {
		text += ": no " + strings.Join(slices.Compact(skipped), ", no ")
	}
	return text
}

// Parallel runs the cases in parallel, as many at a time as go test's flag -parallel
// allows: on the wall clock they mostly wait. The hooks of the harness may then change only
// their own case's store and keys.
func Parallel(t *testing.T, f func(*testing.T)) {
	t.Helper()
	t.Parallel()
	f(t)
}

type testCase struct {
	name        string // group/what, with the ids of its faults
	explanation string // logged after a failure: what the mistake does to users
	run         func(*check)
}

func cases() []testCase {
	return slices.Concat(lockCases, rulesCases, ownerCases, fenceCases, takeoverCases, resultCases, queueCases, parkedCases, manyCases,
		hoursCases, listCases, keyCases, errorCases, entryCases, contentionCases, requestCases)
}
