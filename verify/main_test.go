package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/verifyrecord"
)

func TestProblems(t *testing.T) {
	good := func() verifyrecord.Result {
		return verifyrecord.Result{
			Kind: verifyrecord.Histories, Seed: 7, Counts: map[string]int64{histories: 300},
			Controls: []verifyrecord.Control{{What: "no fences", Shown: true}},
			Mutants:  []verifyrecord.Mutant{{ID: "M01", Killed: true}, {ID: "M02", Killed: true}},
		}
	}
	p := part{kind: verifyrecord.Histories, seeded: true, atLeast: map[string]int64{histories: 300}}
	require.Empty(t, p.problems(good(), 7))
	for want, change := range map[string]func(*verifyrecord.Result){
		"of induction from seed 7; want histories from seed 7": func(r *verifyrecord.Result) { r.Kind = verifyrecord.Induction },
		"of histories from seed 1; want histories from seed 7": func(r *verifyrecord.Result) { r.Seed = 1 },
		"only 299 histories; want 300":                         func(r *verifyrecord.Result) { r.Counts[histories] = 299 },
		"1 violations":                                         func(r *verifyrecord.Result) { r.Violations = 1 },
		"the control shows no violation: no fences":            func(r *verifyrecord.Result) { r.Controls[0].Shown = false },
		"M01 was not caught":                                   func(r *verifyrecord.Result) { r.Mutants[0].Killed = false },
	} {
		r := good()
		change(&r)
		require.ErrorContains(t, errors.Join(p.problems(r, 7)...), want)
	}
}

func TestPage(t *testing.T) {
	r := Record{Commit: "0123456789ab", Date: "2026-11-28", Machine: "2 cores"}
	for _, k := range kinds {
		r.Results = append(r.Results, verifyrecord.Result{Kind: k.kind, Counts: map[string]int64{operations: 1234567}, Limits: []string{"the limit of " + k.kind}})
	}
	text := page(r)
	require.NotContains(t, text, "%!")
	for _, k := range kinds {
		require.Contains(t, text, "| "+k.kind+" | "+k.what+" | 1,234,567 operations |")
		require.Contains(t, text, "- the limit of "+k.kind)
	}
	file := filepath.Join(t.TempDir(), "README.md")
	require.NoError(t, os.WriteFile(file, []byte("before\n"+readmeBegin+"\nold\n"+readmeEnd+"\nafter\n"), 0o600))
	require.NoError(t, markReadme(file, brief(r)))
	got, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "before\n"+readmeBegin+"\n"+brief(r)+"\n"+readmeEnd+"\nafter\n", string(got))
	require.Error(t, markReadme(filepath.Join(t.TempDir(), "none"), ""))
}
