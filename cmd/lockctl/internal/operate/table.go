package operate

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/lockstore"
)

// row is a line of list or watch.
type row struct{ time, key, state, age, left, waiting, fence, holder string }

var heading = row{"TIME", "KEY", "STATE", "AGE", "LEFT", "WAITING", "FENCE", "HOLDER"}

// table prints keys as they come. A text that is wider than its column moves no row but its own.
type table struct {
	out    io.Writer
	json   bool // each key is a line of JSON, without a heading
	watch  bool // it is always the same key, and each line has the time
	headed bool
}

// print prints what lockctl has seen now.
func (t *table) print(all ...lockstore.Status) error {
	now := time.Now().UTC()
	for _, s := range all {
		if t.json {
			a := answerOf(s)
			if t.watch {
				a.Time = now.Format(time.RFC3339Nano)
			}
			if err := printJSON(t.out, a); err != nil {
				return err
			}
			continue
		}
		rows := rowsOf(s, now)
		if !t.headed {
			rows, t.headed = slices.Insert(rows, 0, heading), true
		}
		for _, r := range rows {
			if err := t.line(r); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *table) line(r row) (err error) {
	if t.watch {
		_, err = fmt.Fprintf(t.out, "%-20s  %-9s  %-7s  %-7s  %-16s  %s\n", r.time, r.state, r.left, r.waiting, r.fence, r.holder)
	} else {
		_, err = fmt.Fprintf(t.out, "%-24s  %-9s  %-7s  %-7s  %-7s  %s\n", r.key, r.state, r.age, r.left, r.waiting, r.holder)
	}
	return err
}

// view is what is shown of a key, and then of each of its holders if several may hold it.
type view struct {
	seat  string // of a holder; "" for the key
	state lockstore.State
	who   string // "-" is nobody
	since time.Time
	left  time.Duration
	fence string
}

func viewsOf(s lockstore.Status) []view {
	key := view{state: s.State, who: nameOf(s.State, s.Holder), since: since(s), left: s.Remaining, fence: cmp.Or(fenceText(s.Fence), "-")}
	if s.MaxHolders() <= 1 {
		return []view{key}
	}
	key.who = fmt.Sprintf("%d of %d", len(s.Holders), s.MaxHolders())
	all := []view{key}
	for _, h := range s.Holders {
		all = append(all, view{strconv.Itoa(h.Seat), h.State, nameOf(h.State, h.HolderInfo), h.HolderInfo.Since, h.Remaining, fenceText(h.Fence)})
	}
	return all
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
	var all []time.Time
	for _, h := range s.Holders {
		if h.State.Taken() {
			all = append(all, h.HolderInfo.Since)
		}
	}
	return slices.MinFunc(append(all, time.Now()), time.Time.Compare)
}

// age is how long somebody has a key, by the clocks of the holder and of this machine.
func age(since, now time.Time) (d time.Duration, known bool) {
	if since.IsZero() {
		return 0, false
	}
	return max(0, now.Sub(since)), true
}

func (v view) ageText(now time.Time) string {
	if d, known := age(v.since, now); known {
		return d.Round(time.Second).String()
	}
	return "-"
}

func (v view) leftText() string {
	if v.state == lockstore.InDoubt || v.left <= 0 {
		return "-"
	}
	return v.left.Round(time.Second).String()
}

// nameOf is a holder without its time.
func nameOf(state lockstore.State, h lockstore.HolderInfo) string {
	if !state.Taken() {
		return "-"
	}
	h.Since = time.Time{}
	return exit.Visible(h.String())
}

// waits is how many wait, and how many of them are parked.
func waits(s lockstore.Status) string {
	if s.Parked > 0 {
		return fmt.Sprintf("%d (%d parked)", s.Waiting, s.Parked)
	}
	return strconv.Itoa(s.Waiting)
}

// rowsOf are the rows of a key.
func rowsOf(s lockstore.Status, now time.Time) (rows []row) {
	for i, v := range viewsOf(s) {
		r := row{now.Format(time.RFC3339), "", v.state.String(), v.ageText(now), v.leftText(), "-", v.fence, v.who}
		switch {
		case i == 0:
			r.key, r.waiting = exit.Visible(s.Key), waits(s)
		case v.who == "-":
			r.holder = "seat " + v.seat
		default:
			r.holder = "seat " + v.seat + ": " + v.who
		}
		rows = append(rows, r)
	}
	return rows
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
	several := s.MaxHolders() > 1
	for i, v := range viewsOf(s) {
		if i == 0 {
			field("KEY", exit.Visible(s.Key))
		} else {
			fmt.Fprintln(&text)
			field("SEAT", v.seat)
		}
		field("STATE", v.state.String())
		field("HOLDER", v.who)
		if i > 0 || !several {
			old, known := age(v.since, now)
			if known {
				field("SINCE", v.since.UTC().Format(time.RFC3339))
			}
			field("AGE", v.ageText(now))
			field("LEFT", v.leftText())
			if known && v.state == lockstore.Held {
				field("RENEWED", renewed(old+v.left))
			}
			field("FENCE", v.fence)
		}
		if i == 0 {
			field("WAITING", waits(s))
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
