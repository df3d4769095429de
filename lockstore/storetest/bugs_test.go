package storetest

import (
	"fmt"
	"runtime"
	"slices"
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

// watch runs the case on a new model with the bug.
func watch(t *testing.T, tc testCase, bug string) *recorder {
	r := &recorder{}
	synctest.Test(t, func(t *testing.T) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			tc.run(newCheck(t, r, newModel(bug).harness()))
		}()
		<-done
	})
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

// Each planted bug must be caught, and by the case that claims to catch it.
func TestSuiteCatchesPlantedBugs(t *testing.T) {
	failedOnce := map[string]bool{}
	for _, b := range plantedBugs {
		t.Run(b.bug, func(t *testing.T) {
			var killers []string
			for _, tc := range cases() {
				if r := watch(t, tc, b.bug); len(r.failed) > 0 {
					killers = append(killers, tc.name)
					failedOnce[tc.name] = true
				}
			}
			t.Logf("caught by %d cases: %s", len(killers), strings.Join(killers, ", "))
			if !slices.ContainsFunc(killers, func(name string) bool { return strings.HasPrefix(name, b.caughtBy) }) {
				t.Errorf("not caught by %q", b.caughtBy)
			}
		})
	}
	for _, tc := range cases() {
		if !failedOnce[tc.name] {
			t.Errorf("no planted bug makes the case %q fail, so nothing shows that it can", tc.name)
		}
	}
}

var plantedBugs = []struct{ bug, caughtBy string }{
	{"M01 acquire unconditional", "acquire/a held key is refused"},
	{"M02 expiry compare flipped", "acquire/a held key is refused"},
	{"M02 never expires", "takeover/not before the TTL"},
	{"M02 expires a little early", "takeover/not before the TTL"},
	{"M04 release unchecked", "release/another owner"},
	{"M05 release ignores the fence", "release/another owner"},
	{"M06 renew unchecked", "renew/another owner"},
	{"M06 renew checks the owner alone", "renew/another owner"},
	{"M06 renew checks the fence alone", "renew/another owner"},
	{"M07 renew recreates lost", "renew/a released lease"},
	{"M07 renew recreates deleted", "renew/a deleted entry"},
	{"M08 renew after expiry", "renew/an expired lease"},
	{"M09 renew shortens", "renew/never shortens F27"},
	{"M10 fence constant", "fence/grows with each grant"},
	{"M11 release deletes the fence", "fence/grows with each grant"},
	{"M12 fence moves on busy", "acquire/a refused acquire changes nothing"},
	{"M13 fence from a local counter", "fence/counts in microseconds"},
	{"M14 fence int32", "fence/counts in microseconds"},
	{"M15 own retry reads busy", "acquire/again returns the same lease"},
	{"M16 unknown as held", "errors/a lost reply to an acquire is unknown"},
	{"M17 unknown as unavailable", "errors/a lost reply to an acquire is unknown"},
	{"M18 ghost acquire", "release/a late duplicate"},
	{"M29 keys meet without case", "keys/odd"},
	{"M29 keys meet after 1000 bytes", "keys/as long as allowed"},
	{"M29 keys meet in their hash tag", "keys/odd"},
	{"M29 keys meet after trimming", "keys/odd"},
	{"M36 lost as held", "renew/a released lease"},
	{"M36 server error as busy", "errors/a server that cannot be reached"},
	{"M37 TTL in other units", "holder/a refusal"},
	{"F22 done context is sent", "errors/a context that is done"},
	{"F22 done context is unknown", "errors/a context that is done"},
	{"F22 context error is hidden", "errors/a context that is done"},
	{"F24 renew again is lost", "renew/again"},
	{"F25 release again is lost", "release/again is nil"},
	{"F29 trusted longer than asked", "acquire/a free key"},
	{"F48 TTL is not checked", "invalid/TTL"},
	{"F48 key is not checked", "keys/bad"},
	{"F48 owner is not checked", "invalid/owner"},
	{"F48 fence is not checked", "invalid/negative fence"},
	{"F48 bounds are too narrow", "acquire/the bounds"},
	{"F53 corrupt row is free", "corrupt/a damaged entry of a live lease"},
	{"F53 error without the key", "corrupt/what is not this store's"},
	{"F58 every key has one lock", "keys/many"},
	{"F64 same holder shares", "closed/to everybody"},
	{"owners are compared by prefix", "acquire/owners are compared whole"},
	{"owners are compared without case", "withdraw/matches by the whole owner"},
	{"own retry extends", "acquire/again does not make the lease last longer"},
	{"own retry promises the whole TTL", "acquire/again returns the time that is left"},
	{"own retry brings the old expiry back", "acquire/again after a renewal"},
	{"own retry takes a new fence", "contention/copies of one acquire"},
	{"own expired lease is held", "acquire/the own expired lease"},
	{"own expired lease is taken again", "acquire/the own expired lease"},
	{"refused acquire extends", "acquire/a refused acquire changes nothing"},
	{"trusted for nothing", "acquire/a free key"},
	{"lease has no owner", "acquire/a free key"},
	{"holder is kept as it comes", "holder/long text"},
	{"holder of the first grant stays", "holder/a takeover"},
	{"holder is not kept", "holder/a refusal"},
	{"unknown holder gets a name", "holder/an unknown"},
	{"held error is plain", "acquire/a held key"},
	{"held error matches lost too", "acquire/a held key"},
	{"held error has no key", "acquire/a held key"},
	{"held error has no remaining time", "holder/a refusal"},
	{"held error has too long a remaining time", "holder/a refusal"},
	{"held error has too short a remaining time", "takeover/not before the TTL"},
	{"fence is the time alone", "fence/grows when the clock is behind"},
	{"fence is one more alone", "fence/grows over a deleted entry"},
	{"renew does not extend", "takeover/a renewed lease"},
	{"renew takes a new fence", "renew/leaves the fence"},
	{"renew drops the holder", "renew/leaves the fence"},
	{"renew is trusted longer than asked", "renew/the trusted time"},
	{"renew is trusted for nothing", "renew/the trusted time"},
	{"shorter renew is trusted for nothing", "renew/never shortens F27"},
	{"renew of withdrawn is held", "renew/a withdrawn lease"},
	{"withdraw frees everybody's", "withdraw/while another holds"},
	{"withdraw does nothing", "withdraw/after the acquire was applied"},
	{"withdraw leaves no mark", "withdraw/before a late acquire on a new key"},
	{"withdraw of nothing is lost", "withdraw/before a late acquire"},
	{"withdraw again is lost", "withdraw/again"},
	{"withdraw of an expired lease is lost", "withdraw/of an expired lease"},
	{"withdraw lowers the fence", "fence/grows over withdrawals"},
	{"release does nothing", "release/frees the key"},
	{"release of the unknown is nil", "release/a key that was never acquired"},
	{"release leaves a mark on the unknown", "release/a key that was never acquired"},
	{"release of expired closes the key", "release/an expired lease"},
	{"release of deleted is unknown", "release/a deleted entry"},
	{"closed opens by release", "closed/stays closed"},
	{"closed opens by withdrawal", "closed/stays closed"},
	{"closed again closes longer", "closed/again"},
	{"closed by anybody", "closed/only by the lease"},
	{"closed until the lease's end", "closed/shorter than the lease"},
	{"closed to others only", "closed/stays closed"},
	{"closed for nothing", "closed/to everybody"},
	{"closed for half the time", "closed/to everybody"},
	{"inspect sees the dead as held", "inspect/a dead lease"},
	{"inspect sees the held as free", "inspect/a held key"},
	{"inspect shows the last holder", "inspect/a released key"},
	{"inspect knows no fence", "inspect/a held key"},
	{"inspect invents a fence", "inspect/a key that was never written"},
	{"inspect clears the dead", "inspect/changes nothing"},
	{"inspect sees the closed as free", "closed/inspect"},
	{"inspect has a fixed remaining time", "inspect/a held key"},
	{"cost: two requests for each call", "requests/one for each call"},
	{"cost: takeover watches first", "requests/at most two for a takeover"},
	{"cost: refusal reads on the side", "requests/one for each call"},
}
