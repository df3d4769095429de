package operate

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/lambdalock/lambdalock/lockstore"
)

var heading = row{"KEY", "STATE", "HOLDER", "SINCE", "LEFT", "FENCE", "WAITING"}

type row [7]string

// widest is the width of the columns of list and watch at most: a very long holder, such as
// that of a broken lease, moves no row but its own. A function's name and a request id fit in.
const widest = 48

// usual are the widths of cells whose form is known: those of the next pages have them.
var usual = [len(row{})]int{1: len(stateClosing), 3: len("2026-11-22T10:02:11Z"), 4: len("59m59s"), 5: len("1795295118105467")}

// table prints keys as they come. A column is as wide as what has been printed in it, at
// least as in widths, and at most as wide as most.
type table struct {
	out    io.Writer
	json   bool // each key is a line of JSON, without a heading
	widths [len(row{})]int
	most   int
	headed bool
}

// showTable is for one key.
func showTable(out io.Writer) table { return table{out: out, most: math.MaxInt} }

// listTable is for pages of keys.
func listTable(out io.Writer) table { return table{out: out, widths: usual, most: widest} }

// watchTable is for rows that come one by one. A key that is free at first gives no hint of
// how long its holders are.
func watchTable(out io.Writer) table {
	t := listTable(out)
	t.widths[2] = widest
	return t
}

func (t *table) print(all ...lockstore.Status) error {
	if t.json {
		for _, s := range all {
			if err := printJSON(t.out, answerOf(s)); err != nil {
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
		rows = append(rows, rowOf(s))
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
			fmt.Fprintf(&text, "%-*s  ", t.widths[i], cell)
		}
		fmt.Fprintln(&text, r[last])
	}
	_, err := io.WriteString(t.out, text.String())
	return err
}

func rowOf(s lockstore.Status) row {
	holder, since, left, fence := "-", "-", "-", "-"
	if s.Held {
		h := s.Holder
		if !h.Since.IsZero() {
			since = h.Since.UTC().Format(time.RFC3339)
		}
		h.Since = time.Time{}
		holder = h.String()
		if !s.InDoubt {
			left = s.Remaining.Round(time.Second).String()
		}
	}
	if s.Fence != 0 {
		fence = strconv.FormatInt(int64(s.Fence), 10)
	}
	return row{s.Key, stateOf(s), holder, since, left, fence, strconv.Itoa(s.Waiting)}
}
