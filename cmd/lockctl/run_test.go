package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
)

// job is a script that works until goOn.
const job = `echo begun > "$1"; while [ ! -e "$1".on ]; do sleep 0.01; done; `

func goOn(t *testing.T, file string) {
	t.Helper()
	require.NoError(t, os.WriteFile(file+".on", nil, 0o600))
}

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

// All open files reach the command, and no other ones: a pipe of lockctl in a daemon would keep lockctl waiting.
func TestOpenFiles(t *testing.T) {
	t.Parallel()
	file, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer file.Close()
	script := []string{"sh", "-c", `for n in $(seq 3 63); do [ ! -e /dev/fd/$n ] || echo $n; done`}
	want := exec.Command(script[0], script[1:]...)
	want.ExtraFiles = []*os.File{file, file, file} // besides, the tests may have been started with some
	files, err := want.Output()
	require.NoError(t, err)
	require.Contains(t, string(files), "3\n4\n5\n")
	p := lockctl("redis://"+testservers.Redis(t), append([]string{"run", "k", "--"}, script...)...)
	p.ExtraFiles = want.ExtraFiles
	assert.Equal(t, result{0, string(files), ""}, p.start(t).result(t))
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
	assert.Equal(t, 128+int(syscall.SIGTERM), first.status(t))
	assert.Equal(t, []string{"0", "1", "0"}, lines(t, file, 3))
}

func TestBusy(t *testing.T) {
	t.Parallel()
	addr := testservers.Redis(t)
	start(t, addr, "run", "k", "--", "sleep", "60")
	untilHeld(t, addr, "k")
	p := start(t, addr, "run", "-n", "k", "--", "true")
	assert.Equal(t, exit.Busy, p.status(t))
	assert.Regexp(t, `^lockctl: busy: lock "k" is held by "\S+@\S+ sleep" \(\d+\) since .*Z, for at most (1m0|5\d)s more\n$`, p.err.String())
	p = start(t, addr, "run", "-w", "0.3", "-E", "7", "k", "--", "true")
	assert.Equal(t, 7, p.status(t))
	assert.Zero(t, inspect(t, addr, "k").Waiting)
}

// A file that an upgrade replaces while its lockctl waits is the guard process of this lockctl all the same.
func TestReplacedWhileItWaits(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("a file that was removed cannot be started here")
	}
	addr := testservers.Redis(t)
	for name, replace := range map[string]func(file string) error{
		"removed":  os.Remove,
		"replaced": func(file string) error { return os.Rename(file+".next", file) },
	} {
		t.Run(name, func(t *testing.T) {
			old := filepath.Join(t.TempDir(), "lockctl")
			require.NoError(t, exec.Command("cp", binary, old).Run())
			require.NoError(t, os.WriteFile(old+".next", nil, 0o700))
			holder, file := begun(t, addr, job, "k")
			p := program("redis://"+addr, old, "run", "k", "--", "sh", "-c", "echo ran; exit 5").start(t)
			until(t, "one waits", func() bool { return inspect(t, addr, "k").Waiting == 1 })
			require.NoError(t, replace(old))
			goOn(t, file)
			assert.Equal(t, 0, holder.status(t), holder.err.String())
			assert.Equal(t, 5, p.status(t), p.err.String())
			assert.Equal(t, "ran\n", p.out.String())
		})
	}
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
	t.Run("a deaf command is killed", func(t *testing.T) {
		for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT} {
			p, _ := begun(t, addr, `trap '' TERM HUP INT; echo begun > "$1"; while :; do sleep 0.01; done`, "--ttl", "2", "deaf")
			require.NoError(t, p.Process.Signal(sig))
			assert.Equal(t, 137, p.status(t), sig)
			assert.False(t, inspect(t, addr, "deaf").State.Taken())
		}
	})
	t.Run("ignored, as nohup makes it", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "file")
		p := program("redis://"+addr, "sh", "-c", `trap '' HUP INT; exec "$@"`, "sh", binary, "run", "ignored", "--",
			"sh", "-c", job+`kill -HUP $$; kill -INT $$; exit 5`, "sh", file).start(t)
		lines(t, file, 1)
		for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT} {
			require.NoError(t, p.Process.Signal(sig))
			require.NoError(t, syscall.Kill(guardOf(t, p), sig))
		}
		goOn(t, file)
		assert.Equal(t, 5, p.status(t), p.err.String())
	})
	t.Run("before the grant", func(t *testing.T) {
		start(t, addr, "run", "waits", "--", "sleep", "60")
		untilHeld(t, addr, "waits")
		for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT} {
			p := start(t, addr, "run", "waits", "--", "true")
			until(t, "one waits", func() bool { return inspect(t, addr, "waits").Waiting == 1 })
			require.NoError(t, p.Process.Signal(sig))
			assert.Equal(t, 128+int(sig), p.status(t))
			assert.Zero(t, inspect(t, addr, "waits").Waiting, "it has left the queue")
			assert.Regexp(t, `^lockctl: waiting: lock "waits" is held by "\S+ sleep" \(\d+\) since \S+Z, for at most (1m0|5\d)s more\n$`, p.err.String())
		}
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
	t.Run("stopped, goes on at the next renewal", func(t *testing.T) {
		t.Parallel()
		p, _ := begun(t, addr, `echo begun > "$1"; sleep 3; exit 4`, "--ttl", "6", "stopped")
		require.NoError(t, syscall.Kill(guardOf(t, p), syscall.SIGSTOP))
		assert.Equal(t, 4, p.status(t), p.err.String())
	})
	t.Run("is not ended by what ends lockctl's group", func(t *testing.T) {
		p, file := begun(t, addr, `trap '' TERM; echo $$ > "$1"; while :; do sleep 0.1; done`, "--ttl", "4", "group")
		command := lines(t, file, 1)[0]
		for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
			require.NoError(t, syscall.Kill(guardOf(t, p), sig))
		}
		require.NoError(t, syscall.Kill(-p.Process.Pid, syscall.SIGKILL))
		until(t, "the command is dead", func() bool { return !alive(command) })
	})
}

// A lease that is taken away is noticed at the release, if no renewal comes before. That of TestRevokeEndsACommand is noticed at a
// renewal.
func TestLost(t *testing.T) {
	t.Parallel()
	addr := testservers.Redis(t)
	p, file := begun(t, addr, job, "k")
	redisCLI(t, addr, "DEL", "lambdalock:k")
	goOn(t, file)
	assert.Equal(t, exit.Lost, p.status(t))
	assert.Contains(t, p.err.String(), "may stand beside")
}

// Two hosts begin the same nightly job, one of them when the other has ended already. It runs once.
func TestAtLeastFor(t *testing.T) {
	t.Parallel()
	addr := testservers.Redis(t)
	const done = `lockctl: done already: lock "\w+": the work was done by "\S+ \S+" \(\d+\) since \S+Z, and nobody gets the key for at most (1h0m0|59m\d+)s more\n$`
	night := func(key string) []string { return []string{"run", "-n", "--at-least-for", "1h", key, "--", "true"} }

	t.Run("after success", func(t *testing.T) {
		assert.Equal(t, 0, start(t, addr, night("done")...).status(t))
		p := start(t, addr, night("done")...)
		assert.Equal(t, exit.Done, p.status(t))
		assert.Regexp(t, "^"+done, p.err.String())
		p = start(t, addr, "run", "-n", "-E", "0", "--at-least-for", "1h", "done", "--", "false")
		assert.Equal(t, 0, p.status(t), "as -E says")
		assert.Equal(t, lockstore.Cooldown, inspect(t, addr, "done").State)
	})
	t.Run("who waits does not wait for the next time", func(t *testing.T) {
		holder, file := begun(t, addr, job, "--at-least-for", "1h", "waits")
		p := start(t, addr, "run", "--at-least-for", "1h", "waits", "--", "false")
		until(t, "one waits", func() bool { return inspect(t, addr, "waits").Waiting == 1 })
		goOn(t, file)
		assert.Equal(t, 0, holder.status(t), holder.err.String())
		assert.Equal(t, exit.Done, p.status(t))
		assert.Regexp(t, `^lockctl: waiting: lock "waits" is held by .*\n`+done, p.err.String())
	})
	t.Run("a job that was told to end has not done its work, whatever its status", func(t *testing.T) {
		p, _ := begun(t, addr, `trap 'exit 0' TERM; `+job, "--at-least-for", "1h", "told")
		require.NoError(t, p.Process.Signal(syscall.SIGTERM))
		assert.Equal(t, 0, p.status(t), p.err.String())
		assert.Equal(t, lockstore.Free, inspect(t, addr, "told").State)
	})
	t.Run("the store is gone at the end", func(t *testing.T) {
		proxy := testservers.Proxy(t, addr)
		p, file := begun(t, proxy.Addr, job, "--at-least-for", "1h", "gone")
		proxy.CutRequests("")
		goOn(t, file)
		assert.Equal(t, 0, p.status(t))
		assert.Contains(t, p.err.String(), `lockctl: warning: the lock of "gone" could not be closed for --at-least-for, and its lease ends within 1m0s: `)
	})
}
