package leasesim

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/verifyrecord"
)

// The record has what has run: with -run it may be less than was asked for.
func TestTheRecordCountsWhatHasRun(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("VERIFY_DIR", dir)
	compare(t, "some", 1, func(_ *testing.T, done *progress) {
		done.sequences.Add(3)
		done.requests.Add(40)
	})
	text, err := os.ReadFile(filepath.Join(dir, verifyrecord.Comparison+"-some.json"))
	require.NoError(t, err)
	var r verifyrecord.Result
	require.NoError(t, json.Unmarshal(text, &r))
	require.Equal(t, map[string]int64{verifyrecord.Sequences: 3, verifyrecord.Requests: 40}, r.Counts)
}
