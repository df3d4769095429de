package repotest

import (
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/verifyrecord"
)

var faultID = regexp.MustCompile(`\bF\d\d\b`)

// untested finds faults that the title of no test names. Comments do not count.
func untested(files []file, faults []string) (problems []string) {
	seen := map[string]bool{}
	for _, f := range files {
		if !f.test() && f.dir() != "lockstore/storetest" || f.dir() == "internal/repotest" {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if text, ok := n.(*ast.BasicLit); ok && text.Kind == token.STRING {
				for _, id := range faultID.FindAllString(text.Value, -1) {
					seen[id] = true
				}
			}
			return true
		})
	}
	for _, id := range faults {
		if !seen[id] {
			problems = append(problems, fmt.Sprintf("no test names %s: write a test that makes this fault, with the id in the title of a subtest", id))
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
			for _, id := range faultID.FindAllString(strings.Split(line, "|")[1], -1) {
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
	none(t, listed(read(t, "docs/faults.md"), tried(), slices.Concat(verifyrecord.Untried, verifyrecord.Played)...))
	for _, f := range verifyrecord.Played {
		require.Contains(t, tried(), f.ID, "it cannot be both untried and played")
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
	check("a_test.go", "package p\nfunc TestF01Crash() {}\nfunc TestCrash() { x(\"x F02 F03\") }", "F01")
	check("lockstore/storetest/a.go", "package p\nvar a = \"F01 F02\"", "F03")
	check("a_test.go", "package p\n// F01\nvar a = \"F011 xF02 F2 0xF03\"", "F01", "F02", "F03")
	check("guard/a.go", "package p\nvar a = \"F01\"", "F01", "F02", "F03")
}
