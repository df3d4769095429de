package lambdatest_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// go test repeats no old result of a test whose function has changed.
func TestBuildIsSeenByTheCache(t *testing.T) {
	root, err := filepath.Abs("..")
	require.NoError(t, err)
	dir, age := t.TempDir(), 2*time.Hour
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		// go test keeps no result of a test that has read what was written just now.
		age -= time.Minute
		old := time.Now().Add(-age)
		require.NoError(t, os.Chtimes(path, old, old))
		require.NoError(t, os.Chtimes(filepath.Dir(path), old, old))
	}
	mod, err := os.ReadFile("../go.mod") // with the versions of all that lambdatest needs
	require.NoError(t, err)
	own := strings.Replace(string(mod), "module github.com/lambdalock/lambdalock\n", "module example.com/m\n", 1)
	require.NotEqual(t, string(mod), own)
	write("go.mod", own+"\nrequire github.com/lambdalock/lambdalock v0.0.0\n\nreplace github.com/lambdalock/lambdalock => "+root+"\n")
	sum, err := os.ReadFile("../go.sum")
	require.NoError(t, err)
	write("go.sum", string(sum))
	write("m_test.go", `package m

import (
	"testing"

	"github.com/lambdalock/lambdalock/lambdatest"
)

func Test(t *testing.T) {
	if err := lambdatest.Build(t.Context(), "./function", t.TempDir()+"/bootstrap"); err != nil {
		t.Fatal(err)
	}
}
`)
	write("function/main.go", "package main\n\nimport \"example.com/m/used\"\n\nfunc main() { used.Do() }\n")
	used := func(does string) {
		write("used/used.go", fmt.Sprintf("package used\n\n// %d\nfunc Do() { %s }\n", time.Now().UnixNano(), does))
	}
	goTest := func() string {
		cmd := exec.CommandContext(t.Context(), "go", "test", "-mod=mod", ".")
		// As functions are built, so that what they share is not compiled once more.
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath", "GOPROXY=off")
		text, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", text)
		return string(text)
	}
	used("")
	require.NotContains(t, goTest(), "(cached)")
	require.Contains(t, goTest(), "(cached)", "nothing has changed")
	used(`print("changed")`)
	require.NotContains(t, goTest(), "(cached)")
}
