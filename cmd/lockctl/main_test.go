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
	t.Setenv("LOCK_URL", "")
	for line, c := range map[string]struct {
		status int
		text   string
	}{
		"":                                   {0, "  serve "},
		"--help":                             {0, "79 lock lost"},
		"--version":                          {0, "lockctl (devel), " + runtime.Version() + " "},
		"help run-details":                   {0, "Ctrl-Z stops lockctl alone"},
		"show --help":                        {0, "Examples:\n  lockctl show account/7\n"},
		"unlock":                             {exit.Usage, `unknown command "unlock"; see lockctl --help`},
		"guard-process":                      {exit.Usage, "lockctl run starts it"},
		"guard-process --help true":          {exit.Usage, "lockctl run starts it"},
		"show a b":                           {exit.Usage, `lockctl show has 2 arguments; want "lockctl show [flags] KEY"`},
		"show --josn a":                      {exit.Usage, "unknown flag: --josn; see lockctl show --help"},
		"show k":                             {exit.Config, "there is no store: want --store or LOCK_URL"},
		"show --store redis://127.0.0.1:1 k": {exit.Unavailable, "connection refused"},
		"revoke --store datastore://project --fence 1 k":                      {exit.Config, `no store for the scheme "datastore"`},
		"show --store dynamodb://locks?region=x --profile no-such-profile k":  {exit.Config, "the AWS configuration cannot be read"},
		"show --store dynamodb://locks?region=eu-west-1 --region us-east-1 k": {exit.Usage, "--region, and a region in the store's URL"},
		"schema --table=no-table":                                             {exit.Usage, "Table is"},
		"schema --dialect oracle":                                             {exit.Usage, `--dialect is "oracle"; want one of dsql, mysql, postgres, sqlite`},
		"schema --dialect dsql":                                               {0, "CREATE TABLE IF NOT EXISTS"},
		"list --limit -1":                                                     {exit.Usage, "--limit is -1; want 0 or more"},
		"list --longer-than -1s":                                              {exit.Usage, "--longer-than is -1s; want 0s or more"},
		"list --state=":                                                       {exit.Usage, `--state is ""; want one of free, reserved, held, revoked, completed, cooldown, in doubt`},
		"list --state open":                                                   {exit.Usage, `--state is "open"; want one of free,`},
		"watch --until never k":                                               {exit.Usage, `--until is "never"; want one of free,`},
		"revoke k":                                                            {exit.Usage, "want --fence"},
		"revoke --fence -1 k":                                                 {exit.Usage, "want --fence"},
		"revoke --fence abc k":                                                {exit.Usage, "see lockctl revoke --help"},
		"resolve k effect":                                                    {exit.Usage, "want --fence"},
		"resolve --fence 1 k":                                                 {exit.Usage, "lockctl resolve has 1 arguments"},
		"resolve --fence 1 k maybe":                                           {exit.Usage, `the last argument is "maybe"; want effect or no-effect`},
		"resolve --fence 1 --result x k no-effect":                            {exit.Usage, "--result, --result-version and --result-time are for effect"},
		"resolve --fence 1 --result-version 2 k effect":                       {exit.Usage, "--result-version wants --result"},
		"resolve --fence 1 --result /nowhere k effect":                        {exit.Usage, "--result: open /nowhere: no such file"},
		"resolve --fence 1 --result-time 0.5 k effect":                        {exit.Usage, "--result-time is 500ms; want 1s to 744h0m0s"},
		"resolve --fence 1 --result-time 1d k effect":                         {exit.Usage, "want seconds, or a duration such as 24h, 1m30s or 500ms"},
		"ui -h":          {0, "The address is secret"},
		"ui --every 0.5": {exit.Usage, "--every is 500ms; want 1s to 1h0m0s"},
		"ui --keys":      {exit.Usage, "--keys wants a key"},
		"ui a\x01b":      {exit.Usage, "control character"},
		"ui --keys --store redis://127.0.0.1:1 k":         {exit.Unavailable, "connection refused"},
		"serve 0.0.0.0:1":                                 {exit.Usage, "ADDRESS is"},
		"serve --store etcd://x 0":                        {exit.Config, "no store for the scheme"},
		"run k --":                                        {exit.Usage, "lockctl run [flags] KEY -- COMMAND"},
		"run k -n -- true":                                {exit.Usage, "flags, KEY, --"},
		"run -n -w 1 k -- true":                           {exit.Usage, "want one of them"},
		"run --ttl 0.5 k -- true":                         {exit.Usage, "--ttl is 500ms; want 1s to 24h"},
		"run -w soon k -- true":                           {exit.Usage, "want seconds, or a duration"},
		"run -E 256 k -- true":                            {exit.Usage, "want 0 to 255"},
		"run --max-holders 0 k -- true":                   {exit.Usage, "--max-holders is 0; want 1 to 32"},
		"run --at-least-for 1h --max-holders 2 k -- true": {exit.Usage, "--max-holders is 2 with --at-least-for; want 1"},
		"run --store redis://127.0.0.1:1 a\x01b -- true":  {exit.Usage, "control character"},
	} {
		t.Run(line, func(t *testing.T) {
			var out bytes.Buffer
			cmd := command()
			cmd.SetArgs(strings.Fields(line))
			cmd.SetOut(&out)
			err := cmd.ExecuteContext(t.Context())
			assert.Equal(t, c.status, exit.Status(err))
			if err != nil {
				require.ErrorContains(t, err, c.text)
			} else {
				require.Contains(t, out.String(), c.text)
			}
		})
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
