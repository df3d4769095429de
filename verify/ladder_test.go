package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/verifyrecord"
)

func sample() Record {
	return Record{
		Commit: "abc", Date: "2026-11-21", Machine: "2 cores", Took: time.Minute,
		Rungs: []verifyrecord.Rung{
			{ID: "L4", Name: "simulated guards", Counts: map[string]int64{"seeds": 20000, "grants": 7}, Controls: []verifyrecord.Control{{What: "no fences", Shown: true, Saw: "9 stale writes"}}},
			{ID: "L5", Name: "histories", Seed: 1, Counts: map[string]int64{"histories": 7, "operations": 1239567}, Cells: []verifyrecord.Cell{
				{Fault: "replies lost", Store: "Redis", Histories: 5, Operations: 5000},
				{Fault: "failover", Store: "memory", Why: "it has no replica"},
				{Fault: "failover", Store: "Redis", Histories: 2, Operations: 1234567},
			}},
			{ID: "L6", Name: "processes", Counts: map[string]int64{"SIGKILL": 300, "SIGSTOP": 301}},
			{ID: "L7", Name: "mutants", Mutants: []verifyrecord.Mutant{
				{ID: "M01", What: "acquire without a condition", Rung: "L2", Killed: true, By: "TestStore"},
				{ID: "M01", What: "the same on Redis", Rung: "L2", Killed: true, By: "TestStore"},
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
		"| fault | Redis | memory |", "| replies lost | 5, 5,000 |  |", "| failover | 2, 1,234,567 | – |", "- failover on memory: it has no replica",
		"| L4 | no fences | 9 stale writes |",
		"| M01 | acquire without a condition | L2 | TestStore |", "| M30 | check before subscribe | L4 | does not apply: there is no subscription |",
		"- a limit of the rung", "- The AWS services themselves",
	} {
		require.Contains(t, unwrapped(text), want)
	}
	var out bytes.Buffer
	require.NoError(t, table(&out, sample()))
	require.Contains(t, out.String(), "L6  processes")
	require.Regexp(t, `(?m)^failover +2, 1,234,567 +–$`, out.String())
}

func unwrapped(text string) string {
	return string(bytes.ReplaceAll([]byte(text), []byte("\n"), []byte(" "))) + text
}

func TestJudge(t *testing.T) {
	good := func() verifyrecord.Rung {
		return verifyrecord.Rung{
			ID: "L5", Seed: 7, Counts: map[string]int64{histories: 300},
			Controls: []verifyrecord.Control{{What: "no fences", Shown: true}},
			Mutants:  []verifyrecord.Mutant{{ID: "M01", Killed: true}, {ID: "M30", Why: "there is no subscription"}},
		}
	}
	g := rung{id: "L5", seeded: true, floors: map[string]int64{histories: 300}}
	require.Empty(t, g.judge(good(), 7))
	for want, change := range map[string]func(*verifyrecord.Rung){
		"it recorded L4 from seed 7; want L5 from 7": func(r *verifyrecord.Rung) { r.ID = "L4" },
		"it recorded L5 from seed 1; want L5 from 7": func(r *verifyrecord.Rung) { r.Seed = 1 },
		"only 299 histories; want 300":               func(r *verifyrecord.Rung) { r.Counts[histories] = 299 },
		"1 violations, 0 undecided":                  func(r *verifyrecord.Rung) { r.Violations = 1 },
		"0 violations, 2 undecided":                  func(r *verifyrecord.Rung) { r.Undecided = 2 },
		"the control did not show it: no fences":     func(r *verifyrecord.Rung) { r.Controls[0].Shown = false },
		"M01 lived":                                  func(r *verifyrecord.Rung) { r.Mutants[0].Killed = false },
	} {
		r := good()
		change(&r)
		require.ErrorContains(t, errors.Join(g.judge(r, 7)...), want)
	}
}

// A climb runs real tests: of these one records what it should, one too little,
// one nothing, and one fails.
func TestClimb(t *testing.T) {
	t.Setenv("VERIFY_SEEDS", "1") // of a replay; must not reach the rungs
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module example.com/m\n\ngo 1.26\n",
		"m.go":   "package m\n",
		"m_test.go": `package m

import (
	"os"
	"testing"
)

func write(t *testing.T, seeds string) {
	text := ` + "`{\"id\": \"L4\", \"seed\": ` + os.Getenv(\"VERIFY_SEED\") + `, \"counts\": {\"seeds\": ` + seeds + `}}`" + `
	if os.Getenv("VERIFY_SEEDS") != "" {
		t.Error("it may be smaller than it should be")
	}
	if err := os.WriteFile(os.Getenv("VERIFY_DIR")+"/l4.json", []byte(text), 0o644); err != nil {
		t.Error(err)
	}
}

func TestGood(t *testing.T)   { write(t, "9") }
func TestFew(t *testing.T)    { write(t, "8") }
func TestNothing(t *testing.T) {}
func TestFails(t *testing.T)  { write(t, "9"); t.Error("a holder was robbed") }
`,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	climbed := func(run string) (*Record, error) {
		g := rung{id: "L4", dir: dir, pkg: ".", run: run, seeded: true, floors: map[string]int64{seeds: 9}}
		return climb(t.Context(), filepath.Join(t.TempDir(), "record"), []rung{g}, 5)
	}
	r, err := climbed("TestGood")
	require.NoError(t, err)
	require.Len(t, r.Rungs, 1)
	require.NotEmpty(t, r.Commit)
	for run, want := range map[string]string{
		"TestFew": "only 8 seeds; want 9", "TestNothing": "0 records", "TestNone": "0 records", "TestFails": "a holder was robbed",
	} {
		_, err := climbed(run)
		require.ErrorContains(t, err, want, run)
	}
}

func TestLedger(t *testing.T) {
	ledger := filepath.Join(t.TempDir(), "soak.jsonl")
	next := func() uint64 {
		seed, err := nextSeed(ledger)
		require.NoError(t, err)
		return seed
	}
	first := next()
	require.EqualValues(t, 1+stride, first)
	require.NoError(t, appendLine(ledger, round{Record: sample(), Seed: first, Next: first + stride, OK: true}))
	require.EqualValues(t, 1+2*stride, next())
	require.NoError(t, appendLine(ledger, round{Seed: first + stride, Next: first + 2*stride}))
	require.EqualValues(t, 1+2*stride, next(), "a round that failed comes again")

	whole, err := os.ReadFile(ledger)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(ledger, append(slices.Clone(whole), `{"seed": 3`...), 0o644))
	require.EqualValues(t, 1+2*stride, next(), "half a line says nothing")
	text, err := os.ReadFile(ledger)
	require.NoError(t, err)
	require.Equal(t, whole, text, "and the next line does not continue it")

	require.NoError(t, os.WriteFile(ledger, []byte("{\n"), 0o644))
	_, err = nextSeed(ledger)
	require.ErrorContains(t, err, ledger)
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
		t.Skip("nothing was verified yet: run make verify KEEP=1")
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
