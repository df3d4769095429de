package testservers

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// apt runs a line with apt.sh, with another apt at work for the first two calls of apt-get, which then says what it is
// told to.
func apt(t *testing.T, line, says string, env ...string) (string, error) {
	t.Helper()
	dir := t.TempDir()
	for name, script := range map[string]string{
		"sudo":  `exec "$@"`,
		"sleep": `echo "sleeps $1"`,
		"apt-get": `echo "$*" >>calls
[ "$(wc -l <calls)" -gt 2 ] || { echo "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 7 (apt-get)"; exit 100; }
` + says,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700))
	}
	here, err := filepath.Abs("apt.sh")
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), "sh", "-eu", "-c", ". "+here+"; "+line)
	cmd.Dir, cmd.Env = dir, append(append(os.Environ(), "CI=", "PATH="+dir+":"+os.Getenv("PATH")), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestAptWaitsForItsLock(t *testing.T) {
	t.Parallel()
	const waits = "Installing by apt-get: p\nanother program has the lock of apt: waiting for it, for 0 s so far\nsleeps 5\nsleeps 5\n"
	out, err := apt(t, `apt_install "please install p" p; echo "installed"`, "")
	require.NoError(t, err)
	require.Equal(t, waits+"installed\n", out)
	const unknown = `echo "E: Unable to locate package p"; exit 100`
	out, err = apt(t, `apt_install "please install p" p; echo "installed"`, unknown)
	require.NoError(t, err, "the other tests can run")
	require.Equal(t, waits+"E: Unable to locate package p\nplease install p\n", out)
	_, err = apt(t, `apt_install "please install p" p`, unknown, "CI=true")
	require.Error(t, err)
}

func TestTheScriptsInstallTheseVersions(t *testing.T) {
	for script, version := range map[string]string{"install-dynamodb.sh": dynamoVersion, "install-stepfunctions.sh": stepFunctionsVersion, "install-cosmos.sh": cosmosVersion} {
		text, err := os.ReadFile(script)
		require.NoError(t, err)
		require.Regexp(t, "(?m)^version="+version+" ", string(text), script)
	}
}

func TestSkippedTestsAreCounted(t *testing.T) {
	file := filepath.Join(t.TempDir(), "skipped")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	t.Setenv("CI", "")
	t.Setenv("TESTS_SKIPPED", file)
	t.Run("no server", func(t *testing.T) { missing(t, "redis-server", installRedis) })
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "redis-server\n", string(text))
}

// The script of make test ends as its command does.
func TestProgress(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "../../.ci/progress", "0", "sh", "-c",
		`echo one; echo two words >&2; for server in etcd redis-server etcd; do echo "$server" >>"$TESTS_SKIPPED"; done; exit 3`)
	out, err := cmd.CombinedOutput()
	require.ErrorContains(t, err, "exit status 3")
	require.Equal(t, "one\ntwo words\n3 tests skipped: no etcd (2), no redis-server (1)\n", string(out))
	out, err = exec.CommandContext(t.Context(), "../../.ci/progress", "9", "sh", "-c", `echo fmt; echo example.com/m >&2; echo "go: an error" >&2`).CombinedOutput()
	require.NoError(t, err)
	require.Equal(t, "go: an error\n", string(out), "packages are counted")
}
