package processes

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// Try is one delivery of an event, as it looked from outside. Times count from
// the beginning of the run; 0 means never.
type Try struct {
	Event
	Asked, Granted, Ended time.Duration
	Signalled             time.Duration // the first signal that the process got in this time
	Fence                 lockstore.Fence
	RefusedTrusted        bool   // a list refused it, or changed under a reader, and the lease was still trusted then
	Outcome               string // "" when the function answered that the element is there
}

// Verdict is what a run did wrong, in sentences, and how much it did at all.
type Verdict struct {
	RefusedTrusted []string // tries whose key was granted to another, which may not have it beside them, while they trusted their lease
	Lost           []string // acknowledged elements that are not there
	Twice          []string // elements that are there more than once, or were never sent
	Stale          []string // requests accepted after one with a larger fence
	Shared         []string // fences that two tries had
	Late           []string // waits that were longer than the bound
	Waits          int      // for a key that a signalled process left held
	Longest        time.Duration
}

// Violations is everything that a list which compares fences may not show.
func (v Verdict) Violations() []string {
	return slices.Concat(v.RefusedTrusted, v.Lost, v.Twice, v.Stale, v.Shared, v.Late)
}

// Check judges a run. lists has the parts of each list, by their seats. bound is the longest time for which a dead holder may keep
// those who wait from a key. turn is how much longer each dead waiter may keep them.
func Check(tries []Try, lists map[string][]Content, bound, turn time.Duration) Verdict {
	var v Verdict
	acknowledged, sent := map[string]bool{}, map[string]bool{}
	grants := map[string]int{} // the try that has a fence
	byList := map[string][]Try{}
	for _, t := range tries {
		byList[t.List] = append(byList[t.List], t)
		element := t.List + " " + t.Element
		sent[element] = true
		if t.Ended != 0 && t.Outcome == "" && !t.Reads {
			acknowledged[element] = true
		}
		if t.Granted != 0 {
			v.shared(grants, t.List, Stamp{t.Fence, t.Try})
		}
		if t.RefusedTrusted {
			what := "was refused"
			if t.Reads {
				what = "saw a change"
			}
			v.RefusedTrusted = append(v.RefusedTrusted, fmt.Sprintf("%s: fence %d of try %d %s while the lease was trusted", t.List, t.Fence, t.Try, what))
		}
	}
	there := map[string]bool{}
	for name, parts := range lists {
		for _, part := range parts {
			v.part(name, part, sent, there, grants)
		}
	}
	for e := range acknowledged {
		if !there[e] {
			v.Lost = append(v.Lost, e+" was acknowledged and is not there")
		}
	}
	for name, all := range byList {
		v.waits(name, all, bound, turn)
	}
	for _, all := range [][]string{v.RefusedTrusted, v.Lost, v.Twice, v.Stale, v.Shared, v.Late} {
		slices.Sort(all)
	}
	return v
}

// part looks at a part of a list, and notes which elements are there. A try that was killed may have
// added its element to one part, and the next try to another.
func (v *Verdict) part(name string, part Content, sent, there map[string]bool, grants map[string]int) {
	times := map[string]int{}
	for _, e := range part.Elements {
		times[name+" "+e]++
	}
	for e, n := range times {
		there[e] = true
		switch {
		case !sent[e]:
			v.Twice = append(v.Twice, e+" was never sent")
		case n > 1:
			v.Twice = append(v.Twice, fmt.Sprintf("%s is there %d times", e, n))
		}
	}
	var highest Stamp
	for _, s := range part.Stamps {
		if s.Fence < highest.Fence {
			v.Stale = append(v.Stale, fmt.Sprintf("%s: fence %d of try %d was accepted after %d of try %d", name, s.Fence, s.Try, highest.Fence, highest.Try))
		} else {
			highest = s
		}
		v.shared(grants, name, s)
	}
}

func (v *Verdict) shared(grants map[string]int, list string, s Stamp) {
	id := fmt.Sprint(list, " ", s.Fence)
	switch other := grants[id]; other {
	case s.Try:
	case 0:
		grants[id] = s.Try
	default:
		if other > 0 {
			v.Shared = append(v.Shared, fmt.Sprintf("%s: fence %d belongs to try %d and to try %d", list, s.Fence, other, s.Try))
			grants[id] = -1 // said once
		}
	}
}

// held is when a try may have had the key and could renew it; both are 0 if it never had the key.
func (t Try) held() (from, to time.Duration) {
	switch {
	case t.Asked == 0 || t.Granted == 0 && t.Outcome == "LockBusy":
		return 0, 0
	case t.Signalled > t.Granted:
		return cmp.Or(t.Granted, t.Asked), t.Signalled
	}
	return cmp.Or(t.Granted, t.Asked), t.Ended
}

// waits looks at how long others asked for a key that one more could have had. That time begins
// when one of as many holders as there may be released the key or could not renew it any more, or
// when a process got a signal whose request may have been granted unseen. Where some are readers, a grant beside
// others is not looked at: who waits between them decides when it may come.
func (v *Verdict) waits(list string, tries []Try, bound, turn time.Duration) {
	least := slices.MinFunc(tries, func(a, b Try) int { return a.Holders - b.Holders }).Holders
	for _, g := range tries {
		if g.Granted == 0 {
			continue
		}
		var begin time.Duration
		dead := false // what begins it is a signal
		open := 0     // other tries that may have the key at this moment
		for _, o := range tries {
			if o.Try == g.Try || o.Asked == 0 {
				continue
			}
			if o.Signalled > begin && o.Signalled <= g.Granted {
				begin, dead = o.Signalled, true
			}
			switch from, to := o.held(); {
			case to <= g.Granted:
				if to > begin && beside(tries, o, to) >= least-1 {
					begin, dead = to, false
				}
			case o.Granted != 0 && from < g.Granted:
				open++
			}
		}
		if begin == 0 || open >= least {
			continue
		}
		wait := asked(tries, begin, g.Granted)
		if wait > 0 && dead {
			v.Waits++
			v.Longest = max(v.Longest, wait)
		}
		bound := bound + turn*time.Duration(min(deadPlaces(tries, begin, g.Granted), lockstore.MaxTurns))
		if wait > bound {
			v.Late = append(v.Late, fmt.Sprintf("%s: try %d got the key after %v, %v of which somebody asked for it; want at most %v",
				list, g.Try, (g.Granted-begin).Round(time.Millisecond), wait.Round(time.Millisecond), bound))
		}
	}
}

// beside is how many others may have had the key just before the moment at.
func beside(tries []Try, t Try, at time.Duration) (n int) {
	for _, o := range tries {
		if from, to := o.held(); o.Try != t.Try && from < at && at <= to {
			n++
		}
	}
	return n
}

// deadPlaces is how many signalled tries may have had a place in the queue in this time. A grant ends
// the places of all tries that asked earlier.
func deadPlaces(tries []Try, begin, end time.Duration) (n int) {
	var ended time.Duration // places of tries that asked before this were over when the time began
	for _, o := range tries {
		if o.Granted != 0 && o.Granted < begin {
			ended = max(ended, o.Asked)
		}
	}
	for _, o := range tries {
		if o.Asked > ended && o.Granted == 0 && o.Signalled != 0 && o.Signalled <= end {
			n++
		}
	}
	return n
}

// asked is how much of the time at least one live process asked for the key.
func asked(tries []Try, begin, end time.Duration) (sum time.Duration) {
	type span struct{ from, to time.Duration }
	var spans []span
	for _, t := range tries {
		s := span{max(begin, t.Asked), end}
		for _, to := range []time.Duration{t.Granted, t.Signalled, t.Ended} {
			if to != 0 {
				s.to = min(s.to, to)
			}
		}
		if t.Asked != 0 && s.from < s.to {
			spans = append(spans, s)
		}
	}
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	for _, s := range spans {
		begin = max(begin, s.from)
		sum += max(0, s.to-begin)
		begin = max(begin, s.to)
	}
	return sum
}
