package locallambda

import (
	"fmt"
	"maps"
	"slices"
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
	t := &printedTable{phases: phases}
	t.b.WriteByte('\n')
	t.row("", func(p phase) string { return p.title })
	t.row("succeeded", func(p phase) string { return fmt.Sprintf("%d of %d", p.succeeded, len(p.attempts)) })
	t.row("busy, tried again", func(p phase) string { return fmt.Sprint(p.busy) })
	if t.any(func(p phase) bool { return p.unavailable > 0 }) {
		t.row("no store, tried again", func(p phase) string { return fmt.Sprint(p.unavailable) })
	}
	for _, failed := range t.failures() {
		t.row("failed: "+failed, func(p phase) string { return fmt.Sprint(p.failures[failed]) })
	}
	if t.any(func(p phase) bool { return p.planned > 0 }) {
		t.row("frozen / killed", func(p phase) string { return fmt.Sprintf("%d / %d", p.done(freeze), p.done(kill)) })
		t.row("sent again after that", func(p phase) string { return fmt.Sprint(p.sentAgain) })
	}
	t.row("critical sections", func(p phase) string { return p.ifReported(fmt.Sprint(len(p.sections))) })
	t.row("keys", func(p phase) string { return p.ifReported(fmt.Sprint(p.keys)) })
	t.row("most at once, of one key", func(p phase) string { return p.ifReported(fmt.Sprint(p.most)) })
	if t.any(phase.several) {
		t.row("  allowed at once", func(p phase) string { return p.ifReported(p.allowed()) })
	}
	t.row("overlapping sections", func(p phase) string { return p.ifReported(fmt.Sprint(p.overlapping)) })
	if t.any(func(p phase) bool { return p.lost > 0 }) {
		t.row("leases lost", func(p phase) string { return p.ifReported(fmt.Sprint(p.lost)) })
		t.row("  returned success late", func(p phase) string { return p.ifReported(fmt.Sprint(len(p.late))) })
	}
	for _, name := range t.afterNames() {
		t.row(name, func(p phase) string {
			if i := slices.IndexFunc(p.rows, func(r row) bool { return r.name == name }); i >= 0 {
				return p.rows[i].value
			}
			return "-"
		})
	}
	for _, p := range []int{50, 99} {
		t.row(fmt.Sprintf("wait p%d", p), func(of phase) string { return shown(of.waits, p) })
	}
	for _, p := range []int{50, 99} {
		t.row(fmt.Sprintf("hold p%d", p), func(of phase) string { return shown(of.holds, p) })
	}
	t.row("took", func(p phase) string { return seconds(p.took) })
	return t.b.String()
}

type printedTable struct {
	b      strings.Builder
	phases []phase
}

func (t *printedTable) any(is func(phase) bool) bool { return slices.ContainsFunc(t.phases, is) }

func (t *printedTable) row(name string, value func(phase) string) {
	fmt.Fprintf(&t.b, "  %s", pad(name, nameWidth, false))
	for _, p := range t.phases {
		t.b.WriteString(pad(value(p), valueWidth, true))
	}
	t.b.WriteByte('\n')
}

// pad makes a text exactly that wide, and Visible.
func pad(text string, width int, right bool) string {
	runes := []rune(strings.NewReplacer("\n", `\n`, "\t", `\t`).Replace(exit.Visible(text)))
	if len(runes) > width {
		return string(runes[:width-1]) + cutMark
	}
	text = string(runes)
	space := strings.Repeat(" ", width-len(runes))
	if right {
		return space + text
	}
	return text + space
}

const cutMark = "…"

// cut keeps a text short.
func cut(text string, most int) string {
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most-1]) + cutMark
	}
	return text
}

// failures are the types of failures in any phase.
func (t *printedTable) failures() []string {
	all := map[string]bool{}
	for _, p := range t.phases {
		for failed := range p.failures {
			all[failed] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// afterNames are the names of all rows of --after, in their order.
func (t *printedTable) afterNames() (names []string) {
	for _, p := range t.phases {
		for _, r := range p.rows {
			if !slices.Contains(names, r.name) {
				names = append(names, r.name)
			}
		}
	}
	return names
}

// ifReported is "-" where no critical section can be known.
func (p phase) ifReported(text string) string {
	if !p.reported {
		return "-"
	}
	return text
}

// shown is a percentile, "-" where there is nothing to choose from.
func shown(sorted []time.Duration, p int) string {
	if len(sorted) == 0 {
		return "-"
	}
	return milliseconds(percentile(sorted, p))
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.0f ms", float64(d)/float64(time.Millisecond))
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
