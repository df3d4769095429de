package archtest

import (
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

// faults are the rows of the fault catalogue that this release meets. A test
// names the fault that it makes, in its own name or in a text.
var faults = strings.Fields(`
	F01 F03 F04 F05 F07 F08 F09 F10 F11 F12 F13 F15 F16 F17 F19 F20 F21 F22 F23 F24
	F25 F26 F27 F28 F33 F35 F37 F38 F39 F43 F44 F45 F48 F49 F51 F52 F53 F54 F55 F56
	F58 F62 F63 F64 F65 F66 F67 F68 F69 F70 F71 F72`)

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
		if !f.test() && f.dir() != "lockstore/storetest" || strings.HasPrefix(f.path, "internal/archtest/") {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BasicLit:
				if n.Kind == token.STRING {
					note(strings.Trim(n.Value, "`\""))
				}
			case *ast.FuncDecl:
				note(strings.TrimPrefix(n.Name.Name, "Test"))
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

func TestFaults(t *testing.T) {
	none(t, untested(mustFiles(t), faults))
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
