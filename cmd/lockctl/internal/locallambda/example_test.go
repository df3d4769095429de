package locallambda

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
)

// The commands of README.md, and of a module that is not ours, do what the pages say.
func TestCommandsOfTheExamples(t *testing.T) {
	for page, dir := range map[string]string{"README.md": ".", "examples/own-function/README.md": "examples/own-function"} {
		t.Run(page, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join(repository, page))
			require.NoError(t, err)
			t.Chdir(filepath.Join(repository, dir))
			commands := 0
			for line := range strings.Lines(string(text)) {
				before, arguments, found := strings.Cut(line, "build/lockctl local ")
				if !found || !strings.HasPrefix(line, "    ") {
					continue
				}
				commands++
				args := append([]string{"-c", "3", "-n", "20", "--picture", filepath.Join(t.TempDir(), "timeline.svg")},
					strings.Fields(strings.ReplaceAll(arguments, "'", ""))...)
				if store, ok := strings.CutPrefix(strings.TrimSpace(before), "LOCK_URL="); ok {
					args = append(args, "--store", strings.Replace(strings.Trim(store, "'"), "http://127.0.0.1:8000", testservers.DynamoDB(t), 1))
				}
				var out bytes.Buffer
				cmd := Command()
				cmd.SetArgs(args)
				cmd.SetOut(&out)
				require.NoError(t, cmd.ExecuteContext(testContext(t)), out.String())
				assert.Regexp(t, `succeeded .* 20 of 20\n`, out.String())
				assert.Regexp(t, `overlapping sections .* 0\n`, out.String())
			}
			assert.Positive(t, commands)
		})
	}
}
