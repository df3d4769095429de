package storetest

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
)

// recorder watches a case instead of failing the test.
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

// watch runs the case on new models with the bug.
func watch(t *testing.T, tc testCase, bug string) *recorder {
	r := &recorder{}
	for _, phase := range phases {
		synctest.Test(t, func(t *testing.T) {
			done := make(chan struct{})
			go func() {
				defer close(done)
				newCheck(t, r, newModel(bug).harness(), true).at(phase, tc)
			}()
			<-done
		})
	}
	return r
}

func TestSuitePassesOnTheModelWithoutABug(t *testing.T) {
	for _, tc := range cases() {
		r := watch(t, tc, "")
		if len(r.failed) > 0 {
			t.Errorf("%s: %s", tc.name, strings.Join(r.failed, "; "))
		}
		if r.skipped != "" {
			t.Errorf("%s was skipped: %s", tc.name, r.skipped)
		}
	}
}

// Each planted bug makes the cases fail that claim to catch it, and each case
// claims one, so no case is unable to fail.
func TestSuiteCatchesPlantedBugs(t *testing.T) {
	all := cases()
	claimed := map[string]bool{}
	for _, b := range plantedBugs {
		t.Run(b.bug, func(t *testing.T) {
			for _, prefix := range b.caughtBy {
				found := false
				for _, tc := range all {
					if !strings.HasPrefix(tc.name, prefix) {
						continue
					}
					found, claimed[tc.name] = true, true
					r := watch(t, tc, b.bug)
					if len(r.failed) == 0 {
						t.Errorf("not caught by %q", tc.name)
						continue
					}
					t.Logf("%s: %s", tc.name, r.failed[0])
				}
				if !found {
					t.Errorf("no case is called %q", prefix)
				}
			}
		})
	}
	for _, tc := range all {
		if !claimed[tc.name] {
			t.Errorf("no planted bug makes the case %q fail, so nothing shows that it can", tc.name)
		}
	}
}

var plantedBugs = []struct {
	bug      string
	caughtBy []string // the beginnings of the names of cases
}{
	{"M01 acquire unconditional", []string{"acquire/a held key is refused"}},
	{"M02 expiry compare flipped", []string{"acquire/a held key is refused"}},
	{"M02 never expires", []string{"takeover/not before the TTL", "takeover/time after time", "fence/grows over an expiry", "contention/one of many takes"}},
	{"takeover 1 ms early", []string{"takeover/not before the lease's end", "closed/not for less", "renew/with the same TTL"}},
	{"takeover 100 ms early", []string{"takeover/not before the lease's end", "closed/not for less", "renew/with the same TTL"}},
	{"takeover 500 ms early", []string{"takeover/not before the lease's end", "closed/not for less", "renew/with the same TTL"}},
	{"takeover 999 ms early", []string{"takeover/not before the lease's end", "closed/not for less", "renew/with the same TTL"}},
	{"takeover by whole seconds, rounded up", []string{"takeover/not before the lease's end", "closed/not for less", "renew/with the same TTL"}},
	{"takeover by whole seconds, rounded", []string{"takeover/not before the lease's end", "closed/not for less", "renew/with the same TTL"}},
	{"TTL in whole seconds", []string{"takeover/not before the lease's end", "closed/not for less", "renew/with the same TTL"}},
	{"end in whole milliseconds", []string{"takeover/not before the lease's end", "closed/not for less", "renew/with the same TTL"}},
	{"end in whole seconds", []string{"takeover/not before the lease's end", "closed/not for less", "renew/with the same TTL"}},
	{"end in whole seconds, rounded", []string{"takeover/not before the lease's end", "closed/not for less", "renew/with the same TTL"}},
	{"takeover by another clock than the lease's", []string{"takeover/not before trust ends"}},
	{"begin in whole seconds", []string{"takeover/not before the lease's end", "closed/not for less", "renew/with the same TTL"}},
	{"M04 release unchecked", []string{"release/another owner"}},
	{"M04 release says lost and frees", []string{"release/another owner"}},
	{"M04 release again frees the next", []string{"release/again after another's grant"}},
	{"M05 release ignores the fence", []string{"release/another owner"}},
	{"M06 renew unchecked", []string{"renew/another owner"}},
	{"M06 renew checks the owner alone", []string{"renew/another owner"}},
	{"M06 renew checks the fence alone", []string{"renew/another owner"}},
	{"M07 renew recreates lost", []string{"renew/a released lease"}},
	{"M07 renew recreates deleted", []string{"renew/a deleted entry", "renew/a key that was never acquired"}},
	{"M06 renew says lost and extends", []string{"renew/another owner"}},
	{"M07 renew says lost and recreates", []string{"renew/a released lease", "renew/an abandoned lease", "renew/a deleted entry", "renew/a key that was never"}},
	{"M08 renew says lost and revives", []string{"renew/an expired lease"}},
	{"M08 renew after expiry", []string{"renew/an expired lease"}},
	{"M09 renew shortens", []string{"renew/never shortens F27", "renew/never shortens what acquire gave"}},
	{"M10 fence constant", []string{"fence/grows with each grant", "contention/one at a time", "fence/grows over an expiry"}},
	{"M11 release deletes the fence", []string{"fence/grows with each grant"}},
	{"M12 fence moves on busy", []string{"acquire/a refused acquire changes nothing"}},
	{"M13 fence from a local counter", []string{"fence/counts in microseconds"}},
	{"M14 fence int32", []string{"fence/counts in microseconds"}},
	{"M14 fence compared in 32 bits", []string{"invalid/the largest fence"}},
	{"M15 own retry reads busy", []string{"acquire/again returns the same lease"}},
	{"M16 unknown as held", []string{"errors/a lost reply"}},
	{"M17 unknown as unavailable", []string{"errors/a lost reply"}},
	{"M18 late duplicate of an acquire", []string{"release/a late duplicate"}},
	{"M19 check then set", []string{"contention/one of many", "contention/one at a time"}},
	{"M29 keys meet without case", []string{"keys/odd"}},
	{"M29 keys meet after 1000 bytes", []string{"keys/as long as allowed"}},
	{"M29 keys meet in their hash tag", []string{"keys/odd"}},
	{"M29 keys meet after trimming", []string{"keys/odd"}},
	{"M36 lost as held", []string{"renew/a released lease"}},
	{"M36 server error as busy", []string{"errors/a server that cannot be reached"}},
	{"M37 TTL in other units", []string{"holder/a refusal"}},
	{"F15 clock that is off is refused", []string{"fence/a clock that is off"}},
	{"F22 done context is sent", []string{"errors/a context that is done"}},
	{"F22 done context is unknown", []string{"errors/a context that is done"}},
	{"F22 context error is hidden", []string{"errors/a context that is done"}},
	{"F28 call outlives its context", []string{"errors/a call ends with its context"}},
	{"F28 call that was cut off is unavailable", []string{"errors/a call ends with its context"}},
	{"F28 call that was cut off is held", []string{"errors/a call ends with its context"}},
	{"F28 call that was cut off hides its context's error", []string{"errors/a call ends with its context"}},
	{"F21 refused connections are waited for", []string{"errors/a server that cannot be reached"}},
	{"F24 renew again is lost", []string{"renew/again"}},
	{"F25 release again is lost", []string{"release/again is nil", "release/by two goroutines", "errors/a lost reply to a release"}},
	{"F29 trusted longer than asked", []string{"acquire/a free key"}},
	{"F48 TTL is not checked", []string{"invalid/TTL"}},
	{"F48 key is not checked", []string{"keys/bad"}},
	{"F48 owner is not checked", []string{"invalid/owner"}},
	{"F48 fence is not checked", []string{"invalid/negative fence"}},
	{"F48 closes what was never granted", []string{"invalid/ReleaseAfter without a fence"}},
	{"F48 bounds are too narrow", []string{"acquire/the bounds"}},
	{"F53 corrupt row is free", []string{"corrupt/"}},
	{"F53 error without the key", []string{"corrupt/"}},
	{"F54 a refused entry is cleared", []string{"corrupt/"}},
	{"F58 every key has one lock", []string{"keys/many"}},
	{"F64 same holder shares", []string{"closed/to everybody"}},
	{"owners are compared by prefix", []string{"acquire/owners are compared whole"}},
	{"owners are compared without case", []string{"abandon/matches by the whole owner"}},
	{"own retry extends", []string{"acquire/again does not make the lease last longer"}},
	{"own retry promises the whole TTL", []string{"acquire/again returns the time that is left"}},
	{"own retry brings the old expiry back", []string{"acquire/again after a renewal"}},
	{"own retry takes a new fence", []string{"contention/copies of one acquire"}},
	{"own expired lease is held", []string{"acquire/the own expired lease"}},
	{"own expired lease is taken again", []string{"acquire/the own expired lease"}},
	{"holder text is compared", []string{"acquire/again with another holder text"}},
	{"overtaken owner shares the new lease", []string{"acquire/a duplicate after another's takeover"}},
	{"owner is over on all keys", []string{"acquire/one owner on two keys"}},
	{"refused acquire extends", []string{"acquire/a refused acquire changes nothing"}},
	{"trusted for nothing", []string{"acquire/a free key"}},
	{"lease has no owner", []string{"acquire/a free key"}},
	{"holder is kept as it comes", []string{"holder/long text"}},
	{"holder of the first grant stays", []string{"holder/a takeover"}},
	{"holder is not kept", []string{"holder/a refusal"}},
	{"caller is not kept", []string{"holder/a refusal"}},
	{"unknown holder gets a name", []string{"holder/an unknown"}},
	{"held error is plain", []string{"acquire/a held key"}},
	{"held error matches lost too", []string{"acquire/a held key"}},
	{"held error has no key", []string{"acquire/a held key"}},
	{"held error has no remaining time", []string{"holder/a refusal"}},
	{"held error has too long a remaining time", []string{"holder/a refusal"}},
	{"held error has too short a remaining time", []string{"takeover/not before the TTL"}},
	{"takeover keeps the fence", []string{"fence/grows over an expiry", "takeover/time after time"}},
	{"fence is the time alone", []string{"fence/grows when the clock is behind", "fence/grows when the clock was ahead", "contention/one of many wins a released key"}},
	{"fence is one more alone", []string{"fence/grows over a deleted entry", "fence/grows over an older entry"}},
	{"renew does not extend", []string{"takeover/a renewed lease"}},
	{"renew for little more is not written", []string{"renew/with the same TTL"}},
	{"renew takes a new fence", []string{"renew/leaves the fence"}},
	{"renew drops the holder", []string{"renew/leaves the fence"}},
	{"renew is trusted longer than asked", []string{"renew/the trusted time"}},
	{"renew is trusted for nothing", []string{"renew/the trusted time"}},
	{"shorter renew is trusted for its TTL alone", []string{"renew/never shortens F27"}},
	{"shorter renew is trusted for nothing", []string{"renew/never shortens F27"}},
	{"renew of abandoned is held", []string{"renew/an abandoned lease"}},
	{"abandon frees everybody's", []string{"abandon/while another holds"}},
	{"abandon does nothing", []string{"abandon/after the acquire was applied"}},
	{"abandon leaves no mark", []string{"abandon/before a late acquire on a new key"}},
	{"abandon of nothing is lost", []string{"abandon/before a late acquire", "requests/few to abandon"}},
	{"abandon again is lost", []string{"abandon/again", "abandon/after the release"}},
	{"abandon of an expired lease is lost", []string{"abandon/of an expired lease"}},
	{"abandon lowers the fence", []string{"fence/grows over abandons"}},
	{"release does nothing", []string{"release/frees the key"}},
	{"release after a takeover is nil", []string{"takeover/the old owner"}},
	{"release says nil and keeps the lease", []string{"release/frees the key"}},
	{"release of the unknown is nil", []string{"release/a key that was never acquired"}},
	{"release leaves a mark on the unknown", []string{"release/a key that was never acquired"}},
	{"release of expired closes the key", []string{"release/an expired lease"}},
	{"release of deleted is unknown", []string{"release/a deleted entry"}},
	{"closed opens by release", []string{"closed/stays closed"}},
	{"closed opens by abandon", []string{"closed/stays closed"}},
	{"closed again closes longer", []string{"closed/again"}},
	{"closed by anybody", []string{"closed/only by the lease"}},
	{"closed until the lease's end", []string{"closed/shorter than the lease"}},
	{"closed to others only", []string{"closed/stays closed"}},
	{"closed for nothing", []string{"closed/to everybody"}},
	{"closed for half the time", []string{"closed/to everybody"}},
	{"inspect sees the dead as held", []string{"inspect/a dead lease", "inspect/agrees"}},
	{"inspect sees the held as free", []string{"inspect/a held key"}},
	{"inspect shows the raw holder", []string{"inspect/a held key", "holder/long text"}},
	{"inspect shows the last holder", []string{"inspect/a released key"}},
	{"inspect knows no fence", []string{"inspect/a held key"}},
	{"inspect invents a fence", []string{"inspect/a key that was never written"}},
	{"inspect clears the dead", []string{"inspect/changes nothing"}},
	{"inspect sees the closed as free", []string{"closed/inspect"}},
	{"inspect has a fixed remaining time", []string{"inspect/a held key"}},
	{"cost: two requests for each call", []string{"requests/one for each call", "requests/one to inspect"}},
	{"cost: takeover watches first", []string{"requests/one more for a takeover"}},
	{"cost: refusal reads on the side", []string{"requests/one for each call"}},
}
