package storetest

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/internal/wrongrules"
)

// recorder records what a case reports, so that a failed case does not fail the test.
type recorder struct {
	mu      sync.Mutex
	failed  []string
	skipped string
}

func (r *recorder) Helper()             {}
func (r *recorder) Logf(string, ...any) {}
func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = append(r.failed, fmt.Sprintf(format, args...))
}
func (r *recorder) FailNow() { runtime.Goexit() }
func (r *recorder) Skipf(format string, args ...any) {
	r.skipped = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// record runs the case on a new store with the bug, as Run does.
func record(t *testing.T, tc testCase, bug string) *recorder {
	r := &recorder{}
	synctest.Test(t, func(t *testing.T) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			newCheck(t, r, newWrong(bug).harness(), true).run(tc)
		}()
		<-done
	})
	return r
}

func TestSuitePassesWithoutABug(t *testing.T) {
	for _, tc := range cases() {
		r := record(t, tc, "")
		if len(r.failed) > 0 {
			t.Errorf("%s: %s", tc.name, strings.Join(r.failed, "; "))
		}
		if r.skipped != "" {
			t.Errorf("%s was skipped: %s", tc.name, r.skipped)
		}
	}
}

// Each planted bug makes the cases fail that have to catch it, and each case catches a bug. Under the race detector
// one bug shows for each case that it can fail; make verify plants all.
func TestSuiteCatchesPlantedBugs(t *testing.T) {
	found := 0
	for _, tc := range cases() {
		bugs := plantedBugs[tc.name]
		if len(bugs) == 0 {
			t.Errorf("no planted bug makes the case %q fail, so nothing shows that it can", tc.name)
			continue
		}
		found++
		if verifyrecord.WithRaceDetector {
			bugs = bugs[:1]
		}
		t.Run(tc.name, func(t *testing.T) {
			for _, bug := range bugs {
				if r := record(t, tc, bug); len(r.failed) == 0 {
					t.Errorf("not caught: %s", bug)
				} else {
					t.Logf("%s: %s", bug, r.failed[0])
				}
			}
		})
	}
	if found != len(plantedBugs) {
		t.Errorf("%d names of cases in plantedBugs; %d of them are cases", len(plantedBugs), found)
	}
}

// The comparison with the rule book finds each mistake of a careful person, each way to
// trust one process alone, and each gross mistake within the sequences that Run makes in virtual time.
// Every other mistake in a rule is found by a case, or by more sequences.
func TestTheComparisonFindsMistakes(t *testing.T) {
	began, mistakes := time.Now(), int64(0)
	if verifyrecord.WithRaceDetector {
		t.Skip("it looks for mistakes in the suite, and in virtual time: it is part of make verify")
	}
	found := func(bug string, sequences int) (difference string) {
		for n := 0; n < sequences && difference == ""; n++ {
			synctest.Test(t, func(t *testing.T) {
				difference = newCheck(t, &recorder{}, newWrong(bug).harness(), true).difference(uint64(n))
			})
		}
		return difference
	}
	finds := func(bug string, sequences int) {
		mistakes++
		difference := found(bug, sequences)
		if difference == "" {
			t.Errorf("not found: %s", bug)
		}
		t.Logf("%s: %s", bug, difference[strings.LastIndexByte(difference, '\n')+1:])
	}
	known := slices.Concat(slices.Collect(maps.Values(plantedBugs))...)
	for _, m := range wrongrules.Careful {
		known = append(known, m.Name)
		finds(m.Name, sequences)
	}
	for _, bug := range []string{
		"exclusion by a mutex of the process", "the time is the client's", "a takeover by the asker's own clock", "the end of a lease by the clock of who has it",
		"renewed by the clock of who has it", "M16 unknown as held, by mark started",
		"await: trust counts from the wake-up", "await: the fence of before the hand-over", "await: a hand-over that has lapsed",
		"M01 acquire unconditional", "F29 trusted longer than asked", "M15 own retry reads busy", "F24 renew again is lost", "M04 release says lost and frees",
		"M10 fence constant", "F64 same holder shares", "M07 renew recreates lost", "M36 lost as held", "M04 release again frees the next", "M18 late duplicate of an acquire",
		"M125 complete: on a free key", "M12 fence moves on busy", "M127 complete: after another's grant", "M11 release deletes the fence",
		"M123 started: ignored by a takeover", "M156 resolve: the owner itself has completed it", "M120 revoke: end shortened", "M37 TTL in other units",
		"M122 revoke: ends a cooldown", "M134 revoke: started is dropped", "M135 revoke: at once frees a started key", "M121 M155 revoke: released not set",
		"M06 renew unchecked", "M32 callers without a place overtake the queue", "M31 a dead waiter blocks the queue", "M113 abandon frees everybody's",
		"M08 renew after expiry", "M08 renew says lost and revives", "M95 M97 queue: turns of a second", "refusal is an error", "release of deleted is unknown",
	} {
		known = append(known, bug)
		finds(bug, sequences)
	}
	for _, bug := range []string{"a completion ends by the clock of who did the work", "M17 unknown as unavailable, by complete", "await: an element of an earlier hand-over"} {
		known = append(known, bug)
		finds(bug, 30*sequences)
	}
	for _, m := range wrongrules.Induced {
		known = append(known, m.Name)
	}
	for _, m := range wrongrules.All {
		if !slices.Contains(known, m.Name) { // no case is said to find it
			finds(m.Name, 30*sequences)
		}
	}
	verifyrecord.Write(t, verifyrecord.Result{
		Kind: verifyrecord.Simulation, Name: "random requests to stores with a mistake, and to the rule book",
		Counts: map[string]int64{"mistakes found": mistakes}, Took: time.Since(began),
	})
}

// plantedBugs are the bugs that each case has to catch.
var plantedBugs = map[string][]string{
	"lock/one owner has a key until it releases it F01 F64":                             {"M01 acquire unconditional", "F64 same holder shares", "M15 own retry reads busy", "M18 M117 a store that forgets the owners that have ended"},
	"lock/a lease ends by its TTL":                                                      {"M02 never expires", "M127 complete: after another's grant"},
	"lock/an abandon ends what its owner may have, also if the Acquire comes after it":  {"abandon does nothing", "abandon leaves no mark"},
	"lock/as many hold a key as each of them allows":                                    {"several: who asks counts alone", "several: one more than may hold the key", "several: a seat is given twice"},
	"lock/a release hands the key to the first in the queue":                            {"queue: last in, first out", "queue: leave does nothing"},
	"lock/who does not come for the key delays the others by one turn F02":              {"M31 a dead waiter blocks the queue", "M95 M97 queue: turns of a second"},
	"lock/work that has started and did not end is in doubt until somebody resolves it": {"M123 started: ignored by a takeover"},
	"lock/a Complete closes the key for a time":                                         {"a completed key is granted", "queue: stays through a cooldown"},
	"lock/a revoked lease counts until its end, or until the key is opened":             {"M154 a revocation opens the key at once", "M121 M155 revoke: released not set"},

	"rules/random requests get the answers of the rule book F07 F09 F10 F11 F13 F24 F62 F63 M14": {
		"M02 expiry compare flipped", "renew of abandoned is held", "list: the dead are held", "list: completed is only held", "list: in doubt is free", "list: revoked is only held", "list: the first holder alone",
		"owners are compared by prefix", "owners are compared without case", "M04 release unchecked", "M05 release ignores the fence", "M06 renew checks the fence alone", "M06 renew checks the owner alone",
		"M06 renew says lost and extends", "M14 fence compared in 32 bits", "complete: without the fence", "M124 complete: without the owner", "started: says lost and starts", "started: whatever the fence", "cooldown by anybody",
		"complete: the result is a text", "complete: the result ends at a NUL", "complete: a newline at the end is cut", "complete: a result that looks like a queue is none", "complete: the error knows no holder",
		"complete: a plain refusal", "resolve: whatever the fence",
	},
	"rules/each request with another one, from many states F23 F24 F25": {
		"several: a release ends the leases that were granted later", "a reader's place ends when the writer before it leaves", "a renewal ends the queue",
		"a revocation ends the places of all who wait", "several: a release moves the others to lower seats",
		"several: a revocation at once ends every lease", "several: a lease that has ended ends the others", "several: who is revoked makes the others revoked",
	},

	"owner/may be any text F48":            {"F48 an owner is looked for in the text of an error", "an owner has 48 bytes", "F48 bounds are too narrow"},
	"holder/the text comes back unchanged": {"holder is cut at 64 bytes", "inspect shows the raw holder", "unknown holder gets a name", "caller is not stored"},
	"renew/never shortens F27":             {"M09 renew shortens", "M84 shorter renew is trusted for its TTL alone", "shorter renew is trusted for nothing"},

	"fence/counts in microseconds since 1970":              {"M13 fence from a local counter", "M14 fence int32", "inspect invents a fence"},
	"fence/grows when its entry is deleted F35 F43":        {"M07 renew recreates deleted", "M07 renew says lost and recreates", "fence is one more alone"},
	"fence/grows over an older entry that is put back F45": {"fence is one more alone"},
	"fence/grows whatever the clock shows F15 F20":         {"fence is the time alone", "F15 clock that is off is refused", "fence is a float64", "fence has 52 bits", "no time is after 2038"},

	"takeover/not before the end of a lease or of a result, wherever in a second it lies, and however late F01": {
		"M81 takeover 1 ms early", "takeover 100 ms early", "takeover 500 ms early", "takeover 999 ms early", "takeover by whole seconds, rounded up", "takeover by whole seconds, rounded",
		"TTL in whole seconds", "begin in whole seconds", "end in whole milliseconds", "M83 end in whole seconds", "end in whole seconds, rounded", "M85 a cooldown ends 1 ms early",
		"a lease's microseconds wrap at 2^31", "a lease's seconds wrap at 2^16", "a lease's time is a float32", "a lease of hours has whole minutes",
		"complete: its milliseconds wrap at 2^31", "complete: its microseconds wrap at 2^32", "complete: at most a day", "complete: for ever",
	},
	"takeover/not before the end, when the clock falls back or is an hour off F15 F16": {"takeover by another clock than the lease's", "complete: by another clock"},

	"complete/the result comes back unchanged, and ends with the next grant":         {"complete: 64 KiB", "complete: the result survives the next grant", "M128 complete: the result stays in the entry"},
	"complete/a MarkStarted that arrives after the end of its lease leaves no doubt": {"started: by the time when it was sent", "started: a late mark stays"},

	"queue/AwaitTurn ends with the turn, with the place, or with its context F28 F57": {"queue: AwaitTurn sleeps through a release", "M30 a release before the wait is not seen", "queue: AwaitTurn goes on without a place", "queue: AwaitTurn outlives its context", "await: sleeps after ten minutes"},
	"queue/who waits learns at once that the key has a result or is in doubt":         {"started: AwaitTurn goes on"},
	"queue/a holder is not handed the key again, when the clock falls back":           {"several: a holder that has a place is handed the key again"},
	"queue/a damaged one is none": {"queue: damaged is corrupt"},
	"queue/a full one F02":        {"queue: every place is a turn", "queue: no end", "parked: all places may be parked", "M96 M98 a queue of dead owners closes a key for three turns"},

	"parked/an address is kept for its owner until it is taken":                  {"parked: one address for a key", "parked: keys and owners meet", "parked: the first address stays", "parked: an address is taken twice", "parked: addresses are listed"},
	"parked/a copy of an address that arrives late does not replace a newer one": {"parked: a late address replaces a newer one"},

	"many/as many hold a key as it allows, and no more": {
		"several: the ninth holder is not counted", "several: the number of holders has four bits", "several: at most ten hold a key", "several: a seat has three bits",
		"several: eight are handed the key at once", "queue: the tenth and the eleventh change places",
	},
	"many/a lease is renewed and a key is granted any number of times": {"a lease is renewed 20 times", "a key is granted 20 times"},
	"many/an entry as large as the bounds allow is one like any other": {"an entry has 4 KiB"},

	"hours/a place and an address are kept for days":                                {"queue: a place is lost after ten minutes", "queue: a reader waits for an hour at most", "parked: an address is kept for a day", "parked: who leaves takes all addresses along", "parked: a completion drops the addresses", "a lease cannot be renewed for longer than a day"},
	"hours/work that has started is renewed for weeks, and then in doubt for weeks": {"started: forgotten after a month of renewals", "started: forgotten after a day"},

	"list/an entry of another program is counted, and stops nothing F53 F54": {"list: ends at a foreign entry"},
	"list/what is held is listed once":                                       {"list: the prefix is a pattern", "list: everything", "list: not what is waited for", "list: twice", "list: everything is free"},

	"keys/odd ones are accepted and never meet F52 F58 M29": {"M29 keys meet without case", "M29 keys meet in their hash tag", "M29 keys meet after trimming", "M29 keys meet after 1000 bytes", "F58 every key has one lock", "owner is over on all keys", "list: a hundred keys"},

	"errors/a call ends with its context F28 F75":                {"F28 call outlives its context", "F28 call that was cut off is unavailable", "F28 call that was cut off is held", "F28 call that was cut off hides its context's error", "F28 a request is sent again after its call has ended"},
	"errors/a lost reply is unknown F23 F24 F25 F26 M15 M16 M17": {"M16 unknown as held", "M17 unknown as unavailable", "abandon does nothing", "F25 release again is lost", "M16 unknown as held, by renew", "M17 unknown as unavailable, by renew", "M16 unknown as held, by release", "M17 unknown as unavailable, by release"},
	"errors/a server that cannot be reached is unavailable F21":  {"M36 server error as busy", "F21 refused connections are waited for"},

	"corrupt/an entry that is damaged, or another program's, is refused and left alone F53 F54": {"F53 corrupt row is free", "F53 error without the key", "F54 a refused entry is cleared"},

	"contention/one of many wins F01 F64": {"M02 never expires", "M19 check then set", "fence is the time alone"},

	"requests/one for each call, and few for a takeover and for an abandon F01": {"cost: two requests for each call", "cost: refusal reads on the side", "cost: MarkStarted reads first", "cost: takeover watches first", "abandon of nothing is lost"},
}
