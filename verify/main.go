// Command verify climbs the rungs of the verification, keeps what they did in one
// record, and writes the page that people read. Run it in verify/:
//
//	go run .                   every rung once at full size: make verify
//	go run .        -soak 2h   again and again with new seeds: make soak TIME=2h
//	go run .        -page      the page anew from the record, and nothing else
//
// A rung is a test that writes one verifyrecord.Rung into the folder that VERIFY_DIR
// names. The record goes to build/verify/record.json; with -keep, as the one that
// the page is made from, to docs/verification.json as well. A soak adds a line to
// build/soak.jsonl for each round and goes on behind the last one's seeds; a round
// that failed comes again, and its logs stay in build/soak.
//
// It ends with status 1 when a rung fails or does less than its floor, when a
// violation or an undecided history is recorded, when a control did not show what
// it must, or when a planted bug lived.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/lambdalock/lambdalock/internal/verifyrecord"
)

// rung is a test in the product's module, or a package of this one with a test that
// records.
type rung struct {
	id, dir, pkg, run string
	seeded            bool             // by VERIFY_SEED, so worth repeating
	floors            map[string]int64 // what its record counts at least
}

var rungs = []rung{
	{id: "L3", dir: "..", pkg: "./lockstore/memstore", run: "TestSearch"},
	{id: "L4", dir: "..", pkg: "./guard", run: "TestSimulation", seeded: true, floors: map[string]int64{seeds: 20_000}},
	{id: "L4", dir: "..", pkg: "./lockstore/dynamostore", run: "TestTrustNeverOverlaps", seeded: true, floors: map[string]int64{seeds: 2000}},
	{id: "L4", dir: "..", pkg: "./lockstore/dynamostore", run: "TestGuardsOverDynamoDB", seeded: true, floors: map[string]int64{seeds: 100}},
	{id: "L4", dir: "..", pkg: "./lockstore/redisstore", run: "TestSimulation", seeded: true, floors: map[string]int64{seeds: 1000}},
	{id: "L5", dir: ".", pkg: "./histories", run: "Test.*", seeded: true, floors: map[string]int64{histories: 300, operations: 300_000}},
	{id: "L6", dir: ".", pkg: "./processes", run: "Test.*", seeded: true, floors: map[string]int64{kills: 300, stops: 300}},
	{id: "L7", dir: ".", pkg: "./mutants", run: "TestMutants"},
	{id: "L8", dir: ".", pkg: "./fuzz", run: "Test.*"},
}

// The counts that the claim adds up.
const (
	seeds      = "seeds"
	histories  = "histories"
	operations = "operations"
	kills      = "SIGKILL"
	stops      = "SIGSTOP"
)

// rungTime bounds one rung; make verify as a whole takes less than half an hour.
const rungTime = 20 * time.Minute

// Record is a whole climb.
type Record struct {
	Commit  string              `json:"commit"`
	Changed bool                `json:"changed,omitempty"` // the tree was not the commit's
	Date    string              `json:"date"`
	Machine string              `json:"machine"`
	Took    time.Duration       `json:"took"`
	Rungs   []verifyrecord.Rung `json:"rungs"`
}

func main() {
	soak := flag.Duration("soak", 0, "go on with new seeds for so long")
	keep := flag.Bool("keep", false, "keep the record as the page's")
	page := flag.Bool("page", false, "make the page anew from docs/verification.json")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
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
		fmt.Fprintln(os.Stderr, "verify:", err)
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
	var changed bool
	if r.Commit, changed, err = commit(ctx); err != nil {
		return nil, err
	}
	var failed []error
	for i, g := range rungs {
		start := time.Now()
		did, err := g.climb(ctx, filepath.Join(dir, fmt.Sprintf("%d-%s", i+1, g.id)), seed)
		if ctx.Err() != nil {
			return nil, errors.Join(append(failed, ctx.Err())...)
		}
		if did != nil {
			r.Rungs = append(r.Rungs, *did)
		}
		word := "ok"
		if err != nil {
			word = "FAILED"
			failed = append(failed, fmt.Errorf("%s %s: %w", g.pkg, g.run, err))
		}
		fmt.Printf("%s  %-24s %-24s %8s  %s\n", g.id, g.pkg, g.run, time.Since(start).Round(time.Second), word)
	}
	r.Took = time.Since(began).Round(time.Second)
	end, changedSince, err := commit(ctx)
	r.Changed = changed || changedSince || end != r.Commit
	return r, errors.Join(append(failed, err, save(filepath.Join(dir, "record.json"), r))...)
}

// climb runs the rung's test and returns what it recorded, also beside an error.
func (g rung) climb(ctx context.Context, dir string, seed uint64) (*verifyrecord.Rung, error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, rungTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "test", g.pkg, "-run", "^"+g.run+"$", "-count=1", "-timeout", (rungTime - time.Minute).String(), "-v")
	cmd.Dir = g.dir
	// What a replay has set must not make the rung smaller.
	cmd.Env = append(cmd.Environ(), "VERIFY_DIR="+dir, fmt.Sprint("VERIFY_SEED=", seed), "VERIFY_SEEDS=", "FUZZTIME=")
	// go test leaves it to the terminal to end the test, so the whole group is told.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = 10 * time.Second
	log := filepath.Join(dir, "log")
	out, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = out, out
	err = cmd.Run()
	if closeErr := out.Close(); closeErr != nil {
		return nil, closeErr
	}
	if err != nil {
		err = fmt.Errorf("%w; the end of %s:\n%s", err, log, tail(log, 40))
	}
	did, readErr := read(dir)
	if readErr != nil {
		return nil, errors.Join(err, fmt.Errorf("%w; see %s", readErr, log))
	}
	return did, errors.Join(append(g.judge(*did, seed), err)...)
}

func tail(file string, lines int) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// read returns the one record in a rung's folder.
func read(dir string) (*verifyrecord.Rung, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	if len(files) != 1 {
		return nil, fmt.Errorf("it wrote %d records instead of one", len(files))
	}
	b, err := os.ReadFile(files[0])
	if err != nil {
		return nil, err
	}
	var r verifyrecord.Rung
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, fmt.Errorf("%s: %w", files[0], err)
	}
	return &r, nil
}

// judge looks at the record itself: one that says something bad although its test
// passed counts as failed.
func (g rung) judge(r verifyrecord.Rung, seed uint64) (problems []error) {
	add := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if r.ID != g.id || g.seeded && r.Seed != seed {
		add("it recorded %s from seed %d; want %s from %d", r.ID, r.Seed, g.id, seed)
	}
	for name, floor := range g.floors {
		if r.Counts[name] < floor {
			add("only %d %s; want %d", r.Counts[name], name, floor)
		}
	}
	if r.Violations > 0 || r.Undecided > 0 {
		add("%d violations, %d undecided", r.Violations, r.Undecided)
	}
	for _, c := range r.Controls {
		if !c.Shown {
			add("the control did not show it: %s", c.What)
		}
	}
	for _, m := range r.Mutants {
		if !m.Killed && m.Why == "" {
			add("%s lived: %s", m.ID, m.What)
		}
	}
	return problems
}

var processor = regexp.MustCompile(`(?m)^model name\s*: (.+)$`)

func machine() string {
	model := ""
	info, err := os.ReadFile("/proc/cpuinfo") // Linux
	if found := processor.FindSubmatch(info); err == nil && found != nil {
		model = " of " + string(found[1])
	}
	return fmt.Sprintf("%d cores%s, %s/%s, %s", runtime.NumCPU(), model, runtime.GOOS, runtime.GOARCH, runtime.Version())
}

func commit(ctx context.Context) (hash string, changed bool, err error) {
	out, err := exec.CommandContext(ctx, "git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return "", false, fmt.Errorf("git rev-parse: %w", err)
	}
	status, err := exec.CommandContext(ctx, "git", "status", "--porcelain").Output()
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
			return fmt.Errorf("seeds from %d on, which the next soak begins with: %w", seed, err)
		}
	}
	return ctx.Err()
}

// nextSeed is where the last round of the ledger says, or that round's own when it
// failed. Half a line, of a soak that was killed while it wrote, is cut off.
func nextSeed(ledger string) (uint64, error) {
	text, err := os.ReadFile(ledger)
	if errors.Is(err, os.ErrNotExist) {
		return 1 + stride, nil // verify itself begins at 1
	}
	if err != nil {
		return 0, err
	}
	whole := bytes.LastIndexByte(text, '\n') + 1
	if whole < len(text) {
		if err := os.Truncate(ledger, int64(whole)); err != nil {
			return 0, err
		}
	}
	if whole == 0 {
		return 1 + stride, nil
	}
	lines := bytes.Split(text[:whole-1], []byte("\n"))
	var last round
	if err := json.Unmarshal(lines[len(lines)-1], &last); err != nil {
		return 0, fmt.Errorf("%s: %w", ledger, err)
	}
	if !last.OK {
		return last.Seed, nil
	}
	return last.Next, nil
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
