package locallambda

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
)

// hook runs the command of --before or --after in a shell, and returns its standard output. The
// context's end kills the shell and what it has started. So does the end of a shell that fails, or that leaves a process with its
// output open: nobody would know when all of it is written.
func (d *driver) hook(ctx context.Context, flag, command string, variables ...string) (string, error) {
	if command == "" {
		return "", nil
	}
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	cmd.Env = slices.Concat(os.Environ(), d.variables(), variables)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	err := cmd.Run()
	if err != nil && cmd.Process != nil {
		_ = cmd.Cancel()
	}
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if errors.Is(err, exec.ErrWaitDelay) {
		err = errors.New("it leaves a process that keeps its output open; redirect what that writes, as in: server >/dev/null 2>&1 &")
	}
	if err != nil {
		err = fmt.Errorf("%s: %q: %w", flag, command, err)
		if text := strings.TrimSpace(problems.String()); text != "" {
			err = fmt.Errorf("%w: %s", err, text)
		}
	}
	return out.String(), err
}

func rowsOf(text string) (rows []row) {
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ": "); ok {
			rows = append(rows, row{name, value})
		}
	}
	return rows
}
