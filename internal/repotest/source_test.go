package repotest

import (
	"fmt"
	"go/ast"
	"regexp"
	"slices"
	"testing"
)

// mayReadEnv are the folders that read the environment, besides tests.
var mayReadEnv = []string{"boot", "lambdatest/...", "internal/...", "cmd/...", "bench/..."}

// uses finds where the chosen files name something of a package, such as os.Getenv.
func uses(files []file, chosen func(file) bool, what *regexp.Regexp, advice string) (problems []string) {
	for _, f := range files {
		imports := f.imports()
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if p, name := f.selected(n, imports); chosen(f) && what.MatchString(p+"."+name) {
				problems = append(problems, fmt.Sprintf("%s: %s.%s: %s", f.at(n), p, name, advice))
			}
			return true
		})
	}
	return problems
}

// envReaders finds code that reads the environment where it is not to.
func envReaders(files []file) []string {
	return uses(files, func(f file) bool { return !f.test() && !matchesAny(mayReadEnv, f.dir()) },
		regexp.MustCompile(`^(os|syscall)\.(Getenv|LookupEnv|Environ|ExpandEnv)$`), "only boot reads the environment; take a getenv func(string) string")
}

// sleeps finds tests that sleep.
func sleeps(files []file) []string {
	return uses(files, file.test, regexp.MustCompile(`^time\.Sleep$`), "use testing/synctest, or wait for the thing itself")
}

// public are the packages that users read.
var public = []string{"lockstore", "lockstore/*", "lockstore/*store/*", "guard", "guard/*", "boot", "lambdatest"}

// undocumented finds packages without a package comment, and exported names of
// the public packages without a comment. Methods named Error and Unwrap need none.
func undocumented(files []file) (problems []string) {
	described := map[string]bool{}
	for _, f := range files {
		if f.test() {
			continue
		}
		described[f.dir()] = described[f.dir()] || f.ast.Doc != nil
		if !matchesAny(public, f.dir()) || f.ast.Name.Name == "main" {
			continue
		}
		check := func(name *ast.Ident, docs ...*ast.CommentGroup) {
			if name.IsExported() && !slices.ContainsFunc(docs, func(d *ast.CommentGroup) bool { return d.Text() != "" }) {
				problems = append(problems, fmt.Sprintf("%s: %s has no comment: say what it promises", f.at(name), name.Name))
			}
		}
		for _, d := range f.ast.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if exportedReceiver(d) && !(d.Recv != nil && slices.Contains([]string{"Error", "Unwrap"}, d.Name.Name)) {
					check(d.Name, d.Doc)
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					switch s := s.(type) {
					case *ast.TypeSpec:
						check(s.Name, d.Doc, s.Doc)
					case *ast.ValueSpec:
						for _, name := range s.Names {
							check(name, d.Doc, s.Doc, s.Comment)
						}
					}
				}
			}
		}
	}
	for dir, ok := range described {
		if !ok {
			problems = append(problems, fmt.Sprintf("%s has no package comment: begin one file with it", dir))
		}
	}
	return problems
}

func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	exported := false
	ast.Inspect(d.Recv.List[0].Type, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && !exported {
			exported = id.IsExported()
			return false
		}
		return true
	})
	return exported
}

func TestSource(t *testing.T) {
	files := mustFiles(t)
	t.Run("only boot reads the environment", func(t *testing.T) { none(t, envReaders(files)) })
	t.Run("no test sleeps", func(t *testing.T) { none(t, sleeps(files)) })
	t.Run("what users see is documented", func(t *testing.T) { none(t, undocumented(files)) })
}
