package main

import (
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/verifyrecord"
)

func TestProblems(t *testing.T) {
	good := func() verifyrecord.Result {
		return verifyrecord.Result{
			Kind: verifyrecord.Histories, Seed: 7, Counts: map[string]int64{histories: 300},
			Controls: []verifyrecord.Control{{What: "no fences", Shown: true}},
			Mutants:  []verifyrecord.Mutant{{ID: "M01", Killed: true}, {ID: "M02", Killed: true}, {ID: "M30", Why: "there is no subscription"}},
		}
	}
	p := part{kind: verifyrecord.Histories, seeded: true, atLeast: map[string]int64{histories: 300}}
	require.Empty(t, p.problems(good(), 7))
	for want, change := range map[string]func(*verifyrecord.Result){
		"of induction from seed 7; want histories from seed 7": func(r *verifyrecord.Result) { r.Kind = verifyrecord.Induction },
		"of histories from seed 1; want histories from seed 7": func(r *verifyrecord.Result) { r.Seed = 1 },
		"only 299 histories; want 300":                         func(r *verifyrecord.Result) { r.Counts[histories] = 299 },
		"1 violations, 0 undecided":                            func(r *verifyrecord.Result) { r.Violations = 1 },
		"0 violations, 2 undecided":                            func(r *verifyrecord.Result) { r.Undecided = 2 },
		"the control shows no violation: no fences":            func(r *verifyrecord.Result) { r.Controls[0].Shown = false },
		"M01 was not caught":                                   func(r *verifyrecord.Result) { r.Mutants[0].Killed = false },
	} {
		r := good()
		change(&r)
		require.ErrorContains(t, errors.Join(p.problems(r, 7)...), want)
	}
}

// The page and the README's sentence are made from the kept record.
func TestPageIsOfTheRecord(t *testing.T) {
	r, err := load[Record]("../docs/verification.json")
	require.NoError(t, err)
	text, err := os.ReadFile("../docs/verification.md")
	require.NoError(t, err)
	require.Equal(t, page(r), string(text), "run make verify-report")
	readme, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	require.Contains(t, string(readme), "\n"+brief(r)+"\n", "run make verify-report")
}
