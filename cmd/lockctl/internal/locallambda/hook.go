package locallambda

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// beforePhase runs the command of --before.
func (d *driver) beforePhase(ctx context.Context, run string) error {
	_, err := d.hook(ctx, d.before, "LOCKCTL_RUN="+run)
	if err != nil {
		return fmt.Errorf("--before: %w", err)
	}
	return nil
}

// afterPhase runs the command of --after and returns its rows. A failure of the command is one of the phase.
func (d *driver) afterPhase(ctx context.Context, run string, succeeded int) (rows []row, err error) {
	out, err := d.hook(ctx, d.after, "LOCKCTL_RUN="+run, fmt.Sprint("LOCKCTL_SUCCEEDED=", succeeded))
	for line := range strings.Lines(out) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ": "); ok {
			rows = append(rows, row{name, value})
		}
	}
	if err != nil {
		err = fmt.Errorf("--after: %w", err)
	}
	return rows, err
}

// hook runs a command of the user, in a shell, and returns its standard output. The
// context's end kills the shell and what it has started.
func (d *driver) hook(ctx context.Context, command string, variables ...string) (string, error) {
	if command == "" {
		return "", nil
	}
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	cmd.Env = append(append(os.Environ(), d.variables()...), variables...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	err := cmd.Run()
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if err != nil {
		if text := strings.TrimSpace(problems.String()); text != "" {
			return out.String(), fmt.Errorf("%q: %w: %s", command, err, text)
		}
		return out.String(), fmt.Errorf("%q: %w", command, err)
	}
	return out.String(), nil
}
