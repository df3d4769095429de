package repotest

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	faultID = regexp.MustCompile(`\bF\d\d\b`)
	comment = regexp.MustCompile(`(?m)(^|\s)//.*`)
)

// faults is how many rows the catalogue has at least: a row may get another text, but
// never goes.
const faults = 79

// TestFaults: the title of a test names each fault of verify/faults.md. Comments do not count.
func TestFaults(t *testing.T) {
	tables := strings.Split(read(t, "verify/faults.md"), "\n| --- ")
	require.Len(t, tables, 3, "want two tables: what is tried, and what is made instead of the real cause")
	var rows [2][]string
	for i, table := range tables[1:] {
		for line := range strings.Lines(table) {
			if strings.HasPrefix(line, "| F") {
				rows[i] = append(rows[i], faultID.FindAllString(strings.Split(line, "|")[1], -1)...)
			}
		}
	}
	tried, instead := slices.Sorted(slices.Values(rows[0])), rows[1]
	require.GreaterOrEqual(t, len(tried), faults)
	named := map[string]bool{}
	for name, text := range goFiles(t) {
		if isTest(name) && !strings.HasPrefix(name, "internal/repotest/") {
			for _, id := range faultID.FindAllString(strings.ReplaceAll(comment.ReplaceAllString(text, ""), "_", " "), -1) {
				named[id] = true
			}
		}
	}
	for i, id := range tried {
		require.Equal(t, fmt.Sprintf("F%02d", i+1), id, "verify/faults.md has no row with this id, or has it twice")
		assert.True(t, named[id], "no test names %s: write a test that makes this fault, with the id in the title of a subtest", id)
	}
	for _, id := range instead {
		assert.Contains(t, tried, id, "it is made by something else than its cause, but is not in the first table")
	}
}

// isTest says whether a file has tests, or the cases of the suite that stores share.
func isTest(name string) bool {
	return strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "lockstore/storetest/")
}

// mayReadEnv are the folders that read the environment, besides tests.
var mayReadEnv = []string{"boot/", "lambdatest/", "internal/", "cmd/", "bench/", "verify/"}

// What only boot does, and what no test does.
func TestForbiddenCalls(t *testing.T) {
	env, sleep := regexp.MustCompile(`\b(os|syscall)\.(Getenv|LookupEnv|Environ|ExpandEnv)\b`), regexp.MustCompile(`\btime\.Sleep\(`)
	for name, text := range goFiles(t) {
		if strings.HasSuffix(name, "_test.go") {
			assert.NotRegexp(t, sleep, text, "%s: use testing/synctest, or wait for the thing itself", name)
		} else if !slices.ContainsFunc(mayReadEnv, func(folder string) bool { return strings.HasPrefix(name, folder) }) {
			assert.NotRegexp(t, env, text, "%s: only boot reads the environment; take a getenv func(string) string", name)
		}
	}
}
