package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// table shows all reports side by side, at most 80 columns wide for two.
func table(fixtures []fixture, t template, reports []*report) string {
	var b strings.Builder
	row := func(name string, cells func(*report) (string, string)) {
		fmt.Fprintf(&b, "  %-25.25s", name)
		for _, r := range reports {
			left, right := cells(r)
			fmt.Fprintf(&b, " %12.12s %12.12s", left, right)
		}
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "  %-25s", "")
	for _, r := range reports {
		fmt.Fprintf(&b, " %25s", r.store)
	}
	b.WriteByte('\n')
	row("event", func(*report) (string, string) { return "invoke", "HTTP" })
	for _, f := range fixtures {
		row(f.Name, func(r *report) (string, string) { return cell(r.invoked, f.Name), cell(r.called, f.Name) })
	}
	row(lifeRow, func(r *report) (string, string) { return "", cell(r.called, lifeRow) })
	for _, e := range examples {
		if slices.ContainsFunc(reports, func(r *report) bool { _, ok := r.called[e.file]; return ok }) {
			row(e.file, func(r *report) (string, string) { return "", cell(r.called, e.file) })
		}
	}
	row(fmt.Sprint(burstSize, " withdrawals at once"), func(r *report) (string, string) {
		if r.burst.untried != "" {
			return r.burst.String(), ""
		}
		return r.burst.String(), fmt.Sprint(r.busy, " busy")
	})
	row("", func(*report) (string, string) { return "", "" })
	row("function", func(*report) (string, string) { return "cold", "warm" })
	for _, f := range t.functions {
		row(f.id, func(r *report) (string, string) {
			if c := r.cold[f.id]; c.untried != "" {
				return c.String(), milliseconds(r.warm[f.id])
			}
			return milliseconds(r.cold[f.id].took), milliseconds(r.warm[f.id])
		})
	}
	for _, reason := range reasons(reports) {
		fmt.Fprintf(&b, "  not tried: %s\n", reason)
	}
	return trimmed(b.String())
}

// reasons are why checks were not tried, each once.
func reasons(reports []*report) []string {
	all := map[string]bool{}
	for c := range checks(reports) {
		if c.untried != "" {
			all[c.untried] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// cell is empty for what was not run.
func cell(checks map[string]check, name string) string {
	c, ok := checks[name]
	if !ok {
		return ""
	}
	return c.String()
}

func (c check) String() string {
	if c.untried != "" {
		return "not tried"
	}
	if c.err != nil {
		return fmt.Sprintf("differs %.0fs", c.took.Seconds())
	}
	return fmt.Sprintf("ok %.1fs", c.took.Seconds())
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}

// trimmed is the text without spaces at the ends of lines.
func trimmed(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}
