// Package verifyrecord keeps what each part of the verification did, in one JSON
// file each. The command verify makes docs/verification.md from these files.
package verifyrecord

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The kinds of verification.
const (
	Induction  = "induction"  // every step from states that satisfy the invariant of the rules
	Simulation = "simulation" // random schedules from seeds, in virtual time
	Comparison = "comparison" // of a store with the rule book, by random requests
	Histories  = "histories"  // the answers of real servers, checked afterwards
	Processes  = "processes"  // real function processes that are killed and stopped
	Mutants    = "mutants"    // planted bugs
	Fuzz       = "fuzz"       // generated input
)

// Counts of a comparison.
const (
	Sequences = "sequences"
	Requests  = "requests"
	Pairs     = "pairs of requests"
)

// Result is what one part of the verification did.
type Result struct {
	Kind       string           `json:"kind"`
	Name       string           `json:"name"` // what was tried, in a few words
	Seed       uint64           `json:"seed,omitempty"`
	Servers    []string         `json:"servers,omitempty"` // names and versions
	Counts     map[string]int64 `json:"counts,omitempty"`  // what happened, by name
	Cells      []Cell           `json:"cells,omitempty"`
	Mutants    []Mutant         `json:"mutants,omitempty"`
	Controls   []Control        `json:"controls,omitempty"`
	Violations int64            `json:"violations"`
	Limits     []string         `json:"limits,omitempty"` // what cannot be tried here, and why
	Took       time.Duration    `json:"took"`
}

// Cell is one fault on one store.
type Cell struct {
	Fault      string           `json:"fault"`
	Store      string           `json:"store"`
	Why        string           `json:"why,omitempty"` // why it cannot occur; then nothing else is set
	Counts     map[string]int64 `json:"counts,omitempty"`
	Violations int64            `json:"violations"`
}

// Mutant is one planted bug.
type Mutant struct {
	ID     string `json:"id"` // for example M04
	What   string `json:"what"`
	Killed bool   `json:"killed"`
	By     string `json:"by,omitempty"` // the test that failed
}

// Control is a run that has to show the violation: a harness that cannot fail
// proves nothing.
type Control struct {
	What  string `json:"what"`
	Shown bool   `json:"shown"`
	Saw   string `json:"saw"`
}

// Write keeps the result in the folder that VERIFY_DIR names. Without the variable
// it does nothing: the caller is then a test like all others.
func Write(t testing.TB, r Result) {
	t.Helper()
	dir := os.Getenv("VERIFY_DIR")
	if dir == "" {
		return
	}
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	name := strings.ToLower(r.Kind + "-" + strings.ReplaceAll(r.Name, " ", "-"))
	if err := os.WriteFile(filepath.Join(dir, name+".json"), append(b, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Full says whether the test is to run at its full size, as in make verify.
func Full() bool { return os.Getenv("VERIFY_DIR") != "" }

// GateShare is the part of the seeds that make verify GATE=1 tries: one of so many.
const GateShare = 8

// Gate says whether the test runs in make verify GATE=1, so at a smaller size, and only what has one outcome.
func Gate() bool { return os.Getenv("VERIFY_GATE") != "" }

// SkipWithRace skips what takes ten times as long under the race detector.
func SkipWithRace(t testing.TB) {
	t.Helper()
	if WithRaceDetector {
		t.Skip("the race detector makes this ten times as slow: it is part of make verify")
	}
}

// Seed is the first seed of a simulation: VERIFY_SEED, or 1. count is how many
// seeds to try: VERIFY_SEEDS if that is set, else full in make verify, an eighth of it in make verify GATE=1, and few elsewhere. Under
// the race detector it is a third of few: each seed has the same races.
func Seed(t testing.TB, few, full int) (first uint64, count int) {
	t.Helper()
	if testing.Short() {
		t.Skip("a simulation takes long")
	}
	first, count = 1, few
	switch {
	case Full() && Gate():
		count = full / GateShare
	case Full():
		count = full
	case WithRaceDetector:
		count = min(few, max(1, few/3))
	}
	for _, v := range []struct {
		name string
		set  func(uint64)
	}{
		{"VERIFY_SEED", func(n uint64) { first = n }},
		{"VERIFY_SEEDS", func(n uint64) { count = int(n) }},
	} {
		text := os.Getenv(v.name)
		if text == "" {
			continue
		}
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			t.Fatalf("%s is %q; want a number", v.name, text)
		}
		v.set(n)
	}
	return first, count
}
