package locallambda

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The command in examples/own-function/README.md does what the page says, in a
// module that is not ours.
func TestOwnFunction(t *testing.T) {
	t.Chdir(filepath.Join(repository, "examples/own-function"))
	page, err := os.ReadFile("README.md")
	require.NoError(t, err)
	_, line, found := strings.Cut(string(page), "build/lockctl local ")
	require.True(t, found)
	line, _, _ = strings.Cut(line, "\n")

	var out bytes.Buffer
	cmd := Command()
	cmd.SetArgs(append([]string{"-c", "3", "-n", "20", "--picture", filepath.Join(t.TempDir(), "timeline.svg")},
		strings.Fields(strings.ReplaceAll(line, "'", ""))...))
	cmd.SetOut(&out)
	require.NoError(t, cmd.ExecuteContext(testContext(t)), out.String())
	assert.Regexp(t, `succeeded +20 of 20\n`, out.String())
	assert.Regexp(t, `overlapping sections +0\n`, out.String())
}
