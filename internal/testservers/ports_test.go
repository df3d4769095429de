package testservers

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// Two tests, also of two processes, never have one port: a test would take the server of another test for its own.
func TestPortsAreGivenOnce(t *testing.T) {
	t.Parallel()
	given := map[int]bool{}
	for range 20 {
		port := freePorts(t, 2)
		require.False(t, given[port] || given[port+1], "port %d was given twice", port)
		given[port], given[port+1] = true, true
	}
	_, err := net.Listen("tcp", loopback(block.first))
	require.Error(t, err, "another process can take the block of this one")
}
