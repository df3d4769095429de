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
	{verifyrecord.Induction, "From every small state of a key, reachable or not, and from random ones, each step of the rules keeps the invariant, ends no lease that somebody trusts, and answers truly. " +
		"A [proof](../internal/lib/rules/testdata/proof/proof.dfy) without bounds covers a model. From random states this model makes the same steps as the rules."},
	{verifyrecord.Simulation, "Random schedules in virtual time of the shipped guard and the shipped stores, over fakes: clocks are off, processes freeze and die, the network loses, delays and repeats."},
	{verifyrecord.Comparison, "Random requests to a store and to the rule book: each answer and each state are the same. Some replies are lost, and two processes take turns where a store has several."},
	{verifyrecord.Histories, "Shipped guards on real servers during faults. A checker looks at seats, fences, results, refusals of a free key, and who could trust a lease at the same time. In the end each key becomes free."},
	{verifyrecord.Processes, "Function processes that add elements to lists under the lock, as in Jepsen's set test, and are killed, stopped, told to end, or run into their timeout. No acknowledged element is missing. " +
		"Others get many events for one key, and a run does the work of those before it: the last number is that of all events."},
	{verifyrecord.Mutants, "Bugs that are planted, one at a time. The test for a bug fails, with the words that name it."},
	{verifyrecord.Fuzz, "Generated input for all that reads keys, entries, URLs and requests."},
}

// headings are the counts that the page shows. The record has all.
var headings = []string{states, steps, lemmas, seeds, sequences, pairs, requests, histories, operations, kills, stops, covered, "functions", "inputs"}

// limits hold for every part.
var limits = []string{
	"DynamoDB, ElastiCache and MemoryDB themselves were not reached. DynamoDB Local, Redis and Valkey stood in for them.",
	"Lambda's own freeze is simulated, or replaced by stopped processes, whose monotonic clock goes on.",
	"Known vulnerabilities of dependencies were not looked up: govulncheck needs its database.",
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

// total has the sums over some parts.
type total struct {
	verifyrecord.Result
	caught, empty  int             // planted bugs; cells that cannot occur
	faults, stores map[string]bool // of the other cells
}

func sum(results []verifyrecord.Result) total {
	s := total{faults: map[string]bool{}, stores: map[string]bool{}}
	s.Counts = map[string]int64{}
	for _, p := range results {
		s.Violations, s.Took = s.Violations+p.Violations, s.Took+p.Took
		s.Controls, s.Mutants = append(s.Controls, p.Controls...), append(s.Mutants, p.Mutants...)
		s.Servers, s.Limits = append(s.Servers, p.Servers...), append(s.Limits, p.Limits...)
		for name, n := range p.Counts {
			s.Counts[name] += n
		}
		for _, m := range p.Mutants {
			if m.Killed {
				s.caught++
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

// size says in a few counts how much the parts did.
func (s total) size() string {
	var all []string
	for _, name := range headings {
		if n := s.Counts[name]; n > 0 {
			all = append(all, count(n, name))
		}
	}
	if len(s.Mutants) > 0 {
		all = append(all, fmt.Sprintf("%d of %d caught", s.caught, len(s.Mutants)))
	}
	return strings.Join(all, ", ")
}

// of are the results of a kind.
func (r Record) of(kind string) []verifyrecord.Result {
	return slices.DeleteFunc(slices.Clone(r.Results), func(p verifyrecord.Result) bool { return p.Kind != kind })
}

// brief is the sentence that the README shows, and the first of the page. Its operations are those on real servers.
func brief(r Record) string {
	s := sum(r.Results)
	return fmt.Sprintf("The last `make verify` (%s) found %d violations in %s and %s, and caught %d of %d planted bugs.",
		r.Date, s.Violations, count(sum(r.of(verifyrecord.Histories)).Counts[operations], "operations"), count(sum(r.of(verifyrecord.Simulation)).Counts[seeds], "simulations"), s.caught, len(s.Mutants))
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

// page is docs/verification.md: what was tried, how much, and what it does not prove.
func page(r Record) string {
	var b strings.Builder
	fmt.Fprintf(&b, `# What was verified

%s
Commit %s, on %s, in %v. `+"`make verify`"+` does it again,
and writes all parts, counts, controls and planted bugs into build/verify/record.json. `+"`make soak TIME=2h`"+` takes new seeds.

| kind | what was tried | how much | time (parts overlap) |
| --- | --- | --- | --- |
`, brief(r), r.Commit, r.Machine, r.Took)
	for _, k := range kinds {
		if results := r.of(k.kind); len(results) > 0 {
			s := sum(results)
			fmt.Fprintf(&b, "| %s | %s | %s | %v |\n", k.kind, k.what, s.size(), s.Took.Round(time.Second))
		}
	}
	s := sum(r.Results)
	fmt.Fprintf(&b, `
- Servers: %s.
- Faults in the histories: %s. Each was made on each of %d stores (%s), except where it cannot occur: %d pairs were run, %d are empty.
- Controls: %d runs in which something is broken on purpose. Each has to show a violation, or the whole run fails.
- [Faults](../verify/faults.md) lists the faults that each change is tested with, and substitutes for causes that one machine lacks.

## What carries each promise

The promises are those of [Guarantees](guarantees.md).

| promise | shown by | assumed |
| --- | --- | --- |
| P1 | proof; induction: sentences 1 to 3 of the [invariant](../internal/lib/rules/invariant.go), and fences grow; comparison; histories | what a service keeps over failovers |
| P2 | proof; induction: no lease ends while it is trusted; simulation; processes | clocks run at the same rate |
| P3 | proof; induction: fences grow; processes | the data compares the fence in the write |
| P4 | induction: nobody is refused whose turn has come; simulation; processes | a waiter asks again within a second |
| P5 | induction: answers are true, also if the time is a guess; comparison with lost replies; simulation | |
| P6 | induction: no place moves, nobody is early; comparison | |
| P7 | simulation with events that are sent again and delivered twice; induction: a covering run has not begun; comparison; processes | the source sends each delivery again |

## What it does not prove

`, strings.Join(s.Servers, ", "), strings.Join(slices.Sorted(maps.Keys(s.faults)), "; "), len(s.stores), strings.Join(slices.Sorted(maps.Keys(s.stores)), ", "), len(s.Cells), s.empty, len(s.Controls))
	for _, l := range slices.Concat(limits, s.Limits) {
		fmt.Fprintf(&b, "- %s\n", l)
	}
	return b.String()
}
