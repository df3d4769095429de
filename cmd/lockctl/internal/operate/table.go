package operate

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/lockstore"
)

// Columns of a row. The last one is cut at the width of the terminal.
const (
	timeColumn = iota // of watch: when lockctl saw it
	keyColumn         // of list
	stateColumn
	ageColumn // of list
	leftColumn
	waitingColumn
	fenceColumn // of watch
	holderColumn
	columnCount
)

var heading = row{"TIME", "KEY", "STATE", "AGE", "LEFT", "WAITING", "FENCE", "HOLDER"}

type row [columnCount]string

// widest is the width of the column KEY at most: a very long key moves no row but its own.
const widest = 40

// leastCut is how much of a holder is shown in the narrowest terminal.
const leastCut = 10

// usual are the widths of cells whose form is known: those of the next pages have them.
var usual = [columnCount]int{timeColumn: len("2026-11-22T10:02:11Z"), stateColumn: len("completed"), ageColumn: len("59m59s"), leftColumn: len("59m59s"), waitingColumn: len("WAITING"), fenceColumn: len("1795295118105467")}

// table prints keys as they come. A column is as wide as what has been printed in it, and at least as usual.
type table struct {
	out     io.Writer
	json    bool // each key is a line of JSON, without a heading
	width   int  // of the terminal; 0 cuts nothing
	widths  [columnCount]int
	headed  bool
	without []int // columns that are not shown
}

// listTable is for pages of keys.
func listTable(out io.Writer, width int) table {
	return table{out: out, width: width, widths: usual, without: []int{timeColumn, fenceColumn}}
}

// watchTable is for rows of one key that come one by one.
func watchTable(out io.Writer, width int) table {
	return table{out: out, width: width, widths: usual, without: []int{keyColumn, ageColumn}}
}

// print prints what lockctl has seen now.
func (t *table) print(all ...lockstore.Status) error {
	now := time.Now().UTC()
	if t.json {
		for _, s := range all {
			a := answerOf(s)
			if !slices.Contains(t.without, timeColumn) {
				a.Time = now.Format(time.RFC3339Nano)
			}
			if err := printJSON(t.out, a); err != nil {
				return err
			}
		}
		return nil
	}
	if len(all) == 0 {
		return nil // no heading either
	}
	var rows []row
	if !t.headed {
		rows, t.headed = append(rows, heading), true
	}
	for _, s := range all {
		rows = append(rows, rowsOf(s, now)...)
	}
	for _, r := range rows {
		for i, cell := range r {
			t.widths[i] = max(t.widths[i], min(utf8.RuneCountInString(cell), widest))
		}
	}
	var text strings.Builder
	for _, r := range rows {
		line := ""
		for i, cell := range r[:holderColumn] {
			if !slices.Contains(t.without, i) {
				line += fmt.Sprintf("%-*s  ", t.widths[i], cell)
			}
		}
		fmt.Fprintln(&text, line+t.cut(r[holderColumn], t.width-utf8.RuneCountInString(line)))
	}
	_, err := io.WriteString(t.out, text.String())
	return err
}

// cut cuts a holder at the end of the line.
func (t *table) cut(holder string, left int) string {
	all := []rune(holder)
	if left = max(left, leastCut); t.width == 0 || len(all) <= left {
		return holder
	}
	return string(all[:left-1]) + "…"
}

// since is since when somebody has a key, by the clock of the holder that has had it for the longest
// time. It is zero if nobody has it, and if somebody may have had it for longer.
func since(s lockstore.Status) time.Time {
	switch {
	case !s.State.Taken():
		return time.Time{}
	case len(s.Holders) == 0:
		return s.Holder.Since
	}
	var first time.Time
	for i, h := range slices.DeleteFunc(slices.Clone(s.Holders), func(h lockstore.Holder) bool { return !h.State.Taken() }) {
		if i == 0 || h.HolderInfo.Since.Before(first) {
			first = h.HolderInfo.Since
		}
	}
	return first
}

// age is how long somebody has a key, by the clocks of the holder and of this machine.
func age(since, now time.Time) (d time.Duration, known bool) {
	if since.IsZero() {
		return 0, false
	}
	return max(0, now.Sub(since)), true
}

// rowsOf is the row of a key. If several may hold it, a row for each holder follows.
func rowsOf(s lockstore.Status, now time.Time) []row {
	rows := []row{rowOf(now, s.State, since(s), s.Remaining, s.Fence, waits(s), whoHas(s))}
	rows[0][keyColumn] = exit.Visible(s.Key)
	if s.MaxHolders() <= 1 {
		return rows
	}
	for _, h := range s.Holders {
		who := fmt.Sprintf("seat %d", h.Seat)
		if h.State.Taken() {
			who += ": " + nameOf(h)
		}
		rows = append(rows, rowOf(now, h.State, h.HolderInfo.Since, h.Remaining, h.Fence, "-", who))
	}
	return rows
}

// whoHas is who has a key, or how many have it.
func whoHas(s lockstore.Status) string {
	switch most := s.MaxHolders(); {
	case most > 1:
		return fmt.Sprintf("%d of %d", len(s.Holders), most)
	case s.State.Taken():
		return nameOf(lockstore.Holder{State: s.State, HolderInfo: s.Holder})
	}
	return "-"
}

// waits is how many wait, and how many of them are parked.
func waits(s lockstore.Status) string {
	if s.Parked > 0 {
		return fmt.Sprintf("%d (%d parked)", s.Waiting, s.Parked)
	}
	return strconv.Itoa(s.Waiting)
}

// nameOf is a holder without its time.
func nameOf(h lockstore.Holder) string {
	if !h.State.Taken() {
		return "-"
	}
	h.HolderInfo.Since = time.Time{}
	return exit.Visible(h.HolderInfo.String())
}

// ageText and leftText are "-" for what is not known.
func ageText(since, now time.Time) string {
	if d, known := age(since, now); known {
		return d.Round(time.Second).String()
	}
	return "-"
}

func leftText(state lockstore.State, left time.Duration) string {
	if state == lockstore.InDoubt || left <= 0 {
		return "-"
	}
	return left.Round(time.Second).String()
}

func rowOf(now time.Time, state lockstore.State, since time.Time, left time.Duration, fence lockstore.Fence, waiting, who string) row {
	return row{now.Format(time.RFC3339), "", state.String(), ageText(since, now), leftText(state, left), waiting, cmp.Or(fenceText(fence), "-"), who}
}

// card prints one key, a field in each line. If several may hold it, the fields of each holder follow.
func card(out io.Writer, s lockstore.Status) error {
	now := time.Now()
	var text strings.Builder
	field := func(name, value string) {
		if value != "-" || name == "FENCE" {
			fmt.Fprintf(&text, "%-8s %s\n", name, value)
		}
	}
	lease := func(state lockstore.State, since time.Time, left time.Duration, fence lockstore.Fence) {
		if old, known := age(since, now); known {
			field("SINCE", since.UTC().Format(time.RFC3339))
			field("AGE", ageText(since, now))
			field("LEFT", leftText(state, left))
			if state == lockstore.Held {
				field("RENEWED", renewed(old+left))
			}
		} else {
			field("LEFT", leftText(state, left))
		}
		field("FENCE", cmp.Or(fenceText(fence), "-"))
	}
	field("KEY", exit.Visible(s.Key))
	field("STATE", s.State.String())
	field("HOLDER", whoHas(s))
	if s.MaxHolders() <= 1 {
		lease(s.State, since(s), s.Remaining, s.Fence)
	}
	field("WAITING", waits(s))
	if s.MaxHolders() > 1 {
		for _, h := range s.Holders {
			fmt.Fprintln(&text)
			field("SEAT", strconv.Itoa(h.Seat))
			field("STATE", h.State.String())
			field("HOLDER", nameOf(h))
			lease(h.State, h.HolderInfo.Since, h.Remaining, h.Fence)
		}
	}
	_, err := io.WriteString(out, text.String())
	return err
}

// renewed says if a holder has renewed its lease, whose TTL the store does not say. A lease that was never
// renewed has it from its begin to its end, by two clocks.
func renewed(whole time.Duration) string {
	// TTL of a guard and of lockctl run, if nobody has set another, with what stores add to LEFT and clocks differ.
	const usual = time.Minute + 10*time.Second
	switch {
	case whole > lockstore.MaxTTL:
		return "yes"
	case whole > usual:
		return fmt.Sprintf("yes, if its TTL is less than %v", whole.Round(time.Second))
	}
	return "not seen yet"
}
