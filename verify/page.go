package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/lambdalock/lambdalock/internal/verifyrecord"
)

// table is what make verify prints in the end.
func table(w io.Writer, r Record) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, g := range r.Rungs {
		fmt.Fprintf(t, "%s\t%s\t%v\t%d violations, %d undecided\n", g.ID, g.Name, g.Took.Round(time.Second), g.Violations, g.Undecided)
	}
	for _, g := range r.Rungs {
		if m := matrix(g.Cells); m != nil {
			fmt.Fprintln(t, "\nhistories and operations; a dash is what cannot occur")
			for _, row := range m.rows {
				fmt.Fprintln(t, strings.Join(row, "\t"))
			}
		}
	}
	fmt.Fprintf(t, "\n%s,\non %s, in %v\n", claim(r), r.Machine, r.Took)
	return t.Flush()
}

// summary is a rung's result in a line.
func summary(g verifyrecord.Rung) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(g.Counts)) {
		parts = append(parts, fmt.Sprintf("%s: %s", name, grouped(g.Counts[name])))
	}
	if len(g.Mutants) > 0 {
		killed, live := killed(g.Mutants)
		parts = append(parts, fmt.Sprintf("planted bugs caught: %d of %d", killed, live))
	}
	return strings.Join(append(parts, fmt.Sprintf("**violations: %d, undecided: %d**", g.Violations, g.Undecided)), "; ")
}

// killed counts the planted bugs that apply, and those of them whose every variant
// was caught.
func killed(all []verifyrecord.Mutant) (dead, applicable int) {
	lived := map[string]bool{}
	for _, m := range all {
		if m.Why == "" {
			lived[m.ID] = lived[m.ID] || !m.Killed
		}
	}
	for _, alive := range lived {
		if !alive {
			dead++
		}
	}
	return dead, len(lived)
}

// claim is the line that the README shows.
func claim(r Record) string {
	sum := map[string]int64{}
	var dead, live int
	var violations, undecided int64
	faults, stores := map[string]bool{}, map[string]bool{}
	for _, g := range r.Rungs {
		violations, undecided = violations+g.Violations, undecided+g.Undecided
		for _, name := range []string{seeds, kills, stops} {
			sum[name] += g.Counts[name]
		}
		if g.ID == "L5" { // those of L4 are not on real servers
			sum[histories], sum[operations] = g.Counts[histories], g.Counts[operations]
		}
		k, l := killed(g.Mutants)
		dead, live = dead+k, live+l
		for _, c := range g.Cells {
			if c.Histories > 0 {
				faults[c.Fault], stores[c.Store] = true, true
			}
		}
	}
	return fmt.Sprintf("%s histories and %s operations on %d store set-ups under %d kinds of faults, %s simulated runs, "+
		"%s processes killed or stopped: %d violations, %d undecided; %d of %d planted bugs caught",
		grouped(sum[histories]), grouped(sum[operations]), len(stores), len(faults), grouped(sum[seeds]), grouped(sum[kills]+sum[stops]),
		violations, undecided, dead, live)
}

func grouped(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// writePage makes docs/verification.md from docs/verification.json, and the
// README's line.
func writePage() error {
	b, err := os.ReadFile(filepath.Join("..", "docs", "verification.json"))
	if err != nil {
		return err
	}
	var r Record
	if err := json.Unmarshal(b, &r); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join("..", "docs", "verification.md"), []byte(page(r)), 0o644); err != nil {
		return err
	}
	return markReadme(filepath.Join("..", "README.md"), claim(r))
}

const (
	readmeBegin = "<!-- verify -->"
	readmeEnd   = "<!-- /verify -->"
)

// markReadme puts the claim between the two marks.
func markReadme(file, claim string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(b), readmeBegin)
	_, after, ok2 := strings.Cut(rest, readmeEnd)
	if !ok || !ok2 {
		return fmt.Errorf("%s has no %s … %s", file, readmeBegin, readmeEnd)
	}
	return os.WriteFile(file, []byte(before+readmeBegin+"\n"+wrapped(claim)+".\n"+readmeEnd+after), 0o644)
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
	changed := ""
	if r.Changed {
		changed = " with changes"
	}
	fmt.Fprintf(&b, `# What was verified

Made from [verification.json](verification.json) by `+"`make verify-page`"+`. The record is
of commit %s%s, %s, on %s; it took %v.
`+"`make verify`"+` does it again, `+"`make soak TIME=2h`"+` goes on with other seeds.

%s.

| rung | what was tried | what happened | time |
| --- | --- | --- | --- |
`, r.Commit, changed, r.Date, r.Machine, r.Took, wrapped(claim(r)))
	for _, g := range r.Rungs {
		from := ""
		if g.Seed != 0 {
			from = fmt.Sprintf(", from seed %d", g.Seed)
		}
		fmt.Fprintf(&b, "| %s | %s%s | %s | %v |\n", g.ID, g.Name, from, summary(g), g.Took.Round(time.Second))
	}
	for _, g := range r.Rungs {
		if g.Servers != nil {
			fmt.Fprintf(&b, "\nThe servers of %s: %s.\n", g.ID, strings.Join(g.Servers, ", "))
		}
	}
	b.WriteString("\n" + explanation)
	for _, g := range r.Rungs {
		m := matrix(g.Cells)
		if m == nil {
			continue
		}
		b.WriteString("\n## Faults by stores\n\nHistories and operations in each cell; a dash is a cell that cannot occur, for the reason below.\n\n")
		for i, row := range m.rows {
			b.WriteString("| " + strings.Join(row, " | ") + " |\n")
			if i == 0 {
				b.WriteString(strings.Repeat("| --- ", len(row)) + "|\n")
			}
		}
		b.WriteString("\n")
		for _, reason := range m.reasons {
			b.WriteString("- " + reason + "\n")
		}
	}
	b.WriteString("\n## Controls\n\nA harness that cannot fail proves nothing: each of these runs has to show the violation, or the whole run counts as failed.\n\n| rung | what was broken | what it showed |\n| --- | --- | --- |\n")
	for _, g := range r.Rungs {
		for _, c := range g.Controls {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", g.ID, c.What, c.Saw)
		}
	}
	b.WriteString("\n## Planted bugs\n\n| | what was planted | rung | caught by |\n| --- | --- | --- | --- |\n")
	for _, g := range r.Rungs {
		for _, m := range g.Mutants {
			by := m.By
			switch {
			case m.Why != "":
				by = "does not apply: " + m.Why
			case !m.Killed:
				by = "**nothing**"
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", m.ID, m.What, m.Rung, by)
		}
	}
	b.WriteString("\n## What cannot be claimed from here\n\n")
	for _, l := range limits {
		fmt.Fprintf(&b, "- %s\n", l)
	}
	for _, g := range r.Rungs {
		if len(g.Limits) > 0 {
			fmt.Fprintf(&b, "\n%s, %s:\n\n- %s\n", g.ID, g.Name, strings.Join(g.Limits, "\n- "))
		}
	}
	b.WriteString("\n## Faults\n\n`make test` has a test for every fault of [the list](faults.md), named by its id, but for these:\n\n")
	for _, f := range verifyrecord.Untried {
		fmt.Fprintf(&b, "- %s: %s\n", f.ID, f.Why)
	}
	b.WriteString("\nIn these something stands in for the real cause:\n\n")
	for _, f := range verifyrecord.Played {
		fmt.Fprintf(&b, "- %s: %s\n", f.ID, f.Why)
	}
	return b.String()
}

const explanation = `What the rungs are, beside the gates of every change (L0: vet, staticcheck and the
like; L1: unit tests; L2: the suite that every store passes, on fakes and on real servers):

- L3 visits every state of a model with few clients. The store is the shipped reference
  store in memory; the clients are a short model of the guard's protocol.
- L4 runs seeded random schedules in virtual time, with clocks that are off, freezes,
  deaths, and a network that loses, delays and repeats. The first is the shipped guard over
  the store in memory, the others are the shipped DynamoDB store on a fake service and the
  shipped Redis store on miniredis, under clients that are a model of the guard.
- L5 records what clients of real servers were told while faults strike, and looks for an
  order that explains every answer (porcupine, with a model of a lease in real time). A
  search that took too long is undecided, and fails the run. A history in which the fault
  did not strike or nobody waited is replaced once, then fails.
- L6 is Jepsen's lock-set: real function processes add elements to lists under the lock and
  are killed, stopped, told to end or run into their timeout. The order in which the lists
  took the writes is the servers' own. A list's refusal counts as a violation when the
  holder still trusted its lease after it had come.
- L7 plants bugs in a copy of the code, one at a time, and runs the test that has to fail.
- L8 feeds generated input to everything that reads keys, entries, URLs and requests.
`

// limits hold for every rung.
var limits = []string{
	"The AWS services themselves: DynamoDB, ElastiCache and MemoryDB were not reached; DynamoDB Local, Redis and Valkey stood in.",
	"Lambda's own freeze and thaw: simulated, and approximated by stopping processes, whose monotonic clock goes on.",
	"Known weak points of dependencies: govulncheck needs its database, which was not asked.",
	"Multi-Region tables with strong consistency.",
	"Other processors and systems than those named above.",
}

// cells is the table of faults by stores, and why some of it is empty.
type cells struct {
	rows    [][]string // the first one is the heading
	reasons []string
}

func matrix(all []verifyrecord.Cell) *cells {
	if len(all) == 0 {
		return nil
	}
	m := &cells{rows: [][]string{{"fault"}}}
	column, row := map[string]int{}, map[string]int{}
	for _, c := range all {
		if column[c.Store] == 0 {
			column[c.Store] = len(m.rows[0])
			m.rows[0] = append(m.rows[0], c.Store)
		}
	}
	for _, c := range all {
		if row[c.Fault] == 0 {
			row[c.Fault] = len(m.rows)
			m.rows = append(m.rows, append([]string{c.Fault}, make([]string, len(column))...))
		}
		text := fmt.Sprintf("%d, %s", c.Histories, grouped(c.Operations))
		if c.Why != "" {
			text = "–"
			m.reasons = append(m.reasons, fmt.Sprintf("%s on %s: %s", c.Fault, c.Store, c.Why))
		}
		m.rows[row[c.Fault]][column[c.Store]] = text
	}
	return m
}
