package locallambda

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// run is the command. Everything that it starts has ended when it returns.
func run(ctx context.Context, s settings, out *printer) (failed error) {
	if err := s.validate(); err != nil {
		return err
	}
	titles, functions := []string{"with the lock"}, make([]function, 1)
	var err error
	if functions[0], err = find("BINARY-or-PACKAGE-DIR", s.function); err != nil {
		return err
	}
	name := functions[0].name
	if s.compare != "" {
		without, err := find("--compare", s.compare)
		if err != nil {
			return err
		}
		titles, functions = []string{"without the lock", titles[0]}, []function{without, functions[0]}
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

	out.printf("%d events for %s, %d Lambda environments at once, on %s.\n\n", s.events, name, s.environments, target.name)
	for i := range functions {
		if functions[i], err = functions[i].built(ctx, filepath.Join(dir, strconv.Itoa(i)), out); err != nil {
			return err
		}
	}
	d := driver{settings: s, target: target, event: event, out: out}
	var phases []phase
	for i, f := range functions {
		p, err := d.phase(ctx, titles[i], name, f.path)
		if err != nil {
			return err
		}
		phases = append(phases, p)
	}
	if err := writePicture(s.picture, timeline(name, phases)); err != nil {
		return err
	}
	out.printf("%s", table(phases))
	out.printf("Every critical section is in %s (open it in a browser).\n", s.picture)
	p := phases[len(phases)-1]
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
