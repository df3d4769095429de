package main

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
)

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
	// job works until goOn.
	const job = `echo begun > "$1"; while [ ! -e "$1".on ]; do sleep 0.01; done`
	goOn := func(file string) { require.NoError(t, os.WriteFile(file+".on", nil, 0o600)) }
	t.Run("who waits does not wait for the next time", func(t *testing.T) {
		holder, file := begun(t, addr, job, "--at-least-for", "1h", "waits")
		p := start(t, addr, "run", "--at-least-for", "1h", "waits", "--", "false")
		until(t, "one waits", func() bool { return inspect(t, addr, "waits").Waiting == 1 })
		goOn(file)
		assert.Equal(t, 0, holder.status(t), holder.err.String())
		assert.Equal(t, exit.Done, p.status(t))
		assert.Regexp(t, `^lockctl: waiting: lock "waits" is held by .*\n`+done, p.err.String())
	})
	t.Run("after a failure the other one tries", func(t *testing.T) {
		p := start(t, addr, "run", "-n", "--at-least-for", "1h", "fails", "--", "false")
		assert.Equal(t, 1, p.status(t))
		assert.Equal(t, 0, start(t, addr, night("fails")...).status(t))
	})
	t.Run("nor is a job that was told to end, whatever its status", func(t *testing.T) {
		p, _ := begun(t, addr, `trap 'exit 0' TERM; `+job, "--at-least-for", "1h", "told")
		require.NoError(t, p.Process.Signal(syscall.SIGTERM))
		assert.Equal(t, 0, p.status(t), p.err.String())
		assert.Equal(t, lockstore.Free, inspect(t, addr, "told").State)
	})
	t.Run("until the time is over", func(t *testing.T) {
		for range 2 {
			p := start(t, addr, "run", "--at-least-for", "1", "again", "--", "true")
			assert.Equal(t, 0, p.status(t), p.err.String())
			until(t, "the time is over", func() bool { return inspect(t, addr, "again").State == lockstore.Free })
		}
	})
	t.Run("a lease that was lost is no success", func(t *testing.T) {
		p, _ := begun(t, addr, `trap 'exit 0' TERM; `+job, "--ttl", "3", "--at-least-for", "1h", "lost")
		redisCLI(t, addr, "DEL", "lambdalock:lost")
		assert.Equal(t, exit.Lost, p.status(t))
		assert.False(t, inspect(t, addr, "lost").State.Taken())
	})
	t.Run("the store is gone at the end", func(t *testing.T) {
		proxy := testservers.Proxy(t, addr)
		p, file := begun(t, proxy.Addr, job, "--at-least-for", "1h", "gone")
		proxy.CutRequests("")
		goOn(file)
		assert.Equal(t, 0, p.status(t))
		assert.Contains(t, p.err.String(), `lockctl: warning: the lock of "gone" could not be closed for --at-least-for, and its lease ends within 1m0s: `)
	})
}
