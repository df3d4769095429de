package repotest

import (
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"testing"
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

// faults is how many rows the catalogue has at least: a row may get another text, but
// never goes.
const faults = 79

// catalogue reads docs/faults.md: the faults that a test has to make, and what is wrong
// with the tables.
func catalogue(markdown string) (tried, problems []string) {
	tables := strings.Split(markdown, "\n| --- ")
	if len(tables) != 3 {
		return nil, []string{"want two tables: what is tried, and what is made instead of the real cause"}
	}
	var rows [2][]string
	for i, table := range tables[1:] {
		for line := range strings.Lines(table) {
			if strings.HasPrefix(line, "| F") {
				rows[i] = append(rows[i], faultID.FindAllString(strings.Split(line, "|")[1], -1)...)
			}
		}
	}
	tried, instead := rows[0], rows[1]
	all := slices.Sorted(slices.Values(tried))
	for i := range max(faults, len(all)) {
		if id := fmt.Sprintf("F%02d", i+1); i >= len(all) || all[i] != id {
			problems = append(problems, "docs/faults.md has no row "+id+", or an id twice")
			break
		}
	}
	for _, id := range instead {
		if !slices.Contains(tried, id) {
			problems = append(problems, id+" is made by something else than its cause, but is not in the first table")
		}
	}
	return tried, problems
}

func TestFaults(t *testing.T) {
	tried, problems := catalogue(read(t, "docs/faults.md"))
	none(t, problems)
	none(t, untested(mustFiles(t), tried))
}

func TestCatalogueCatch(t *testing.T) {
	var rows []string
	for i := range faults {
		rows = append(rows, fmt.Sprintf("| F%02d | a F90 | b |\n", i+1))
	}
	page := func(tried []string, instead string) string {
		return "| |\n| --- |\n" + strings.Join(tried, "") + "\n| |\n| --- |\n| " + instead + " | a |\n"
	}
	check := func(markdown string, parts ...string) {
		t.Helper()
		_, problems := catalogue(markdown)
		caught(t, problems, parts...)
	}
	check(page(rows, "F03"))
	check(page(rows[:50], "F03"), "no row F51")
	check(page(rows, "F80"), "F80 is made by something else")
	check("| F01 | a | b |\n", "two tables")
}

func TestFaultsCatch(t *testing.T) {
	ids := []string{"F01", "F02", "F03"}
	check := func(path, text string, parts ...string) {
		t.Helper()
		caught(t, untested([]file{source(t, path, text)}, ids), parts...)
	}
	check("a_test.go", "package p\nvar a = []string{`F01 a crash`, \"after F02,F03: b\"}")
	check("lockstore/storetest/a.go", "package p\nvar a = \"F01 F02\"", "F03")
	check("a_test.go", "package p\n// F01\nvar a = \"F011 xF02 F2 0xF03\"", "F01", "F02", "F03")
}
