package repotest

import (
	"io/fs"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const maxReadmeLines = 130

// blocks returns the Go blocks of a Markdown text.
func blocks(markdown string) (all []string) {
	for {
		_, rest, ok := strings.Cut(markdown, "```go\n")
		if !ok {
			return all
		}
		code, rest, _ := strings.Cut(rest, "```")
		all, markdown = append(all, code), rest
	}
}

func text(t *testing.T, name string) string {
	t.Helper()
	b, err := fs.ReadFile(repository, name)
	require.NoError(t, err)
	return string(b)
}

// The code of a page is compiled somewhere else, so that it cannot grow stale.
func TestPagesShowCompiledCode(t *testing.T) {
	readme := blocks(text(t, "README.md"))
	require.Len(t, readme, 2, "README.md: a whole main.go, and the fenced write")
	main := strings.NewReplacer("package main\n", "package boot_test\n", "func main()", "func Example()").Replace(readme[0])
	assert.Equal(t, text(t, "boot/example_test.go"), main, "README.md and boot/example_test.go; make them the same")
}

func TestReadmeIsShort(t *testing.T) {
	assert.LessOrEqual(t, strings.Count(text(t, "README.md"), "\n"), maxReadmeLines)
}
