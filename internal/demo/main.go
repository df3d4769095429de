// Command demo shows what a lock is good for. It builds the withdraw function
// and its unguarded twin, starts eight execution environments of each (real
// processes, each with a Runtime API of its own), fires 200 withdrawals at one
// account, first without and then with the lock, and shows what became of the
// balance: a table here, and every critical section in build/timeline.svg.
//
// Without LOCK_URL the locks and the account are in an embedded Redis.
// LOCK_URL=redis://… or dynamodb://… uses a real server; on a DynamoDB Local
// the tables are made first.
//
// It ends with status 1 if anything went wrong in the guarded half.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, settings{
		lockURL:      os.Getenv("LOCK_URL"),
		getenv:       os.Getenv,
		root:         ".",
		picture:      filepath.Join("build", "timeline.svg"),
		environments: 8,
		invocations:  200,
	}, newScreen(os.Stdout, os.Getenv("NO_COLOR") != ""))
	stop()
	switch {
	case err == nil:
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, "\ndemo: interrupted; all processes are stopped")
		os.Exit(130)
	default:
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// settings say how big the demo is and where things are.
type settings struct {
	lockURL      string // "": an embedded Redis
	getenv       func(string) string
	root         string // of the repository
	picture      string // file to write
	environments int
	invocations  int
}

// opening is the balance at the start, in cents: twice what is withdrawn.
func (s settings) opening(e event) int64 { return 2 * int64(s.invocations) * e.amount }

// bound ends a demo that hangs.
const bound = 5 * time.Minute

func run(ctx context.Context, set settings, out *screen) error {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	event, err := readEvent(filepath.Join(set.root, "events", "withdraw.json"))
	if err != nil {
		return err
	}
	place, err := openPlace(ctx, set.lockURL, set.getenv)
	if err != nil {
		return err
	}
	defer place.close()
	dir, err := os.MkdirTemp("", "lambdalock-demo")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)

	out.printf("%d withdrawals of %s from one account of %s,\n%d Lambda environments at once, on %s.\n\n",
		set.invocations, money(event.amount), money(set.opening(event)), set.environments, place.name)
	built, err := build(ctx, set.root, dir, out)
	if err != nil {
		return err
	}
	d := driver{settings: set, place: place, event: event, binaries: built, out: out}
	without, err := d.half(ctx, "without a lock", built.unguarded)
	if err != nil {
		return err
	}
	with, err := d.half(ctx, "with lambdalock", built.withdraw)
	if err != nil {
		return err
	}
	if err := writePicture(set.picture, without, with); err != nil {
		return err
	}
	out.printf("%s\n", table(without, with, out.color))
	out.printf("The work alone takes %s when it runs one after the other.\n", seconds(with.work()))
	out.printf("Every critical section is in %s (open it in a browser).\n", set.picture)
	if place.left != "" {
		out.printf("%s\n", place.left)
	}
	if without.lost() == 0 {
		out.printf("Without the lock nothing was lost this time: try again.\n")
	}
	return with.verdict()
}

func writePicture(path string, without, with half) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.WriteString(f, timeline(without, with))
	return errors.Join(err, f.Close())
}
