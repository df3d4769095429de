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

// record runs the case on new stores with the bug, as Run does, until it fails.
func record(t *testing.T, tc testCase, bug string) *recorder {
	r := &recorder{}
	for _, phase := range tc.phases() {
		if len(r.failed) > 0 {
			break
		}
		synctest.Test(t, func(t *testing.T) {
			done := make(chan struct{})
			go func() {
				defer close(done)
				newCheck(t, r, newWrong(bug).harness(), true).run(tc, phase)
			}()
			<-done
		})
	}
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

// Each planted bug makes the cases fail that have to catch it, and each case catches a bug.
func TestSuiteCatchesPlantedBugs(t *testing.T) {
	found := 0
	for _, tc := range cases() {
		bugs := plantedBugs[tc.name]
		if len(bugs) == 0 {
			t.Errorf("no planted bug makes the case %q fail, so nothing shows that it can", tc.name)
			continue
		}
		found++
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

// The comparison with the rule book finds each mistake of a careful person, and each way to
// trust one process alone, within the sequences that Run makes. Every other mistake in a rule is found
// by a case, or by more sequences.
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
		"a completion ends by the clock of who did the work", "renewed by the clock of who has it",
		"M16 unknown as held, by mark started", "M17 unknown as unavailable, by complete",
		"await: trust counts from the wake-up", "await: the fence of before the hand-over", "await: an element of an earlier hand-over", "await: a hand-over that has lapsed",
	} {
		finds(bug, 5*sequences)
	}
	for _, m := range wrongrules.Searched {
		known = append(known, m.Name)
	}
	for _, m := range wrongrules.All {
		if !slices.Contains(known, m.Name) { // no case is said to find it
			finds(m.Name, 5*sequences)
		}
	}
	verifyrecord.Write(t, verifyrecord.Result{
		Kind: verifyrecord.Simulation, Name: "random requests to stores with a mistake, and to the rule book",
		Counts: map[string]int64{"mistakes found": mistakes}, Took: time.Since(began),
	})
}

// wrongEnds are bugs that grant a key before a lease or a cooldown has ended.
var wrongEnds = []string{
	"M81 takeover 1 ms early", "takeover 100 ms early", "takeover 500 ms early", "takeover 999 ms early",
	"takeover by whole seconds, rounded up", "takeover by whole seconds, rounded",
	"TTL in whole seconds", "begin in whole seconds",
	"end in whole milliseconds", "M83 end in whole seconds", "end in whole seconds, rounded",
}

// plantedBugs are the bugs that each case has to catch.
var plantedBugs = map[string][]string{
	"acquire/a held key is refused F64":                                           {"M01 acquire unconditional", "M02 expiry compare flipped", "F29 trusted longer than asked", "trusted for nothing", "refusal is an error"},
	"acquire/again returns the same lease F13 F23":                                {"M15 own retry reads busy", "own retry brings the old expiry back", "queue: everybody joins", "refused acquire extends"},
	"acquire/again returns the time that is left F23 F29":                         {"own retry extends", "own retry promises the whole TTL", "refusal has no remaining time"},
	"acquire/an expired lease is lost F07 F09 F10 F11":                            {"F24 renew again is lost", "M04 release says lost and frees", "M04 release unchecked", "overtaken owner shares the new lease", "release after a takeover is nil", "started: by anybody"},
	"takeover/time after time F63":                                                {"M02 never expires", "M10 fence constant", "takeover keeps the fence"},
	"renew/the trusted time, and again F24":                                       {"F64 same holder shares", "inspect has a fixed remaining time", "refusal has too long a remaining time", "renew does not extend"},
	"renew/a released lease is lost F09":                                          {"M07 renew recreates lost", "M07 renew says lost and recreates", "M36 lost as held", "M07 renew recreates deleted"},
	"release/frees the key at once, and again is nil F25 F62":                     {"F25 release again is lost", "release does nothing", "release says nil and keeps the lease", "M04 release again frees the next", "release leaves a mark on the unknown", "release of deleted is unknown", "release of the unknown is nil"},
	"release/an expired lease leaves the key free":                                {"release of expired blocks the key", "inspect knows no fence"},
	"release/a late duplicate of the acquire takes no lock F26":                   {"M18 late duplicate of an acquire", "inspect sees the held as free", "renew drops the holder", "renew is trusted for nothing"},
	"abandon/before a late acquire, on a new key and on a used one F26":           {"abandon leaves no mark", "abandon of nothing is lost"},
	"abandon/after the acquire was applied frees it F23":                          {"abandon does nothing", "abandon lowers the fence", "renew of abandoned is held", "M07 renew says lost and recreates", "abandon again is lost"},
	"cooldown/for everybody, then the key is free":                                {"cooldown of no time", "cooldown of half the time", "cooldown until the lease's end", "cooldown ends by abandon"},
	"complete/again is nil and changes neither the result nor the time F25":       {"complete: again replaces the result", "cooldown again is longer", "complete: a release frees a completed key", "cooldown ends by release", "started: of a completed key"},
	"complete/after the end of the lease, if nobody was granted the key":          {"complete: lost after the end", "inspect sees the cooldown as free", "inspect: completed is only held"},
	"complete/after a release or an abandon is lost":                              {"complete: released counts as completed", "cooldown by anybody", "M125 complete: on a free key"},
	"complete/again after others does not change what is theirs F10 F62":          {"M12 fence moves on busy", "M127 complete: after another's grant", "complete: again takes the key of others"},
	"started/the lease goes on, and whoever knows how the work ended says so F10": {"M11 release deletes the fence", "abandon of an expired lease is lost", "refusal has too short a remaining time", "renew is trusted longer than asked", "started: a release after the end is lost", "started: again is lost", "started: also after the end"},
	"started/an expired one is refused to all":                                    {"M123 started: ignored by a takeover", "started: a renewal forgets it", "started: forgotten after a day", "started: an abandon by others ends it", "started: does nothing", "M124 complete: without the owner"},
	"resolve/a key in doubt is completed":                                         {"resolve: the result is dropped", "resolve: again is lost", "M156 resolve: the owner itself has completed it"},
	"resolve/a key in doubt is free":                                              {"resolve: the owner may come back", "resolve: again is lost"},
	"resolve/only what is in doubt F10":                                           {"resolve: a live lease too", "resolve: whatever the fence", "resolve: what has not started too", "renew takes a new fence", "started: a release leaves it"},
	"revoke/the holder is over, and the key opens at the end of its lease":        {"M120 revoke: end shortened", "revoke: the owner stays", "revoke: the end as at the grant"},
	"revoke/a renewed lease, and again":                                           {"M37 TTL in other units", "inspect shows the raw holder", "queue: not asking again gives the place up", "revoke: again is lost", "revoke: the holder stays", "revoke: the second one takes over"},
	"revoke/only the lease with this fence":                                       {"revoke: fence not compared", "revoke: of an expired lease", "M122 revoke: ends a cooldown", "revoke: ends what is completed"},
	"revoke/a started lease is in doubt at its end":                               {"M134 revoke: started is dropped", "revoke: frees a started key at once", "revoke: the owner stays", "resolve: what is revoked is never in doubt", "M135 revoke: at once frees a started key"},
	"revoke/at once frees the key at once":                                        {"revoke: at once waits", "M121 M155 revoke: released not set", "M06 renew unchecked", "revoke: not shown"},
	"queue/in the order of arrival F57":                                           {"queue: last in, first out", "queue: served from the end", "queue: only for show", "queue: a free key is held", "M32 callers without a place overtake the queue"},
	"queue/leave takes one place out":                                             {"queue: an abandon keeps the place", "queue: leave does nothing", "queue: leave ends all places", "queue: leave is an abandon", "queue: leave again is lost", "queue: the holder leaves"},
	"hand-over/a lapsed one goes to the next, and its owner is last F02":          {"M31 a dead waiter blocks the queue", "a hand-over that has lapsed ends its owner", "a hand-over that has lapsed keeps its place", "own expired lease is taken again"},
	"queue/many that died delay by five turns F02":                                {"M96 M98 a queue of dead owners closes a key for three turns", "M31 a dead waiter blocks the queue", "queue: every place is a turn", "M95 M97 queue: turns of a second"},
	"queue/many that died delay who does not wait by five turns F02":              {"M31 a dead waiter blocks the queue", "queue: every place is a turn", "queue: a grant without a place keeps the queue"},
	"queue/who leaves moves the turns of none but the next":                       {"M113 abandon frees everybody's", "a hand-over that has lapsed is extended", "own expired lease is held", "queue: a free key is waited for"},
	"queue/who leaves after its turn moves nobody's turn":                         {"holder is not stored", "holder text is compared", "a leave hands over to nobody"},
	"queue/behind a holder that died F01":                                         {"M08 renew after expiry", "M08 renew says lost and revives", "queue: an owner joins again"},
	"queue/a cooldown, a result and a doubt end it":                               {"holder of the first grant stays", "inspect sees the dead as held", "inspect: in doubt is free", "queue: one waits for the end of a cooldown", "queue: stays through a cooldown"},
	"hand-over/the release makes the first in the queue the holder":               {"a release hands over to nobody", "a hand-over keeps the place", "a hand-over keeps the fence", "a hand-over is shown as held", "an extension of a hand-over is for what is left of its turn", "an extension of a hand-over is not stored", "a hand-over that was extended takes a new fence"},
	"hand-over/of a revoked lease, by its release":                                {"a release of a revoked lease is nil", "a release of a revoked lease frees nothing", "revoke: ends the queue"},
	"hand-over/by an operator, and again F25":                                     {"a revocation hands over to nobody", "resolving hands over to nobody", "a second OpenAtOnce is lost", "a second ResolveNoEffect is lost", "started: in doubt at once"},

	"acquire/owners are compared whole":              {"owners are compared by prefix", "owners are compared without case", "M04 release unchecked"},
	"acquire/the bounds themselves are accepted F48": {"F48 bounds are too narrow"},

	"complete/a clock that is an hour off F15 F16":                    {"complete: by another clock"},
	"complete/a place that is taken at the same time is none":         {"queue: stays through a cooldown"},
	"complete/for its time, and for as long as a month":               {"complete: at most a day", "complete: for ever"},
	"complete/nothing is stored after the next grant":                 {"complete: the result survives the next grant", "M128 complete: the result stays in the entry"},
	"complete/the result comes back unchanged":                        {"complete: the result is a text", "complete: the result ends at a NUL", "complete: a newline at the end is cut", "complete: a result that looks like a queue is none", "complete: 64 KiB", "complete: the error knows no holder", "complete: a plain refusal"},
	"complete/who waits in the queue learns that the key is in doubt": {"started: AwaitTurn goes on"},
	"complete/who waits in the queue learns the result at once":       {"queue: stays through a cooldown"},

	"contention/one of many wins F01 F64": {"M02 never expires", "M19 check then set", "fence is the time alone"},

	"corrupt/a damaged entry is refused and left alone F53":            {"F53 corrupt row is free", "F53 error without the key", "F54 a refused entry is cleared"},
	"corrupt/a value of another program is refused and left alone F54": {"F53 corrupt row is free", "F53 error without the key", "F54 a refused entry is cleared"},

	"errors/a call ends with its context F28 F75":                {"F28 call outlives its context", "F28 call that was cut off is unavailable", "F28 call that was cut off is held", "F28 call that was cut off hides its context's error"},
	"errors/a lost reply is unknown F23 F24 F25 F26 M15 M16 M17": {"M16 unknown as held", "M17 unknown as unavailable", "abandon does nothing", "F25 release again is lost", "M16 unknown as held, by renew", "M17 unknown as unavailable, by renew", "M16 unknown as held, by release", "M17 unknown as unavailable, by release"},
	"errors/a server that cannot be reached is unavailable F21":  {"M36 server error as busy", "F21 refused connections are waited for"},

	"fence/counts in microseconds since 1970":               {"M13 fence from a local counter", "M14 fence int32", "inspect invents a fence"},
	"fence/grows over a deleted entry F35 F43":              {"fence is one more alone"},
	"fence/grows over an older entry that is put back F45":  {"fence is one more alone"},
	"fence/grows when the clock is behind or ahead F15 F20": {"fence is the time alone", "F15 clock that is off is refused"},

	"holder/the text comes back unchanged": {"holder is cut at 64 bytes", "inspect shows the raw holder", "unknown holder gets a name", "caller is not stored"},

	"inspect/every holder, with the smallest number": {"inspect shows the first holder alone", "revoke: the holder of another lease"},

	"keys/as long as allowed F52":                       {"M29 keys meet after 1000 bytes"},
	"keys/many at once are independent F58":             {"F58 every key has one lock", "owner is over on all keys"},
	"keys/odd ones are accepted and never meet F52 M29": {"M29 keys meet without case", "M29 keys meet in their hash tag", "M29 keys meet after trimming"},

	"list/an entry of another program is counted, and stops nothing F53 F54": {"list: ends at a foreign entry"},
	"list/every holder of a key":                       {"list: the first holder alone"},
	"list/what is held is listed once, with its state": {"list: the prefix is a pattern", "list: everything", "list: not what is waited for", "list: the dead are held", "list: everything is free", "list: twice", "list: completed is only held", "list: in doubt is free", "list: revoked is only held"},

	"queue/AwaitTurn ends when the place is gone": {"queue: AwaitTurn goes on without a place"},
	"queue/AwaitTurn ends with its context F28":   {"queue: AwaitTurn outlives its context"},
	"queue/AwaitTurn ends with the turn F57":      {"queue: AwaitTurn sleeps through a release", "M30 a release before the wait is not seen"},
	"queue/a damaged one is none":                 {"queue: damaged is corrupt"},
	"queue/a full one F02":                        {"queue: no end", "queue: every place is a turn"},

	"renew/a deleted entry is not made again F35 F43": {"M07 renew recreates deleted", "M07 renew says lost and recreates"},
	"renew/never shortens F27":                        {"M09 renew shortens", "M84 shorter renew is trusted for its TTL alone", "shorter renew is trusted for nothing"},

	"requests/few for a takeover and for an abandon F01": {"cost: takeover watches first", "abandon of nothing is lost"},
	"requests/one for each call":                         {"cost: two requests for each call", "cost: refusal reads on the side", "cost: MarkStarted reads first"},

	"rules/random requests get the answers of the rule book": {"M02 expiry compare flipped", "renew of abandoned is held"},

	"strangers/another owner or another fence is refused F10 F48 M14": {"M05 release ignores the fence", "M06 renew checks the fence alone", "M06 renew checks the owner alone", "M06 renew says lost and extends", "M14 fence compared in 32 bits", "complete: without the fence", "started: says lost and starts", "started: whatever the fence", "cooldown by anybody"},

	"takeover/not before the end of a cooldown or of a result, wherever in a second it lies": append([]string{"M85 a cooldown ends 1 ms early"}, wrongEnds...),
	"takeover/not before the lease's end, wherever in a second it lies F01":                  wrongEnds,
	"takeover/not before trust ends, when the clock falls back F15 F16":                      {"takeover by another clock than the lease's"},
}
