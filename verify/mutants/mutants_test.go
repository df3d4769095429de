package mutants

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/verifyrecord"
)

// mutant is a planted bug. Its patch is patches/<file>.patch, or patches/<id>.patch.
type mutant struct {
	id, file string
	what     string
	suite    string // the tests that have to catch it
	testRun
	says  string // what the test has to print
	sims  string // if not "", what the simulation of casstore has to print, too
	finds string // if not "", what the search of casstore has to print, too
	why   string // why it does not apply; then there is no patch
}

// also are the other tests that have to catch it, and what they have to print.
func (m mutant) also() map[testRun]string {
	also := map[testRun]string{casSimulation: m.sims, casSearch: m.finds}
	maps.DeleteFunc(also, func(_ testRun, says string) bool { return says == "" })
	return also
}

// testRun is a run of go test.
type testRun struct {
	dir      string // of the module that has the test: "" or verify
	pkg, run string // the test: a package and a pattern for -run
	env      string // one more variable for the test, or ""
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
// those of the package that is built fastest, to see that the machinery works.
// MUTANTS=M04,M05 plants these.
func TestMutants(t *testing.T) {
	began := time.Now()
	wanted := os.Getenv("MUTANTS")
	all := verifyrecord.Full() || wanted == "all"
	var chosen []mutant
	without := map[testRun]*baseline{}
	for _, m := range mutants {
		if all || wanted == "" && m.pkg == "./lockstore" || slices.Contains(strings.Split(wanted, ","), m.id) {
			chosen = append(chosen, m)
			without[m.testRun] = &baseline{}
			for other := range m.also() {
				without[other] = &baseline{}
			}
		}
	}
	require.NotEmpty(t, chosen)
	results := make([]verifyrecord.Mutant, len(chosen))
	queue := make(chan int)
	var workers sync.WaitGroup
	for range 2 { // cores
		dir := t.TempDir()
		copyProject(t, dir)
		workers.Go(func() {
			for i := range queue {
				m, r := chosen[i], &results[i]
				*r = verifyrecord.Mutant{ID: m.id, What: m.what, Suite: m.suite, Why: m.why}
				if m.why != "" {
					show(r)
					continue
				}
				t.Run(m.patch(), func(t *testing.T) {
					defer show(r)
					require.NoError(t, without[m.testRun].passes(t.Context(), dir, m.testRun))
					for other := range m.also() {
						require.NoError(t, without[other].passes(t.Context(), dir, other))
					}
					by, err := m.plant(t.Context(), dir)
					require.NoError(t, err)
					r.Killed, r.By = true, path.Join(m.dir, m.pkg)+" "+by+": "+m.says
				})
			}
		})
	}
	for i := range chosen {
		queue <- i
	}
	close(queue)
	workers.Wait()
	verifyrecord.Write(t, verifyrecord.Result{Kind: verifyrecord.Mutants, Name: "planted bugs", Mutants: results, Took: time.Since(began)})
}

// show prints a result as soon as it is known.
func show(r *verifyrecord.Mutant) {
	end := "caught by " + r.By
	switch {
	case r.Why != "":
		end = "does not apply: " + r.Why
	case !r.Killed:
		end = "NOT CAUGHT"
	}
	fmt.Printf("%s  %-11s  %s\n         %s\n", r.ID, r.Suite, r.What, end)
}

// baseline is a test run without any bug, made once for all bugs that share it.
type baseline struct {
	once sync.Once
	err  error
}

func (b *baseline) passes(ctx context.Context, dir string, r testRun) error {
	b.once.Do(func() {
		out, err := r.test(ctx, dir)
		switch {
		case err != nil:
			b.err = fmt.Errorf("without any bug it fails: %w\n%s", err, out)
		case strings.Contains(out, "no tests to run"):
			b.err = fmt.Errorf("no test is named so: %s -run %s", r.pkg, r.run)
		}
	})
	return b.err
}

// plant applies the patch, runs the test and takes the patch back. It returns the
// name of the test that caught the bug.
func (m mutant) plant(ctx context.Context, dir string) (by string, err error) {
	patch, err := filepath.Abs(filepath.Join("patches", m.patch()+".patch"))
	if err != nil {
		return "", err
	}
	if out, err := command(ctx, dir, "", "git", "apply", patch); err != nil {
		return "", fmt.Errorf("the patch does not apply: %w\n%s", err, out)
	}
	defer func() {
		if out, takeBack := command(context.WithoutCancel(ctx), dir, "", "git", "apply", "-R", patch); takeBack != nil {
			err = errors.Join(err, fmt.Errorf("the patch cannot be taken back: %w\n%s", takeBack, out))
		}
	}()
	for other, says := range m.also() {
		if _, err := other.catches(ctx, dir, says); err != nil {
			return "", err
		}
	}
	return m.catches(ctx, dir, m.says)
}

// catches runs the test, which has to fail and print the words. Which test of several fails
// first can be chance, so the words of one of the others count, too.
func (r testRun) catches(ctx context.Context, dir, says string) (by string, err error) {
	for _, flags := range [][]string{{"-failfast"}, nil} {
		out, failed := r.test(ctx, dir, flags...)
		if failed == nil {
			return "", fmt.Errorf("it lived: %s -run %s", r.pkg, r.run)
		}
		if by, err = caught(out, says); err == nil {
			return by, nil
		}
		err = fmt.Errorf("%w:\n%s", err, out)
	}
	return "", err
}

func (r testRun) test(ctx context.Context, dir string, flags ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	// With trimpath the copies share what go has built, also with those of the last
	// time.
	args := append([]string{"test", "-trimpath", "-vet=off", r.pkg, "-run", r.run, "-count=1", "-timeout", "4m"}, flags...)
	return command(ctx, filepath.Join(dir, r.dir), r.env, "go", args...)
}

var (
	failure = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)
	// crash is also what a timeout looks like.
	crash = regexp.MustCompile(`(?m)^(panic|fatal error): `)
)

// caught finds in the output of a go test that failed the test that printed the
// words.
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

// command runs with the environment of this process without the variables that change how much a test does.
func command(ctx context.Context, dir, env, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(cmd.Environ(), "VERIFY_DIR=", "VERIFY_SEED=", "VERIFY_SEEDS=", env)
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// copyProject copies the files that git knows, as they are now. A file may be deleted
// and not yet committed.
func copyProject(t *testing.T, dir string) {
	out, err := command(t.Context(), root, "TO="+dir, "sh", "-c", `git ls-files | xargs ls -d 2>/dev/null | tar -cf - -T - | tar -xf - -C "$TO"`)
	require.NoError(t, err, out)
}

// Every planted bug of the list has a patch or a reason, and every patch a row. The
// ids have no gaps. A row without words would count any failure.
func TestEveryMutantIsListed(t *testing.T) {
	listed, patches := map[string]bool{}, map[string]bool{}
	for _, m := range mutants {
		listed[m.id] = true
		if m.why == "" {
			patches[m.patch()+".patch"] = true
			require.NotEmpty(t, m.says, m.patch())
		}
	}
	listed["M34"] = true // was taken out of the list
	for n := 1; n <= len(listed); n++ {
		require.True(t, listed[fmt.Sprintf("M%02d", n)], "M%02d", n)
	}
	files, err := os.ReadDir("patches")
	require.NoError(t, err)
	there := map[string]bool{}
	for _, f := range files {
		there[f.Name()] = true
	}
	require.Equal(t, patches, there)
}

// A patch that does not apply any more, or no longer changes the product, would be
// noticed in make mutants only.
func TestEveryPatchApplies(t *testing.T) {
	dir := t.TempDir()
	copyProject(t, dir)
	patches, err := filepath.Glob("patches/*.patch")
	require.NoError(t, err)
	for _, patch := range patches {
		file, err := filepath.Abs(patch)
		require.NoError(t, err)
		out, err := command(t.Context(), dir, "", "git", "apply", "--check", file)
		require.NoError(t, err, "%s: %s", patch, out)
		out, err = command(t.Context(), dir, "", "git", "apply", "--numstat", file)
		require.NoError(t, err, "%s: %s", patch, out)
		require.NotContains(t, out, "_test.go", patch)
		require.NotContains(t, out, "\tverify/", patch)
	}
}

// What go test prints when something else than the words made it fail.
func TestOnlyTheWordsAreACatch(t *testing.T) {
	const words = "two trust their lease at once"
	for name, c := range map[string]struct{ out, by, err string }{
		"the words": {"--- FAIL: TestA (0.01s)\n    --- FAIL: TestA/x (0.00s)\n        a_test.go:7: " + words + "\nFAIL\n", "TestA/x", ""},
		"the words of an earlier test": {
			"--- FAIL: TestA (0.01s)\n    a_test.go:7: " + words + "\n--- FAIL: TestB (0.01s)\n    b_test.go:8: other words\nFAIL\n", "TestA", "",
		},
		"other words":  {"--- FAIL: TestA (0.01s)\n    a_test.go:7: not enough has happened\nFAIL\n", "", "no test failed with"},
		"no test":      {"a.go:7:1: " + words + "\nFAIL\ta [build failed]\n", "", "no test failed with"},
		"a timeout":    {"panic: test timed out after 4m0s\n\trunning tests:\n\t\tTestA (4m0s)\nFAIL\n", "", "a crash or a timeout"},
		"a crash":      {"--- FAIL: TestA (0.01s)\npanic: " + words + " [recovered, repanicked]\nFAIL\n", "", "a crash or a timeout"},
		"a deadlock":   {"fatal error: all goroutines are asleep - deadlock!\nFAIL\n", "", "a crash or a timeout"},
		"a later test": {"--- FAIL: TestA (0.01s)\n    a_test.go:7: " + words + "\npanic: in another\nFAIL\n", "", "a crash or a timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			by, err := caught(c.out, words)
			require.Equal(t, c.by, by)
			if c.err == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.err)
			}
		})
	}
}

// A test that fails by itself, or is not there, catches nothing.
func TestABaselineHasToPass(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":    "module a\n",
		"a_test.go": "package a\n\nimport \"testing\"\n\nfunc TestFails(t *testing.T) { t.Error(\"by itself\") }\n\nfunc TestPasses(*testing.T) {}\n",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	passes := func(run string) error {
		return new(baseline).passes(t.Context(), dir, testRun{pkg: ".", run: run})
	}
	require.NoError(t, passes("^TestPasses$"))
	require.ErrorContains(t, passes("^TestFails$"), "by itself")
	require.ErrorContains(t, passes("^TestIsNotThere$"), "no test is named so")
}
