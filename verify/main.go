// Command verify runs every part of the verification, keeps what the parts did in
// one record, and writes the page that people read. Run it in verify/:
//
//	go run .            every part once, at full size: make verify
//	go run . -gate      the parts with one outcome, an eighth of each: make verify GATE=1
//	go run . -soak 2h   the parts with seeds, again and again with seeds by the clock, until one fails: make soak TIME=2h
//
// A part is a test that writes one verifyrecord.Result into the folder that VERIFY_DIR names. The record goes to
// build/verify/record.json. With -keep docs/verification.md and the sentence of the README are made from it.
//
// The command ends with status 1 when a part fails or does too little, when it records a violation, when a control does
// not show what it must, or when a planted bug is not caught.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/lambdalock/lambdalock/internal/verifyrecord"
)

// part is a test that records, in the product's module or in this one.
type part struct {
	kind, dir, pkg, run string
	seeded              bool             // by VERIFY_SEED, so worth repeating
	gate                bool             // it has one outcome, on every machine: virtual time, fakes, fixed seeds
	waits               bool             // more than it computes, so it runs beside two others
	atLeast             map[string]int64 // what its result has to count
}

var parts = []part{
	{kind: verifyrecord.Induction, dir: "..", pkg: "./internal/lib/rules", run: "TestInduction", gate: true, atLeast: map[string]int64{states: 100_000}},
	{kind: verifyrecord.Induction, dir: "..", pkg: "./internal/lib/rules", run: "TestInductionBeyond", seeded: true, gate: true, atLeast: map[string]int64{states: 5_000_000}},
	{kind: verifyrecord.Induction, dir: "..", pkg: "./internal/lib/rules", run: "TestInductionFindsMistakes", gate: true},
	{kind: verifyrecord.Induction, dir: "..", pkg: "./internal/lib/rules", run: "TestProof", atLeast: map[string]int64{lemmas: 48}},
	{kind: verifyrecord.Induction, dir: "..", pkg: "./internal/lib/rules", run: "(TestModel|TestModelFindsMistakes)", seeded: true, gate: true, atLeast: map[string]int64{steps: 1_000_000}},
	{kind: verifyrecord.Simulation, dir: "..", pkg: "./guard", run: "TestSimulation", seeded: true, gate: true, atLeast: map[string]int64{seeds: 3000}},
	{kind: verifyrecord.Simulation, dir: "..", pkg: "./guard", run: "(TestRepeats|TestManyKeys)", seeded: true, gate: true, atLeast: map[string]int64{seeds: 4500}},
	{kind: verifyrecord.Simulation, dir: "..", pkg: "./lockstore/dynamostore", run: "(TestTrustNeverOverlaps|TestHotPartition|TestCostOfAQueue)", seeded: true, gate: true, atLeast: map[string]int64{seeds: 200}},
	{kind: verifyrecord.Comparison, dir: "..", pkg: "./lockstore/dynamostore", run: "(TestRuleBook|TestStoreOnTheFake)", seeded: true, gate: true, atLeast: map[string]int64{sequences: 3000}},
	{kind: verifyrecord.Comparison, dir: "..", pkg: "./lockstore/dynamostore", run: "TestPairs", seeded: true, gate: true, atLeast: map[string]int64{pairs: 1000}},
	{kind: verifyrecord.Simulation, dir: "..", pkg: "./lockstore/redisstore", run: "TestSimulation", seeded: true, gate: true, atLeast: map[string]int64{seeds: 100}},
	{kind: verifyrecord.Simulation, dir: "..", pkg: "./lockstore/casstore", run: "TestSimulation", seeded: true, gate: true, atLeast: map[string]int64{seeds: 400}},
	{kind: verifyrecord.Comparison, dir: "..", pkg: "./lockstore/memstore", run: "TestRuleBook", seeded: true, gate: true, atLeast: map[string]int64{sequences: 1_000_000}},
	{kind: verifyrecord.Comparison, dir: "..", pkg: "./lockstore/memstore", run: "TestPairs", seeded: true, gate: true, atLeast: map[string]int64{pairs: 1000}},
	{kind: verifyrecord.Comparison, dir: "..", pkg: "./lockstore/casstore", run: "(TestRuleBook|TestStore|TestHolderRenewsInTimeAmongJoiners)", seeded: true, gate: true, atLeast: map[string]int64{sequences: 30_000}},
	{kind: verifyrecord.Comparison, dir: "..", pkg: "./lockstore/casstore", run: "TestPairs", seeded: true, gate: true, atLeast: map[string]int64{pairs: 1000}},
	{kind: verifyrecord.Comparison, dir: "..", pkg: "./lockstore/redisstore", run: "(TestRuleBook|TestConformanceVirtualTime)", seeded: true, gate: true, atLeast: map[string]int64{sequences: 3000}},
	{kind: verifyrecord.Comparison, dir: "..", pkg: "./lockstore/redisstore", run: "TestPairs", seeded: true, gate: true, atLeast: map[string]int64{pairs: 1000}},
	{kind: verifyrecord.Comparison, dir: "../lockstore/datastore", pkg: ".", run: "(TestRuleBook|TestOnFake)", seeded: true, gate: true, atLeast: map[string]int64{sequences: 300}},
	{kind: verifyrecord.Comparison, dir: "..", pkg: "./lockstore/redisstore", run: "TestRuleBookOnServers", seeded: true, waits: true, atLeast: map[string]int64{sequences: 3 * 1000}},
	{kind: verifyrecord.Comparison, dir: "..", pkg: "./lockstore/dynamostore", run: "(TestRuleBookOnDynamoDBLocal|TestOnDynamoDBLocal)", seeded: true, waits: true, atLeast: map[string]int64{sequences: 1000}},
	{kind: verifyrecord.Comparison, dir: "..", pkg: "./lockstore/zkstore", run: "TestRuleBook", seeded: true, waits: true, atLeast: map[string]int64{sequences: 1000}},
	{kind: verifyrecord.Comparison, dir: "../lockstore/sqlstore/sqltest", pkg: ".", run: "TestRuleBook", seeded: true, waits: true, atLeast: map[string]int64{sequences: 3 * 1000}},
	{kind: verifyrecord.Simulation, dir: "..", pkg: "./lockstore/storetest", run: "TestTheComparisonFindsMistakes", gate: true},
	{kind: verifyrecord.Histories, dir: ".", pkg: "./histories", run: "TestControls", seeded: true, gate: true, atLeast: map[string]int64{seeds: 400}},
	{kind: verifyrecord.Histories, dir: ".", pkg: "./histories", run: "TestHistories", seeded: true, waits: true, atLeast: map[string]int64{histories: 250, operations: 150_000}},
	{kind: verifyrecord.Processes, dir: ".", pkg: "./processes", run: "Test.*", seeded: true, waits: true, atLeast: map[string]int64{kills: 300, stops: 300, beside: 50, readers: 50}},
	{kind: verifyrecord.Processes, dir: ".", pkg: "./storms", run: "TestStorm", waits: true, atLeast: map[string]int64{kills: 9, stops: 9, covered: 2000}},
	{kind: verifyrecord.Mutants, dir: ".", pkg: "./mutants", run: "TestMutants", gate: true},
	{kind: verifyrecord.Fuzz, dir: ".", pkg: "./fuzzall", run: "Test.*"},
}

// Counts that the parts record and the page shows.
const (
	states     = "states"
	steps      = "steps"
	lemmas     = "lemmas"
	seeds      = "seeds"
	sequences  = verifyrecord.Sequences
	requests   = verifyrecord.Requests
	pairs      = verifyrecord.Pairs
	histories  = "histories"
	operations = "operations"
	kills      = "SIGKILL"
	stops      = "SIGSTOP"
	beside     = "grants beside another holder"
	readers    = "readers beside another"
	covered    = "covered events"
)

// partTime bounds one part.
const partTime = 30 * time.Minute

// Record is what all parts did.
type Record struct {
	Commit  string                `json:"commit"` // with -dirty if the tree was not the commit's
	Date    string                `json:"date"`
	Machine string                `json:"machine"`
	Took    time.Duration         `json:"took"`
	Results []verifyrecord.Result `json:"results"`
}

var buildDir = filepath.Join("..", "build")

func main() {
	soak := flag.Duration("soak", 0, "run with new seeds for so long")
	gate := flag.Bool("gate", false, "only what has one outcome, and less of it")
	keep := flag.Bool("keep", false, "write docs/verification.md from the record")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	var err error
	switch {
	case *soak > 0:
		err = runSoak(ctx, *soak)
	case *gate && *keep:
		err = errors.New("-gate is a part of the verification; want -keep without it")
	case *gate:
		if err = os.Setenv("VERIFY_GATE", "1"); err == nil {
			_, err = runAll(ctx, filepath.Join(buildDir, "gate"), gateParts(), 1)
		}
	default:
		err = verify(ctx, *keep)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "verify:", err)
		os.Exit(1)
	}
}

// gateParts are the parts with one outcome, of a smaller size.
func gateParts() (all []part) {
	for _, p := range parts {
		if !p.gate {
			continue
		}
		p.atLeast = maps.Clone(p.atLeast)
		for name := range p.atLeast {
			p.atLeast[name] /= verifyrecord.GateShare
		}
		all = append(all, p)
	}
	return all
}

func verify(ctx context.Context, keep bool) error {
	r, err := runAll(ctx, filepath.Join(buildDir, "verify"), parts, 1)
	if r != nil {
		fmt.Printf("\n%s\n", brief(*r))
	}
	if err != nil || !keep {
		return err
	}
	return writeReport(*r)
}

// runAll runs the parts that wait one after the other, and beside them the parts that
// compute, two at a time: most of them use one processor. The record is also returned beside an error,
// unless ctx ended.
func runAll(ctx context.Context, dir string, parts []part, seed uint64) (*Record, error) {
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	r := &Record{Date: began.UTC().Format(time.DateOnly), Machine: machine()}
	if r.Commit, err = commit(ctx); err != nil {
		return nil, err
	}
	results, failed := make([]*verifyrecord.Result, len(parts)), make([]error, len(parts))
	waiting, computing := make(chan int, len(parts)), make(chan int, len(parts))
	for i, p := range parts {
		if p.waits {
			waiting <- i
		} else {
			computing <- i
		}
	}
	close(waiting)
	close(computing)
	var lanes sync.WaitGroup
	for _, lane := range []chan int{waiting, computing, computing} {
		lanes.Go(func() {
			for i := range lane {
				p, start := parts[i], time.Now()
				result, err := p.record(ctx, filepath.Join(dir, fmt.Sprintf("%d-%s", i+1, p.kind)), seed)
				if ctx.Err() != nil {
					return
				}
				word := "ok"
				if err != nil {
					word = "FAILED"
					failed[i] = fmt.Errorf("%s %s: %w", p.pkg, p.run, err)
				}
				results[i] = result
				fmt.Printf("%-10s  %-24s %-24s %8s  %s\n", p.kind, p.pkg, p.run, time.Since(start).Round(time.Second), word)
			}
		})
	}
	lanes.Wait()
	if ctx.Err() != nil {
		return nil, errors.Join(append(failed, ctx.Err())...)
	}
	for _, result := range results {
		if result != nil {
			r.Results = append(r.Results, *result)
		}
	}
	r.Took = time.Since(began).Round(time.Second)
	end, err := commit(ctx)
	if end != r.Commit {
		r.Commit += " to " + end
	}
	return r, errors.Join(append(failed, err, save(filepath.Join(dir, "record.json"), r))...)
}

// record runs the part's test. The result is also returned beside an error.
func (p part) record(ctx context.Context, dir string, seed uint64) (*verifyrecord.Result, error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, partTime)
	defer cancel()
	command := []string{"go", "test", "-vet=off", p.pkg, "-run", "^" + p.run + "$", "-count=1", "-timeout", (partTime - time.Minute).String()}
	if !p.waits { // then it takes the processors only when the part beside it waits
		command = append([]string{"nice"}, command...)
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir = p.dir
	// Variables that were set for a replay must not make the part smaller. What functions are made of is compiled as
	// for the functions, so that it is compiled once. The garbage is collected less often than it would
	// be by default: simulations take a tenth less.
	cmd.Env = append(cmd.Environ(), "GOGC=400", "CGO_ENABLED=0", "GOFLAGS=-trimpath", "VERIFY_DIR="+dir, fmt.Sprint("VERIFY_SEED=", seed), "VERIFY_SEEDS=", "FUZZTIME=")
	// go test does not end its test when it is ended itself, so the signal goes to
	// the whole process group.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = 10 * time.Second
	log := filepath.Join(dir, "log")
	out, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	if err = cmd.Run(); err != nil {
		err = fmt.Errorf("%w; the end of %s:\n%s", err, log, tail(log, 40))
	}
	files, globErr := filepath.Glob(filepath.Join(dir, "*.json"))
	if len(files) != 1 {
		return nil, errors.Join(err, globErr, fmt.Errorf("the test wrote %d results; want 1; see %s", len(files), log))
	}
	result, loadErr := load(files[0])
	return &result, errors.Join(append(p.problems(result, seed), err, loadErr)...)
}

func tail(file string, lines int) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// problems looks at the result itself: a bad result counts as a failure even if the
// test passed.
func (p part) problems(r verifyrecord.Result, seed uint64) (problems []error) {
	add := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if r.Kind != p.kind || p.seeded && r.Seed != seed {
		add("the result is of %s from seed %d; want %s from seed %d", r.Kind, r.Seed, p.kind, seed)
	}
	for name, n := range p.atLeast {
		if r.Counts[name] < n {
			add("only %d %s; want %d", r.Counts[name], name, n)
		}
	}
	if r.Violations > 0 {
		add("%d violations", r.Violations)
	}
	for _, c := range r.Controls {
		if !c.Shown {
			add("the control shows no violation: %s", c.What)
		}
	}
	for _, m := range r.Mutants {
		if !m.Killed {
			add("%s was not caught: %s", m.ID, m.What)
		}
	}
	return problems
}

func machine() string {
	return fmt.Sprintf("%d cores, %s/%s, %s", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version())
}

func commit(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*").Output()
	if err != nil {
		return "", fmt.Errorf("git describe: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

func load(file string) (r verifyrecord.Result, err error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return r, fmt.Errorf("%s: %w", file, err)
	}
	return r, nil
}

func save(file string, v any) error {
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(b, '\n'), 0o644)
}

// runSoak begins each round with the seconds of the clock.
func runSoak(ctx context.Context, long time.Duration) error {
	seeded := slices.DeleteFunc(slices.Clone(parts), func(p part) bool { return !p.seeded })
	for end := time.Now().Add(long); time.Now().Before(end) && ctx.Err() == nil; {
		seed := uint64(time.Now().Unix())
		fmt.Printf("\nseeds from %d on\n", seed)
		if _, err := runAll(ctx, filepath.Join(buildDir, "soak"), seeded, seed); err != nil {
			return fmt.Errorf("seeds from %d on: %w", seed, err)
		}
	}
	return ctx.Err()
}
