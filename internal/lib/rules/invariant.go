package rules

import (
	"errors"
	"fmt"
	"slices"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
)

// Broken returns what is wrong with a state by the first of these sentences that it breaks, or "". If a state satisfies them, the next one
// does, too, whatever Decide is asked. The exception is sentence 6: it needs that an owner asks with one number always. If an owner does not, there may be
// room; then the next Acquire hands the key over.
//
//  1. The last fence is not negative, and others are left. The fences of the holders grow in the order of the grants, and none is above it. Two holders have neither the same owner nor the same seat.
//  2. Not more hold the key than each of the holders allows, whether their leases have ended or not. One whose work has started allows no other.
//  3. No key is closed for a negative time. A closed key has neither a holder nor a place in the queue, also after it has opened by time.
//  4. A place has the numbers of a request. An owner has one place in the queue. If it has a lease, too, this lease was handed over, is not revoked, and has the number of the place.
//  5. A mark is of an owner that neither holds nor waits. An owner has one mark. Its fence is not above LastFence.
//  6. If somebody waits, the holders leave no room for the first in the queue, whether their leases have ended or not.
//
// TestInduction checks this, and what else is true of each step, for all states of a bounded size. The proof, testdata/proof, has
// no bound, and is about a model of Decide; TestModel compares the two.
func (s State) Broken() string {
	if what := s.brokenLeases(); what != "" {
		return what
	}
	for i, w := range s.Queue {
		switch {
		case s.Closed.For > 0:
			return "somebody waits for a closed key"
		case w.MaxHolders < 1 || w.Parked < 0 || w.Parked > driver.MaxParkedTurn:
			return "a place has a number or a turn that no request has"
		case slices.ContainsFunc(s.Queue[:i], func(o Waiter) bool { return o.Owner == w.Owner }):
			return "an owner has two places"
		case slices.ContainsFunc(s.Holders, func(h Holder) bool { return h.Owner == w.Owner && (!h.HandedOver || h.Revoked) }):
			return "an owner waits that has a lease, and not by a hand-over"
		}
	}
	for i, m := range s.Ended {
		switch {
		case m.Fence > s.LastFence:
			return "the fence of a mark is above the last fence"
		case slices.ContainsFunc(s.Ended[:i], func(o Ended) bool { return o.Owner == m.Owner }):
			return "an owner has two marks"
		case slices.ContainsFunc(s.Holders, func(h Holder) bool { return h.Owner == m.Owner }),
			slices.ContainsFunc(s.Queue, func(w Waiter) bool { return w.Owner == m.Owner }):
			return "an owner has a mark, and holds or waits"
		}
	}
	for _, w := range s.Queue {
		if slices.ContainsFunc(s.Holders, func(h Holder) bool { return h.Owner == w.Owner && h.MaxHolders != w.MaxHolders }) {
			return "an owner waits with another number than it holds with"
		}
	}
	if len(s.Queue) > 0 {
		room := s.Queue[0].MaxHolders
		for _, h := range s.Holders {
			room = min(room, h.MaxHolders)
		}
		if len(s.Holders) < room {
			return "there is room for the first in the queue, and nothing says since when"
		}
	}
	return ""
}

// brokenLeases is Broken for what the sentences say of leases. If one is broken, nobody can say who has the key.
func (s State) brokenLeases() string {
	last := driver.Fence(0)
	switch {
	case s.LastFence < 0 || s.LastFence > 1<<62:
		return "the last fence is negative, or none is left"
	case s.Closed.For < 0:
		return "the key is closed for a negative time"
	}
	for i, h := range s.Holders {
		switch {
		case h.Fence <= last || h.Fence > s.LastFence:
			return "the fences of the holders do not grow up to the last fence"
		case slices.ContainsFunc(s.Holders[:i], func(o Holder) bool { return o.Owner == h.Owner }):
			return "an owner has two leases"
		case slices.ContainsFunc(s.Holders[:i], func(o Holder) bool { return o.Seat == h.Seat }):
			return "two holders have one seat"
		case len(s.Holders) > h.MaxHolders:
			return "more hold the key than one of them allows"
		case h.Started && h.MaxHolders != 1:
			return "the work of a lease with others has started"
		case s.Closed.For > 0:
			return "a closed key has a holder"
		}
		last = h.Fence
	}
	return ""
}

// Corrupt is the error of a store that has read leases which break a sentence. A queue or a mark that breaks one does no harm: it can only
// refuse.
func (s State) Corrupt() error {
	if what := s.brokenLeases(); what != "" {
		return errors.New(what)
	}
	return nil
}

// Strict makes Decide panic if it leaves the invariant. The packages that test stores set it, no other does.
var Strict bool

func mustHold(before, after State, r driver.Request) {
	asksOtherwise := func(o driver.Owner, most int) bool {
		return r.Kind == driver.Acquire && o == r.Owner && most != r.MaxHolders
	}
	what := ""
	switch {
	case before.brokenLeases() != "":
	case before.Broken() != "",
		slices.ContainsFunc(before.Holders, func(h Holder) bool { return asksOtherwise(h.Owner, h.MaxHolders) }),
		slices.ContainsFunc(before.Queue, func(w Waiter) bool { return asksOtherwise(w.Owner, w.MaxHolders) }): // see sentence 6
		what = after.brokenLeases()
	default:
		what = after.Broken()
	}
	if what != "" {
		panic(fmt.Sprintf("rules: %s by %v: %s\nbefore: %+v\nafter: %+v", r.Kind, r.Owner, what, before, after))
	}
}
