package processes

import (
	"fmt"
	"slices"

	"github.com/lambdalock/lambdalock/lockstore"
)

// Try is one delivery of an event, as it looked from outside.
type Try struct {
	Event
	Fence          lockstore.Fence // 0 if it got no lock
	Acknowledged   bool            // the function answered that the element is there, or that the list was read
	RefusedTrusted bool            // a list refused it, or changed under a reader, and the lease was still trusted then
}

// Verdict is what a run did wrong, in sentences.
type Verdict struct {
	RefusedTrusted []string // tries whose key was granted to another, which may not have it beside them, while they trusted their lease
	Lost           []string // acknowledged elements that are not there
	Twice          []string // elements that are there more than once, or were never sent
	Stale          []string // requests accepted after one with a larger fence
	Shared         []string // fences that two tries had
}

// Violations is everything that a list which compares fences may not show.
func (v Verdict) Violations() []string {
	return slices.Concat(v.RefusedTrusted, v.Lost, v.Twice, v.Stale, v.Shared)
}

// Check judges a run. lists has the parts of each list, by their seats.
func Check(tries []Try, lists map[string][]Content) Verdict {
	var v Verdict
	acknowledged, sent, there := map[string]bool{}, map[string]bool{}, map[string]bool{}
	grants := map[string]int{} // the try that has a fence
	for _, t := range tries {
		element := t.List + " " + t.Element
		sent[element] = true
		acknowledged[element] = acknowledged[element] || t.Acknowledged && !t.Reads
		if t.Fence != 0 {
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
	for name, parts := range lists {
		for _, part := range parts {
			v.part(name, part, sent, there, grants)
		}
	}
	for e, told := range acknowledged {
		if told && !there[e] {
			v.Lost = append(v.Lost, e+" was acknowledged and is not there")
		}
	}
	for _, all := range [][]string{v.RefusedTrusted, v.Lost, v.Twice, v.Stale, v.Shared} {
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
