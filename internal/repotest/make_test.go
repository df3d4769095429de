package repotest

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// verifyOnly are the packages whose tests make verify runs.
var verifyOnly = []string{"verify/fuzzall", "verify/histories", "verify/processes"}

// The commands of make test run the tests of all packages. The pattern ./... does not reach another module.
func TestMakeRunsAllTests(t *testing.T) {
	make := exec.Command("make", "-n", "--no-print-directory", "test-most", "test-slow", "test-sql")
	make.Dir = root
	commands, err := make.Output()
	require.NoError(t, err)
	patterns := slices.DeleteFunc(strings.Fields(string(commands)), func(word string) bool { return !strings.HasPrefix(word, "./") })
	run := map[string]bool{}
	for _, p := range goList(t, ".", patterns...) {
		run[p.ImportPath] = true
	}
	for _, p := range goList(t, ".", "work") {
		below := strings.TrimPrefix(p.ImportPath, module+"/")
		if len(p.TestGoFiles)+len(p.XTestGoFiles) > 0 && !slices.Contains(verifyOnly, below) {
			assert.True(t, run[p.ImportPath], "make test does not run the tests of %s", below)
		}
	}
}

// What gofmt cannot read is no success.
func TestLintEndsWithGofmt(t *testing.T) {
	tools := t.TempDir()
	for name, script := range map[string]string{"gofmt": "exit 2", "go": "echo it went on; exit 1"} {
		require.NoError(t, os.WriteFile(filepath.Join(tools, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	}
	lint := exec.Command("make", "lint")
	lint.Dir = root
	lint.Env = append(os.Environ(), "PATH="+tools+string(os.PathListSeparator)+os.Getenv("PATH"))
	out, err := lint.CombinedOutput()
	require.Error(t, err)
	require.NotContains(t, string(out), "it went on")
}
