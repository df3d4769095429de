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

// A listing of several pages that has one key twice, and misses another one.
func TestAWrongListIsFound(t *testing.T) {
	for _, tc := range keyCases {
		if r := record(t, tc, "list: a key twice in place of another one"); len(r.failed) == 0 {
			t.Error("not found")
		}
	}
}

// Each mistake in a rule is found: by the sequences that Run makes in virtual time, by one of the other cases, or by more sequences. The
// sequences also find each way to trust one process alone.
func TestTheComparisonFindsMistakes(t *testing.T) {
	began, mistakes := time.Now(), int64(0)
	if verifyrecord.WithRaceDetector {
		t.Skip("it looks for mistakes in the suite, and in virtual time: it is part of make verify")
	}
	bySequences := func(bug string, sequences int) (difference string) {
		for n := 0; n < sequences && difference == ""; n++ {
			synctest.Test(t, func(t *testing.T) {
				difference = newCheck(t, &recorder{}, newWrong(bug).harness(), true).difference(uint64(n))
			})
		}
		return difference[strings.LastIndexByte(difference, '\n')+1:]
	}
	byCases := func(bug string) string {
		for _, tc := range cases() {
			if strings.HasPrefix(tc.name, "rules/") {
				continue
			}
			if r := record(t, tc, bug); len(r.failed) > 0 {
				return tc.name + ": " + r.failed[0]
			}
		}
		return ""
	}
	found := func(bug, how string) {
		mistakes++
		if how == "" {
			t.Errorf("not found: %s", bug)
		}
		t.Logf("%s: %s", bug, how)
	}
	for _, bug := range slices.Sorted(maps.Keys(ownMistakes)) {
		found(bug, bySequences(bug, sequences*ownMistakes[bug]))
	}
	isIn := func(all []wrongrules.Mistake, m wrongrules.Mistake) bool {
		return slices.ContainsFunc(all, func(one wrongrules.Mistake) bool { return one.Name == m.Name })
	}
	for _, m := range wrongrules.All {
		if isIn(wrongrules.Induced, m) { // no answer shows it
			continue
		}
		how := bySequences(m.Name, sequences)
		if how == "" && !isIn(wrongrules.Careful, m) {
			if how = byCases(m.Name); how == "" {
				how = bySequences(m.Name, 30*sequences)
			}
		}
		found(m.Name, how)
	}
	verifyrecord.Write(t, verifyrecord.Result{
		Kind: verifyrecord.Simulation, Name: "random requests to stores with a mistake, and to the rule book",
		Counts: map[string]int64{"mistakes found": mistakes}, Took: time.Since(began),
	})
}
