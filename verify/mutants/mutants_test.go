// Package mutants plants bugs in a copy of the project, one at a time, and runs
// the test that claims to catch it. A planted bug is a patch in patches/; nothing
// of it is in the product.
package mutants

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/record"
)

// mutant is a planted bug. Its patch is patches/<file>.patch, or patches/<id>.patch.
type mutant struct {
	id, file string
	what     string
	rung     string   // that claims it
	dir      string   // of the module that has the test: "" or verify
	pkg, run string   // the test: a package and a pattern for -run
	env      []string // more environment for the test
	why      string   // why it does not apply; then there is no patch
}

func (m mutant) patch() string {
	if m.file == "" {
		return m.id
	}
	return m.file
}

// root is the top of the project.
const root = "../.."

// TestMutants plants every bug in make verify and make mutants. Elsewhere it plants
// three, to see that the machinery works.
func TestMutants(t *testing.T) {
	began := time.Now()
	chosen := mutants
	if !record.Full() && !strings.Contains(strings.Join(os.Args, " "), "-test.v=true") {
		chosen = mutants[:3]
	}
	copies := make(chan string, 2) // two cores
	for range cap(copies) {
		dir := t.TempDir()
		copyProject(t, dir)
		copies <- dir
	}
	results := make([]record.Mutant, len(chosen))
	t.Cleanup(func() { report(t, results, time.Since(began)) }) // when all are done
	for i, m := range chosen {
		results[i] = record.Mutant{ID: m.id, What: m.what, Rung: m.rung, Why: m.why}
		if m.why != "" {
			continue
		}
		t.Run(m.patch(), func(t *testing.T) {
			t.Parallel()
			dir := <-copies
			defer func() { copies <- dir }()
			by, err := m.plant(t.Context(), dir)
			require.NoError(t, err)
			results[i].Killed, results[i].By = by != "", by
			require.NotEmpty(t, by, "it lived: %s (%s -run %s)", m.what, m.pkg, m.run)
		})
	}
}

func report(t *testing.T, results []record.Mutant, took time.Duration) {
	for _, r := range results {
		word := "caught by " + r.By
		switch {
		case r.Why != "":
			word = "does not apply: " + r.Why
		case !r.Killed:
			word = "LIVED"
		}
		t.Logf("%s  %-55s %s  %s", r.ID, r.What, r.Rung, word)
	}
	record.Write(t, record.Rung{ID: "L7", Name: "planted bugs", Mutants: results, Took: took})
}

// plant applies the patch, runs the test, and takes the patch back. It returns the
// name of the test that failed, or "" when none did. A patch that does not apply or
// does not compile has caught nothing: that is an error.
func (m mutant) plant(ctx context.Context, dir string) (by string, err error) {
	patch, err := filepath.Abs(filepath.Join("patches", m.patch()+".patch"))
	if err != nil {
		return "", err
	}
	if out, err := command(ctx, dir, nil, "git", "apply", "--whitespace=nowarn", patch); err != nil {
		return "", fmt.Errorf("the patch does not apply: %w\n%s", err, out)
	}
	defer func(dir string) {
		if out, takeBack := command(context.WithoutCancel(ctx), dir, nil, "git", "apply", "-R", "--whitespace=nowarn", patch); takeBack != nil && err == nil {
			err = fmt.Errorf("the patch cannot be taken back: %w\n%s", takeBack, out)
		}
	}(dir)
	dir = filepath.Join(dir, m.dir)
	if out, err := command(ctx, dir, nil, "go", "vet", m.pkg); err != nil {
		return "", fmt.Errorf("it does not compile: %w\n%s", err, out)
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	out, err := command(ctx, dir, m.env, "go", "test", m.pkg, "-run", m.run, "-count=1", "-failfast", "-timeout", "4m")
	if bytes.Contains(out, []byte("no tests to run")) {
		return "", fmt.Errorf("no test is named so: %s", m.run)
	}
	if err == nil {
		return "", nil
	}
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	failed := failure.FindAllSubmatch(out, -1)
	if failed == nil {
		// A crash or a deadlock is a catch, too, as long as the test ran.
		if bytes.Contains(out, []byte("panic:")) || bytes.Contains(out, []byte("test timed out")) {
			return "a crash of " + m.run, nil
		}
		return "", fmt.Errorf("the test did not run: %w\n%s", err, out)
	}
	return string(failed[len(failed)-1][1]), nil
}

// failure finds the names of failed tests; the last one is the innermost.
var failure = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)

func command(ctx context.Context, dir string, env []string, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "VERIFY_DIR=")
	cmd.Env = append(cmd.Env, env...)
	cmd.WaitDelay = 10 * time.Second
	return cmd.CombinedOutput()
}

// copyProject copies the files that git knows, as they are now.
func copyProject(t *testing.T, dir string) {
	out, err := command(t.Context(), root, nil, "git", "ls-files", "-z")
	require.NoError(t, err, "%s", out)
	for name := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
		from, to := filepath.Join(root, name), filepath.Join(dir, name)
		info, err := os.Stat(from)
		if err != nil {
			continue // deleted, but not yet committed
		}
		b, err := os.ReadFile(from)
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o755))
		require.NoError(t, os.WriteFile(to, b, info.Mode()))
	}
}

// Every planted bug of the list has a patch or a reason, and every patch a row.
func TestEveryMutantIsListed(t *testing.T) {
	listed, patches := map[string]bool{}, map[string]bool{}
	for _, m := range mutants {
		listed[m.id] = true
		if m.why == "" {
			patches[m.patch()+".patch"] = true
			require.FileExists(t, filepath.Join("patches", m.patch()+".patch"))
		}
	}
	for n := 1; n <= 40; n++ {
		if n != 34 { // was taken out of the list
			require.True(t, listed[fmt.Sprintf("M%02d", n)], "M%02d", n)
		}
	}
	files, err := os.ReadDir("patches")
	require.NoError(t, err)
	for _, f := range files {
		require.True(t, patches[f.Name()], "%s belongs to no planted bug", f.Name())
	}
}

// A patch that does not apply any more would be noticed in make mutants only.
func TestEveryPatchApplies(t *testing.T) {
	dir := t.TempDir()
	copyProject(t, dir)
	patches, err := filepath.Glob("patches/*.patch")
	require.NoError(t, err)
	for _, patch := range patches {
		file, err := filepath.Abs(patch)
		require.NoError(t, err)
		out, err := command(t.Context(), dir, nil, "git", "apply", "--check", file)
		require.NoError(t, err, "%s: %s", patch, out)
	}
}
