package mutants

import (
	"context"
	"encoding/json"
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

// mutant is a planted bug. Its patch is patches/<file>.patch, or patches/<id>.patch. Of the suite
// rulebook it has none: it is a mistake of package wrongrules, or of the wrong store of storetest.
type mutant struct {
	id, file string
	what     string
	suite    string // the tests that have to catch it
	testRun
	says string // what the test has to print
	sims string // if not "", what the simulation of casstore has to print, too
	why  string // why it does not apply; then there is no patch
}

// also are the other tests that have to catch it, and what they have to print.
func (m mutant) also() map[testRun]string {
	also := map[testRun]string{casSimulation: m.sims}
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

// The tests are built as functions are, so that what they share is not compiled once more.
func TestMain(m *testing.M) {
	if err := errors.Join(os.Setenv("CGO_ENABLED", "0"), os.Setenv("GOFLAGS", "-trimpath")); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// TestMutants plants every bug in make verify and make mutants, and in make verify GATE=1 all but those that
// are caught on real servers with random faults. Elsewhere it plants
// those of the package that is built fastest, to see that the machinery works.
// MUTANTS=M04,M05 plants these.
func TestMutants(t *testing.T) {
	began := time.Now()
	wanted := os.Getenv("MUTANTS")
	all := verifyrecord.Full() || wanted == "all"
	var chosen []mutant
	without := map[testRun]*baseline{}
	clean := map[testRun]*binary{} // of the packages
	baselineOf := func(r testRun) {
		if pkg := (testRun{dir: r.dir, pkg: r.pkg}); clean[pkg] == nil {
			clean[pkg] = &binary{file: filepath.Join(t.TempDir(), "test")}
		}
		without[r] = &baseline{binary: clean[testRun{dir: r.dir, pkg: r.pkg}]}
	}
	for _, m := range mutants {
		if verifyrecord.Gate() && (m.suite == processes || m.suite == histories) {
			continue
		}
		if all || wanted == "" && m.pkg == "./lockstore" || slices.Contains(strings.Split(wanted, ","), m.id) {
			chosen = append(chosen, m)
			baselineOf(m.testRun)
			for other := range m.also() {
				baselineOf(other)
			}
		}
	}
	require.NotEmpty(t, chosen)
	results := make([]verifyrecord.Mutant, len(chosen))
	queue := make(chan int)
	var workers sync.WaitGroup
	for range 2 { // cores
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
					require.NoError(t, without[m.testRun].passes(t.Context(), root, m.testRun))
					if m.suite == rulebook { // the test fails if it does not find each mistake, and says what it found
						by, found := without[m.testRun].found(m.says)
						require.True(t, found, "no test says that it found %s", m.says)
						r.Killed, r.By = true, m.pkg+" "+m.says+by
						return
					}
					for other := range m.also() {
						require.NoError(t, without[other].passes(t.Context(), root, other))
					}
					by, err := m.plant(t.Context(), t.TempDir())
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

// binary is the test binary of a package without any bug, made once for all its tests.
type binary struct {
	once sync.Once
	file string
	err  error
}

func (b *binary) make(ctx context.Context, dir, pkg string) error {
	b.once.Do(func() {
		if out, err := command(ctx, dir, nil, "go", "test", "-vet=off", "-c", "-o", b.file, pkg); err != nil {
			b.err = fmt.Errorf("without any bug it does not compile: %w\n%s", err, out)
		}
	})
	return b.err
}

// baseline is a test run without any bug, made once for all bugs that share it.
type baseline struct {
	binary *binary
	once   sync.Once
	out    string
	err    error
}

// found is what the test printed behind the words.
func (b *baseline) found(says string) (line string, ok bool) {
	_, after, ok := strings.Cut(b.out, " "+says)
	line, _, _ = strings.Cut(after, "\n")
	return line, ok
}

func (b *baseline) passes(ctx context.Context, root string, r testRun) error {
	b.once.Do(func() {
		dir := filepath.Join(root, r.dir)
		if b.err = b.binary.make(ctx, dir, r.pkg); b.err != nil {
			return
		}
		ctx, cancel := context.WithTimeout(ctx, runTime)
		defer cancel()
		out, err := command(ctx, filepath.Join(dir, r.pkg), []string{r.env}, b.binary.file, "-test.run", r.run, "-test.v", "-test.timeout", testTime)
		b.out = out
		switch {
		case err != nil:
			b.err = fmt.Errorf("without any bug it fails: %w\n%s", err, out)
		case strings.Contains(out, "no tests to run"):
			b.err = fmt.Errorf("no test is named so: %s -run %s", r.pkg, r.run)
		}
	})
	return b.err
}

// plant runs the test with the patch, and returns the name of the test that caught the bug.
// The project itself does not change: go takes the files that the patch changes from dir.
// All other packages are those that go has built for other tests.
func (m mutant) plant(ctx context.Context, dir string) (by string, err error) {
	overlay, err := m.overlay(ctx, dir)
	if err != nil {
		return "", err
	}
	for other, says := range m.also() {
		if _, err := other.catches(ctx, overlay, says); err != nil {
			return "", err
		}
	}
	return m.catches(ctx, overlay, m.says)
}

// changed is a file that a patch changes.
var changed = regexp.MustCompile(`(?m)^\+\+\+ b/(.+)$`)

// overlay is a file for go's flag of this name, made with all else that it needs in dir.
func (m mutant) overlay(ctx context.Context, dir string) (file string, err error) {
	patch, err := filepath.Abs(filepath.Join("patches", m.patch()+".patch"))
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(patch)
	if err != nil {
		return "", err
	}
	replace := map[string]string{}
	for _, found := range changed.FindAllStringSubmatch(string(text), -1) {
		from, err := filepath.Abs(filepath.Join(root, found[1]))
		if err != nil {
			return "", err
		}
		to := filepath.Join(dir, found[1])
		before, err := os.ReadFile(from)
		if err != nil {
			return "", err
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, before, 0o644)); err != nil {
			return "", err
		}
		replace[from] = to
	}
	if out, err := command(ctx, dir, nil, "git", "apply", patch); err != nil {
		return "", fmt.Errorf("the patch does not apply: %w\n%s", err, out)
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	file = filepath.Join(dir, "overlay.json")
	return file, os.WriteFile(file, list, 0o644)
}

// catches runs the test, which has to fail and print the words. Which test of several fails
// first can be chance, so the words of one of the others count, too.
func (r testRun) catches(ctx context.Context, overlay, says string) (by string, err error) {
	for _, flags := range [][]string{{"-failfast"}, nil} {
		out, failed := r.test(ctx, overlay, flags...)
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

func (r testRun) test(ctx context.Context, overlay string, flags ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, runTime)
	defer cancel()
	args := append([]string{"test", "-vet=off", r.pkg, "-run", r.run, "-count=1", "-timeout", testTime}, flags...)
	// In GOFLAGS it also holds for what the test itself builds.
	return command(ctx, filepath.Join(root, r.dir), []string{r.env, "GOFLAGS=" + os.Getenv("GOFLAGS") + " -overlay=" + overlay}, "go", args...)
}

// testTime bounds one run of a test, and runTime with all that go builds for it.
const (
	testTime = "4m"
	runTime  = 5 * time.Minute
)

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
func command(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(append(cmd.Environ(), "VERIFY_DIR=", "VERIFY_SEED=", "VERIFY_SEEDS="), env...)
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// most bounds the patches: each is to be kept up with the code that it changes. What is a mistake in a
// rule needs none.
const most = 80

// Every planted bug of the list has a patch or a reason, and every patch a row. The
// ids have no gaps. A row without words would count any failure.
func TestEveryMutantIsListed(t *testing.T) {
	listed, patches, mistakes := map[string]bool{}, map[string]bool{}, ""
	for _, file := range []string{"internal/wrongrules/mistakes.go", "lockstore/storetest/wrongstore_test.go"} {
		text, err := os.ReadFile(filepath.Join(root, file))
		require.NoError(t, err)
		mistakes += string(text)
	}
	for _, m := range mutants {
		listed[m.id] = true
		switch {
		case m.suite == rulebook:
			require.True(t, strings.Contains(mistakes, `"`+strings.TrimSuffix(m.says, ": ")+`"`), "no mistake has the name %q", m.says)
		case m.why == "":
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
	require.LessOrEqual(t, len(there), most)
}

// A patch that does not apply any more, or no longer changes the product, would be
// noticed in make mutants only.
func TestEveryPatchApplies(t *testing.T) {
	patches, err := filepath.Glob("patches/*.patch")
	require.NoError(t, err)
	for _, patch := range patches {
		file, err := filepath.Abs(patch)
		require.NoError(t, err)
		out, err := command(t.Context(), root, nil, "git", "apply", "--check", file)
		require.NoError(t, err, "%s: %s", patch, out)
		out, err = command(t.Context(), root, nil, "git", "apply", "--numstat", file)
		require.NoError(t, err, "%s: %s", patch, out)
		require.NotContains(t, out, "_test.go", patch)
		require.NotContains(t, out, "\tverify/", patch)
	}
}
