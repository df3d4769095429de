package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/record"
)

func sample() Record {
	return Record{
		Commit: "abc", Date: "2026-11-21", Machine: "2 cores", Took: time.Minute,
		Rungs: []record.Rung{
			{ID: "L4", Name: "simulated guards", Counts: map[string]int64{"seeds": 20000, "grants": 7}, Controls: []record.Control{{What: "no fences", Shown: true, Saw: "9 stale writes"}}},
			{ID: "L5", Name: "histories", Cells: []record.Cell{
				{Fault: "replies lost", Store: "Redis", Histories: 5, Operations: 5000},
				{Fault: "failover", Store: "memory", Why: "it has no replica"},
				{Fault: "failover", Store: "Redis", Histories: 2, Operations: 1234567},
			}},
			{ID: "L6", Name: "processes", Counts: map[string]int64{"kills": 300, "stops": 301}},
			{ID: "L7", Name: "mutants", Mutants: []record.Mutant{
				{ID: "M01", What: "acquire without a condition", Rung: "L2", Killed: true, By: "TestStore"},
				{ID: "M30", What: "check before subscribe", Rung: "L4", Why: "there is no subscription"},
			}, Limits: []string{"a limit of the rung"}},
		},
	}
}

func TestPage(t *testing.T) {
	text := page(sample())
	for _, want := range []string{
		"commit abc, 2026-11-21, on 2 cores; it took 1m0s",
		"7 histories and 1,239,567 operations on 1 store set-ups under 2 kinds of faults",
		"20,000 simulated runs", "601 processes", "0 violations, 0 undecided; 1 of 1 planted bugs caught",
		"| fault | Redis | memory |", "| replies lost | 5, 5,000 | |", "| failover | 2, 1,234,567 | – |", "- failover on memory: it has no replica",
		"| L4 | no fences | 9 stale writes |",
		"| M01 | acquire without a condition | L2 | TestStore |", "| M30 | check before subscribe | L4 | does not apply: there is no subscription |",
		"- a limit of the rung", "- The AWS services themselves",
	} {
		require.Contains(t, unwrapped(text), want)
	}
	var out bytes.Buffer
	require.NoError(t, table(&out, sample()))
	require.Contains(t, out.String(), "L6  processes")
}

func unwrapped(text string) string {
	return string(bytes.ReplaceAll([]byte(text), []byte("\n"), []byte(" "))) + text
}

func TestJudge(t *testing.T) {
	good := []rung{{id: "L4"}, {id: "L5"}}
	require.Empty(t, judge(sample().Rungs, good))
	for want, change := range map[string]func(*Record){
		"1 violations":            func(r *Record) { r.Rungs[0].Violations = 1 },
		"0 violations, 2 undecid": func(r *Record) { r.Rungs[1].Cells[0].Undecided = 2 },
		"control did not show":    func(r *Record) { r.Rungs[0].Controls[0].Shown = false },
		"M01 lived":               func(r *Record) { r.Rungs[3].Mutants[0].Killed = false },
		"wrote no record":         func(r *Record) { r.Rungs = r.Rungs[1:] },
	} {
		r := sample()
		change(&r)
		require.ErrorContains(t, errors.Join(judge(r.Rungs, good)...), want)
	}
}

func TestLedger(t *testing.T) {
	ledger := filepath.Join(t.TempDir(), "soak.jsonl")
	seed, err := nextSeed(ledger)
	require.NoError(t, err)
	require.EqualValues(t, 1+stride, seed)
	require.NoError(t, appendLine(ledger, round{Record: sample(), Seed: seed, Next: seed + stride, OK: true}))
	require.NoError(t, appendLine(ledger, round{Seed: seed + stride, Next: seed + 2*stride}))
	seed, err = nextSeed(ledger)
	require.NoError(t, err)
	require.EqualValues(t, 1+3*stride, seed)
	require.NoError(t, os.WriteFile(ledger, []byte("{"), 0o644))
	_, err = nextSeed(ledger)
	require.Error(t, err)
}

func TestReadmeLine(t *testing.T) {
	file := filepath.Join(t.TempDir(), "README.md")
	require.NoError(t, os.WriteFile(file, []byte("a\n<!-- verify -->\nold\n<!-- /verify -->\nb\n"), 0o644))
	require.NoError(t, markReadme(file, "5 histories"))
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "a\n<!-- verify -->\n5 histories.\n<!-- /verify -->\nb\n", string(text))
	require.NoError(t, os.WriteFile(file, []byte("nothing"), 0o644))
	require.ErrorContains(t, markReadme(file, "x"), "<!-- verify -->")
}

// The page and the README's line are those of the record that is kept.
func TestPageIsTheRecords(t *testing.T) {
	b, err := os.ReadFile("../../docs/verification.json")
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("nothing was verified yet: run make verify-keep")
	}
	require.NoError(t, err)
	var r Record
	require.NoError(t, json.Unmarshal(b, &r))
	text, err := os.ReadFile("../../docs/verification.md")
	require.NoError(t, err)
	require.Equal(t, page(r), string(text), "run make verify-page")
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	require.Contains(t, string(readme), wrapped(claim(r)), "run make verify-page")
}
