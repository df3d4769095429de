// Command fuzz runs every Fuzz function of the module for a while, one after the
// other, and exits with status 1 when one fails. Run it at the top of the
// repository:
//
//	go run ./internal/fuzz -time 20s
//
// What go test finds it writes beside the function, below testdata/fuzz, and from
// then on every go test runs it. With VERIFY_DIR set the result is also kept
// there, as rung L8.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/lambdalock/lambdalock/internal/record"
)

func main() {
	each := flag.Duration("time", 20*time.Second, "how long each function runs")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, ".", *each, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "fuzz:", err)
		os.Exit(1)
	}
}

// target is one Fuzz function.
type target struct{ pkg, name string } // pkg is the folder, as ./lockstore

// workers is how many inputs are tried at once. go test's own default takes the
// machine's processors for ours.
const workers = "2"

func run(ctx context.Context, root string, each time.Duration, out io.Writer) error {
	began := time.Now()
	targets, err := list(ctx, root)
	if err != nil {
		return err
	}
	rung := record.Rung{ID: "L8", Name: "fuzz", Counts: map[string]int64{}}
	for _, t := range targets {
		execs, err := t.run(ctx, root, each)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		fmt.Fprintf(out, "%9d  %s %s\n", execs, t.pkg, t.name)
		if err != nil {
			rung.Violations++
			fmt.Fprintf(out, "\n%v\n\n", err)
		}
		rung.Counts["functions"]++
		rung.Counts["executions"] += execs
		rung.Counts[t.pkg+" "+t.name] = execs
	}
	rung.Took = time.Since(began)
	if err := record.Save(rung); err != nil {
		return err
	}
	fmt.Fprintf(out, "%d functions, %d executions, %v\n", len(targets), rung.Counts["executions"], rung.Took.Round(time.Second))
	if rung.Violations > 0 {
		return fmt.Errorf("%d of %d functions failed", rung.Violations, len(targets))
	}
	return nil
}

var declaration = regexp.MustCompile(`(?m)^func (Fuzz\w*)\(\w+ \*testing\.F\)`)

// list finds the Fuzz functions in the sources of all tests.
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
	if len(all) == 0 {
		return nil, errors.New("there is no Fuzz function")
	}
	return all, nil
}

// run returns how many inputs were tried. Its error has what go test printed.
func (t target) run(ctx context.Context, root string, each time.Duration) (int64, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-run=^$", "-fuzz=^"+t.name+"$", "-fuzztime="+each.String(), "-parallel="+workers, t.pkg)
	cmd.Dir = root
	// Its workers end with it when it is asked to.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	text, err := cmd.CombinedOutput()
	if err != nil {
		return executions(string(text)), fmt.Errorf("%s %s: %w\n%s", t.pkg, t.name, err, bytes.TrimSpace(text))
	}
	execs := executions(string(text))
	if execs == 0 {
		return 0, fmt.Errorf("%s %s: nothing was tried:\n%s", t.pkg, t.name, bytes.TrimSpace(text))
	}
	return execs, nil
}

var progress = regexp.MustCompile(`fuzz: elapsed: \S+, execs: (\d+) `)

// executions is the last number that go test reported.
func executions(output string) int64 {
	found := progress.FindAllStringSubmatch(output, -1)
	if len(found) == 0 {
		return 0
	}
	n, err := strconv.ParseInt(strings.TrimSpace(found[len(found)-1][1]), 10, 64)
	if err != nil {
		return 0
	}
	return n
}
