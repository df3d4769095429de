package operate

import (
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
		rows = append(rows, rowOf(s, now))
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

// age is how long somebody has a key, by the clocks of the holder and of this machine.
func age(s lockstore.Status, now time.Time) (d time.Duration, known bool) {
	if !s.State.Taken() || s.Holder.Since.IsZero() {
		return 0, false
	}
	return max(0, now.Sub(s.Holder.Since)), true
}

func rowOf(s lockstore.Status, now time.Time) row {
	holder, since, old, left, fence := "-", "-", "-", "-", "-"
	if d, known := age(s, now); known {
		old = d.Round(time.Second).String()
	}
	if s.State.Taken() {
		h := s.Holder
		if !h.Since.IsZero() {
			since = h.Since.UTC().Format(time.RFC3339)
		}
		h.Since = time.Time{}
		holder = h.String()
		if s.State != lockstore.InDoubt {
			left = s.Remaining.Round(time.Second).String()
		}
	}
	if s.Fence != 0 {
		fence = strconv.FormatInt(int64(s.Fence), 10)
	}
	return row{now.Format(time.RFC3339), exit.Visible(s.Key), s.State.String(), exit.Visible(holder), since, old, left, fence, strconv.Itoa(s.Waiting)}
}
