package repotest

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	module = "github.com/lambdalock/lambdalock"
	root   = "../.."
)

// repository is the top folder, as seen from this test.
var repository = os.DirFS(root)

// pkg is one package of the import graph, as go list describes it.
type pkg struct {
	ImportPath, Name string
	Standard         bool
	Imports          []string
	TestGoFiles      []string
	XTestGoFiles     []string
	Module           *struct {
		Path, Version, Dir string
		Main, Indirect     bool
	}
}

// goList runs go list in a folder of the repository, for the system of a function.
func goList(t *testing.T, dir string, args ...string) (all []pkg) {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Name,Standard,Imports,TestGoFiles,XTestGoFiles,Module"}, args...)...)
	cmd.Dir = filepath.Join(root, dir)
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0")
	if dir == alone {
		cmd.Env = append(cmd.Env, "GOWORK=off")
	}
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err, "go list in %s", dir)
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var p pkg
		require.NoError(t, d.Decode(&p), "go list in %s", dir)
		all = append(all, p)
	}
	return all
}

// alone is the module that is not in go.work: to analyse what CDK links takes minutes. make lint-template tests it.
const alone = "examples/locktable"

// graph is the import graph of all modules of go.work, without tests, by import path.
type graph map[string]pkg

func loadGraph(t *testing.T) graph {
	t.Helper()
	g := graph{}
	for _, p := range goList(t, ".", "-deps", "-tags=lambda.norpc", "work") { // as a function is deployed: without net/rpc
		g[p.ImportPath] = p
	}
	require.Contains(t, g, module+"/guard")
	return g
}

// own returns the paths of our packages, below the module's.
func (g graph) own() []string {
	var own []string
	for p := range g {
		if below, ok := strings.CutPrefix(p, module+"/"); ok {
			own = append(own, below)
		}
	}
	return own
}

// chain says by which imports from depends on to, or returns "" if it does not.
func (g graph) chain(from, to string) string {
	before := g.deps(from)
	text := to
	for p := to; p != from; text = p + " -> " + text {
		if p = before[p]; p == "" {
			return ""
		}
	}
	return text
}

// deps returns all that from depends on, each with a package that imports it.
func (g graph) deps(from string) map[string]string {
	before := map[string]string{}
	for queue := []string{from}; len(queue) > 0; queue = queue[1:] {
		for _, next := range g[queue[0]].Imports {
			if _, seen := before[next]; !seen {
				before[next] = queue[0]
				queue = append(queue, next)
			}
		}
	}
	return before
}

// walk calls do with each file of the repository but for what tools make.
func walk(do func(file string) error) error {
	return fs.WalkDir(repository, ".", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case !d.IsDir():
			return do(p)
		case p == "build", p != "." && strings.HasPrefix(d.Name(), ".") && p != ".ci", d.Name() == "node_modules":
			return fs.SkipDir
		}
		return nil
	})
}

// goFiles are the texts of all our Go files, by their paths from the top folder.
func goFiles(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	require.NoError(t, walk(func(p string) error {
		if path.Ext(p) == ".go" {
			files[p] = read(t, p)
		}
		return nil
	}))
	require.Greater(t, len(files), 50, "the repository's Go files")
	return files
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := fs.ReadFile(repository, name)
	require.NoError(t, err)
	return string(text)
}

// none fails the test with every problem in a line of its own.
func none(t *testing.T, problems []string) {
	t.Helper()
	for _, p := range problems {
		t.Error(p)
	}
}

// caught fails the test unless a rule found exactly what was planted: one
// problem for each part, that has the part in its text.
func caught(t *testing.T, problems []string, parts ...string) {
	t.Helper()
	require.Len(t, problems, len(parts), "%q", problems)
	for _, part := range parts {
		require.True(t, slices.ContainsFunc(problems, func(p string) bool { return strings.Contains(p, part) }), "no problem names %q: %q", part, problems)
	}
}
