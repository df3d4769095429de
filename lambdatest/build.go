package lambdatest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Build compiles the package pkg (an import path or a path that starts with
// "./") to the file out, with the flags that the deployed functions are built
// with. It needs the go command and runs it in the present directory.
func Build(ctx context.Context, pkg, out string) error {
	out, err := filepath.Abs(out)
	if err != nil {
		return fmt.Errorf("lambdatest: build %s: %w", pkg, err)
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-tags=lambda.norpc", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", out, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &text, &text
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("lambdatest: build %s: %w\n%s", pkg, err, text.Bytes())
	}
	return nil
}
