package histories

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/verify/checker"
)

// The effects of the transactions are compared with the answers.
func TestCounted(t *testing.T) {
	lease := lockstore.Lease{Key: "k", Owner: "a", Fence: 5}
	for _, c := range []struct {
		effects int
		outcome checker.Outcome
		wrong   int
	}{
		{1, checker.OK, 0}, {1, checker.Unknown, 0}, {0, checker.Unknown, 0},
		{0, checker.OK, 1}, {0, checker.Completed, 1}, {2, checker.Unknown, 1},
	} {
		r := newRun("counted", 1, few, 0)
		r.atOnce["x"] = lease
		ops := []checker.Op{{Kind: checker.Complete, Key: "k", Data: "x", Outcome: c.outcome}, {Kind: checker.Complete, Data: "y", Outcome: checker.OK}}
		n, wrong := r.counted(ops, func(lockstore.Lease) int { return c.effects })
		require.Equal(t, c.effects, n)
		require.Len(t, wrong, c.wrong, "%+v: %v", c, wrong)
	}
}
