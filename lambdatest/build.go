package lambdatest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Build compiles the package pkg to the file out, with the flags that a deployed
// function is built with, for this machine. It needs the go command. pkg is an
// import path of the module of the working directory, or, if it is absolute or
// begins with a dot, the package's directory, which may be in any module.
func Build(ctx context.Context, pkg, out string) error {
	out, err := filepath.Abs(out)
	if err != nil {
		return fmt.Errorf("lambdatest: build %s: %w", pkg, err)
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-tags=lambda.norpc", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", out)
	if filepath.IsAbs(pkg) || strings.HasPrefix(pkg, ".") {
		cmd.Dir = pkg
		cmd.Args = append(cmd.Args, ".")
	} else {
		cmd.Args = append(cmd.Args, pkg)
	}
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &text, &text
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("lambdatest: build %s: %w\n%s", pkg, err, text.Bytes())
	}
	return nil
}
