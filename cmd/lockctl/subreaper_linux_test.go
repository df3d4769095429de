package main

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/internal/testservers"
)

// In a container the first process may be one that takes no notice of the processes that
// it becomes the parent of. Here it is this test.
func TestGuardProcessIsKilledWhereNobodyReaps(t *testing.T) {
	require.NoError(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	defer func() { assert.NoError(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)) }()
	addr := testservers.Redis(t)
	p, file := begun(t, addr, `trap '' TERM; sleep 90 & echo $$ $! > "$1"; wait`, "k")
	group := lines(t, file, 2)
	require.NoError(t, syscall.Kill(guardOf(t, p), syscall.SIGKILL))
	assert.Equal(t, exit.Bug, p.status(t), p.err.String())
	assert.Contains(t, p.err.String(), "the guard process was killed")
	for _, pid := range group {
		assert.False(t, alive(pid))
	}
	assert.False(t, inspect(t, addr, "k").State.Taken())
}
