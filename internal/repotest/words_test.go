package repotest

import (
	"fmt"
	"go/ast"
	"io/fs"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// retired are words of ours for which the field has words, or plain English has. They
// are phrases and identifiers, not bare common words: money is withdrawn, a channel is
// closed. The case of letters does not count.
var retired = []struct{ pattern, use string }{
	{`\b(rungs?|ladder|L[0-8])\b`, "the kind of verification: search, simulation, histories, processes, mutants, fuzz"},
	{`\block-?set\b`, "processes"},
	{`\bverify-page\b`, "verify-report"},
	{`\bit-aws\b`, "test-aws"},
	{`\b(archtest|exampletest)\b`, "repotest, examples"},
	{`\b(ghosts?|haunted|late cop(y|ies))\b`, "late duplicate"},
	{`\bwithdraw(s|n|al|als|ing)? ((the|a|an|its|that|each) )?(locks?|leases?|owners?|acquires?|requests? of an acquire)\b`, "abandon"},
	{`\b(DelayedReleaser|CooldownReleaser|Guard\.Closing)\b|\b(keys?|locks?) (is|are|was|were|be|been|stays?) closed\b`, "cooldown, Keeper, Guard.WithCooldown"},
	{`\b(loans?|lent)\b`, "a long-lived lease, LeaseRequest"},
	{`\b(doubts|(a|the|no|any|this) doubt)\b`, "ambiguous, unknown; a key is in doubt"},
	{`\b(troubleTime|leastCall|afterEnd|askAnew|giveBack)\b`, "storeRetryBudget, minCallTimeout, ttlSlack, retryAsNewOwner, releaseAfterWork"},
	{`\b(clerks?|desks?|trials?|bent|shel(f|ves))\b`, "the accounts tool, target, test run or attempt, buggyStore, store"},
	{`\b(booked|booking|books)\b`, "withdrawn, charged; the set of accounts is a ledger"},
	{`\bpackage (apart|holders|record)\b|\btype (half|place|screen)\b`, "isolate, phase, leasesim, target, verifyrecord, printer"},
	{`\bin plain sight\b`, "explicitly, in the code"},
}

// notWords are the files that are not searched: the past, and this list.
var notWords = []string{"CHANGELOG.md", "internal/repotest/words_test.go"}

// rule is a line of retired. Each match has one of parts, in lower case. To look for these
// takes a fraction of the time that the expression takes.
type rule struct {
	*regexp.Regexp
	parts []string
	use   string
}

var rules = sync.OnceValue(func() (all []rule) {
	for _, r := range retired {
		parsed, err := syntax.Parse(r.pattern, syntax.Perl)
		if err != nil {
			panic(err)
		}
		all = append(all, rule{regexp.MustCompile("(?i)" + r.pattern), parts(parsed), r.use})
	}
	return all
})

// parts are texts, in lower case, of which each match has at least one.
func parts(re *syntax.Regexp) (all []string) {
	switch re.Op {
	case syntax.OpLiteral:
		return []string{strings.ToLower(string(re.Rune))}
	case syntax.OpCapture:
		return parts(re.Sub[0])
	case syntax.OpAlternate:
		for _, sub := range re.Sub {
			one := parts(sub)
			if slices.Contains(one, "") {
				return []string{""}
			}
			all = append(all, one...)
		}
		return all
	case syntax.OpConcat:
		shortest := func(parts []string) int {
			return len(slices.MinFunc(parts, func(a, b string) int { return len(a) - len(b) }))
		}
		all = []string{""}
		for _, sub := range re.Sub {
			if one := parts(sub); shortest(one) > shortest(all) {
				all = one
			}
		}
		return all
	}
	return []string{""}
}

// retiredWords finds retired words in one file.
func retiredWords(path, text string) (problems []string) {
	lower := strings.ToLower(text)
	for _, r := range rules() {
		if !slices.ContainsFunc(r.parts, func(part string) bool { return strings.Contains(lower, part) }) {
			continue
		}
		for _, at := range r.FindAllStringIndex(text, -1) {
			problems = append(problems, fmt.Sprintf("%s:%d: %q is retired; use: %s", path, 1+strings.Count(text[:at[0]], "\n"), text[at[0]:at[1]], r.use))
		}
	}
	return problems
}

var idInName = regexp.MustCompile(`(^|[a-z_])[FM]\d\d`)

// functionsNamedByID finds functions whose name has an id: the title of a subtest is
// the place for it.
func functionsNamedByID(files []file) (problems []string) {
	for _, f := range files {
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && idInName.MatchString(fn.Name.Name) {
				problems = append(problems, fmt.Sprintf("%s: %s is named by an id; name what it does, and put the id into the title of a subtest", f.at(fn), fn.Name.Name))
			}
		}
	}
	return problems
}

func TestWords(t *testing.T) {
	searched := 0
	require.NoError(t, walk(func(p string) error {
		text, err := fs.ReadFile(repository, p)
		if err != nil || !utf8.Valid(text) || matchesAny(notWords, p) || strings.HasSuffix(p, "go.sum") {
			return err
		}
		searched++
		none(t, retiredWords(p, string(text)))
		return nil
	}))
	require.Greater(t, searched, 300)
	none(t, functionsNamedByID(mustFiles(t)))
}

func TestWordRulesCatch(t *testing.T) {
	caught(t, retiredWords("a.md", "The ladder\nhas a Rung.\nL4 and ghosts"), `a.md:1: "ladder"`, `a.md:2: "Rung"`, `a.md:3: "L4"`, `"ghosts" is retired; use: late duplicate`)
	caught(t, retiredWords("a.md", "It withdraws the lock, withdrawn owners"), `"withdraws the lock"`, `"withdrawn owners"`)
	caught(t, retiredWords("a.md", "withdraw money, L42, wrung, functions/withdraw"))
	for _, r := range rules() {
		require.NotEmpty(t, r.parts, r)
		require.NotContains(t, r.parts, "", r)
	}
	const functions = "package a\nfunc TestF07Frozen() {}\nfunc frozenM12() {}\nfunc toUTF16() {}\nfunc TestFrozen() { t.Run(\"F07 frozen\", f) }"
	caught(t, functionsNamedByID([]file{source(t, "internal/a/a_test.go", functions)}), "a_test.go:2: TestF07Frozen", "a_test.go:3: frozenM12")
}
