package repotest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// snippet returns the first Go block of a Markdown text.
func snippet(markdown string) string {
	_, rest, _ := strings.Cut(markdown, "```go\n")
	code, _, _ := strings.Cut(rest, "```")
	return code
}

// The README's function is the compiled example of package boot, so that it
// cannot grow stale.
func TestReadmeShowsTheExample(t *testing.T) {
	root := filepath.Join("..", "..")
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	example, err := os.ReadFile(filepath.Join(root, "boot", "example_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	code := strings.Replace(snippet(string(readme)), "func main()", "func Example()", 1)
	if !strings.Contains(code, "func Example()") {
		t.Fatal("README.md has no Go block with a func main")
	}
	if !strings.Contains(string(example), code) {
		t.Errorf("the Go block of README.md is not in boot/example_test.go; make them the same:\n%s", code)
	}
}
