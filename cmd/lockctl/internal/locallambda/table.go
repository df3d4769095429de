package locallambda

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
)

const (
	nameWidth  = 26
	valueWidth = 20
)

// table puts the phases side by side, at most 80 columns wide.
func table(phases []phase) string {
	var b strings.Builder
	line := func(name string, value func(phase) string) {
		fmt.Fprintf(&b, "  %-*s", nameWidth, shown(name, nameWidth))
		for _, p := range phases {
			fmt.Fprintf(&b, "%*s", valueWidth, shown(value(p), valueWidth))
		}
		b.WriteByte('\n')
	}
	count := func(name string, n func(phase) int) {
		line(name, func(p phase) string { return strconv.Itoa(n(p)) })
	}
	ifAny := func(name string, n func(phase) int) {
		if slices.ContainsFunc(phases, func(p phase) bool { return n(p) > 0 }) {
			count(name, n)
		}
	}
	// seen is "-" where no critical section can be known.
	seen := func(name string, n func(phase) int) {
		line(name, func(p phase) string {
			if !p.reported {
				return "-"
			}
			return strconv.Itoa(n(p))
		})
	}
	b.WriteByte('\n')
	line("", phase.title)
	line("succeeded", func(p phase) string { return fmt.Sprintf("%d of %d", p.succeeded, len(p.attempts)) })
	count("busy, tried again", func(p phase) int { return p.busy })
	ifAny("covered by a later run", func(p phase) int { return len(p.covered) })
	ifAny("no store, tried again", func(p phase) int { return p.unavailable })
	for _, failed := range inAny(phases, func(p phase) []string { return slices.Sorted(maps.Keys(p.failures)) }) {
		count("failed: "+failed, func(p phase) int { return p.failures[failed] })
	}
	if slices.ContainsFunc(phases, func(p phase) bool { return p.planned > 0 }) {
		line("frozen / killed", func(p phase) string { return fmt.Sprintf("%d / %d", p.done(freeze), p.done(kill)) })
		count("sent again after that", func(p phase) int { return p.sentAgain })
	}
	seen("critical sections", func(p phase) int { return len(p.sections) })
	seen("keys", func(p phase) int { return p.keys })
	seen("most at once, of one key", func(p phase) int { return p.most })
	seen("overlapping sections", func(p phase) int { return p.overlapping })
	if slices.ContainsFunc(phases, func(p phase) bool { return p.lost > 0 }) {
		seen("leases lost", func(p phase) int { return p.lost })
		seen("  returned success late", func(p phase) int { return len(p.late) })
	}
	for _, name := range inAny(phases, func(p phase) (names []string) {
		for _, r := range p.rows {
			names = append(names, r.name)
		}
		return names
	}) {
		line(name, func(p phase) string {
			if i := slices.IndexFunc(p.rows, func(r row) bool { return r.name == name }); i >= 0 {
				return p.rows[i].value
			}
			return "-"
		})
	}
	line("took", func(p phase) string {
		if p.unlocked { // its entry has all holders, so it is no measure
			return "-"
		}
		return fmt.Sprintf("%.1f s", p.took.Seconds())
	})
	return b.String()
}

// inAny are the names of all phases, each once.
func inAny(phases []phase, of func(phase) []string) (names []string) {
	for _, p := range phases {
		for _, name := range of(p) {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// shown is a text in one line, short and Visible.
func shown(text string, most int) string {
	return cut(strings.NewReplacer("\n", `\n`, "\t", `\t`).Replace(exit.Visible(text)), most)
}

func cut(text string, most int) string {
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return text
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.0f ms", float64(d)/float64(time.Millisecond))
}
