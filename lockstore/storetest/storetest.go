// Package storetest is the conformance suite of package lockstore: it checks each promise
// of a store. It also has [Faulty], a wrapper that makes any store fail in chosen ways.
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
	"slices"
	"testing"
	"time"

	"github.com/lambdalock/lambdalock/internal/rules"
	"github.com/lambdalock/lambdalock/internal/verifyrecord"
)

// A store that asks the rule book is stopped when the book leaves its invariant.
func init() { rules.Strict = true }

// phases are how far into a second a case begins. A synctest bubble begins at a whole
// second, when a clock with whole seconds is exact.
var phases = []time.Duration{0, 700 * time.Millisecond}

// Run runs every case as a subtest. It calls open for each case, so each case has its own
// store. run is how a case runs: synctest.Test for a store in virtual time, [Direct] or
// [Parallel] for the wall clock. Run calls open inside run. At the end it logs how many
// cases were skipped, and why.
//
// If waiting takes no time, in a bubble or with Harness.Sleep, each case runs twice, each
// time with a new store: from the beginning of a second, and from 0.7 s after it. A few long
// cases, for which this makes no difference, run once. On the wall clock each case runs
// once, and so it does under the race detector, there from 0.7 s. The cases about the end of a lease always try ten leases
// that end at different times of a second.
func Run(t *testing.T, open func(t *testing.T) Harness, run func(*testing.T, func(*testing.T))) {
	t.Helper()
	if open == nil || run == nil {
		t.Fatal("storetest: Run needs open, which returns the harness of a case, and run, how a case runs: synctest.Test, Direct or Parallel")
	}
	var sum summary
	t.Cleanup(func() { t.Log(sum.String()) }) // after parallel cases too
	for _, tc := range cases() {
		t.Run(tc.name, func(t *testing.T) {
			outside := time.Now()
			var c *check
			missing := ""
			defer func() { sum.add(missing) }()
			run := run
			for _, phase := range tc.phases() {
				run(t, func(t *testing.T) {
					var h Harness
					defer func() {
						switch {
						case t.Skipped() && c == nil:
							missing = "harness" // open has skipped the case
						case t.Skipped():
							missing = c.missing
						case t.Failed():
							t.Logf("%s (The case began %v into a second, TakeoverDelay is %v, Margin is %v.)",
								tc.explanation, phase, h.TakeoverDelay, h.Margin)
						}
					}()
					h = open(t)
					if h.Store == nil {
						t.Fatal("storetest: the harness has no Store")
					}
					bubble := time.Now().Unix() < outside.Unix() // a bubble begins in the year 2000
					if !bubble {
						run = Direct // t.Parallel is allowed once
					}
					c = newCheck(t, t, h, bubble)
					c.run(tc, phase)
				})
				if c == nil || missing != "" || !c.virtual {
					break
				}
			}
			// go test counts a skip inside a synctest bubble as passed.
			if missing != "" {
				t.SkipNow()
			}
		})
	}
}

// Direct runs one case after another.
func Direct(t *testing.T, f func(*testing.T)) {
	t.Helper()
	f(t)
}

// Parallel runs the cases in parallel, as many at a time as go test's flag -parallel
// allows: on the wall clock they mostly wait. The hooks of the harness may then change only
// their own case's store and keys.
func Parallel(t *testing.T, f func(*testing.T)) {
	t.Helper()
	t.Parallel()
	f(t)
}

// anyTime are cases that take long, and for which it does not matter where in a second they
// begin: they are not about time, or they try the whole second.
var anyTime = map[string]bool{
	"rules/each request with another one, from many states F23 F24 F25":                  true,
	"acquire/an owner may be any text F48":                                               true,
	"acquire/owners are compared whole":                                                  true,
	"contention/one of many wins F01 F64":                                                true,
	"corrupt/a damaged entry is refused and left alone F53":                              true,
	"corrupt/a value of another program is refused and left alone F54":                   true,
	"complete/the result comes back unchanged":                                           true,
	"keys/odd ones are accepted and never meet F52 F58 M29":                              true,
	"parked/an address is kept for its owner until it is taken":                          true,
	"parked/half of the places are for those who wait":                                   true,
	"queue/a full one F02":                                                               true,
	"mixed/readers and writers wait in each order, and one of them leaves":               true,
	"mixed/readers and writers wait in each order, and a holder goes":                    true,
	"mixed/many hold a key, and one of them goes":                                        true,
	"many/as many hold a key as it allows, and no more":                                  true,
	"many/all who wait behind a writer hold the key after it":                            true,
	"many/a lease is renewed and a key is granted any number of times":                   true,
	"many/each of a long queue has its turn, in the order of arrival":                    true,
	"hours/who waits for minutes learns of its turn":                                     true,
	"many/an entry as large as the bounds allow is one like any other":                   true,
	"hours/a lease lasts as long as it says, up to a day":                                true,
	"hours/a result or a cooldown lasts as long as it says, up to a month":               true,
	"hours/a parked place has its whole turn":                                            true,
	"hours/a place and an address are kept for days":                                     true,
	"hours/work that has started is renewed for weeks, and then in doubt for weeks":      true,
	"rules/random requests get the answers of the rule book F07 F09 F11 F13 F24 F62 F63": true,
}

// phases are those in which the case runs.
func (tc testCase) phases() []time.Duration {
	if anyTime[tc.name] || verifyrecord.WithRaceDetector {
		return phases[1:]
	}
	return phases
}

type testCase struct {
	name        string // group/what, with the ids of its faults
	explanation string // logged after a failure: what the mistake does to users
	run         func(*check)
}

func cases() []testCase {
	return slices.Concat(rulesCases, leaseCases, takeoverCases, fenceCases, completeCases, queueCases,
		listCases, parkedCases, keyCases, errorCases, corruptCases, contentionCases, requestCases,
		mixedCases, manyCases, hoursCases)
}
