// Package fuzzall runs every Fuzz function of the product's module for a while. An input that fails is written beside
// the function, below testdata/fuzz, and every go test runs it from then on.
//
//	go test ./fuzzall -run TestFuzz -v    one function, for a second
//	FUZZTIME=20s                       every function, for so long each: make fuzz
package fuzzall

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/verifyrecord"
)

const (
	product  = "../.."
	fullTime = 3 * time.Second

	// workers is how many inputs are tried at once. go test's own default takes
	// the machine's processors for ours.
	workers = "2"
)

// TestFuzz: no function finds an input that its code does not stand.
func TestFuzz(t *testing.T) {
	began := time.Now()
	all, err := list(product)
	require.NoError(t, err)
	for _, want := range []string{"/boot", "/lockstore", "/redisstore", "/dynamostore", "/withdraw"} {
		require.True(t, slices.ContainsFunc(all, func(g target) bool { return strings.HasSuffix(g.pkg, want) }), "%s has no Fuzz function", want)
	}
	each := fullTime
	if text := os.Getenv("FUZZTIME"); text != "" {
		each, err = time.ParseDuration(text)
		require.NoError(t, err, "FUZZTIME")
	} else if !verifyrecord.Full() {
		each, all = time.Second, slices.DeleteFunc(all, func(g target) bool { return g.pkg != "./lockstore" })[:1]
	}
	result := verifyrecord.Result{Kind: verifyrecord.Fuzz, Name: "generated input", Counts: map[string]int64{"functions": int64(len(all))}}
	for _, g := range all {
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
type target struct{ pkg, name string }

var declaration = regexp.MustCompile(`(?m)^func (Fuzz\w*)\(\w+ \*testing\.F\)`)

// list finds the Fuzz functions in the sources of a module.
func list(root string) (all []target, err error) {
	module := os.DirFS(root)
	err = fs.WalkDir(module, ".", func(file string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && file != "." {
			if _, statErr := fs.Stat(module, file+"/go.mod"); statErr == nil {
				return fs.SkipDir // another module
			}
		}
		if err != nil || !strings.HasSuffix(file, "_test.go") {
			return err
		}
		text, err := fs.ReadFile(module, file)
		for _, found := range declaration.FindAllSubmatch(text, -1) {
			all = append(all, target{"./" + path.Dir(file), string(found[1])})
		}
		return err
	})
	return all, err
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

var progress = regexp.MustCompile(`fuzz: elapsed: \S+, (?:execs: |gathering baseline coverage: )(\d+)[ /]`)

// executions is the last number that go test reported. The seeds are tried first and
// count: on a busy machine they can take all of the time.
func executions(output []byte) int64 {
	var last int64
	for _, found := range progress.FindAllSubmatch(output, -1) {
		if n, err := strconv.ParseInt(string(found[1]), 10, 64); err == nil {
			last = n
		}
	}
	return last
}
