package repotest

import (
	"fmt"
	"go/ast"
	"go/token"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/lambdalock/lambdalock/internal/verifyrecord"
)

var faultID = regexp.MustCompile(`^F\d\d(\D|$)`)

// untested finds faults that no test names. Comments do not count.
func untested(files []file, faults []string) (problems []string) {
	seen := map[string]bool{}
	note := func(text string) {
		for _, word := range strings.FieldsFunc(text, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
			if faultID.MatchString(word) {
				seen[word[:3]] = true
			}
		}
	}
	for _, f := range files {
		if !f.test() && f.dir() != "lockstore/storetest" || strings.HasPrefix(f.path, "internal/repotest/") {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BasicLit:
				if n.Kind == token.STRING {
					note(strings.Trim(n.Value, "`\""))
				}
			case *ast.FuncDecl:
				note(strings.TrimPrefix(strings.TrimPrefix(n.Name.Name, "Test"), "test"))
			}
			return true
		})
	}
	for _, id := range faults {
		if !seen[id] {
			problems = append(problems, fmt.Sprintf("no test names %s: write one that makes this fault, with the id in its name", id))
		}
	}
	return problems
}

// tried are the rows that a test has to make.
func tried() []string {
	return slices.DeleteFunc(verifyrecord.Faults(), func(id string) bool {
		return slices.ContainsFunc(verifyrecord.Untried, func(f verifyrecord.Fault) bool { return f.ID == id })
	})
}

func TestFaults(t *testing.T) {
	none(t, untested(mustFiles(t), tried()))
}

var rowID = regexp.MustCompile(`F\d\d`)

// listed compares the catalogue that people read with the rows that are tried, and
// with the reasons for the others.
func listed(markdown string, tried []string, others ...verifyrecord.Fault) (problems []string) {
	catalogue, rest, ok := strings.Cut(markdown, "\n## ")
	if !ok {
		return []string{"docs/faults.md has no chapter on what is not tried"}
	}
	rows := map[string]bool{}
	for line := range strings.Lines(catalogue) {
		if strings.HasPrefix(line, "| F") {
			for _, id := range rowID.FindAllString(strings.Split(line, "|")[1], -1) {
				rows[id] = true
				if !slices.Contains(tried, id) {
					problems = append(problems, fmt.Sprintf("docs/faults.md has the row %s, which no test makes", id))
				}
			}
		}
	}
	for _, id := range tried {
		if !rows[id] {
			problems = append(problems, "docs/faults.md has no row "+id)
		}
	}
	for _, f := range others {
		if row := fmt.Sprintf("| %s | %s |\n", f.ID, f.Why); !strings.Contains(rest, row) {
			problems = append(problems, fmt.Sprintf("docs/faults.md lacks the row %q of internal/verifyrecord", row))
		}
	}
	return problems
}

func TestFaultsAreListed(t *testing.T) {
	text, err := fs.ReadFile(repository, "docs/faults.md")
	if err != nil {
		t.Fatal(err)
	}
	none(t, listed(string(text), tried(), append(slices.Clone(verifyrecord.Untried), verifyrecord.Played...)...))
	for _, f := range verifyrecord.Played {
		if !slices.Contains(tried(), f.ID) {
			t.Errorf("%s is both untried and played", f.ID)
		}
	}
}

func TestFaultsAreListedCatch(t *testing.T) {
	const page = "| F01, F02 | a | b |\n| F03 | a F09 | b |\n\n## Not tried\n| F04 | why |\n"
	caught(t, listed(page, []string{"F01", "F02", "F03"}, verifyrecord.Fault{ID: "F04", Why: "why"}))
	caught(t, listed(page, []string{"F01", "F03", "F05"}, verifyrecord.Fault{ID: "F04", Why: "since"}), "row F02, which", "no row F05", "F04 | since")
	caught(t, listed("| F01 | a | b |\n", nil), "no chapter")
}

func TestFaultsCatch(t *testing.T) {
	ids := []string{"F01", "F02", "F03"}
	check := func(path, text string, parts ...string) {
		t.Helper()
		caught(t, untested([]file{source(t, path, text)}, ids), parts...)
	}
	check("a_test.go", "package p\nvar a = []string{`F01 a crash`, \"after F02,F03: b\"}")
	check("a_test.go", "package p\nfunc TestF01Crash() {}\nfunc Test_F02() { x(\"x F03\") }")
	check("lockstore/storetest/a.go", "package p\nvar a = \"F01 F02\"", "F03")
	check("a_test.go", "package p\n// F01\nvar a = \"F011 xF02 F2 0xF03\"", "F01", "F02", "F03")
	check("guard/a.go", "package p\nvar a = \"F01\"", "F01", "F02", "F03")
}
