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
				newCheck(t, r, newWrongStore(bug).harness(), true).run(tc, phase)
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
				difference = newCheck(t, &recorder{}, newWrongStore(bug).harness(), true).difference(uint64(n))
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
	} {
		finds(bug, sequences)
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
	"rules/random requests get the answers of the rule book": {
		"M02 expiry compare flipped", "renew of abandoned is held",
	},
	"acquire/a held key is refused F64": {
		"M01 acquire unconditional", "M02 expiry compare flipped", "F29 trusted longer than asked", "trusted for nothing", "lease has no owner",
		"held error is plain", "held error matches lost too", "held error has no key",
	},
	"acquire/again returns the same lease F23":            {"M15 own retry reads busy", "holder text is compared", "own retry brings the old expiry back"},
	"acquire/again returns the time that is left F23 F29": {"own retry extends", "own retry promises the whole TTL"},
	"acquire/the own expired lease is lost F11":           {"own expired lease is held", "own expired lease is taken again"},
	"acquire/a refused acquire changes nothing":           {"M12 fence moves on busy", "refused acquire extends"},
	"acquire/owners are compared whole":                   {"owners are compared by prefix", "owners are compared without case", "M04 release unchecked"},
	"acquire/one owner on two keys has two leases":        {"owner is over on all keys"},
	"acquire/the bounds themselves are accepted F48":      {"F48 bounds are too narrow"},

	"holder/a refusal says who holds the key and for how long":   {"M37 TTL in other units", "holder is not kept", "caller is not kept", "held error has no remaining time", "held error has too long a remaining time"},
	"holder/long text is cut and control characters are cleaned": {"holder is kept as it comes", "inspect shows the raw holder", "unknown holder gets a name"},
	"holder/a new grant shows the new holder":                    {"holder of the first grant stays"},

	"takeover/not before the TTL and not long after it F01":                 {"M02 never expires", "held error has too short a remaining time"},
	"takeover/not before the lease's end, wherever in a second it lies F01": wrongEnds,
	"takeover/not before trust ends, when the clock falls back F15 F16":     {"takeover by another clock than the lease's"},
	"takeover/the old owner is lost F07 F10 F11":                            {"release after a takeover is nil", "overtaken owner shares the new lease"},
	"takeover/time after time F63":                                          {"M02 never expires", "M10 fence constant", "takeover keeps the fence"},

	"renew/the trusted time":                                  {"renew is trusted longer than asked", "renew is trusted for nothing", "renew does not extend"},
	"renew/again is the same lease F24":                       {"F24 renew again is lost", "renew takes a new fence", "renew drops the holder"},
	"renew/with the same TTL, wherever in a second it ends":   append([]string{"renew for little more is not written", "renew does not extend"}, wrongEnds...),
	"renew/never shortens F27":                                {"M09 renew shortens", "M84 shorter renew is trusted for its TTL alone", "shorter renew is trusted for nothing"},
	"renew/an expired lease is lost F09":                      {"M08 renew after expiry", "M08 renew says lost and revives"},
	"renew/a released lease is lost F09":                      {"M07 renew recreates lost", "M07 renew says lost and recreates", "M36 lost as held"},
	"renew/a key that was never acquired is lost":             {"M07 renew recreates deleted", "M07 renew says lost and recreates"},
	"renew/a deleted entry is not made again F35 F43":         {"M07 renew recreates deleted", "M07 renew says lost and recreates"},
	"renew/another owner or another fence is refused F48 M14": {"M06 renew unchecked", "M06 renew checks the owner alone", "M06 renew checks the fence alone", "M06 renew says lost and extends", "M14 fence compared in 32 bits"},

	"release/frees the key at once, and again is nil F25 F62":   {"F25 release again is lost", "release does nothing", "release says nil and keeps the lease"},
	"release/by two goroutines at once F62":                     {"F25 release again is lost"},
	"release/again does not free the next lease F10 F62":        {"M04 release again frees the next"},
	"release/another owner or another fence is refused F48":     {"M04 release unchecked", "M04 release says lost and frees", "M05 release ignores the fence"},
	"release/a key that was never acquired is lost":             {"release of the unknown is nil", "release leaves a mark on the unknown"},
	"release/an expired lease leaves the key free":              {"release of expired blocks the key"},
	"release/a deleted entry F35":                               {"release of deleted is unknown"},
	"release/a late duplicate of the acquire takes no lock F26": {"M18 late duplicate of an acquire"},

	"abandon/before a late acquire, on a new key and on a used one F26": {"abandon leaves no mark", "abandon of nothing is lost"},
	"abandon/after the acquire was applied frees it F23":                {"abandon does nothing", "abandon lowers the fence", "renew of abandoned is held", "M07 renew says lost and recreates"},
	"abandon/does not change the lease of another owner":                {"M113 abandon frees everybody's"},
	"abandon/again, and after the release, is nil":                      {"abandon again is lost"},
	"abandon/of an expired lease is nil":                                {"abandon of an expired lease is lost"},

	"cooldown/for everybody, then the key is free":          {"F64 same holder shares", "cooldown of no time", "cooldown of half the time", "cooldown until the lease's end"},
	"cooldown/not shorter, wherever in a second it ends":    append([]string{"M85 a cooldown ends 1 ms early"}, wrongEnds...),
	"cooldown/again is nil and does not make it longer F25": {"cooldown again is longer"},
	"cooldown/stays through other releases":                 {"cooldown ends by release", "cooldown ends by abandon"},
	"cooldown/only by the lease that holds the key F10":     {"cooldown by anybody"},
	"cooldown/Inspect shows it":                             {"inspect sees the cooldown as free"},

	"keep/the data comes back unchanged": {
		"keep: the data is a text", "keep: the data ends at a NUL", "keep: a newline at the end is cut", "keep: data that looks like a queue is none", "keep: 64 KiB",
		"keep: the error knows no holder", "keep: a plain refusal",
	},
	"keep/an error does not show the data":                            {"keep: the error shows the data"},
	"keep/for its time, and for as long as a month":                   append([]string{"keep: at most a day", "keep: for ever"}, wrongEnds...),
	"keep/nothing is kept after the next grant":                       {"keep: the answer survives the next grant", "M128 keep: the answer stays in the entry"},
	"keep/again is nil and changes neither the data nor the time F25": {"keep: again replaces the data", "cooldown again is longer"},
	"keep/after the end of the lease, if nobody was granted the key":  {"keep: lost after the end"},
	"keep/after a release or an abandon is lost":                      {"keep: released counts as kept", "cooldown by anybody"},
	"keep/after another's grant is lost F10":                          {"M127 keep: after another's grant"},
	"keep/again after others does not change what is theirs F62":      {"keep: again takes the key of others"},
	"keep/late duplicates do not change a kept key F26":               {"keep: a release frees a kept key", "begin: of a kept key", "cooldown ends by abandon"},
	"keep/only by the lease that holds the key F10":                   {"M124 keep: without the owner", "keep: without the fence", "M125 keep: on a free row"},
	"keep/Inspect shows it":                                           {"inspect: kept is only held", "inspect sees the cooldown as free"},
	"keep/a clock that is an hour off F15 F16":                        {"keep: by another clock"},
	"keep/lost replies of MarkStarted and Complete are unknown F25":   {"begin: again is lost", "M16 unknown as held, by MarkStarted", "M17 unknown as unavailable, by Complete", "begin: does nothing"},
	"keep/arguments out of bounds F48":                                {"F48 the size of an answer is not checked", "F48 the time of Complete is not checked", "F48 cooldown of what was never granted", "F48 fence is not checked"},
	"keep/who waits in the queue learns the answer at once":           {"queue: stays through a cooldown"},
	"keep/who waits in the queue learns that the key is in doubt":     {"begin: AwaitTurn goes on"},
	"keep/a place that is taken at the same time is none":             {"queue: stays through a cooldown"},
	"begin/again is nil, and the lease goes on":                       {"begin: again is lost", "begin: in doubt at once"},
	"begin/an expired one is refused to all":                          {"M123 begin: ignored by a takeover", "begin: a renewal forgets it", "begin: forgotten after a day", "begin: an abandon by others ends it", "begin: does nothing"},
	"begin/a release, an abandon and Complete end it":                 {"begin: a release keeps it", "begin: a release after the end is lost"},
	"begin/only the lease that holds the key F10":                     {"begin: by anybody", "begin: whatever the fence", "begin: also after the end", "begin: says lost and begins"},
	"begin/Inspect shows a key in doubt":                              {"inspect: in doubt is free"},
	"settle/a key in doubt is kept":                                   {"settle: the data is dropped", "settle: again is lost", "M156 settle: the owner itself has kept it"},
	"settle/a key in doubt is free":                                   {"settle: the owner may come back", "settle: again is lost"},
	"settle/only what is in doubt F10":                                {"settle: a live lease too", "settle: whatever the fence", "settle: what has not begun too"},

	"fence/grows with each grant":                             {"M10 fence constant", "M11 release deletes the fence"},
	"fence/counts in microseconds since 1970":                 {"M13 fence from a local counter", "M14 fence int32"},
	"fence/grows over a deleted entry F35 F43":                {"fence is one more alone"},
	"fence/grows over an older entry that is put back F45":    {"fence is one more alone"},
	"fence/grows when the clock is behind or ahead F15 F20":   {"fence is the time alone"},
	"fence/a wrong clock grants, renews and releases F15 F16": {"F15 clock that is off is refused"},

	"inspect/a key that was never written": {"inspect invents a fence"},
	"inspect/a held key":                   {"inspect sees the held as free", "inspect shows the raw holder", "inspect knows no fence", "inspect has a fixed remaining time"},
	"inspect/a released key":               {"inspect shows the last holder"},
	"inspect/an expired lease is not held, and Inspect agrees with Acquire F01": {"inspect sees the dead as held"},
	"inspect/changes nothing": {"inspect clears the dead"},

	"break/the holder is over, and the key opens at the end of its lease": {"M120 break: end shortened", "M121 M155 break: released not set", "break: the owner stays"},
	"break/a renewed lease, wherever it is in its time":                   {"break: the end as at the grant", "M121 M155 break: released not set", "break: the owner stays"},
	"break/the second one changes nothing and learns of the first":        {"break: the second one takes over", "break: again is lost"},
	"break/only the lease with this fence":                                {"break: fence not compared", "break: of an expired lease"},
	"break/a cooldown is no lease":                                        {"M122 break: ends a cooldown"},
	"break/a kept key is no lease":                                        {"break: ends what is kept", "M122 break: ends a cooldown"},
	"break/a begun lease is in doubt at its end":                          {"M134 break: begun is dropped", "break: frees a begun key at once", "break: the owner stays", "settle: what is broken is never in doubt"},
	"break/now is refused when the work has begun":                        {"M135 break: now frees a begun key", "M134 break: begun is dropped"},
	"break/now frees the key at once":                                     {"break: now waits", "M121 M155 break: released not set"},
	"break/Inspect shows it, until the next grant":                        {"break: not shown", "break: the holder stays"},
	"break/the queue stays as it is":                                      {"break: ends the queue"},
	"break/bad arguments are refused":                                     {"break: fence 0 is every lease"},

	"list/what is held is listed once, with its state": {
		"list: the prefix is a pattern", "list: everything", "list: not what is waited for", "list: the dead are held", "list: everything is free", "list: twice",
	},
	"list/kept, in doubt and broken":                                         {"list: kept is only held", "list: in doubt is free", "list: broken is only held"},
	"list/an entry of another program is counted, and stops nothing F53 F54": {"list: ends at a foreign entry"},

	"keys/odd ones are accepted and never meet F52 M29": {"M29 keys meet without case", "M29 keys meet in their hash tag", "M29 keys meet after trimming"},
	"keys/as long as allowed F52":                       {"M29 keys meet after 1000 bytes"},
	"keys/bad ones are refused and nothing is sent F52": {"F48 key is not checked"},
	"keys/many at once are independent F58":             {"F58 every key has one lock"},

	"invalid/TTL out of bounds F48 M39": {"F48 TTL is not checked"},
	"invalid/owner out of bounds F48":   {"F48 owner is not checked"},
	"invalid/fence out of bounds F48":   {"F48 fence is not checked"},

	"errors/a context that is done leaves nothing behind F22": {"F22 done context is sent", "F22 done context is unknown", "F22 context error is hidden"},
	"errors/a call ends with its context F28 F75": {
		"F28 call outlives its context", "F28 call that was cut off is unavailable", "F28 call that was cut off is held",
		"F28 call that was cut off hides its context's error",
	},
	"errors/a server that cannot be reached is unavailable F21": {"M36 server error as busy", "F21 refused connections are waited for"},
	"errors/a lost reply is unknown F23 F24 F25 F26 M15 M16 M17": {
		"M16 unknown as held", "M17 unknown as unavailable", "abandon does nothing", "F25 release again is lost",
		"M16 unknown as held, by Renew", "M17 unknown as unavailable, by Renew", "M16 unknown as held, by Release", "M17 unknown as unavailable, by Release",
	},

	"corrupt/a value of another program is refused and left alone F54": {"F53 corrupt row is free", "F53 error without the key", "F54 a refused entry is cleared"},
	"corrupt/a damaged entry is refused and left alone F53":            {"F53 corrupt row is free", "F53 error without the key", "F54 a refused entry is cleared"},

	"contention/one of many wins F01 F64":                    {"M02 never expires", "M19 check then set", "fence is the time alone"},
	"contention/copies of one acquire get one lease F13 F23": {"own retry takes a new fence"},
	"contention/one at a time, with a growing fence F57":     {"M10 fence constant", "M19 check then set"},

	"queue/in the order of arrival F57":                                  {"queue: last in, first out", "queue: served from the end", "queue: only for show", "queue: a free key is held", "M32 callers without a place overtake the queue"},
	"queue/only for who asks for a place":                                {"queue: everybody joins", "queue: not asking again gives the place up"},
	"queue/a new key and a released one are free":                        {"queue: a free key is waited for"},
	"queue/leave takes one place out":                                    {"queue: leave does nothing", "queue: leave ends all places", "queue: leave is an abandon", "queue: leave again is lost", "queue: the holder leaves"},
	"queue/the first that leaves a free key gives the next a whole turn": {"queue: the next gets what is left of the turn"},
	"queue/who leaves after its turn moves nobody else's turn":           {"queue: a leave moves the turns of others"},
	"queue/one that died delays by one turn F02":                         {"M31 a dead waiter blocks the queue", "M95 M97 queue: turns of a second", "queue: only for show"},
	"queue/many that died delay by five turns F02":                       {"M96 M98 a queue of dead owners closes a key for three turns", "M31 a dead waiter blocks the queue", "queue: every place is a turn", "M95 M97 queue: turns of a second"},
	"queue/many that died delay who does not wait by five turns F02":     {"M31 a dead waiter blocks the queue", "queue: every place is a turn", "queue: a grant without a place keeps the queue"},
	"queue/a full one F02":                                               {"queue: no end", "queue: every place is a turn"},
	"queue/behind a holder that died F01":                                {"queue: a takeover ignores it"},
	"queue/a grant ends the places before it":                            {"queue: a grant keeps the places before it"},
	"queue/the same request again keeps one place F23":                   {"queue: an owner joins again", "queue: a grant keeps the place"},
	"queue/requests whose replies are lost F23 F25":                      {"queue: an owner joins again", "queue: leave again is lost", "M16 unknown as held", "M17 unknown as unavailable"},
	"queue/an abandon takes the place out M17":                           {"queue: an abandon keeps the place"},
	"queue/a cooldown ends it":                                           {"queue: stays through a cooldown", "queue: one waits for the end of a cooldown"},
	"queue/a damaged one is none":                                        {"queue: damaged is corrupt"},
	"queue/AwaitTurn ends with the turn":                                 {"queue: AwaitTurn sleeps through a release"},
	"queue/AwaitTurn ends when the place is gone":                        {"queue: AwaitTurn goes on without a place"},
	"queue/an abandon by others moves nobody's turn":                     {"queue: an abandon begins the turns again"},
	"queue/AwaitTurn ends with its context F28":                          {"queue: AwaitTurn outlives its context"},
	"queue/many that wait are served in their order F57":                 {"queue: served from the end", "M30 a release before the wait is not seen"},

	"requests/one for each call":                         {"cost: two requests for each call", "cost: refusal reads on the side", "cost: MarkStarted reads first"},
	"requests/few for a takeover and for an abandon F01": {"cost: takeover watches first", "abandon of nothing is lost"},
}
