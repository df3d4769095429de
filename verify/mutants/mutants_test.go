// Package mutants plants bugs in the project, and runs the test that has to catch each.
//
// Planted is what stands in the guard and in what is above it, in Lua, in expressions and in the loops of stores. A mistake in a
// rule of the lock is not: package internal/wrongrules is the rule book with one mistake at a time, which the suite of the stores,
// the comparison of random requests and the induction have to find. Nor is a number, which a test could only repeat.
//
// A bug counts as caught when the test fails with it and prints the words that name what is wrong. Other failures do
// not count: the machine may have been too busy, or the test may have crashed over something else. That the test passes
// without the bug is what make test shows.
package mutants

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/verifyrecord"
)

// bug is a text that stands once in a file of the project, and what stands there in its place with the bug.
type bug struct {
	id, what string
	test
	says string // what the test prints

	file, old, new string
}

// test is a test of a package, or some of its cases.
type test struct {
	pkg, run string
	env      string // one more variable, or ""
}

// root is the top of the project.
const root = "../.."

// TestMutants plants every bug in make verify and make mutants. Elsewhere it plants those of the package that is built
// fastest, to see that the machinery works. MUTANTS=M40,M56 plants these.
func TestMutants(t *testing.T) {
	began := time.Now()
	wanted := os.Getenv("MUTANTS")
	chosen := slices.DeleteFunc(slices.Clone(bugs), func(b bug) bool {
		all := verifyrecord.Full() || wanted == "all"
		return !all && !slices.Contains(strings.Split(wanted, ","), b.id) && (wanted != "" || b.pkg != "./lockstore")
	})
	require.NotEmpty(t, chosen)
	results := make([]verifyrecord.Mutant, len(chosen))
	for i, b := range chosen {
		results[i] = verifyrecord.Mutant{ID: b.id, What: b.what}
		t.Run(b.id, func(t *testing.T) {
			t.Parallel()
			by, err := b.plant(t.Context(), t.TempDir())
			require.NoError(t, err)
			results[i].Killed, results[i].By = true, b.pkg+" "+by+": "+b.says
			t.Logf("%s: caught by %s", b.what, results[i].By)
		})
	}
	t.Cleanup(func() { // when the cases have ended
		verifyrecord.Write(t, verifyrecord.Result{Kind: verifyrecord.Mutants, Name: "planted bugs", Mutants: results, Took: time.Since(began)})
	})
}

// mutate is the file with the bug.
func (b bug) mutate() (string, error) {
	text, err := os.ReadFile(filepath.Join(root, b.file))
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(text), b.old); n != 1 {
		return "", fmt.Errorf("%s stands %d times in %s; want 1: %q", b.id, n, b.file, b.old)
	}
	return strings.Replace(string(text), b.old, b.new, 1), nil
}

// plant runs the test with the bug, and returns the name of the test that caught it. The project does not change:
// go takes the file from dir. Which test of several fails first can be chance, so the words of one of the
// others count, too.
func (b bug) plant(ctx context.Context, dir string) (by string, err error) {
	text, err := b.mutate()
	if err != nil {
		return "", err
	}
	from, err := filepath.Abs(filepath.Join(root, b.file))
	if err != nil {
		return "", err
	}
	to, overlay := filepath.Join(dir, filepath.Base(b.file)), filepath.Join(dir, "overlay.json")
	list, err := json.Marshal(map[string]any{"Replace": map[string]string{from: to}})
	if err = errors.Join(err, os.WriteFile(to, []byte(text), 0o644), os.WriteFile(overlay, list, 0o644)); err != nil {
		return "", err
	}
	for _, failfast := range []string{"-failfast=true", "-failfast=false"} {
		out, failed := b.test.runs(ctx, "-overlay="+overlay, failfast)
		if failed == nil {
			return "", fmt.Errorf("it lived: %s -run %s", b.pkg, b.run)
		}
		if by, err = caught(out, b.says); err == nil {
			return by, nil
		}
		err = fmt.Errorf("%w:\n%s", err, out)
	}
	return "", err
}

// runs is a run of go test, built as functions are, so that what they share is not compiled once more.
func (x test) runs(ctx context.Context, flags ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	args := append([]string{"test", "-vet=off", "-trimpath", "-count=1", "-timeout=4m", "-run=" + x.run}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, x.pkg)...)
	cmd.Dir = root
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0", "VERIFY_DIR=", "VERIFY_SEED=", "VERIFY_SEEDS=", x.env)
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

var (
	failure = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)
	// crash is also what a timeout looks like.
	crash = regexp.MustCompile(`(?m)^(panic|fatal error): `)
)

// caught finds in the output of a go test that failed the test that printed the words.
func caught(out, says string) (test string, err error) {
	before, _, found := strings.Cut(out, says)
	failed := failure.FindAllStringSubmatch(before, -1)
	switch {
	case crash.MatchString(out):
		return "", errors.New("a crash or a timeout is no catch")
	case !found || failed == nil:
		return "", fmt.Errorf("no test failed with %q", says)
	}
	return failed[len(failed)-1][1], nil
}

// A bug whose text does not stand in the code any more would be noticed in make mutants only. Without words any
// failure would count.
func TestEveryBugCanBePlanted(t *testing.T) {
	ids := map[string]bool{}
	for _, b := range bugs {
		_, err := b.mutate()
		assert.NoError(t, err)
		assert.NotEqual(t, b.old, b.new, b.id)
		assert.NotEmpty(t, b.says, b.id)
		assert.False(t, ids[b.id], "two have the id %s", b.id)
		ids[b.id] = true
	}
}
