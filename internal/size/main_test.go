package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestBudget(t *testing.T) {
	for _, c := range []struct {
		deps  []string
		links string
		want  float64
	}{
		{[]string{"fmt"}, "no store", 6.0},
		{[]string{"fmt", redis}, "redis", 8.8},
		{[]string{dynamo, "fmt"}, "dynamodb", 8.3},
		{[]string{dynamo, redis}, "both", 10.90},
		{[]string{cosmos}, "cosmosdb", 7.4},
		{[]string{datastore}, "datastore", 7.1},
		{[]string{zookeeper}, "zookeeper", 6.6},
	} {
		links, mb := budget(c.deps)
		assert.Equal(t, c.links, links)
		assert.Equal(t, c.want, mb)
	}
}

func TestReport(t *testing.T) {
	fits := binary{"internal/size/probe/bare", "no store", 6.0, 6_000_000, 9_000_000}
	var out strings.Builder
	require.False(t, report(&out, []binary{fits}), "amd64 is not what is deployed")
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

func TestMeasure(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds a binary twice")
	}
	t.Chdir("../..")
	b, err := measure(t.Context(), "internal/size/probe/bare", t.TempDir())
	require.NoError(t, err)
	require.Equal(t, "no store", b.links)
	require.Greater(t, b.arm64, int64(3*mb))
	require.Greater(t, b.amd64, int64(3*mb))
	require.NotEqual(t, b.arm64, b.amd64)
}
