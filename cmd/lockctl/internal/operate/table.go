package operate

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/lockstore"
)

var heading = row{"TIME", "KEY", "STATE", "HOLDER", "SINCE", "AGE", "LEFT", "FENCE", "WAITING"}

type row [9]string

// Columns that not all tables have.
const (
	timeColumn = 0 // of watch: when lockctl saw it
	ageColumn  = 5 // of list
)

// widest is the width of the columns of list and watch at most: a very long holder, such as
// that of a revoked lease, moves no row but its own. A function's name and a request id fit in.
const widest = 48

// usual are the widths of cells whose form is known: those of the next pages have them.
var usual = [len(row{})]int{0: len(second), 2: len("completed"), 4: len(second), 5: len("59m59s"), 6: len("59m59s"), 7: len("1795295118105467")}

const second = "2026-11-22T10:02:11Z" // a time as it is shown

// table prints keys as they come. A column is as wide as what has been printed in it, at
// least as in widths, and at most as wide as most.
type table struct {
	out     io.Writer
	json    bool // each key is a line of JSON, without a heading
	widths  [len(row{})]int
	most    int
	headed  bool
	without []int // columns that are not shown
}

// showTable is for one key.
func showTable(out io.Writer) table {
	return table{out: out, most: math.MaxInt, without: []int{timeColumn, ageColumn}}
}

// listTable is for pages of keys.
func listTable(out io.Writer) table {
	return table{out: out, widths: usual, most: widest, without: []int{timeColumn}}
}

// watchTable is for rows that come one by one. A key that is free at first gives no hint of
// how long its holders are.
func watchTable(out io.Writer) table {
	t := listTable(out)
	t.widths[3], t.without = widest, []int{ageColumn}
	return t
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
			t.widths[i] = max(t.widths[i], min(utf8.RuneCountInString(cell), t.most))
		}
	}
	var text strings.Builder
	for _, r := range rows {
		last := len(r) - 1
		for i, cell := range r[:last] {
			if slices.Contains(t.without, i) {
				continue
			}
			fmt.Fprintf(&text, "%-*s  ", t.widths[i], cell)
		}
		fmt.Fprintln(&text, r[last])
	}
	_, err := io.WriteString(t.out, text.String())
	return err
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
	who := "-"
	most := s.MaxHolders()
	switch {
	case most > 1:
		who = fmt.Sprintf("%d of %d", len(s.Holders), most)
	case s.State.Taken():
		who = nameOf(s.Holder)
	}
	rows := []row{rowOf(now, exit.Visible(s.Key), s.State, who, since(s), s.Remaining, s.Fence, waits(s))}
	if most <= 1 {
		return rows
	}
	for _, h := range s.Holders {
		who := "-"
		if h.State.Taken() {
			who = nameOf(h.HolderInfo)
		}
		rows = append(rows, rowOf(now, fmt.Sprintf("  seat %d", h.Seat), h.State, who, h.HolderInfo.Since, h.Remaining, h.Fence, "-"))
	}
	return rows
}

// waits is how many wait, and how many of them are parked.
func waits(s lockstore.Status) string {
	if s.Parked > 0 {
		return fmt.Sprintf("%d (%d parked)", s.Waiting, s.Parked)
	}
	return strconv.Itoa(s.Waiting)
}

// nameOf is a holder without its time.
func nameOf(h lockstore.HolderInfo) string {
	h.Since = time.Time{}
	return exit.Visible(h.String())
}

func rowOf(now time.Time, key string, state lockstore.State, holder string, since time.Time, remaining time.Duration, fence lockstore.Fence, waiting string) row {
	begins, old, left := "-", "-", "-"
	if d, known := age(since, now); known {
		begins, old = since.UTC().Format(time.RFC3339), d.Round(time.Second).String()
	}
	if state != lockstore.InDoubt && remaining > 0 {
		left = remaining.Round(time.Second).String()
	}
	return row{now.Format(time.RFC3339), key, state.String(), holder, begins, old, left, cmp.Or(fenceText(fence), "-"), waiting}
}
