package locallambda

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/lambdatest"
)

type function struct {
	name  string // for people, and as the function's name on Lambda
	path  string // of the binary or the package's folder
	build bool   // path is a folder
}

func find(path string) (function, error) {
	const argument, want = "BINARY-or-PACKAGE-DIR", "want a bootstrap binary for this machine, or the folder of its main package"
	info, err := os.Stat(path)
	if err != nil {
		return function{}, exit.WrongUsage("%s: %w; %s", argument, err, want)
	}
	absolute, err := filepath.Abs(path)
	if err != nil {
		return function{}, err
	}
	f := function{name: filepath.Base(absolute), path: absolute, build: info.IsDir()}
	switch {
	case f.build:
		if _, err := exec.LookPath("go"); err != nil {
			return function{}, exit.WrongUsage("%s %s is a folder, and the go command is needed to build it: %w", argument, path, err)
		}
	case info.Mode()&0o111 == 0:
		return function{}, exit.WrongUsage("%s %s is no program; %s", argument, path, want)
	case f.name == "bootstrap":
		f.name = filepath.Base(filepath.Dir(absolute))
	}
	return f, nil
}

// built is the path of the function's binary, which is built in dir if it is a package.
func (f function) built(ctx context.Context, dir string, out io.Writer) (string, error) {
	if !f.build {
		return f.path, nil
	}
	began := time.Now()
	binary := filepath.Join(dir, f.name, "bootstrap")
	if err := lambdatest.Build(ctx, f.path, binary); err != nil {
		return "", errors.Join(ctx.Err(), err)
	}
	fmt.Fprintf(out, "built %s in %.1f s\n", f.name, time.Since(began).Seconds())
	return binary, nil
}
