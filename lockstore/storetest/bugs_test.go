package storetest

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
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

// record runs the case on new stores with the bug.
func record(t *testing.T, tc testCase, bug string) *recorder {
	r := &recorder{}
	for _, phase := range phases {
		synctest.Test(t, func(t *testing.T) {
			done := make(chan struct{})
			go func() {
				defer close(done)
				newCheck(t, r, newBuggyStore(bug).harness(), true).run(tc, phase)
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

// wrongEnds are bugs that grant a key before a lease or a cooldown has ended.
var wrongEnds = []string{
	"takeover 1 ms early", "takeover 100 ms early", "takeover 500 ms early", "takeover 999 ms early",
	"takeover by whole seconds, rounded up", "takeover by whole seconds, rounded",
	"TTL in whole seconds", "begin in whole seconds",
	"end in whole milliseconds", "end in whole seconds", "end in whole seconds, rounded",
}

// plantedBugs are the bugs that each case has to catch.
var plantedBugs = map[string][]string{
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
	"renew/never shortens F27":                                {"M09 renew shortens", "shorter renew is trusted for its TTL alone", "shorter renew is trusted for nothing"},
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
	"abandon/does not change the lease of another owner":                {"abandon frees everybody's"},
	"abandon/again, and after the release, is nil":                      {"abandon again is lost"},
	"abandon/of an expired lease is nil":                                {"abandon of an expired lease is lost"},

	"cooldown/for everybody, then the key is free":          {"F64 same holder shares", "cooldown of no time", "cooldown of half the time", "cooldown until the lease's end"},
	"cooldown/not shorter, wherever in a second it ends":    wrongEnds,
	"cooldown/again is nil and does not make it longer F25": {"cooldown again is longer"},
	"cooldown/stays through other releases":                 {"cooldown ends by release", "cooldown ends by abandon", "cooldown for others only"},
	"cooldown/only by the lease that holds the key F10":     {"cooldown by anybody"},
	"cooldown/Inspect shows it":                             {"inspect sees the cooldown as free"},

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

	"keys/odd ones are accepted and never meet F52 M29": {"M29 keys meet without case", "M29 keys meet in their hash tag", "M29 keys meet after trimming"},
	"keys/as long as allowed F52":                       {"M29 keys meet after 1000 bytes"},
	"keys/bad ones are refused and nothing is sent F52": {"F48 key is not checked"},
	"keys/many at once are independent F58":             {"F58 every key has one lock"},

	"invalid/TTL out of bounds F48 M39": {"F48 TTL is not checked"},
	"invalid/owner out of bounds F48":   {"F48 owner is not checked"},
	"invalid/fence out of bounds F48":   {"F48 fence is not checked", "F48 cooldown of what was never granted"},

	"errors/a context that is done leaves nothing behind F22": {"F22 done context is sent", "F22 done context is unknown", "F22 context error is hidden"},
	"errors/a call ends with its context F28 F75": {
		"F28 call outlives its context", "F28 call that was cut off is unavailable", "F28 call that was cut off is held",
		"F28 call that was cut off hides its context's error",
	},
	"errors/a server that cannot be reached is unavailable F21":  {"M36 server error as busy", "F21 refused connections are waited for"},
	"errors/a lost reply is unknown F23 F24 F25 F26 M15 M16 M17": {"M16 unknown as held", "M17 unknown as unavailable", "abandon does nothing", "F25 release again is lost"},

	"corrupt/a value of another program is refused and left alone F54": {"F53 corrupt row is free", "F53 error without the key", "F54 a refused entry is cleared"},
	"corrupt/a damaged entry is refused and left alone F53":            {"F53 corrupt row is free", "F53 error without the key", "F54 a refused entry is cleared"},

	"contention/one of many wins F01 F64":                    {"M02 never expires", "M19 check then set", "fence is the time alone"},
	"contention/copies of one acquire get one lease F13 F23": {"own retry takes a new fence"},
	"contention/one at a time, with a growing fence F57":     {"M10 fence constant", "M19 check then set"},

	"requests/one for each call":                         {"cost: two requests for each call", "cost: refusal reads on the side"},
	"requests/few for a takeover and for an abandon F01": {"cost: takeover watches first", "abandon of nothing is lost"},
}
