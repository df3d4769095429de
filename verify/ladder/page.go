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

	"github.com/lambdalock/lambdalock/internal/record"
)

// table is what make verify prints in the end.
func table(w io.Writer, r Record) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, g := range r.Rungs {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", g.ID, g.Name, summary(g), g.Took.Round(time.Second))
	}
	fmt.Fprintf(t, "\n%s, on %s, in %v\n", claim(r), r.Machine, r.Took)
	return t.Flush()
}

// summary is a rung's result in a line.
func summary(g record.Rung) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(g.Counts)) {
		parts = append(parts, fmt.Sprintf("%s %s", grouped(g.Counts[name]), name))
	}
	if n := len(g.Mutants); n > 0 {
		killed, live := killed(g.Mutants)
		parts = append(parts, fmt.Sprintf("%d of %d planted bugs caught", killed, live))
	}
	violations, undecided, histories, operations := g.Violations, g.Undecided, int64(0), int64(0)
	for _, c := range g.Cells {
		violations += c.Violations
		undecided += c.Undecided
		histories += c.Histories
		operations += c.Operations
	}
	if histories > 0 {
		parts = append(parts, fmt.Sprintf("%s histories, %s operations", grouped(histories), grouped(operations)))
	}
	return strings.Join(append(parts, fmt.Sprintf("%d violations, %d undecided", violations, undecided)), ", ")
}

func killed(all []record.Mutant) (dead, applicable int) {
	for _, m := range all {
		if m.Why == "" {
			applicable++
		}
		if m.Killed {
			dead++
		}
	}
	return dead, applicable
}

// claim is the line that the README shows.
func claim(r Record) string {
	var histories, operations, seeds, dead, live, stops, violations, undecided int64
	faults, stores := map[string]bool{}, map[string]bool{}
	for _, g := range r.Rungs {
		violations, undecided = violations+g.Violations, undecided+g.Undecided
		if g.ID == "L4" {
			seeds += g.Counts["seeds"]
		}
		stops += g.Counts["kills"] + g.Counts["stops"]
		k, l := killed(g.Mutants)
		dead, live = dead+int64(k), live+int64(l)
		for _, c := range g.Cells {
			violations, undecided = violations+c.Violations, undecided+c.Undecided
			histories, operations = histories+c.Histories, operations+c.Operations
			if c.Histories > 0 {
				faults[c.Fault], stores[c.Store] = true, true
			}
		}
	}
	return fmt.Sprintf("%s histories and %s operations on %d store set-ups under %d kinds of faults, %s simulated runs, "+
		"%s processes killed or stopped: %d violations, %d undecided; %d of %d planted bugs caught",
		grouped(histories), grouped(operations), len(stores), len(faults), grouped(seeds), grouped(stops), violations, undecided, dead, live)
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
of commit %s%s, %s, on %s; it took %v. `+"`make verify`"+` does it again, `+"`make soak TIME=2h`"+`
goes on with other seeds.

%s.

| rung | what was tried | what happened | time |
| --- | --- | --- | --- |
`, r.Commit, changed, r.Date, r.Machine, r.Took, wrapped(claim(r)))
	for _, g := range r.Rungs {
		fmt.Fprintf(&b, "| %s | %s | %s | %v |\n", g.ID, g.Name, summary(g), g.Took.Round(time.Second))
	}
	for _, g := range r.Rungs {
		matrix(&b, g.Cells)
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
	for _, g := range r.Rungs {
		for _, l := range g.Limits {
			fmt.Fprintf(&b, "- %s\n", l)
		}
	}
	for _, l := range limits {
		fmt.Fprintf(&b, "- %s\n", l)
	}
	b.WriteString("\n## Faults\n\nEvery fault of [the list](faults.md) has a test that names it, but for these:\n\n")
	for _, f := range record.Untried {
		fmt.Fprintf(&b, "- %s: %s\n", f.ID, f.Why)
	}
	b.WriteString("\nIn these something stands in for the real cause:\n\n")
	for _, f := range record.Played {
		fmt.Fprintf(&b, "- %s: %s\n", f.ID, f.Why)
	}
	return b.String()
}

// limits hold for every rung.
var limits = []string{
	"The AWS services themselves: DynamoDB, ElastiCache and MemoryDB were not reached; DynamoDB Local, Redis and Valkey stood in.",
	"Lambda's own freeze and thaw: simulated, and approximated by stopping processes, whose monotonic clock goes on.",
	"Known weak points of dependencies: govulncheck cannot reach its database from where this ran.",
	"Multi-Region tables with strong consistency.",
	"Processors other than the one named above.",
}

// matrix is the table of faults by stores.
func matrix(b *strings.Builder, cells []record.Cell) {
	if len(cells) == 0 {
		return
	}
	var faults, stores []string
	at := map[[2]string]record.Cell{}
	for _, c := range cells {
		if !slices.Contains(faults, c.Fault) {
			faults = append(faults, c.Fault)
		}
		if !slices.Contains(stores, c.Store) {
			stores = append(stores, c.Store)
		}
		at[[2]string{c.Fault, c.Store}] = c
	}
	b.WriteString("\n## Faults by stores\n\nHistories and operations in each cell; a dash is a cell that cannot occur, for the reason below.\n\n| fault |")
	for _, s := range stores {
		fmt.Fprintf(b, " %s |", s)
	}
	b.WriteString("\n| --- |" + strings.Repeat(" --- |", len(stores)) + "\n")
	var reasons []string
	for _, f := range faults {
		fmt.Fprintf(b, "| %s |", f)
		for _, s := range stores {
			c, ok := at[[2]string{f, s}]
			switch {
			case !ok:
				b.WriteString(" |")
			case c.Why != "":
				b.WriteString(" – |")
				reasons = append(reasons, fmt.Sprintf("- %s on %s: %s", f, s, c.Why))
			default:
				fmt.Fprintf(b, " %d, %s |", c.Histories, grouped(c.Operations))
			}
		}
		b.WriteString("\n")
	}
	b.WriteString("\n" + strings.Join(reasons, "\n") + "\n")
}
