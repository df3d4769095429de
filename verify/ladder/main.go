// Command ladder climbs the rungs of the verification, keeps what they did in one
// record, and writes the page that people read. Run it in verify/:
//
//	go run ./ladder            every rung once at full size: make verify
//	go run ./ladder -soak 2h   again and again with new seeds: make soak TIME=2h
//	go run ./ladder -page      the page anew from the record, and nothing else
//
// A rung is a test that writes a record.Rung into the folder that VERIFY_DIR
// names. The record goes to build/verify/record.json; with -keep, as the one that
// the page is made from, to docs/verification.json as well. A soak adds a line to
// build/soak.jsonl for each round and goes on behind the last one's seeds.
//
// It ends with status 1 when a rung fails, when a violation or an undecided history
// is recorded, when a control did not show what it must, or when a mutant lived.
package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/lambdalock/lambdalock/internal/record"
)

// rung is a test, or a few of one package, in the product's or in this module.
type rung struct {
	id, dir, pkg, run string
	seeded            bool // by VERIFY_SEED, so worth repeating
}

var rungs = []rung{
	{"L3", "..", "./lockstore/memstore", "TestSearch", false},
	{"L4", "..", "./guard", "TestSimulation", true},
	{"L4", "..", "./lockstore/dynamostore", "TestTrustNeverOverlaps", true},
	{"L4", "..", "./lockstore/redisstore", "TestSimulation", true},
	{"L5", ".", "./matrix", "TestMatrix", true},
	{"L6", ".", "./lockset", "TestLockSet", true},
	{"L7", ".", "./mutants", "TestMutants", false},
	{"L8", ".", "./fuzz", "TestFuzz", false},
}

// rungTime bounds one rung; make verify as a whole takes less than half an hour.
const rungTime = 20 * time.Minute

// Record is a whole climb.
type Record struct {
	Commit  string        `json:"commit"`
	Changed bool          `json:"changed,omitempty"` // the tree was not the commit's
	Date    string        `json:"date"`
	Machine string        `json:"machine"`
	Took    time.Duration `json:"took"`
	Rungs   []record.Rung `json:"rungs"`
}

func main() {
	soak := flag.Duration("soak", 0, "go on with new seeds for so long")
	keep := flag.Bool("keep", false, "keep the record as the page's")
	page := flag.Bool("page", false, "make the page anew from docs/verification.json")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch {
	case *page:
		err = writePage()
	case *soak > 0:
		err = runSoak(ctx, *soak)
	default:
		err = verify(ctx, *keep)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "ladder:", err)
		os.Exit(1)
	}
}

func verify(ctx context.Context, keep bool) error {
	r, err := climb(ctx, filepath.Join("..", "build", "verify"), rungs, 1)
	if r != nil {
		fmt.Println()
		_ = table(os.Stdout, *r)
	}
	if err != nil || !keep {
		return err
	}
	if err := save(filepath.Join("..", "docs", "verification.json"), r); err != nil {
		return err
	}
	return writePage()
}

// climb runs the rungs one after the other and returns what they recorded, also
// beside an error.
func climb(ctx context.Context, dir string, rungs []rung, seed uint64) (*Record, error) {
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	r := &Record{Date: began.UTC().Format(time.DateOnly), Machine: machine()}
	if r.Commit, r.Changed, err = commit(ctx); err != nil {
		return nil, err
	}
	var failed []error
	for _, g := range rungs {
		start := time.Now()
		err := g.climb(ctx, dir, seed)
		fmt.Printf("%s  %-24s %-24s %8s  %s\n", g.id, g.pkg, g.run, time.Since(start).Round(time.Second), word(err))
		failed = append(failed, err)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	r.Took = time.Since(began).Round(time.Second)
	if r.Rungs, err = read(dir); err != nil {
		return nil, err
	}
	failed = append(failed, judge(r.Rungs, rungs)...)
	return r, errors.Join(append(failed, save(filepath.Join(dir, "record.json"), r))...)
}

func word(err error) string {
	if err != nil {
		return "FAILED"
	}
	return "ok"
}

func (g rung) climb(ctx context.Context, dir string, seed uint64) error {
	ctx, cancel := context.WithTimeout(ctx, rungTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "test", g.pkg, "-run", "^"+g.run+"$", "-count=1", "-timeout", rungTime.String(), "-v")
	cmd.Dir = g.dir
	cmd.Env = append(cmd.Environ(), "VERIFY_DIR="+dir, fmt.Sprint("VERIFY_SEED=", seed))
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = 10 * time.Second
	log := filepath.Join(dir, strings.ToLower(g.id+strings.ReplaceAll(strings.TrimPrefix(g.pkg, "."), "/", "-"))+".log")
	out, err := os.Create(log)
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = out, out
	err = cmd.Run()
	if closeErr := out.Close(); closeErr != nil {
		return closeErr
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w\n%s", g.pkg, g.run, err, tail(log, 40))
	}
	return nil
}

func tail(file string, lines int) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// read collects what the rungs wrote.
func read(dir string) ([]record.Rung, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	var all []record.Rung
	for _, file := range files {
		if filepath.Base(file) == "record.json" {
			continue
		}
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var r record.Rung
		if err := json.Unmarshal(b, &r); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b record.Rung) int {
		return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Name, b.Name))
	})
	return all, nil
}

// judge looks at the records themselves: a rung that wrote none, or that says
// something bad although its test passed, counts as failed.
func judge(all []record.Rung, rungs []rung) (problems []error) {
	for _, g := range rungs {
		if !slices.ContainsFunc(all, func(r record.Rung) bool { return r.ID == g.id }) {
			problems = append(problems, fmt.Errorf("%s: %s wrote no record", g.id, g.pkg))
		}
	}
	for _, r := range all {
		violations, undecided := r.Violations, r.Undecided
		for _, c := range r.Cells {
			violations += c.Violations
			undecided += c.Undecided
		}
		if violations > 0 || undecided > 0 {
			problems = append(problems, fmt.Errorf("%s %s: %d violations, %d undecided", r.ID, r.Name, violations, undecided))
		}
		for _, c := range r.Controls {
			if !c.Shown {
				problems = append(problems, fmt.Errorf("%s %s: the control did not show it: %s", r.ID, r.Name, c.What))
			}
		}
		for _, m := range r.Mutants {
			if !m.Killed && m.Why == "" {
				problems = append(problems, fmt.Errorf("%s: %s lived: %s", r.ID, m.ID, m.What))
			}
		}
	}
	return problems
}

func machine() string {
	return fmt.Sprintf("%d cores, %s/%s, %s", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version())
}

func commit(ctx context.Context) (hash string, changed bool, err error) {
	out, err := exec.CommandContext(ctx, "git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return "", false, fmt.Errorf("git rev-parse: %w", err)
	}
	status, err := exec.CommandContext(ctx, "git", "status", "--porcelain", "--untracked-files=no").Output()
	return strings.TrimSpace(string(out)), len(status) > 0, err
}

func save(file string, v any) error {
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(b, '\n'), 0o644)
}

// round is a line of the soak's ledger.
type round struct {
	Record
	Seed uint64 `json:"seed"`
	Next uint64 `json:"next"` // where the round behind it begins
	OK   bool   `json:"ok"`
}

// stride is more than any rung tries from one seed on.
const stride = 100_000

func runSoak(ctx context.Context, long time.Duration) error {
	ledger := filepath.Join("..", "build", "soak.jsonl")
	if err := os.MkdirAll(filepath.Dir(ledger), 0o755); err != nil {
		return err
	}
	seed, err := nextSeed(ledger)
	if err != nil {
		return err
	}
	seeded := slices.DeleteFunc(slices.Clone(rungs), func(g rung) bool { return !g.seeded })
	for end := time.Now().Add(long); time.Now().Before(end) && ctx.Err() == nil; seed += stride {
		fmt.Printf("\nseeds from %d on\n", seed)
		r, err := climb(ctx, filepath.Join("..", "build", "soak"), seeded, seed)
		if r == nil {
			return err
		}
		if writeErr := appendLine(ledger, round{*r, seed, seed + stride, err == nil}); writeErr != nil {
			return writeErr
		}
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}

// nextSeed is where the last round of the ledger says.
func nextSeed(ledger string) (uint64, error) {
	f, err := os.Open(ledger)
	if errors.Is(err, os.ErrNotExist) {
		return 1 + stride, nil // verify itself begins at 1
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	next := uint64(1 + stride)
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var r round
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return 0, fmt.Errorf("%s: %w", ledger, err)
		}
		next = r.Next
	}
	return next, lines.Err()
}

func appendLine(file string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	return errors.Join(err, f.Close())
}
