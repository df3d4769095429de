package repotest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/lambdalock/lambdalock"

// repository is the top folder, as seen from this test.
var repository = os.DirFS("../..")

// pkg is one package of the import graph.
type pkg struct {
	ImportPath string
	Name       string
	Standard   bool
	Imports    []string
}

// graph is the import graph of all that is deployed or offered, without tests,
// by import path.
type graph map[string]pkg

// layered are the folders of the modules that the rules about imports are for.
var layered = []string{".", "cmd/lockctl"}

// loadGraph asks the go command once for all tests.
var loadGraph = sync.OnceValues(func() (graph, error) {
	g := graph{}
	for _, folder := range layered {
		if err := g.load(folder); err != nil {
			return nil, fmt.Errorf("go list in %s: %w", folder, err)
		}
	}
	return g, nil
})

// load adds the packages of a module.
func (g graph) load(folder string) error {
	// As deployed: with the tag that leaves out net/rpc.
	cmd := exec.Command("go", "list", "-deps", "-tags=lambda.norpc", "-json=ImportPath,Name,Standard,Imports", "./...")
	cmd.Dir = path.Join("../..", folder)
	out, err := cmd.Output()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("%w: %s", err, failed.Stderr)
	}
	if err != nil {
		return err
	}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := d.Decode(&p); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		g[p.ImportPath] = p
	}
}

func mustGraph(t *testing.T) graph {
	t.Helper()
	g, err := loadGraph()
	require.NoError(t, err)
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
	before := map[string]string{from: ""}
	for queue := []string{from}; len(queue) > 0; queue = queue[1:] {
		if queue[0] == to {
			text := ""
			for p := to; p != ""; p = before[p] {
				text = " -> " + p + text
			}
			return strings.TrimPrefix(text, " -> ")
		}
		for _, next := range g[queue[0]].Imports {
			if _, seen := before[next]; !seen {
				before[next] = queue[0]
				queue = append(queue, next)
			}
		}
	}
	return ""
}

// deps returns all that from depends on, without itself.
func (g graph) deps(from string) map[string]bool {
	all := map[string]bool{}
	for queue := g[from].Imports; len(queue) > 0; queue = queue[1:] {
		if !all[queue[0]] {
			all[queue[0]] = true
			queue = append(queue[:len(queue):len(queue)], g[queue[0]].Imports...)
		}
	}
	return all
}

// file is one parsed Go file.
type file struct {
	path string // from the top folder
	text string
	ast  *ast.File
	set  *token.FileSet
}

func (f file) test() bool { return strings.HasSuffix(f.path, "_test.go") }

func (f file) dir() string { return path.Dir(f.path) }

func (f file) at(n ast.Node) string {
	return fmt.Sprintf("%s:%d", f.path, f.set.Position(n.Pos()).Line)
}

// imports returns the import path by the name that the file uses for it.
func (f file) imports() map[string]string {
	names := map[string]string{}
	for _, spec := range f.ast.Imports {
		p := strings.Trim(spec.Path.Value, `"`)
		name := path.Base(p)
		if len(name) > 1 && name[0] == 'v' && name[1] >= '0' && name[1] <= '9' {
			name = path.Base(path.Dir(p))
		}
		name = strings.TrimPrefix(name, "go-")
		if spec.Name != nil {
			name = spec.Name.Name
		}
		names[name] = p
	}
	return names
}

// selected returns the import path and the name of an expression such as
// os.Getenv, or "" if it is not one.
func (f file) selected(n ast.Node, imports map[string]string) (path, name string) {
	sel, ok := n.(*ast.SelectorExpr)
	if !ok {
		return "", ""
	}
	x, ok := sel.X.(*ast.Ident)
	if !ok {
		return "", ""
	}
	return imports[x.Name], sel.Sel.Name
}

func parse(path, text string) (file, error) {
	f := file{path: path, text: text, set: token.NewFileSet()}
	var err error
	f.ast, err = parser.ParseFile(f.set, path, text, parser.ParseComments|parser.SkipObjectResolution)
	return f, err
}

// loadFiles reads all our Go files once for all tests.
var loadFiles = sync.OnceValues(func() ([]file, error) {
	var files []file
	err := fs.WalkDir(repository, ".", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && p != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "node_modules"):
			return fs.SkipDir
		case d.IsDir() || path.Ext(p) != ".go":
			return nil
		}
		text, err := fs.ReadFile(repository, p)
		if err != nil {
			return err
		}
		f, err := parse(p, string(text))
		files = append(files, f)
		return err
	})
	return files, err
})

func mustFiles(t *testing.T) []file {
	t.Helper()
	files, err := loadFiles()
	require.NoError(t, err)
	require.Greater(t, len(files), 50, "the repository's Go files")
	return files
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
		found := false
		for _, p := range problems {
			found = found || strings.Contains(p, part)
		}
		require.True(t, found, "no problem names %q: %q", part, problems)
	}
}

func source(t *testing.T, path, text string) file {
	t.Helper()
	f, err := parse(path, text)
	require.NoError(t, err)
	return f
}
