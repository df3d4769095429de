package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/lambdalock/lambdalock/internal/verifyrecord"
)

// kinds says what each kind of verification is, in the page's order.
var kinds = []struct{ kind, what string }{
	{verifyrecord.Induction, "takes every step of the rules from every state of a key that satisfies their invariant, whether somebody can reach it or not: all requests, by clocks that are right, early, late or set back, and by guesses. The next state has to satisfy the invariant, nobody may lose what it trusts, and the answer has to be true. Clients and their history do not occur in this, so it holds for any number of them. " +
		"The states are bounded or random. A [proof](../internal/rules/testdata/proof/proof.dfy) has no bound: it is about a model of the rules, and the model has to make the same steps as the rules from random states."},
	{verifyrecord.Simulation, "runs random schedules from seeds, in virtual time. Clocks are off, processes freeze and die, and the network loses, delays and repeats requests. " +
		"The shipped guard and the shipped stores run in them, over fakes."},
	{verifyrecord.Comparison, "sends random requests to a store and asks the rule book: each answer and each state have to be the same. A sequence has 20 to 40 requests of several owners, with repeats, late duplicates and lapses of time. " +
		"In virtual time some replies are lost, and where a store has several processes, two take turns."},
	{verifyrecord.Histories, "records what the clients of the store in memory and of real servers were told during faults. A sweep over the history then looks at who could trust a lease at the same time, at seats and fences, " +
		"at what a resource accepted, at refusals of a key that nobody had, and at results. In the end every key has to become free. Whether each answer is the one of the rule book is the comparison's question."},
	{verifyrecord.Processes, "adds elements to lists under the lock, as in Jepsen's set test. Processes are killed, stopped, told to end, or run into their timeout. No acknowledged element may be missing."},
	{verifyrecord.Mutants, "plants bugs in a copy of the code, one at a time. The test that claims a bug has to fail and to print the words that name the bug."},
	{verifyrecord.Fuzz, "generates input for everything that reads keys, entries, URLs and requests."},
}

// headings are the counts that the page shows. The record has all.
var headings = []string{states, steps, lemmas, seeds, sequences, requests, histories, operations, kills, stops, "functions", "inputs"}

// limits hold for every part.
var limits = []string{
	"DynamoDB, ElastiCache and MemoryDB themselves were not reached. DynamoDB Local, Redis and Valkey stood in for them.",
	"Lambda's own freeze is simulated, or replaced by stopped processes, whose monotonic clock goes on.",
	"Known weak points of dependencies were not looked up: govulncheck needs its database.",
	"Multi-Region tables with strong consistency, other processors and other systems were not tried.",
}

// count is the text of a number and what it counts.
func count(n int64, what string) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s + " " + what
}

// size says in a few counts how much a part did.
func size(r verifyrecord.Result) string {
	var all []string
	for _, name := range headings {
		if n := r.Counts[name]; n > 0 {
			all = append(all, count(n, name))
		}
	}
	if caught, planted := killed(r.Mutants); planted > 0 {
		all = append(all, fmt.Sprintf("%d of %d caught", caught, planted))
	}
	return strings.Join(all, ", ")
}

// killed counts the planted bugs that apply, and those of which every variant was
// caught.
func killed(all []verifyrecord.Mutant) (caught, planted int64) {
	variants, missed := map[string]bool{}, map[string]bool{}
	for _, m := range all {
		if m.Why == "" {
			variants[m.ID] = true
		}
		if m.Why == "" && !m.Killed {
			missed[m.ID] = true
		}
	}
	return int64(len(variants) - len(missed)), int64(len(variants))
}

// total has the sums over all parts.
type total struct {
	verifyrecord.Result                 // counts, violations, cells that were run, controls, mutants
	faults, stores      map[string]bool // of the cells
	empty               int             // cells that cannot occur
}

func sum(r Record) total {
	s := total{faults: map[string]bool{}, stores: map[string]bool{}}
	s.Counts = map[string]int64{}
	for _, p := range r.Results {
		s.Violations += p.Violations
		s.Controls, s.Mutants = append(s.Controls, p.Controls...), append(s.Mutants, p.Mutants...)
		s.Servers, s.Limits = append(s.Servers, p.Servers...), append(s.Limits, p.Limits...)
		for name, n := range p.Counts {
			if name != operations || p.Kind == verifyrecord.Histories { // on real servers
				s.Counts[name] += n
			}
		}
		for _, c := range p.Cells {
			if c.Why != "" {
				s.empty++
				continue
			}
			s.Cells = append(s.Cells, c)
			s.faults[c.Fault], s.stores[c.Store] = true, true
		}
	}
	return s
}

// brief is the sentence that the README shows.
func brief(r Record) string {
	s := sum(r)
	caught, planted := killed(s.Mutants)
	return fmt.Sprintf("The last `make verify` (%s) found %d violations in %s and %s, and caught %d of %d planted bugs.",
		r.Date, s.Violations, count(s.Counts[operations], "operations"), count(s.Counts[seeds], "simulations"), caught, planted)
}

// claim is the first sentence of the page.
func claim(r Record) string {
	s := sum(r)
	caught, planted := killed(s.Mutants)
	compared := ""
	if n := s.Counts[sequences]; n > 0 {
		compared = fmt.Sprintf("compared %s of %s with the rule book, ", count(n, sequences), count(s.Counts[requests], requests))
	}
	return fmt.Sprintf("The last `make verify` (%s) made %s with %s on %d set-ups of stores (%s) under %d kinds of faults, %sran %s, and sent %s to processes of a function: "+
		"it found %d violations, and caught %d of %d planted bugs.",
		r.Date, count(s.Counts[histories], "histories"), count(s.Counts[operations], "operations"), len(s.stores), strings.Join(slices.Sorted(maps.Keys(s.stores)), ", "), len(s.faults),
		compared, count(s.Counts[seeds], "simulations"), count(s.Counts[kills]+s.Counts[stops], "SIGKILL or SIGSTOP signals"), s.Violations, caught, planted)
}

// writeReport makes docs/verification.md and the README's sentence.
func writeReport(r Record) error {
	if err := os.WriteFile(filepath.Join("..", "docs", "verification.md"), []byte(page(r)), 0o644); err != nil {
		return err
	}
	return markReadme(filepath.Join("..", "README.md"), brief(r))
}

const (
	readmeBegin = "<!-- verify -->"
	readmeEnd   = "<!-- /verify -->"
)

// markReadme puts the sentence between the two marks.
func markReadme(file, sentence string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(b), readmeBegin)
	_, after, ok2 := strings.Cut(rest, readmeEnd)
	if !ok || !ok2 {
		return fmt.Errorf("%s lacks %s or %s", file, readmeBegin, readmeEnd)
	}
	return os.WriteFile(file, []byte(before+readmeBegin+"\n"+sentence+"\n"+readmeEnd+after), 0o644)
}

func wrapped(text string) string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(line)+1+len(word) > 86 {
			lines, line = append(lines, line), ""
		}
		line = strings.TrimSpace(line + " " + word)
	}
	return strings.Join(append(lines, line), "\n")
}

// page is docs/verification.md.
func page(r Record) string {
	var b strings.Builder
	s := sum(r)
	changed := ""
	if r.Changed {
		changed = ", with changes"
	}
	fmt.Fprintf(&b, `# What was verified

%s

Commit %s%s, on %s, in %v. `+"`make verify`"+` does it again,
and its record, with every count, control and planted bug, is then build/verify/record.json. `+"`make soak TIME=2h`"+` continues with new seeds.

| kind | what was tried | how much | time |
| --- | --- | --- | --- |
`, wrapped(claim(r)), r.Commit, changed, r.Machine, r.Took)
	for _, p := range r.Results {
		fmt.Fprintf(&b, "| %s | %s | %s | %v |\n", p.Kind, p.Name, size(p), p.Took.Round(time.Second))
	}
	b.WriteString("\n")
	for _, k := range kinds {
		if !slices.ContainsFunc(r.Results, func(p verifyrecord.Result) bool { return p.Kind == k.kind }) {
			continue
		}
		fmt.Fprintf(&b, "- **%s** %s\n", k.kind, k.what)
	}
	fmt.Fprintf(&b, `
## How far it goes

- Servers: %s.
- Faults in the histories: %s. Each was made on each of %d stores, except where it cannot occur: %d cells were run, %d are empty.
- Controls: %d runs in which something is broken on purpose. Each has to show a violation, or the whole run fails.
- [Faults](faults.md) lists what the tests of every change do, and what stands in for a cause that one machine cannot have.

## What cannot be claimed

`, strings.Join(s.Servers, ", "), strings.Join(slices.Sorted(maps.Keys(s.faults)), "; "), len(s.stores), len(s.Cells), s.empty, len(s.Controls))
	for _, l := range slices.Concat(limits, s.Limits) {
		fmt.Fprintf(&b, "- %s\n", l)
	}
	return b.String()
}
