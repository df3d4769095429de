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

// The commands of README.md, and of a module that is not ours, do what the pages say.
func TestCommandsOfTheExamples(t *testing.T) {
	for page, dir := range map[string]string{"README.md": ".", "examples/own-function/README.md": "examples/own-function"} {
		t.Run(page, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join(repository, page))
			require.NoError(t, err)
			t.Chdir(filepath.Join(repository, dir))
			_, line, found := strings.Cut(string(text), "build/lockctl local ")
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
		})
	}
}
