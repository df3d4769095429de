package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/lambdalock/lambdalock/internal/eventfiles"
)

// example builds examples/own-function, which is a module of its own, and invokes
// it on the store as its page says. The page's tables are those of the template.
func (s *sam) example(ctx context.Context, t template, at *store) error {
	const dir = "examples/own-function/"
	own := *s
	own.built = filepath.Join(s.built, "own-function")
	if err := own.run(ctx, "build", "--template-file", dir+"template.yaml", "--build-dir", own.built,
		"--parameter-overrides", "Architecture="+s.engine.arch); err != nil {
		return err
	}
	if err := at.fresh(ctx); err != nil {
		return err
	}
	for _, want := range []string{`{"order": "o-1", "balance": 500}`, `{"order": "o-1", "balance": 1000}`} {
		answer, err := local{&own, at.variables(t, hostName)}.invoke(ctx, "OwnFunction", dir+"event.json")
		if err == nil {
			err = eventfiles.SameAnswer([]byte(want), answer)
		}
		if err != nil {
			return fmt.Errorf("%s on %s: %w", dir, at.name, err)
		}
	}
	s.out.line("%s answers on %s", dir, at.name)
	return nil
}
