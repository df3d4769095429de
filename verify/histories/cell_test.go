package histories

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/verify/checker"
)

// A hand-over is no takeover, also if the one who waited has asked, or was told, before the other's request had its answer. What an operator has
// revoked is not lost.
func TestCountsNeedAFault(t *testing.T) {
	op := func(kind checker.Kind, fence int64, outcome checker.Outcome, call, ret time.Duration) checker.Op {
		return checker.Op{Kind: kind, Key: "k", Fence: fence, Outcome: outcome, Call: call, Return: ret}
	}
	handedOver := []checker.Op{
		op(checker.Acquire, 5, checker.OK, 0, 1), op(checker.Acquire, 6, checker.OK, 2, 12), op(checker.Release, 5, checker.OK, 10, 13),
		op(checker.Revoke, 6, checker.OK, 14, 15), op(checker.Renew, 6, checker.Lost, 20, 21), op(checker.Release, 6, checker.Lost, 22, 23),
		op(checker.Acquire, 7, checker.OK, 30, 31),
	}
	n := count(handedOver)
	require.Zero(t, n[takeovers])
	require.Zero(t, n[lost])
	n = count(append(handedOver, op(checker.Acquire, 8, checker.OK, 40, 41), op(checker.Release, 7, checker.Lost, 50, 51)))
	require.EqualValues(t, 1, n[takeovers])
	require.EqualValues(t, 1, n[lost])
}
