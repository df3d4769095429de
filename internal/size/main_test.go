package main

import (
	"debug/elf"
	"path/filepath"
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
		{[]string{dynamo, redis}, "both", 10.95},
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

func TestMeasure(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds a binary")
	}
	t.Chdir("../..")
	dir := t.TempDir()
	b, err := measure(t.Context(), "internal/size/probe/bare", dir)
	require.NoError(t, err)
	require.Equal(t, "no store", b.links)
	require.Greater(t, b.arm64, int64(3*mb))
	built, err := elf.Open(filepath.Join(dir, "bootstrap"))
	require.NoError(t, err)
	require.Equal(t, elf.EM_AARCH64, built.Machine)
	require.NoError(t, built.Close())
}
