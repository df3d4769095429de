package main

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/verifyrecord"
)

func sample() Record {
	return Record{
		Commit: "abc", Date: "2026-11-21", Machine: "2 cores", Took: time.Minute,
		Results: []verifyrecord.Result{
			{Kind: verifyrecord.Simulation, Name: "simulated guards", Counts: map[string]int64{seeds: 20000, "grants": 7, operations: 3}, Controls: []verifyrecord.Control{{What: "no fences", Shown: true, Saw: "9 stale writes"}, {What: "another"}}},
			{Kind: verifyrecord.Comparison, Name: "random requests", Counts: map[string]int64{sequences: 1000, requests: 40000}},
			{Kind: verifyrecord.Histories, Name: "real servers", Seed: 1, Servers: []string{"a 1", "b 2"}, Counts: map[string]int64{histories: 7, operations: 1239567}, Cells: []verifyrecord.Cell{
				{Fault: "replies lost", Store: "Redis", Histories: 5, Operations: 5000},
				{Fault: "failover", Store: "memory", Why: "it has no replica"},
				{Fault: "failover", Store: "Redis", Histories: 2, Operations: 1234567},
			}},
			{Kind: verifyrecord.Processes, Name: "killed", Counts: map[string]int64{kills: 300, stops: 301}},
			{Kind: verifyrecord.Mutants, Name: "planted bugs", Mutants: []verifyrecord.Mutant{
				{ID: "M01", What: "acquire without a condition", Suite: "store tests", Killed: true, By: "TestStore"},
				{ID: "M01", What: "the same on Redis", Suite: "store tests", By: "TestStore"},
				{ID: "M02", What: "wrong sign", Suite: "store tests", Killed: true, By: "TestStore"},
				{ID: "M30", What: "check before subscribe", Suite: "simulation", Why: "there is no subscription"},
			}, Limits: []string{"a limit of one part"}},
		},
	}
}

func TestPage(t *testing.T) {
	text := page(sample())
	for _, want := range []string{
		"Commit abc, on 2 cores, in 1m0s",
		"(2026-11-21) made 7 histories with 1,239,567 operations on 1 set-ups of stores (Redis) under 2 kinds of faults, compared 1,000 sequences of 40,000 requests with the rule book, ran 20,000 simulations, and sent 601 SIGKILL or SIGSTOP signals to processes of a function: " +
			"it found 0 violations, left 0 histories undecided, and caught 1 of 2 planted bugs.",
		"| comparison | random requests | 1,000 sequences, 40,000 requests | 0s |", "| processes | killed | 300 SIGKILL, 301 SIGSTOP | 0s |", "| mutants | planted bugs | 1 of 2 caught | 0s |",
		"Servers: a 1, b 2.", "failover; replies lost. Each was made on each of 1 stores, except where it cannot occur: 2 cells were run, 1 are empty.",
		"2 runs in which something is broken on purpose.",
		"- a limit of one part", "- DynamoDB, ElastiCache",
	} {
		require.Contains(t, strings.ReplaceAll(text, "\n", " ")+text, want)
	}
	require.Less(t, strings.Count(text, "\n"), 60, "one screen")
}

func TestProblems(t *testing.T) {
	good := func() verifyrecord.Result {
		return verifyrecord.Result{
			Kind: verifyrecord.Histories, Seed: 7, Counts: map[string]int64{histories: 300},
			Controls: []verifyrecord.Control{{What: "no fences", Shown: true}},
			Mutants:  []verifyrecord.Mutant{{ID: "M01", Killed: true}, {ID: "M30", Why: "there is no subscription"}},
		}
	}
	p := part{kind: verifyrecord.Histories, seeded: true, atLeast: map[string]int64{histories: 300}}
	require.Empty(t, p.problems(good(), 7))
	for want, change := range map[string]func(*verifyrecord.Result){
		"of search from seed 7; want histories from seed 7":    func(r *verifyrecord.Result) { r.Kind = verifyrecord.Search },
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
