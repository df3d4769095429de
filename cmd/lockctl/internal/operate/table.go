package operate

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/internal/lib/page"
	"github.com/lambdalock/lambdalock/lockstore"
)

// view is what is shown of a key, or of one of its holders if several may hold it. "-" is nothing.
type view struct{ key, seat, state, holder, since, age, left, renewed, fence, waiting, oldest string }

var heading = view{key: "KEY", state: "STATE", holder: "HOLDER", age: "AGE", left: "LEFT", fence: "FENCE", waiting: "WAITING", oldest: "OLDEST"}

// viewsOf are the views of a key and then of each of its holders, if several may hold it.
func viewsOf(s lockstore.Status, now time.Time) []view {
	shown := page.Of([]lockstore.Status{s}, now, 1, exit.Visible).Keys[0]
	key := viewOf(s.State, shown.Who, page.Since(s), s.Remaining, s.Fence, now)
	key.key, key.waiting = shown.Shown, strconv.Itoa(s.Waiting)
	if s.Parked > 0 {
		key.waiting += fmt.Sprintf(" (%d parked)", s.Parked)
	}
	if s.OldestWait > 0 {
		key.oldest = s.OldestWait.Round(time.Second).String()
	}
	all := []view{key}
	if s.MaxHolders() > 1 {
		for i, h := range s.Holders {
			v := viewOf(h.State, shown.Holders[i].Who, h.HolderInfo.Since, h.Remaining, h.Fence, now)
			v.seat = strconv.Itoa(h.Seat)
			all = append(all, v)
		}
	}
	return all
}

func viewOf(state lockstore.State, who string, since time.Time, left time.Duration, fence lockstore.Fence, now time.Time) view {
	v := view{state: state.String(), holder: cmp.Or(who, "-"), age: "-", left: "-", fence: "-"}
	if fence != 0 {
		v.fence = fmt.Sprint(fence)
	}
	if left > 0 && state != lockstore.InDoubt {
		v.left = left.Round(time.Second).String()
	}
	if d, known := age(since, now); known {
		v.since, v.age = since.UTC().Format(time.RFC3339), d.Round(time.Second).String()
		if state == lockstore.Held {
			v.renewed = renewed(d + left)
		}
	}
	return v
}

// age is how long somebody has a key, by the clocks of the holder and of this machine.
func age(since, now time.Time) (d time.Duration, known bool) {
	return max(0, now.Sub(since)), !since.IsZero()
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
		return fmt.Sprintf("yes (unless its TTL is %v or more)", whole.Round(time.Second))
	}
	return "not seen yet"
}

// table prints keys as they come. A text that is wider than its column moves no row but its own.
type table struct {
	out    io.Writer
	watch  bool // it is always the same key, and each line has the time
	headed bool
}

// print prints what lockctl has seen now: a row for the key, and one for each of several holders.
func (t *table) print(s lockstore.Status) error {
	now := time.Now().UTC()
	if !t.headed {
		t.headed = true
		if err := t.row("TIME", heading); err != nil {
			return err
		}
	}
	for _, v := range viewsOf(s, now) {
		switch {
		case v.seat == "":
		case v.holder == "-":
			v.holder = "seat " + v.seat
		default:
			v.holder = "seat " + v.seat + ": " + v.holder
		}
		if err := t.row(now.Format(time.RFC3339), v); err != nil {
			return err
		}
	}
	return nil
}

func (t *table) row(at string, v view) (err error) {
	v.waiting, v.oldest = cmp.Or(v.waiting, "-"), cmp.Or(v.oldest, "-")
	if t.watch {
		_, err = fmt.Fprintf(t.out, "%-20s  %-9s  %-7s  %-7s  %-16s  %s\n", at, v.state, v.left, v.waiting, v.fence, v.holder)
	} else {
		_, err = fmt.Fprintf(t.out, "%-24s  %-9s  %-7s  %-7s  %-7s  %-7s  %s\n", v.key, v.state, v.age, v.left, v.waiting, v.oldest, v.holder)
	}
	return err
}

// card prints one key, a field in each line. If several may hold it, the fields of each holder follow.
func card(out io.Writer, s lockstore.Status) error {
	var text strings.Builder
	all := viewsOf(s, time.Now())
	for i, v := range all {
		switch {
		case i > 0:
			fmt.Fprintln(&text)
		case len(all) > 1: // the rest is said of each holder
			v = view{key: v.key, state: v.state, holder: v.holder, waiting: v.waiting, oldest: v.oldest}
		case s.State == lockstore.Free && s.Fence == 0:
			v.fence = "- (nothing is stored of this key)"
		}
		for _, field := range [...][2]string{
			{"KEY", v.key}, {"SEAT", v.seat}, {"STATE", v.state}, {"HOLDER", v.holder}, {"SINCE", v.since}, {"AGE", v.age},
			{"LEFT", v.left}, {"RENEWED", v.renewed}, {"FENCE", v.fence}, {"WAITING", v.waiting}, {"OLDEST", v.oldest},
		} {
			if name, value := field[0], field[1]; value != "" && (value != "-" || name == "FENCE") {
				fmt.Fprintf(&text, "%-8s %s\n", name, value)
			}
		}
	}
	_, err := io.WriteString(out, text.String())
	return err
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
