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

	"github.com/spf13/cobra"
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
		{nil, 0, "local "},
		{[]string{"--help"}, 0, "serve "},
		{[]string{"local", "--help"}, 0, "--freeze"},
		{[]string{"--help"}, 0, "79 lock lost"},
		{[]string{"--help"}, 0, "128+N ended by signal N"},
		{[]string{"help", "run-details"}, 0, "timeout inside a script"},
		{[]string{"run-details"}, 0, "Ctrl-Z stops lockctl alone"},
		{[]string{"run", "--help"}, 0, "Examples:\n  lockctl run -n --at-least-for 1h"},
		{[]string{"show", "--help"}, 0, "--quiet"},
		{[]string{"list", "--help"}, 0, "asks above 1 GB"},
		{[]string{"watch", "--help"}, 0, "--until"},
		{[]string{"check", "--help"}, 0, "docs/stores.md"},
		{[]string{"revoke", "--help"}, 0, "--open-at-once"},
		{[]string{"resolve", "--help"}, 0, "--result"},
		{[]string{"resolve", "--fence", "1", "k"}, exit.Usage, "lockctl resolve has 1 arguments"},
		{[]string{"resolve", "--fence", "1", "k", "maybe"}, exit.Usage, `the last argument is "maybe"; want effect or no-effect`},
		{[]string{"resolve", "k", "effect"}, exit.Usage, "want --fence"},
		{[]string{"resolve", "--fence", "1", "--result", "x", "k", "no-effect"}, exit.Usage, "--result, --result-version and --result-time are for effect"},
		{[]string{"resolve", "--fence", "1", "--result-version", "2", "k", "effect"}, exit.Usage, "--result-version wants --result"},
		{[]string{"resolve", "--fence", "1", "--result", "/nowhere", "k", "effect"}, exit.Usage, "--result: open /nowhere: no such file"},
		{[]string{"resolve", "--fence", "1", "--result-time", "1ms", "k", "effect"}, exit.Usage, "--result-time is 1ms; want 1s to 744h0m0s"},
		{[]string{"resolve", "--fence", "1", "--result-time", "0s", "k", "effect"}, exit.Usage, "--result-time is 0s; want 1s to 744h0m0s"},
		{[]string{"completion", "bash"}, 0, "bash completion"},
		{[]string{"completion", "bash", "x"}, exit.Usage, `unknown command "x" for "lockctl completion bash"`},
		{[]string{"guard-process"}, exit.Usage, "lockctl run starts it"},
		{[]string{"guard-process", "0"}, exit.Usage, "lockctl run starts it"},
		{[]string{"guard-process", "--help", "true"}, exit.Usage, "lockctl run starts it"},
		{[]string{"list", "--rate", "NaN"}, exit.Usage, "--rate is NaN; want 0.001 to 1000"},
		{[]string{"list", "--rate", "1e-10"}, exit.Usage, "--rate is 1e-10; want 0.001 to 1000"},
		{[]string{"list", "--rate", "1001"}, exit.Usage, "--rate is 1001; want 0.001 to 1000"},
		{[]string{"list", "--limit", "-1"}, exit.Usage, "--limit is -1; want 0 or more"},
		{[]string{"list", "--sort", "size"}, exit.Usage, `--sort is "size"; want one of age, key, waiting`},
		{[]string{"list", "--longer-than", "-1s"}, exit.Usage, "--longer-than is -1s; want 0s or more"},
		{[]string{"--help"}, 0, "The store is that of LOCK_URL or --store"},
		{[]string{"--help"}, 0, "LOCK_URL, and not behind --store"},
		{[]string{"--version"}, 0, "lockctl (devel), " + runtime.Version() + " "},
		{[]string{"list", "--state", ""}, exit.Usage, "--state is empty; want some of free, reserved, held, revoked, completed, cooldown, in doubt"},
		{[]string{"show", "a", "b"}, exit.Usage, `lockctl show has 2 arguments; want "lockctl show [flags] KEY"`},
		{[]string{"show", "--josn", "a"}, exit.Usage, "unknown flag: --josn; see lockctl show --help"},
		{[]string{"lcoal"}, exit.Usage, `unknown command "lcoal"; did you mean local?`},
		{[]string{"shw"}, exit.Usage, `unknown command "shw"; did you mean show?`},
		{[]string{"unlock"}, exit.Usage, `unknown command "unlock"; see lockctl --help`},
		{[]string{"__complete", "list", "--sort", ""}, 0, "age\nkey\nwaiting\n:4\n"},
		{[]string{"__complete", "list", "--state", ""}, 0, "in doubt\n:4\n"},
		{[]string{"__complete", "watch", "--until", ""}, 0, "\nheld\n"},
		{[]string{"__complete", "resolve", "charge/7", ""}, 0, "effect\nno-effect\n:4\n"},
		{[]string{"local", "--frozen", "x"}, exit.Usage, "unknown flag: --frozen; see lockctl local --help"},
		{[]string{"local", "-n", "many", "x"}, exit.Usage, `-n, --events is "many"; want a whole number; see lockctl local --help`},
		{[]string{"revoke", "--fence", "abc", "k"}, exit.Usage, `--fence is "abc"; want a whole number such as 1795295118105467; see lockctl revoke --help`},
		{[]string{"resolve", "--fence", "1", "--result-time", "1d", "k", "effect"}, exit.Usage, `--result-time is "1d"; want seconds, or a duration such as 24h, 1m30s or 500ms; see lockctl resolve --help`},
		{[]string{"show", "--timeout", "soon", "k"}, exit.Usage, `--timeout is "soon"; want seconds, or a duration`},
		{[]string{"show", "--timeout", "0.05", "k"}, exit.Usage, `--timeout is 50ms; want 100ms to 5m0s`},
		{[]string{"resolve", "--fence", "1", "--result-time", "0.5", "k", "effect"}, exit.Usage, "--result-time is 500ms; want 1s to 744h0m0s"},
		{[]string{"watch", "--until", "never", "k"}, exit.Usage, "--until"},
		{[]string{"list", "--rate", "fast"}, exit.Usage, `--rate is "fast"; want a number such as 0.5; see lockctl list --help`},
		{[]string{"serve", "1", "2"}, exit.Usage, "lockctl serve has 2 arguments"},
		{[]string{"serve", "0.0.0.0:1"}, exit.Usage, "ADDRESS is"},
		{[]string{"serve", "--store", "etcd://x", "0"}, exit.Config, "no store for the scheme"},
	} {
		var out bytes.Buffer
		cmd := command()
		cmd.SetArgs(append([]string{}, c.args...))
		cmd.SetOut(&out)
		_, err := execute(t.Context(), cmd)
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
	for _, line := range lines {
		assert.LessOrEqual(t, len(line), 90, line)
	}
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

// A completion script that cannot be written is not the answer no.
func TestCompletionNotWritable(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		_, err := execute(t.Context(), func() *cobra.Command {
			cmd := command()
			cmd.SetArgs([]string{"completion", shell})
			cmd.SetOut(full{})
			return cmd
		}())
		assert.Equal(t, exit.Output, exit.Status(err), shell)
		require.EqualError(t, err, "the answer cannot be written: no space left", shell)
	}
}

// full is a disk that is full.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left") }

// A signal replaces no error that says what a call has done.
func TestInterrupted(t *testing.T) {
	unknown := stores.Failed(fmt.Errorf("outcome unknown: %w", context.Canceled))
	held := &exit.Error{Status: exit.No, Err: errors.New("is not held")}
	for _, c := range []struct {
		command string
		err     error
		status  int
		text    string
	}{
		{"revoke", unknown, exit.Interrupted, "interrupted: outcome unknown: context canceled"},
		{"revoke", held, exit.No, "is not held"},
		{"revoke", context.Canceled, exit.Interrupted, "interrupted"},
		{"local", errors.New("a process was killed"), exit.Interrupted, "interrupted; all processes are stopped"},
		{"watch", &exit.Silent{Status: exit.Interrupted}, exit.Interrupted, "status 130"},
	} {
		cmd, _, err := command().Find([]string{c.command})
		require.NoError(t, err)
		ctx, end := context.WithCancelCause(t.Context())
		end(&exit.BySignal{Signal: syscall.SIGINT})
		err = interrupted(ctx, cmd, c.err)
		assert.Equal(t, c.status, exit.Status(err))
		assert.EqualError(t, err, c.text)
	}
	assert.NoError(t, interrupted(t.Context(), command(), nil))
}
