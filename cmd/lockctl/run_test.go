package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/internal/testservers"
)

func TestExitStatus(t *testing.T) {
	t.Parallel()
	addr := testservers.Redis(t)
	for name, c := range map[string]struct {
		args   []string
		status int
		stderr string
	}{
		"the command's":        {[]string{"k", "--", "sh", "-c", "exit 3"}, 3, ""},
		"success":              {[]string{"k", "--", "true"}, 0, ""},
		"a signal ended it":    {[]string{"k", "--", "sh", "-c", "kill -9 $$"}, 137, ""},
		"not found":            {[]string{"k", "--", "no-such-command"}, 127, "not found"},
		"no such file":         {[]string{"k", "--", "./no-such-command"}, 127, "no such file"},
		"not executable":       {[]string{"k", "--", "/dev/null"}, 126, "permission denied"},
		"a key with a dash":    {[]string{"--", "-k", "--", "true"}, 0, ""},
		"nobody there":         {[]string{"--store", "redis://127.0.0.1:1", "k", "--", "true"}, 69, "connection refused"},
		"what it gets":         {[]string{"k", "--", "sh", "-c", `[ "$LOCK_KEY" = k ] && [ "$LOCK_FENCE" -gt 1000000 ] && [ "$LOCK_HELD$LOCK_SEAT" = true0 ]`}, 0, ""},
		"what it does not get": {[]string{"k", "--", "sh", "-c", `[ -z "${LOCK_URL+x}${ZOOKEEPER_AUTH+x}" ] && [ -n "$HOME$PATH" ]`}, 0, ""},
		"one open file less":   {[]string{"k", "--", "sh", "-c", "! (: <&3) 2>/dev/null && ! (: <&4) 2>/dev/null"}, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := lockctl("redis://"+addr, append([]string{"run"}, c.args...)...)
			p.Env = append(p.Env, "ZOOKEEPER_AUTH=user:password")
			p.start(t)
			assert.Equal(t, c.status, p.status(t), p.err.String())
			if c.stderr == "" {
				assert.Empty(t, p.err.String())
			}
			assert.Contains(t, p.err.String(), c.stderr)
			if c.args[0] == "k" {
				assert.False(t, inspect(t, addr, "k").State.Taken(), "the lock is released")
			}
		})
	}
}

// Two of two hold the key, each with a seat of its own, and the third waits for the first that ends.
func TestMaxHolders(t *testing.T) {
	t.Parallel()
	addr, file := testservers.Redis(t), filepath.Join(t.TempDir(), "seats")
	args := []string{"run", "--max-holders", "2", "k", "--", "sh", "-c", `echo "$LOCK_SEAT" >> "$1"; exec sleep 60`, "sh", file}
	first := start(t, addr, args...)
	lines(t, file, 1)
	start(t, addr, args...)
	lines(t, file, 2)
	status := inspect(t, addr, "k")
	assert.Len(t, status.Holders, 2)
	assert.Equal(t, 2, status.MaxHolders())
	third := append([]string{"run", "-n"}, args[1:]...)
	assert.Equal(t, exit.Busy, start(t, addr, third...).status(t))
	start(t, addr, args...)
	until(t, "one waits", func() bool { return inspect(t, addr, "k").Waiting == 1 })
	require.NoError(t, first.Process.Signal(syscall.SIGTERM))
	assert.Equal(t, []string{"0", "1", "0"}, lines(t, file, 3))
}

func TestBusy(t *testing.T) {
	t.Parallel()
	addr := testservers.Redis(t)
	holder := start(t, addr, "run", "k", "--", "sleep", "60")
	untilHeld(t, addr, "k")

	p := start(t, addr, "run", "-n", "k", "--", "true")
	assert.Equal(t, exit.Busy, p.status(t))
	assert.Regexp(t, `^lockctl: busy: lock "k" is held by "\S+@\S+ sleep" \(\d+\) since .*Z, for at most (1m0|5\d)s more\n$`, p.err.String())

	p = start(t, addr, "run", "-w", "0.3", "-E", "7", "k", "--", "true")
	assert.Equal(t, 7, p.status(t))
	assert.Zero(t, inspect(t, addr, "k").Waiting)

	next := start(t, addr, "run", "k", "--", "true")
	until(t, "one waits", func() bool { return inspect(t, addr, "k").Waiting == 1 })
	require.NoError(t, holder.Process.Signal(syscall.SIGTERM))
	assert.Equal(t, 143, holder.status(t))
	assert.Equal(t, 0, next.status(t))
}

// The command under a lease that an operator revokes is ended, and --wait waits until the key is free.
func TestRevokeEndsACommand(t *testing.T) {
	t.Parallel()
	addr := testservers.Redis(t)
	p, file := begun(t, addr, `trap 'echo told >> "$1"; exit 1' TERM; echo begun > "$1"; while :; do sleep 0.05; done`, "--ttl", "3", "k")
	revoke := start(t, addr, "revoke", "--wait", "--fence", strconv.FormatInt(int64(inspect(t, addr, "k").Fence), 10), "k")
	assert.Equal(t, 0, revoke.status(t), revoke.err.String())
	assert.False(t, inspect(t, addr, "k").State.Taken(), "--wait has waited")
	assert.Equal(t, exit.Lost, p.status(t))
	assert.Contains(t, p.err.String(), "was lost")
	assert.Equal(t, []string{"begun", "told"}, lines(t, file, 2), "SIGTERM came first")
}

func TestSignals(t *testing.T) {
	t.Parallel()
	addr := testservers.Redis(t)
	t.Run("passed on once", func(t *testing.T) {
		for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT} {
			p, _ := begun(t, addr, `trap 'exit 5' TERM HUP INT QUIT; echo begun > "$1"; while :; do sleep 0.01; done`, "passed")
			require.NoError(t, p.Process.Signal(sig))
			assert.Equal(t, 5, p.status(t), sig)
		}
	})
	t.Run("a deaf command is killed", func(t *testing.T) {
		for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT} {
			p, _ := begun(t, addr, `trap '' TERM HUP INT; echo begun > "$1"; while :; do sleep 0.01; done`, "--ttl", "2", "deaf")
			require.NoError(t, p.Process.Signal(sig))
			assert.Equal(t, 137, p.status(t), sig)
			assert.False(t, inspect(t, addr, "deaf").State.Taken())
		}
	})
	t.Run("ignored, as nohup makes it", func(t *testing.T) {
		dir := t.TempDir()
		file, goOn := filepath.Join(dir, "file"), filepath.Join(dir, "go-on")
		p := program("redis://"+addr, "sh", "-c", `trap '' HUP INT; exec "$@"`, "sh", binary, "run", "ignored", "--",
			"sh", "-c", `echo begun > "$1"; while [ ! -e "$2" ]; do sleep 0.01; done; kill -HUP $$; kill -INT $$; exit 5`, "sh", file, goOn).start(t)
		lines(t, file, 1)
		for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT} {
			require.NoError(t, p.Process.Signal(sig))
			require.NoError(t, syscall.Kill(guardOf(t, p), sig))
		}
		require.NoError(t, os.WriteFile(goOn, nil, 0o600))
		assert.Equal(t, 5, p.status(t), p.err.String())
	})
	t.Run("before the grant", func(t *testing.T) {
		holder := start(t, addr, "run", "waits", "--", "sleep", "60")
		untilHeld(t, addr, "waits")
		for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT} {
			p := start(t, addr, "run", "waits", "--", "true")
			until(t, "one waits", func() bool { return inspect(t, addr, "waits").Waiting == 1 })
			require.NoError(t, p.Process.Signal(sig))
			assert.Equal(t, 128+int(sig), p.status(t))
			assert.Zero(t, inspect(t, addr, "waits").Waiting, "it has left the queue")
			assert.Regexp(t, `^lockctl: waiting: lock "waits" is held by "\S+ sleep" \(\d+\) since \S+Z, for at most (1m0|5\d)s more\n$`, p.err.String())
		}
		require.NoError(t, holder.Process.Signal(syscall.SIGTERM))
		holder.status(t)
	})
}

func TestWhatTheCommandLeaves(t *testing.T) {
	t.Parallel()
	addr := testservers.Redis(t)
	t.Run("in its group ends before the release", func(t *testing.T) {
		p, file := begun(t, addr, `sleep 60 & echo $! > "$1"`, "k")
		assert.Equal(t, 0, p.status(t), p.err.String())
		assert.False(t, alive(lines(t, file, 1)[0]))
	})
	t.Run("in a session of its own stays", func(t *testing.T) {
		if _, err := exec.LookPath("setsid"); err != nil {
			t.Skip("this system has no setsid")
		}
		p, file := begun(t, addr, `setsid sh -c 'echo $$ > "$1"; exec sleep 60 >/dev/null 2>&1' sh "$1" & while [ ! -s "$1" ]; do sleep 0.01; done`, "k")
		assert.Equal(t, 0, p.status(t), p.err.String())
		left := lines(t, file, 1)[0]
		assert.True(t, alive(left))
		pid, err := strconv.Atoi(left)
		require.NoError(t, err)
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	})
}

func TestGuardProcess(t *testing.T) {
	t.Parallel()
	addr := testservers.Redis(t)
	begin := func(t *testing.T, key string) (p *process, command string) {
		p, file := begun(t, addr, `trap '' TERM; echo $$ > "$1"; while :; do sleep 0.1; done`, "--ttl", "4", key)
		return p, lines(t, file, 1)[0]
	}
	t.Run("killed", func(t *testing.T) {
		p, command := begin(t, "killed")
		require.NoError(t, syscall.Kill(guardOf(t, p), syscall.SIGKILL))
		assert.Equal(t, exit.Bug, p.status(t))
		assert.Contains(t, p.err.String(), "the guard process was killed")
		assert.False(t, alive(command))
		assert.False(t, inspect(t, addr, "killed").State.Taken())
	})
	t.Run("stopped, goes on at the next renewal", func(t *testing.T) {
		t.Parallel()
		p, _ := begun(t, addr, `echo begun > "$1"; sleep 3; exit 4`, "--ttl", "6", "stopped")
		require.NoError(t, syscall.Kill(guardOf(t, p), syscall.SIGSTOP))
		assert.Equal(t, 4, p.status(t), p.err.String())
	})
	t.Run("is not ended by what ends lockctl's group", func(t *testing.T) {
		p, command := begin(t, "group")
		for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
			require.NoError(t, syscall.Kill(guardOf(t, p), sig))
		}
		require.NoError(t, syscall.Kill(-p.Process.Pid, syscall.SIGKILL))
		until(t, "the command is dead", func() bool { return !alive(command) })
	})
}

// A lease that is taken away is noticed at the release, if no renewal comes before. That of TestRevokeEndsACommand and
// TestAtLeastFor is noticed at a renewal.
func TestLost(t *testing.T) {
	t.Parallel()
	addr := testservers.Redis(t)
	p := start(t, addr, "run", "k", "--", "sleep", "3")
	untilHeld(t, addr, "k")
	redisCLI(t, addr, "DEL", "lambdalock:k")
	assert.Equal(t, exit.Lost, p.status(t))
	assert.Contains(t, p.err.String(), "may stand beside")
}
