package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/stores"
)

func TestCommand(t *testing.T) {
	for _, c := range []struct {
		args   []string
		status int
		text   string
	}{
		{nil, 0, "  serve "},
		{[]string{"--help"}, 0, "79 lock lost"},
		{[]string{"--help"}, 0, "LOCK_URL, and not behind --store"},
		{[]string{"--version"}, 0, "lockctl (devel), " + runtime.Version() + " "},
		{[]string{"help", "run-details"}, 0, "Ctrl-Z stops lockctl alone"},
		{[]string{"show", "--help"}, 0, "Examples:\n  lockctl show account/7\n"},
		{[]string{"unlock"}, exit.Usage, `unknown command "unlock"; see lockctl --help`},
		{[]string{"guard-process"}, exit.Usage, "lockctl run starts it"},
		{[]string{"guard-process", "--help", "true"}, exit.Usage, "lockctl run starts it"},
		{[]string{"show", "a", "b"}, exit.Usage, `lockctl show has 2 arguments; want "lockctl show [flags] KEY"`},
		{[]string{"show", "--josn", "a"}, exit.Usage, "unknown flag: --josn; see lockctl show --help"},
		{[]string{"list", "--limit", "-1"}, exit.Usage, "--limit is -1; want 0 or more"},
		{[]string{"list", "--longer-than", "-1s"}, exit.Usage, "--longer-than is -1s; want 0s or more"},
		{[]string{"list", "--state", ""}, exit.Usage, `--state is ""; want one of free, reserved, held, revoked, completed, cooldown, in doubt`},
		{[]string{"list", "--state", "open"}, exit.Usage, `--state is "open"; want one of free,`},
		{[]string{"watch", "--until", "never", "k"}, exit.Usage, `--until is "never"; want one of free,`},
		{[]string{"revoke", "k"}, exit.Usage, "want --fence"},
		{[]string{"revoke", "--fence", "-1", "k"}, exit.Usage, "want --fence"},
		{[]string{"revoke", "--fence", "abc", "k"}, exit.Usage, "see lockctl revoke --help"},
		{[]string{"resolve", "k", "effect"}, exit.Usage, "want --fence"},
		{[]string{"resolve", "--fence", "1", "k"}, exit.Usage, "lockctl resolve has 1 arguments"},
		{[]string{"resolve", "--fence", "1", "k", "maybe"}, exit.Usage, `the last argument is "maybe"; want effect or no-effect`},
		{[]string{"resolve", "--fence", "1", "--result", "x", "k", "no-effect"}, exit.Usage, "--result, --result-version and --result-time are for effect"},
		{[]string{"resolve", "--fence", "1", "--result-version", "2", "k", "effect"}, exit.Usage, "--result-version wants --result"},
		{[]string{"resolve", "--fence", "1", "--result", "/nowhere", "k", "effect"}, exit.Usage, "--result: open /nowhere: no such file"},
		{[]string{"resolve", "--fence", "1", "--result-time", "0.5", "k", "effect"}, exit.Usage, "--result-time is 500ms; want 1s to 744h0m0s"},
		{[]string{"resolve", "--fence", "1", "--result-time", "1d", "k", "effect"}, exit.Usage, "want seconds, or a duration such as 24h, 1m30s or 500ms"},
		{[]string{"serve", "0.0.0.0:1"}, exit.Usage, "ADDRESS is"},
		{[]string{"serve", "--store", "etcd://x", "0"}, exit.Config, "no store for the scheme"},
	} {
		var out bytes.Buffer
		cmd := command()
		cmd.SetArgs(append([]string{}, c.args...))
		cmd.SetOut(&out)
		err := cmd.ExecuteContext(t.Context())
		assert.Equal(t, c.status, exit.Status(err), "%q", c.args)
		if err != nil {
			require.ErrorContains(t, err, c.text, "%q", c.args)
		} else {
			require.Contains(t, out.String(), c.text, "%q", c.args)
		}
	}
}

// Who looks at the help of run sees an example at once, and all of it in a window of 40 lines.
func TestHelpOfRunIsShort(t *testing.T) {
	var out bytes.Buffer
	cmd := command()
	cmd.SetArgs([]string{"run", "--help"})
	cmd.SetOut(&out)
	require.NoError(t, cmd.Execute())
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	assert.LessOrEqual(t, len(lines), 40)
	assert.Contains(t, lines[5], "  lockctl run ")
}

// The commands of these pages have flags and arguments that there are.
func TestCommandsOfThePages(t *testing.T) {
	commands := 0
	for _, page := range []string{"operations.md", "stores.md"} {
		text, err := os.ReadFile("../../docs/" + page)
		require.NoError(t, err)
		for _, line := range regexp.MustCompile(`(?m)^    lockctl .*$`).FindAllString(string(text), -1) {
			sh := exec.CommandContext(t.Context(), "sh", "-c", `lockctl() { printf '%s\n' "$@"; }`+"\n"+line)
			sh.Dir = t.TempDir()
			words, err := sh.Output()
			require.NoError(t, err, line)
			cmd, args, err := command().Find(strings.Split(strings.TrimSpace(string(words)), "\n"))
			require.NoError(t, err, line)
			require.NoError(t, cmd.ParseFlags(args), line)
			require.NoError(t, cmd.ValidateArgs(cmd.Flags().Args()), line)
			commands++
		}
	}
	assert.Greater(t, commands, 15)
}

// A signal replaces no error that says what a call has done.
func TestInterrupted(t *testing.T) {
	ctx, end := context.WithCancelCause(t.Context())
	end(&exit.BySignal{Signal: syscall.SIGTERM})
	err := interrupted(ctx, stores.Failed(fmt.Errorf("outcome unknown: %w", context.Canceled)))
	require.EqualError(t, err, "interrupted: outcome unknown: context canceled")
	assert.Equal(t, 143, exit.Status(err))
	held := &exit.Error{Status: exit.No, Err: errors.New("is not held")}
	assert.Equal(t, held, interrupted(ctx, held))
	assert.NoError(t, interrupted(ctx, nil))
}
