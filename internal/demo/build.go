package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/lambdalock/lambdalock/lambdatest"
)

// binaries are the paths of what was built.
type binaries struct{ withdraw, unguarded string }

func build(ctx context.Context, root, dir string, out *screen) (binaries, error) {
	if _, err := exec.LookPath("go"); err != nil {
		return binaries{}, fmt.Errorf("the go command is needed to build the functions: %w", err)
	}
	b := binaries{filepath.Join(dir, "withdraw", "bootstrap"), filepath.Join(dir, "unguarded", "bootstrap")}
	began := time.Now()
	for _, f := range []struct{ name, pkg, out string }{
		{"withdraw", "functions/withdraw", b.withdraw},
		{"unguarded", "functions/internal/unguarded", b.unguarded},
	} {
		if _, err := os.Stat(filepath.Join(root, f.pkg)); err != nil {
			return binaries{}, fmt.Errorf("%s is not here; run the demo in the repository's root: %w", f.pkg, err)
		}
		out.progress("building %s", f.name)
		if err := lambdatest.Build(ctx, "github.com/lambdalock/lambdalock/"+f.pkg, f.out); err != nil {
			if ctx.Err() != nil {
				return binaries{}, ctx.Err()
			}
			return binaries{}, err
		}
	}
	out.done("built both functions in %.1f s", time.Since(began).Seconds())
	return b, nil
}
