package locallambda

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/lambdalock/lambdalock/lockstore"
)

// output keeps its first error, and writes nothing after it.
type output struct {
	to     io.Writer
	failed error
}

func (o *output) Write(b []byte) (int, error) {
	if o.failed == nil {
		_, o.failed = o.to.Write(b)
	}
	return len(b), o.failed
}

// run is the command. Everything that it starts has ended when it returns, but for what hooks that succeeded have left.
func run(ctx context.Context, s settings, to io.Writer) (failed error) {
	out := &output{to: to}
	if err := s.validate(); err != nil {
		return err
	}
	f, err := find(s.function)
	if err != nil {
		return err
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
	defer func() { failed = errors.Join(failed, out.failed, os.RemoveAll(dir)) }()

	fmt.Fprintf(out, "%d events for %s, %d Lambda environments at once, on %s.\n\n", s.events, f.name, s.environments, target.name)
	if f.path, err = f.built(ctx, dir, out); err != nil {
		return err
	}
	d := driver{settings: s, target: target, event: event, out: out}
	var phases []phase
	if s.compare {
		d.unlocked = true
		p, err := d.phase(ctx, f)
		if err != nil {
			return fmt.Errorf("without the lock, with LOCK_MAX_HOLDERS=%d by --compare: %w", lockstore.MaxHolders, err)
		}
		phases = append(phases, p)
		target.empty()
		d.unlocked = false
	}
	last, err := d.phase(ctx, f)
	if err != nil {
		return err
	}
	phases = append(phases, last)
	fmt.Fprint(out, table(phases))
	err = os.MkdirAll(filepath.Dir(s.picture), 0o755)
	if err == nil {
		err = os.WriteFile(s.picture, []byte(timeline(f.name, phases)), 0o644)
	}
	if err != nil {
		err = fmt.Errorf("the picture: %w", err)
	} else {
		fmt.Fprintf(out, "Every critical section is in %s (open it in a browser).\n", s.picture)
	}
	fmt.Fprint(out, last.remark())
	if s.compare {
		fmt.Fprint(out, phases[0].withoutLock())
	}
	return errors.Join(last.verdict(), err)
}

// variables are those that the functions and the commands get in the phase.
func (d *driver) variables() []string {
	all := append([]string{"LOCK_URL=" + d.target.url, "LOCK_WAIT=1s"}, d.target.env...)
	if d.coalesce {
		all = append(all, "LOCK_COALESCE=true")
	}
	for _, v := range d.env {
		all = append(all, strings.ReplaceAll(v, redisMark, d.target.redis))
	}
	if d.unlocked {
		all = append(all, fmt.Sprint("LOCK_MAX_HOLDERS=", lockstore.MaxHolders))
	}
	return all
}
