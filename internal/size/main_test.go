package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReport(t *testing.T) {
	fits := binary{"internal/size/probe/bare", "no store", 6.0, 6_000_000}
	var out strings.Builder
	require.False(t, report(&out, []binary{fits}))
	require.NotContains(t, out.String(), "OVER")

	large := fits
	large.arm64++
	out.Reset()
	require.True(t, report(&out, []binary{fits, large}))
	require.Equal(t, 1, strings.Count(out.String(), "OVER"))
	for line := range strings.Lines(out.String()) {
		require.LessOrEqual(t, len(strings.TrimSuffix(line, "\n")), 80)
	}
}
