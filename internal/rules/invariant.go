package rules

import (
	"fmt"
	"slices"

	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// Part is a part of a state.
type Part int

// The parts of a state that can break the invariant.
const (
	None Part = iota
	Leases
	Queue
	Marks
	Room // for the first in the queue
)

// Broken returns the first of these sentences that the state breaks, and the part of the state that breaks it. Every
// state that Decide returns satisfies all of them, if the state before did.
//
//  1. The fences of the holders grow in the order of the grants, and none is above LastFence. Two holders have neither the same owner nor the same seat.
//  2. Not more hold the key than each of the holders allows, whether their leases have ended or not. One whose work has started allows no other.
//  3. A closed key has neither a holder nor a place in the queue, also after it has opened by time.
//  4. An owner has one place in the queue. If it has a lease, too, this lease was handed over and is not revoked.
//  5. A mark is of an owner that neither holds nor waits. An owner has one mark. Its fence is not above LastFence.
//  6. If somebody waits, the holders leave no room for the first in the queue, whether their leases have ended or not. (An owner
//     asks with one number always. If it does not, there may be room; then the next Acquire hands the key over.)
//
// TestInduction checks this, and what else is true of each step, for all states of a bounded size.
func (s State) Broken() (sentence string, part Part) {
	closed := s.Closed.For > 0
	last := driver.Fence(0)
	for i, h := range s.Holders {
		switch {
		case h.Fence <= last || h.Fence > s.LastFence:
			return "the fences of the holders do not grow up to the last fence", Leases
		case slices.ContainsFunc(s.Holders[:i], func(o Holder) bool { return o.Owner == h.Owner }):
			return "an owner has two leases", Leases
		case slices.ContainsFunc(s.Holders[:i], func(o Holder) bool { return o.Seat == h.Seat }):
			return "two holders have one seat", Leases
		case len(s.Holders) > h.MaxHolders:
			return "more hold the key than one of them allows", Leases
		case h.Started && h.MaxHolders != 1:
			return "the work of a lease with others has started", Leases
		case closed:
			return "a closed key has a holder", Leases
		}
		last = h.Fence
	}
	for i, w := range s.Queue {
		switch {
		case closed:
			return "somebody waits for a closed key", Queue
		case slices.ContainsFunc(s.Queue[:i], func(o Waiter) bool { return o.Owner == w.Owner }):
			return "an owner has two places", Queue
		case slices.ContainsFunc(s.Holders, func(h Holder) bool { return h.Owner == w.Owner && (!h.HandedOver || h.Revoked) }):
			return "an owner waits that has a lease, and not by a hand-over", Queue
		}
	}
	for i, m := range s.Ended {
		switch {
		case m.Fence > s.LastFence:
			return "the fence of a mark is above the last fence", Marks
		case slices.ContainsFunc(s.Ended[:i], func(o Ended) bool { return o.Owner == m.Owner }):
			return "an owner has two marks", Marks
		case slices.ContainsFunc(s.Holders, func(h Holder) bool { return h.Owner == m.Owner }),
			slices.ContainsFunc(s.Queue, func(w Waiter) bool { return w.Owner == m.Owner }):
			return "an owner has a mark, and holds or waits", Marks
		}
	}
	for _, w := range s.Queue {
		if slices.ContainsFunc(s.Holders, func(h Holder) bool { return h.Owner == w.Owner && h.MaxHolders != w.MaxHolders }) {
			return "an owner waits with another number than it holds with", Room
		}
	}
	if len(s.Queue) > 0 {
		room := s.Queue[0].MaxHolders
		for _, h := range s.Holders {
			room = min(room, h.MaxHolders)
		}
		if len(s.Holders) < room {
			return "there is room for the first in the queue, and nothing says since when", Room
		}
	}
	return "", None
}

// Read is what a store makes of a state that it has read. The error says which sentence of the invariant the leases
// break: nobody can say then who has the key. A queue or the marks that break a sentence are damaged and count as none: they
// can only refuse, so nothing is granted without them that the leases forbid.
func (s State) Read() (State, error) {
	for {
		switch sentence, part := s.Broken(); part {
		case Leases:
			return s, fmt.Errorf("%s", sentence)
		case Queue:
			s.Queue = nil
		case Marks:
			s.Ended = nil
		default:
			return s, nil
		}
	}
}

// Strict makes Decide panic if it leaves the invariant. The packages that test stores set it, no other does.
var Strict bool

func mustHold(before, after State, r driver.Request) {
	if _, part := before.Broken(); part != None {
		return
	}
	if sentence, part := after.Broken(); part != None {
		panic(fmt.Sprintf("rules: %s after %v: %s\nbefore: %+v\nafter: %+v", r.Kind, r.Owner, sentence, before, after))
	}
}
