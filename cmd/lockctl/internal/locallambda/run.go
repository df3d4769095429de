package locallambda

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// run is the command. Everything that it starts has ended when it returns.
func run(ctx context.Context, s settings, out io.Writer) (failed error) {
	if err := s.validate(); err != nil {
		return err
	}
	f, err := find("BINARY-or-PACKAGE-DIR", s.function)
	if err != nil {
		return err
	}
	titles, functions := []string{"with the lock"}, []function{f}
	if s.compare != "" {
		without, err := find("--compare", s.compare)
		if err != nil {
			return err
		}
		titles, functions = []string{"without the lock", titles[0]}, []function{without, f}
	}
	event, err := readEvent(s.event)
	if err != nil {
		return err
	}
	target, err := openTarget(ctx, s.storeURL(), s.needsRedis(), s.getenv)
	if err != nil {
		return err
	}
	defer target.close()
	dir, err := os.MkdirTemp("", "lockctl")
	if err != nil {
		return err
	}
	defer func() { failed = errors.Join(failed, os.RemoveAll(dir)) }()

	fmt.Fprintf(out, "%d events for %s, %d Lambda environments at once, on %s.\n\n", s.events, f.name, s.environments, target.name)
	for i := range functions {
		if functions[i].path, err = functions[i].built(ctx, filepath.Join(dir, strconv.Itoa(i)), out); err != nil {
			return err
		}
	}
	d := driver{settings: s, target: target, event: event, out: out}
	var phases []phase
	for i := range functions {
		p, err := d.phase(ctx, titles[i], f.name, functions[i].path)
		if err != nil {
			return err
		}
		phases = append(phases, p)
	}
	err = os.MkdirAll(filepath.Dir(s.picture), 0o755)
	if err == nil {
		err = os.WriteFile(s.picture, []byte(timeline(f.name, phases)), 0o644)
	}
	if err != nil {
		return fmt.Errorf("the picture: %w", err)
	}
	p := phases[len(phases)-1]
	fmt.Fprintf(out, "%sEvery critical section is in %s (open it in a browser).\n%s", table(phases), s.picture, p.remark())
	if len(phases) > 1 {
		fmt.Fprint(out, phases[0].withoutLock())
	}
	return p.verdict()
}

// variables are those that the functions and the commands get.
func (d *driver) variables() []string {
	all := append([]string{"LOCK_URL=" + d.target.url, "LOCK_WAIT=1s"}, d.target.env...)
	if d.coalesce {
		all = append(all, "LOCK_COALESCE=true")
	}
	for _, v := range d.env {
		all = append(all, strings.ReplaceAll(v, redisMark, d.target.redis))
	}
	return all
}
