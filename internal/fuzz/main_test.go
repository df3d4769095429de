package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/record"
)

// The module's own functions are all found, also those of outside test packages.
func TestList(t *testing.T) {
	targets, err := list(t.Context(), "../..")
	require.NoError(t, err)
	for _, want := range []target{
		{"./boot", "FuzzStoreURL"}, {"./lockstore", "FuzzKeyIsInjectiveF52"}, {"./lockstore/redisstore", "FuzzEntryF53"},
		{"./lockstore/dynamostore", "FuzzRowF53F54"}, {"./functions/internal/withdrawals", "FuzzParse"},
	} {
		require.Contains(t, targets, want)
	}
}

// module writes a module with one test file.
func module(t *testing.T, test string) string {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module example.com/m\n\ngo 1.26\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "m.go"), []byte("package m\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "m_test.go"), []byte("package m\n\nimport \"testing\"\n\n"+test), 0o600))
	return dir
}

func TestRun(t *testing.T) {
	const good = `
func FuzzGood(f *testing.F) {
	f.Add(1)
	f.Fuzz(func(t *testing.T, n int) {})
}
`
	const bad = `
func FuzzBad(f *testing.F) {
	f.Add(1)
	f.Fuzz(func(t *testing.T, n int) {
		if n != 1 {
			t.Fatal("found it")
		}
	})
}
`
	t.Setenv("VERIFY_DIR", t.TempDir())
	kept := func() (r record.Rung) {
		text, err := os.ReadFile(filepath.Join(os.Getenv("VERIFY_DIR"), "l8-fuzz.json"))
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(text, &r))
		return r
	}
	var out strings.Builder
	require.NoError(t, run(t.Context(), module(t, good), time.Second, &out), "%s", &out)
	require.Positive(t, kept().Counts["executions"])
	require.EqualValues(t, 1, kept().Counts["functions"])
	require.Zero(t, kept().Violations)

	out.Reset()
	root := module(t, good+bad)
	require.ErrorContains(t, run(t.Context(), root, 5*time.Second, &out), "1 of 2 functions failed")
	require.Contains(t, out.String(), "found it")
	require.Contains(t, out.String(), "FuzzBad")
	require.EqualValues(t, 1, kept().Violations)
	found, err := filepath.Glob(filepath.Join(root, "testdata", "fuzz", "FuzzBad", "*"))
	require.NoError(t, err)
	require.Len(t, found, 1, "the input is kept as a test")

	require.ErrorContains(t, run(t.Context(), module(t, "func TestNothing(t *testing.T) {}\n"), time.Second, &out), "no Fuzz function")
}

func TestExecutions(t *testing.T) {
	require.Zero(t, executions(""))
	require.EqualValues(t, 812, executions("fuzz: elapsed: 6s, execs: 126 (0/sec), new\nfuzz: elapsed: 9s, execs: 812 (229/sec), new interesting: 0 (total: 107)\nPASS\n"))
}
