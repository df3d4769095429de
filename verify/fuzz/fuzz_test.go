// Package fuzz runs every Fuzz function of the product's module for a while. What go test finds it writes beside the function, below testdata/fuzz,
// and from then on every go test runs it.
//
//	go test ./fuzz -run TestFuzz -v    one function, for a second
//	FUZZTIME=20s                       every function, for so long each: make fuzz
package fuzz

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/verifyrecord"
)

const (
	product  = "../.."
	fullTime = 12 * time.Second

	// workers is how many inputs are tried at once. go test's own default takes
	// the machine's processors for ours.
	workers = "2"
)

// TestFuzz: no function finds an input that its code does not stand.
func TestFuzz(t *testing.T) {
	began := time.Now()
	targets, err := list(t.Context(), product)
	require.NoError(t, err)
	for _, want := range []target{
		{"./boot", "FuzzStoreURL"}, {"./lockstore", "FuzzKeyIsInjectiveF52"}, {"./lockstore/redisstore", "FuzzEntryF53"},
		{"./lockstore/dynamostore", "FuzzRowF53F54"}, {"./functions/internal/withdrawals", "FuzzParse"},
	} {
		require.Contains(t, targets, want)
	}
	each := fullTime
	if text := os.Getenv("FUZZTIME"); text != "" {
		each, err = time.ParseDuration(text)
		require.NoError(t, err, "FUZZTIME")
	} else if !verifyrecord.Full() {
		each, targets = time.Second, []target{{"./lockstore", "FuzzKeyIsInjectiveF52"}}
	}
	result := verifyrecord.Result{Kind: verifyrecord.Fuzz, Name: "generated input", Counts: map[string]int64{"functions": int64(len(targets))}}
	for _, g := range targets {
		execs, err := g.run(t.Context(), product, each)
		t.Logf("%9d  %s %s", execs, g.pkg, g.name)
		if err != nil {
			result.Violations++
			t.Error(err)
		}
		result.Counts["inputs"] += execs
	}
	result.Took = time.Since(began)
	verifyrecord.Write(t, result)
}

// target is one Fuzz function.
type target struct{ pkg, name string } // pkg is the folder, as ./lockstore

var declaration = regexp.MustCompile(`(?m)^func (Fuzz\w*)\(\w+ \*testing\.F\)`)

// list finds the Fuzz functions in the sources of a module's tests.
func list(ctx context.Context, root string) ([]target, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-json=Dir,TestGoFiles,XTestGoFiles", "./...")
	cmd.Dir, cmd.Stderr = root, os.Stderr
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	top, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	var all []target
	for d := json.NewDecoder(bytes.NewReader(text)); ; {
		var p struct {
			Dir                       string
			TestGoFiles, XTestGoFiles []string
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		folder, err := filepath.Rel(top, p.Dir)
		if err != nil {
			return nil, err
		}
		for _, file := range append(p.TestGoFiles, p.XTestGoFiles...) {
			text, err := os.ReadFile(filepath.Join(p.Dir, file))
			if err != nil {
				return nil, err
			}
			for _, found := range declaration.FindAllSubmatch(text, -1) {
				all = append(all, target{"./" + filepath.ToSlash(folder), string(found[1])})
			}
		}
	}
	return all, nil
}

// run returns how many inputs were tried. Its error has what go test printed.
func (g target) run(ctx context.Context, root string, each time.Duration) (int64, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-run=^$", "-fuzz=^"+g.name+"$", "-fuzztime="+each.String(), "-parallel="+workers, g.pkg)
	cmd.Dir = root
	// Its workers end with it when it is asked to.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	text, err := cmd.CombinedOutput()
	execs := executions(text)
	if endedLate(text) {
		err = nil
	}
	if err == nil && execs == 0 {
		err = errors.New("nothing was tried")
	}
	if err != nil {
		err = fmt.Errorf("%s %s: %w\n%s", g.pkg, g.name, err, bytes.TrimSpace(text))
	}
	return execs, err
}

var late = regexp.MustCompile(`(?m)^\s*--- FAIL: \S+ \(\S+\)\n\s+context deadline exceeded\n\s*FAIL$`)

// endedLate says that go test found nothing and failed nevertheless: at the end of
// its time its coordinator may take its own deadline for a failure. An input that
// fails is always written to a file.
func endedLate(output []byte) bool {
	return late.Match(output) && !bytes.Contains(output, []byte("Failing input written"))
}

var progress = regexp.MustCompile(`fuzz: elapsed: \S+, execs: (\d+) `)

// executions is the last number that go test reported.
func executions(output []byte) int64 {
	var last int64
	for _, found := range progress.FindAllSubmatch(output, -1) {
		if n, err := strconv.ParseInt(string(found[1]), 10, 64); err == nil {
			last = n
		}
	}
	return last
}

func TestEndedLate(t *testing.T) {
	const end = "fuzz: elapsed: 13s, execs: 141967 (0/sec), new interesting: 12 (total: 103)\n--- FAIL: FuzzA (13.01s)\n    context deadline exceeded\nFAIL\nexit status 1\n"
	require.True(t, endedLate([]byte(end)))
	require.False(t, endedLate([]byte(end+"    Failing input written to testdata/fuzz/FuzzA/1\n")))
	require.False(t, endedLate([]byte("--- FAIL: FuzzA (1.01s)\n    --- FAIL: FuzzA (0.00s)\n        a_test.go:7: context deadline exceeded\nFAIL\n")))
	require.False(t, endedLate([]byte("--- FAIL: FuzzA (1.01s)\n    fuzzing process hung or terminated unexpectedly\nFAIL\n")))
}

// A function that finds something fails the run and keeps its input.
func TestRunFindsABug(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module example.com/m\n\ngo 1.26\n",
		"m.go":   "package m\n",
		"m_test.go": `package m

import "testing"

func FuzzBad(f *testing.F) {
	f.Add(1)
	f.Fuzz(func(t *testing.T, n int) {
		if n != 1 {
			t.Fatal("found it")
		}
	})
}
`,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	targets, err := list(t.Context(), dir)
	require.NoError(t, err)
	require.Equal(t, []target{{"./.", "FuzzBad"}}, targets)
	_, err = targets[0].run(t.Context(), dir, 10*time.Second)
	require.ErrorContains(t, err, "found it")
	kept, err := filepath.Glob(filepath.Join(dir, "testdata", "fuzz", "FuzzBad", "*"))
	require.NoError(t, err)
	require.Len(t, kept, 1)

	_, err = target{"./.", "FuzzNone"}.run(t.Context(), dir, time.Second)
	require.ErrorContains(t, err, "nothing was tried")
}
