package locallambda

import (
	"io"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
)

// TestWrongUsage: what is wrong with the arguments is said before anything is
// started, with the flag and its bounds.
func TestWrongUsage(t *testing.T) {
	dir := t.TempDir()
	program, text, event := filepath.Join(dir, "program"), filepath.Join(dir, "text"), filepath.Join(dir, "event.json")
	require.NoError(t, os.WriteFile(program, nil, 0o700))
	require.NoError(t, os.WriteFile(text, nil, 0o600))
	require.NoError(t, os.WriteFile(event, []byte(`{"n": {{n}}}`), 0o600))
	for args, want := range map[string]string{
		"":            `want "local [flags] BINARY-or-PACKAGE-DIR"`,
		"a b":         `local has 2 arguments; want`,
		dir + "/none": "BINARY-or-PACKAGE-DIR: stat " + dir + "/none: no such file or directory; want a bootstrap binary",
		text:          "BINARY-or-PACKAGE-DIR " + text + " is no program; want",
		program:       "--event is missing; want a file with the event as JSON",
		"--store nonsense --event " + event + " " + program:  "--store, LOCK_URL: lockstore: the URL has no scheme",
		"--store memory:// --event " + event + " " + program: `no store for the scheme "memory"`, // each environment would have its own
		"--event none.json " + program:                       "--event cannot be read: open none.json",
		"--event " + text + " " + program:                    "--event " + text + " is neither JSON nor one JSON text in each line, after {{n}} and {{run}} have been replaced",
		"-c 0 " + program:                                    "-c, --environments is 0; want 1 to 100",
		"-c 101 " + program:                                  "-c, --environments is 101; want 1 to 100",
		"-n 0 " + program:                                    "-n, --events is 0; want 1 to 100000",
		"-n 100001 " + program:                               "-n, --events is 100001",
		"-n 5 --freeze 6 " + program:                         "--freeze is 6; want 0 to 5",
		"-n 5 --kill -1 " + program:                          "--kill is -1; want 0 to 5",
		"--timeout 16m " + program:                           "--timeout is 16m0s; want 1s to 15m0s",
		"--think 2m " + program:                              "--think is 2m0s; want 0s to 1m0s",
		"--env x " + program:                                 `--env is "x"; want NAME=VALUE`,
		"--env =x " + program:                                `--env is "=x"; want NAME=VALUE`,
		"--env LOCK_URL=x " + program:                        "--env has LOCK_URL; use --store",
		"--kill 1 --env LOCK_TTL=x " + program:               `--env LOCK_TTL is "x"; want a duration of 1s at least`,
		"--freeze 1 --timeout 3s " + program:                 "--timeout is 3s, and would end a process that --freeze stops for 2.5s; want 3.5s at least",
		"--freeze 1 --env LOCK_TTL=1m " + program:            "--timeout is 15s, and would end a process that --freeze stops for 1m15s; want 1m16s at least, or a shorter --env LOCK_TTL",
	} {
		cmd := Command()
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs(strings.Fields(args))
		cmd.SetOut(io.Discard)
		err := cmd.ExecuteContext(testContext(t))
		require.ErrorContains(t, err, want, args)
		status := exit.Usage
		if strings.HasPrefix(args, "--store") {
			status = exit.Config
		}
		assert.Equal(t, status, exit.Status(err), args)
		assert.NotContains(t, err.Error(), "\n")
	}
	// Without faults the TTL is the function's own affair.
	s := settings{environments: 1, events: 1, timeout: time.Second, picture: "x", env: []string{"LOCK_TTL=1m"}}
	require.NoError(t, s.validate())
	assert.Equal(t, []string{"LOCK_TTL=1m"}, s.env)
	s.kill = 1
	require.NoError(t, s.validate())
	assert.Equal(t, time.Minute, s.ttl)
	s.env = nil
	s.ttl = 0
	require.NoError(t, s.validate())
	assert.Equal(t, []string{"LOCK_TTL=2s", "LOCK_LOG=start"}, s.env)
}

// TestFunctionsGetWhatTheStoreNeeds: the region and the credentials of the caller go
// to functions whose store is on AWS, and to no other ones.
func TestFunctionsGetWhatTheStoreNeeds(t *testing.T) {
	type env = map[string]string
	local := env{"AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local"}
	mine := env{"AWS_REGION": "eu-central-1", "AWS_ACCESS_KEY_ID": "mine", "AWS_SECRET_ACCESS_KEY": "hunter2", "HOME": "/root", "AWS_PROFILE": "x", "ZOOKEEPER_AUTH": "me:hunter2"}
	both := env{"AWS_REGION": "eu-central-1", "AWS_DEFAULT_REGION": "eu-central-1", "AWS_ACCESS_KEY_ID": "mine", "AWS_SECRET_ACCESS_KEY": "hunter2"}
	session := env{"AWS_DEFAULT_REGION": "eu-central-1", "AWS_SESSION_TOKEN": "t"}
	for _, c := range []struct {
		url       string
		env, want env
	}{
		{"redis://127.0.0.1", mine, env{}},
		{"dynamodb://locks?endpoint=http://127.0.0.1:8000", mine, local},
		{"dynamodb://locks?endpoint=http://localhost:8000", nil, local},
		{"dynamodb://locks", mine, both},
		{"dynamodb://locks", session, env{"AWS_REGION": "eu-central-1", "AWS_DEFAULT_REGION": "eu-central-1", "AWS_SESSION_TOKEN": "t"}},
		{"dynamodb://locks?region=eu-central-1", env{"AWS_ACCESS_KEY_ID": "mine"}, env{"AWS_ACCESS_KEY_ID": "mine"}},
		{"dynamodb://locks?endpoint=http://192.168.1.2:8000", mine, both},
		{"zookeeper://127.0.0.1", mine, env{"ZOOKEEPER_AUTH": "me:hunter2"}},
		{"elasticache://cache", mine, both},
	} {
		u, err := url.Parse(c.url)
		require.NoError(t, err)
		got := forFunctions(u, func(name string) string { return c.env[name] })
		maps.DeleteFunc(got, func(_, value string) bool { return value == "" })
		assert.Equal(t, c.want, got, c.url)
	}
}

// The name of a store has all of its URL that is not secret.
func TestNameOfTheStore(t *testing.T) {
	target, err := openTarget(testContext(t), "etcd://me:hunter2@host/locks?token=hunter2", false, none)
	require.NoError(t, err)
	assert.Equal(t, "etcd://host/locks", target.name)
}

func TestNoGoCommand(t *testing.T) {
	t.Setenv("PATH", "")
	_, err := find(".")
	require.ErrorContains(t, err, "BINARY-or-PACKAGE-DIR . is a folder, and the go command is needed to build it")
	require.Equal(t, exit.Usage, exit.Status(err))
}
