package locallambda

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// run is the command. Everything that it starts has ended when it returns.
func run(ctx context.Context, s settings, out *printer) (err error) {
	if err := s.validate(); err != nil {
		return err
	}
	f, err := find("BINARY-or-PACKAGE-DIR", s.function)
	if err != nil {
		return err
	}
	var unlocked function
	if s.compare != "" {
		if unlocked, err = find("--compare", s.compare); err != nil {
			return err
		}
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
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	out.printf("%d events for %s, %d Lambda environments at once, on %s.\n\n", s.events, f.name, s.environments, target.name)
	binary, err := f.binary(ctx, filepath.Join(dir, "1"), out)
	if err != nil {
		return err
	}
	d := driver{settings: s, target: target, event: event, out: out}
	var phases []phase
	if s.compare != "" {
		unlockedBinary, err := unlocked.binary(ctx, filepath.Join(dir, "2"), out)
		if err != nil {
			return err
		}
		p, err := d.phase(ctx, "without the lock", f.name, unlockedBinary)
		if err != nil {
			return err
		}
		phases = append(phases, p)
	}
	p, err := d.phase(ctx, "with the lock", f.name, binary)
	if err != nil {
		return err
	}
	phases = append(phases, p)
	if err := writePicture(s.picture, timeline(f.name, phases)); err != nil {
		return err
	}
	out.printf("%s", table(phases))
	out.printf("Every critical section is in %s (open it in a browser).\n", s.picture)
	out.printf("%s", p.remark())
	if len(phases) > 1 {
		out.printf("%s", phases[0].withoutLock())
	}
	return p.verdict()
}

// variables are those that the functions and the commands get.
func (d *driver) variables() []string {
	all := append([]string{"LOCK_URL=" + d.target.url, "LOCK_WAIT=" + d.wait.String()}, d.target.env...)
	for _, v := range d.env {
		all = append(all, strings.NewReplacer(storeMark, d.target.url, redisMark, d.target.redis).Replace(v))
	}
	return all
}

func writePicture(path, svg string) error {
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.WriteFile(path, []byte(svg), 0o644)
	}
	if err != nil {
		return fmt.Errorf("the picture: %w", err)
	}
	return nil
}
