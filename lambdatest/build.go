package lambdatest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Build compiles the package pkg to the file out, with the flags that a deployed
// function is built with, for this machine. It needs the go command. pkg is an
// import path of the module of the working directory, or, if it is absolute or
// begins with a dot, the package's directory, which may be in any module.
//
// In a test Build also reads the folders of the packages that it compiles, so that go test
// runs the test again after a change of them. It can see changes only in the module of the
// test: for a function of another module run go test with -count=1.
func Build(ctx context.Context, pkg, out string) error {
	out, err := filepath.Abs(out)
	if err != nil {
		return fmt.Errorf("lambdatest: build %s: %w", pkg, err)
	}
	if _, err := goCommand(ctx, pkg, "build", "-buildvcs=false", "-ldflags=-s -w", "-o", out); err != nil {
		return fmt.Errorf("lambdatest: build %s: %w", pkg, err)
	}
	if !testing.Testing() {
		return nil
	}
	folders, err := goCommand(ctx, pkg, "list", "-deps", "-f", "{{if and .Module .Module.Main}}{{.Dir}}{{end}}")
	for folder := range strings.Lines(folders) {
		_, unread := os.ReadDir(strings.TrimSpace(folder))
		err = errors.Join(err, unread)
	}
	if err != nil {
		return fmt.Errorf("lambdatest: build %s: what it is made of: %w", pkg, err)
	}
	return nil
}

// goCommand runs the go command for a package and returns what it prints.
func goCommand(ctx context.Context, pkg string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", append(args, "-tags=lambda.norpc", "-trimpath")...)
	if filepath.IsAbs(pkg) || strings.HasPrefix(pkg, ".") {
		cmd.Dir = pkg
		cmd.Args = append(cmd.Args, ".")
	} else {
		cmd.Args = append(cmd.Args, pkg)
	}
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var text, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &text, &problems
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%w\n%s%s", err, text.Bytes(), problems.Bytes())
	}
	return text.String(), nil
}
