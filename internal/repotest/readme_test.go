package repotest

import (
	"io/fs"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const maxReadmeLines = 130

// goBlocks returns the Go blocks of a Markdown text.
func goBlocks(markdown string) (blocks []string) {
	for {
		_, rest, ok := strings.Cut(markdown, "```go\n")
		if !ok {
			return blocks
		}
		code, rest, _ := strings.Cut(rest, "```")
		blocks, markdown = append(blocks, code), rest
	}
}

// flat is code without its indentation.
func flat(code string) string {
	var b strings.Builder
	for line := range strings.Lines(code) {
		b.WriteString(strings.TrimLeft(line, "\t"))
	}
	return b.String()
}

// The code of the page is compiled somewhere else, so that it cannot grow stale.
func TestReadmeShowsCompiledCode(t *testing.T) {
	read := func(name string) string {
		b, err := fs.ReadFile(repository, name)
		require.NoError(t, err)
		return string(b)
	}
	readme := goBlocks(read("README.md"))
	require.Len(t, readme, 2, "README.md: a whole main.go, and a fenced write")
	main := strings.NewReplacer("package main\n", "package boot_test\n", "func main()", "func Example()").Replace(readme[0])
	assert.Equal(t, read("boot/example_test.go"), main, "README.md and boot/example_test.go; make them the same")

	assert.Contains(t, flat(read("lockstore/dynamostore/example_test.go")), flat(readme[1]),
		"README.md and lockstore/dynamostore/example_test.go; make them the same")
}

func TestReadmeIsShort(t *testing.T) {
	b, err := fs.ReadFile(repository, "README.md")
	require.NoError(t, err)
	assert.LessOrEqual(t, strings.Count(string(b), "\n"), maxReadmeLines)
}

// The map in docs/design.md has every folder that a reader sees first.
func TestDesignNamesEachRoom(t *testing.T) {
	page, err := fs.ReadFile(repository, "docs/design.md")
	require.NoError(t, err)
	for _, dir := range []string{".", "internal"} {
		entries, err := fs.ReadDir(repository, dir)
		require.NoError(t, err)
		for _, e := range entries {
			if e.IsDir() && !strings.HasPrefix(e.Name(), ".") && e.Name() != "build" {
				assert.True(t, strings.Contains(string(page), e.Name()+"/"), "the map in docs/design.md has no line for %s/%s", dir, e.Name())
			}
		}
	}
}
