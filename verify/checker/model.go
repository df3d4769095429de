package checker

import (
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/lambdalock/lambdalock/lockstore"
)

// entry is what a store keeps of one key. The moment of expiry is not known. It lies
// between lo, until which the holder may trust its lease, and hi, from which on others
// must get the key.
type entry struct {
	owner     string // "" when the key is free
	fence     int64  // of the owner's grant; 0 when its reply was lost
	lo, hi    time.Duration
	open      time.Duration // TTL of a request whose moment is not known yet; hi follows from it
	openEnd   time.Duration // by when that request was applied
	released  string        // the last owner that released its lease: it takes nothing any more
	abandoned string        // the last owner that abandoned without having the key: the same

	begun bool   // the owner has begun its work: nobody else gets the key
	data  string // the answer, if the owner is closed
	kept  int64  // the fence of the last lease that ended with an answer
	own   bool   // this answer is the owner's, and not an operator's
}

// Nobody is one of these owners. Under closed the key keeps an answer, from lo to hi as if it
// were a lease. Under broken it has the lease that an operator has broken.
const (
	closed = "closed to all"
	broken = "broken by an operator"
)

// state is the model's state of one key.
type state struct {
	entry
	replica entry         // as of the last CutOff
	free    bool          // since the last CutOff the key was free, or handed over to an owner that was not told yet
	handed  entry         // the lease of the first that was told after it: the replica may have its hand-over
	last    int64         // the largest fence that anybody was told
	at      time.Duration // what comes next was not over before
	now     time.Duration // it is not earlier than the latest call so far
}

// request is an operation with what else is known of its owner.
type request struct {
	Op
	first time.Duration // when the owner asked for the first time
	again bool          // its lease may have been ended before, by itself or by an operator
	asked bool          // its owner may have been in the queue before, also by an earlier try of this request
	freed bool          // its lease may have been released, resolved as work without effect, or have ended with a result
	was   time.Duration // of a renewal: the longest TTL of its lease before; the lease is as long again
	end   time.Duration // of unknown outcome: by when it was applied, if it was
	over  bool          // what it made was over by then
}

// model says which answers about a key a store may give in which state. Unknown
// outcomes lead to both states.
func model(l Limits) porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init:  func() []any { return []any{state{}} },
		Equal: func(a, b any) bool { return a == b },
		Step: func(before, input, _ any) []any {
			var next []any
			for _, s := range step(before.(state), input.(request), l) {
				next = append(next, s)
			}
			return next
		},
	}
	return m.ToModel()
}

// step returns the states that an operation may lead to; none when the answer
// is not allowed in this state.
func step(s state, op request, l Limits) []state {
	s.now = max(s.now, op.Call)
	if op.Outcome == Unknown {
		return unknown(s, op, l)
	}
	if op.Return < s.at {
		return nil
	}
	s.at = 0
	if s.open > 0 {
		// The request before this operation was applied before this one returned.
		s.hi, s.open, s.openEnd = max(s.hi, min(op.Return, s.openEnd)+s.open), 0, 0
	}
	switch op.Kind {
	case Forget:
		s.entry = entry{}
		if l.Stamped {
			s.last = 0
		}
		return []state{s}
	case CutOff:
		s.replica, s.free, s.handed = s.entry, s.owner == "", entry{}
		return []state{s}
	case Promote:
		handed := s.handed
		s.entry = s.replica
		next := []state{s}
		if handed.owner != "" {
			s.owner, s.fence, s.hi = handed.owner, handed.fence, handed.hi
			next = append(next, s)
		}
		return next
	}

	mine := s.owner == op.Owner
	same := mine && (s.fence == op.Fence || s.fence == 0)
	mayBeOver := s.owner == "" || op.Return >= s.lo-l.Early
	mustBeOver := s.owner == "" || op.Call > s.hi+l.Late
	switch {
	case op.Kind == Acquire && op.Outcome == OK:
		return granted(s, op, mayBeOver, l)
	case op.Kind == Acquire && op.Outcome == Busy:
		if mine || mustBeOver || s.owner == closed {
			return nil
		}
	case op.Kind == Acquire && op.Outcome == Reserved:
		if mine || !mayBeOver || s.begun {
			return nil
		}
	case op.Kind == Acquire && op.Outcome == Completed:
		if s.owner != closed || s.data != op.Data || mustBeOver {
			return nil
		}
	case op.Kind == Acquire && op.Outcome == InDoubt:
		if mine || !mayBeOver || !s.begun {
			return nil
		}
	case op.Kind == Acquire && op.Outcome == Lost:
		// It cannot have lost what nobody ended and what could not end yet.
		tooSoon := op.Return-op.first < op.TTL-l.Early || op.first == op.Call && l.Repeats == 0
		if mine && !mayBeOver || !mine && !op.again && tooSoon {
			return nil
		}
		return []state{ended(s, op.Op, mine)}
	case op.Kind == Renew && op.Outcome == OK:
		if !same || op.Call > s.hi+l.Late { // until then nobody else may take it over
			return nil
		}
		s.fence = op.Fence
		s.lo, s.hi = max(s.lo, op.Call+op.Trust), max(s.hi, op.Return+max(op.TTL, op.Trust))
	case op.Kind == Renew && op.Outcome == Lost:
		if same && !mayBeOver {
			return nil
		}
		return []state{ended(s, op.Op, same)}
	case op.Kind == Release && op.Outcome == OK:
		switch {
		case same:
			s.entry = freed(s.entry, op.Owner)
		case mine || !op.again:
			return nil // by another fence, or by nobody's
		}
	case op.Kind == Release && op.Outcome == Lost:
		if same && (!mayBeOver || s.begun) || s.owner == "" && s.released == op.Owner {
			return nil
		}
		return opened(s, op.Op, ended(s, op.Op, same))
	case op.Kind == Abandon && op.Outcome == OK:
		next := s
		next.entry = abandoned(s.entry, op.Owner, l)
		return opened(s, op.Op, next)
	case op.Kind == MarkStarted && op.Outcome == OK:
		if !same || op.Call > s.hi+l.Late {
			return nil
		}
		s.begun = true
	case op.Kind == MarkStarted && op.Outcome == Lost:
		if same && !mayBeOver {
			return nil
		}
		s.begun = s.begun && !(same && l.LateRenewals) // such a store undoes what came too late
		return []state{ended(s, op.Op, same)}
	case op.Kind == Complete && op.Outcome == OK:
		switch {
		case same: // also after the end of the lease
			s.entry = completing(s.entry, op.Op, op.Call+op.TTL, op.Return+op.TTL)
		case !op.again || s.kept < op.Fence || s.kept == op.Fence && !s.own:
			return nil // it has not kept it itself, so this is no repeat
		}
	case op.Kind == Complete && op.Outcome == Lost:
		// After the end of a lease the key may have been handed over to an owner that never asked.
		handed := mayBeOver && !s.begun
		if same && !handed || s.owner == closed && s.kept == op.Fence && s.own && op.again {
			return nil
		}
	case resolves(op.Kind):
		return resolved(s, op, mayBeOver, mustBeOver && !l.LateRenewals)
	case op.Kind == Revoke && op.Outcome == OK:
		if !same && (s.owner != broken || s.fence != op.Fence) || op.Call > s.hi+l.Late {
			return nil
		}
		s.entry = revoking(s.entry, op.Op)
	case op.Kind == Revoke && op.Outcome == Lost:
		if (same || s.owner == broken && s.fence == op.Fence) && !mayBeOver {
			return nil
		}
		next := []state{ended(s, op.Op, same)}
		if same && revokesOver(op.Op, l) {
			s.entry = revoking(s.entry, op.Op)
			next = append(next, ended(s, op.Op, true))
		}
		return next
	default:
		return nil
	}
	return []state{s}
}

// revokesOver reports whether the lease may be revoked by a Revoke that was told that it is lost:
// it was over, and the row says broken all the same; or the first try broke it, and the
// repeat came after its end.
func revokesOver(op Op, l Limits) bool {
	return op.Kind == Revoke && op.Outcome == Lost && (l.Stamped || l.Repeats > 0)
}

func resolves(k Kind) bool { return k == ResolveEffect || k == ResolveNoEffect }

// settled is what a settlement leads to that was answered. Where renewals may be late, an
// owner that leaves the queue of a lease that is over may move the end of the lease to now. So
// a settlement may be told that the lease lasts.
func resolved(s state, op request, mayBeOver, mustBeOver bool) []state {
	begun := s.begun && s.fence == op.Fence
	kept := s.owner == closed && s.kept == op.Fence
	switch op.Outcome {
	case OK:
		switch {
		case begun && mayBeOver && op.Kind == ResolveEffect:
			s.entry = completing(s.entry, op.Op, op.Call+op.TTL, op.Return+op.TTL)
		case begun && mayBeOver:
			s.entry = freed(s.entry, op.Owner)
		case op.Kind == ResolveEffect && kept && !mustBeOver: // settled before
		case op.Kind == ResolveNoEffect && (s.owner == "" || kept && mayBeOver) && s.last == op.Fence:
		case op.Kind == ResolveNoEffect && op.freed && s.owner != op.Owner && !kept: // the next was handed the key then
		default:
			return nil
		}
	case Busy:
		if s.owner == "" || s.owner == closed || mustBeOver {
			return nil
		}
	case Reserved: // the key was handed over, after another had resolved it
		if s.begun || !mayBeOver {
			return nil
		}
	case Lost:
		if begun && mustBeOver || op.Kind == ResolveEffect && kept && !mayBeOver {
			return nil
		}
	default:
		return nil
	}
	return []state{s}
}

// completing is the entry in which the result of op is stored until a time from lo to hi.
func completing(e entry, op Op, lo, hi time.Duration) entry {
	e = freed(e, op.Owner)
	e.owner, e.data, e.kept, e.own, e.lo, e.hi = closed, op.Data, op.Fence, op.Kind == Complete, lo, hi
	return e
}

// revoking is the entry whose owner is over. The end of the lease does not change.
func revoking(e entry, op Op) entry {
	if e.owner != broken {
		e.owner, e.released = broken, op.Owner
	}
	return e
}

func granted(s state, op request, mayBeOver bool, l Limits) []state {
	if s.owner == op.Owner {
		// The same lease again. An expired one is lost, and never granted anew. Until others may take it over, the
		// store may name it: nothing of it can be trusted then.
		first := s.fence == 0 && op.Fence > s.last
		if s.fence != op.Fence && !first || op.Call > s.hi+l.Late || op.Call > s.hi && op.Trust > 0 {
			return nil
		}
		s.fence, s.last = op.Fence, max(s.last, op.Fence)
		s.lo = max(s.lo, op.Call+op.Trust)
		if first {
			s.hi = max(s.hi, op.Return+op.longest())
		}
		return []state{s}
	}
	if op.Owner == s.abandoned || op.Owner == s.released || !mayBeOver || s.begun || op.Fence <= s.last {
		return nil
	}
	s.owner, s.fence, s.last, s.data = op.Owner, op.Fence, op.Fence, ""
	s.lo, s.hi = op.Call+op.Trust, op.Return+op.longest()
	return []state{told(s, op)}
}

// told remembers who was the first to be granted a key that was free at the last CutOff. An owner that had a
// place may have been handed the key before, for a turn.
func told(s state, op request) state {
	if s.free && op.asked {
		s.handed = entry{owner: op.Owner, fence: op.Fence, hi: op.Return + lockstore.Turn}
	}
	s.free = false
	return s
}

// ended is the state after its owner was told that its lease is lost. It may
// still stand there, and block others for as long as the store tolerates.
func ended(s state, op Op, same bool) state {
	if same {
		s.hi = min(s.hi, op.Return)
	}
	return s
}

// opened are the states after a release by an owner whose lease was revoked: the next one, and where
// the release hands the key over, the one in which the lease has ended.
func opened(s state, op Op, next state) []state {
	if s.owner != broken || s.released != op.Owner || s.begun {
		return []state{next}
	}
	s.lo = min(s.lo, op.Call)
	if op.Outcome != Unknown {
		s.hi = min(s.hi, op.Return)
	}
	return []state{next, s}
}

func freed(e entry, owner string) entry {
	return entry{released: owner, abandoned: e.abandoned, kept: e.kept, own: e.own}
}

func abandoned(e entry, owner string, l Limits) entry {
	switch {
	case e.owner == owner:
		return freed(e, owner)
	case l.Stamped && e.owner == "":
		e.abandoned, e.released = owner, "" // there is room for one
	case !l.Stamped:
		e.abandoned = owner
	}
	return e
}

// unknown is nothing, or what the request would have done. It may be applied as
// late as the checker likes, so its times are as open as its return.
func unknown(s state, op request, l Limits) []state {
	next := []state{s}
	applied := s.now // or later
	if l.Stamped {
		applied = op.Call
	}
	mine := s.owner == op.Owner
	same := mine && (s.fence == op.Fence || s.fence == 0)
	switch op.Kind {
	case Acquire:
		if !mine && !s.begun && op.Owner != s.abandoned && op.Owner != s.released {
			taken := s
			if s.owner != "" {
				taken.at = max(s.at, s.lo-l.Early)
			}
			// The fence is told by a later answer to this owner, or never.
			taken.owner, taken.fence = op.Owner, 0
			taken.lo, taken.hi, taken.open, taken.openEnd, taken.data = applied+op.TTL, 0, 0, 0, ""
			next = append(next, lasting(told(taken, op), op, l))
		}
	case Renew:
		alive := max(s.hi, s.openEnd+s.open)
		if same && op.Call <= alive+l.Late {
			longer := s
			longer.lo = max(s.lo, applied+op.TTL)
			if !l.LateRenewals {
				op.end = min(op.end, alive)
			}
			next = append(next, lasting(longer, op, l))
		}
	case Release:
		after := s
		if same {
			after.entry = freed(s.entry, op.Owner)
		}
		if after := opened(s, op.Op, after); same || len(after) > 1 {
			next = append(next, after...)
		}
	case Abandon:
		after := s
		after.entry = abandoned(s.entry, op.Owner, l)
		next = append(next, opened(s, op.Op, after)...)
	case MarkStarted:
		if same && op.Call <= max(s.hi, s.openEnd+s.open)+l.Late {
			s.begun = true
			next = append(next, s)
		}
	case Complete:
		if same {
			s.entry = completing(s.entry, op.Op, applied+op.TTL, 0)
			next = append(next, lasting(s, op, l))
		}
	case Revoke:
		if same {
			s.entry = revoking(s.entry, op.Op)
			next = append(next, s)
		}
	case ResolveEffect, ResolveNoEffect:
		if s.begun && s.fence == op.Fence {
			s.at = max(s.at, s.lo-l.Early)
			if op.Kind == ResolveNoEffect {
				s.entry = freed(s.entry, op.Owner)
			} else {
				s.entry = completing(s.entry, op.Op, applied+op.TTL, 0)
				s = lasting(s, op, l)
			}
			next = append(next, s)
		}
	}
	return next
}

// longest is for how long the request may hold the key, if it is applied. An owner that may have asked before
// may have been handed the key, and what extends a hand-over makes no lease shorter than a turn.
func (r request) longest() time.Duration {
	if r.Kind == Acquire && r.asked {
		return max(r.TTL, lockstore.Turn)
	}
	return max(r.TTL, r.was)
}

// lasting sets by when the key is free again after a request of unknown outcome.
func lasting(s state, op request, l Limits) state {
	switch {
	case op.over:
		s.hi = max(s.hi, op.Return)
	case l.Stamped: // from its stamp on, whenever it arrives
		s.hi = max(s.hi, op.Return+op.longest())
	default:
		s.open, s.openEnd = max(s.open, op.longest()), max(s.openEnd, op.end)
	}
	return s
}

// Check searches for an order of the operations on one key that explains every
// answer. It returns false when there is none, and for people the longest orders
// that explain a part. decided is false when the search took longer than limit,
// which is no success.
//
// A request of unknown outcome may be applied late, but changes nothing any more
// once its owner has been told how its lease ended. See ExplainedByLateDuplicate.
func Check(ops []Op, l Limits, limit time.Duration) (ok, decided bool, info porcupine.LinearizationInfo) {
	all := requests(ops, l, false)
	ok, decided = check(all, l, limit)
	if decided && !ok {
		_, info = porcupine.CheckOperationsVerbose(model(l), all, limit)
	}
	return ok, decided, info
}

// ExplainedByLateDuplicate reports whether late requests explain what Check could
// not, on a store that forgets owners. A late request arrives when its owner has ended
// or was told something else.
func ExplainedByLateDuplicate(ops []Op, l Limits, limit time.Duration) (explained, decided bool) {
	if l.LateDuplicates == 0 {
		return false, true
	}
	return check(requests(ops, l, true), l, limit)
}

func check(all []porcupine.Operation, l Limits, limit time.Duration) (ok, decided bool) {
	result := porcupine.CheckOperationsTimeout(model(l), all, limit)
	return result == porcupine.Ok, result != porcupine.Unknown
}

// requests are the operations as the model takes them.
func requests(ops []Op, l Limits, lateDuplicates bool) (all []porcupine.Operation) {
	ops = sorted(ops)
	owners := map[string][]Op{}
	for _, op := range ops {
		owners[op.Owner] = append(owners[op.Owner], op)
	}
	done := map[string]int{}              // how many operations of an owner came before
	longest := map[string]time.Duration{} // the longest TTL of its lease so far
	for _, op := range ops {
		own := owners[op.Owner]
		before, after := own[:done[op.Owner]], own[done[op.Owner]+1:]
		done[op.Owner]++
		if op.Outcome == Invalid || op.Kind == Write || op.Kind == Effect {
			continue // no answer, or not the store's
		}
		if l.OldReads && op.Kind == Acquire && refused(op.Outcome) {
			continue
		}
		r := request{Op: op, first: own[0].Call, end: op.Return}
		r.asked = r.first < op.Call || l.Repeats > 0 // a client repeats at once what found its connection closed
		// An operator may end the lease at the same time.
		ended := func(o Op) bool { return o.Call < op.Return && (ends(o) || revokesOver(o, l)) }
		r.again = slices.ContainsFunc(before, ended) || slices.ContainsFunc(after, ended)
		frees := func(o Op) bool {
			return o.Call < op.Return && mayHave(o) && (o.Kind == Release || o.Kind == Abandon || o.Kind == ResolveNoEffect || keeps(o.Kind))
		}
		r.freed = slices.ContainsFunc(before, frees) || slices.ContainsFunc(after, frees)
		if op.Kind == Renew {
			r.was = longest[op.Owner]
		}
		if (op.Kind == Acquire || op.Kind == Renew) && mayHave(op) {
			longest[op.Owner] = max(longest[op.Owner], r.longest())
		}
		add := func(r request) {
			all = append(all, porcupine.Operation{ClientId: op.Client, Input: r, Call: int64(op.Call), Return: int64(r.end)})
		}
		if took := op.Return - op.Call; l.Repeats > 0 && took >= l.Repeats && (op.Kind == Acquire || op.Kind == Renew) {
			// The client repeats a request within a call if no answer comes in time. So the
			// answer may be about the repeat, after the lease of the first try has ended.
			try := r
			try.Outcome, try.Trust = Unknown, 0
			switch {
			case lateDuplicates: // or the first try arrives last
				try.end += l.LateDuplicates
				add(try)
			case took >= op.TTL-l.Early:
				try.over = true
				add(try)
			}
		}
		broke := func(o Op) bool { return o.Kind == Revoke && mayHave(o) && o.Call < op.Return && o.Return > op.Call }
		if triedBefore(op, l) || op.Outcome == Lost && (op.Kind == MarkStarted && (l.Repeats > 0 || l.LateRenewals) ||
			op.Kind == Revoke && l.Repeats > 0 || op.Kind == Renew && l.Repeats > 0 && slices.ContainsFunc(own, broke)) {
			// The first try was applied. The lease was broken, or it ended, or others had the key, before the
			// repeat. Or the request came too late, and was undone.
			try := r
			try.Outcome = Unknown
			add(try)
		}
		if op.Outcome == NotApplied {
			continue // certainly not applied in the end
		}
		if op.Outcome == Unknown {
			if op.Kind != Acquire && !slices.ContainsFunc(own, func(o Op) bool { return o.Kind == Acquire }) {
				continue // not the holder's: if it did anything, the others' answers show it
			}
			asks := func(o Op) bool { return o.Kind == Acquire }
			r.asked = r.asked || slices.ContainsFunc(after, asks) // it may arrive after its repeat got a place
			r.end = forever
			if i := slices.IndexFunc(after, op.settledBy); i >= 0 {
				r.end = after[i].Return
				if lateDuplicates && op.Kind == Acquire {
					r.end += l.LateDuplicates
				}
			}
		}
		add(r)
	}
	return all
}

// settledBy reports whether a request of unknown outcome changes nothing any more
// after a later answer to the same owner. An acquire then has got the lease that the
// later answer is about, or never gets a lease. A renewal or release needs the lease.
//
// Not every store looks at the end of the lease before a Keep, or before what an operator
// asks for. So these may be applied after their owner was told that the lease is lost.
func (o Op) settledBy(later Op) bool {
	ended := later.Outcome == OK && ends(later)
	lost := later.Outcome == Lost && (later.Fence == 0 || later.Fence == o.Fence || o.Kind == Acquire)
	switch o.Kind {
	case Abandon:
		return later.Kind == Abandon && later.Outcome == OK
	case Acquire:
		return ended || lost && !operators(later.Kind) || later.Outcome == OK && later.Kind != Write && later.Kind != Effect
	case Renew, Release:
		return ended || lost && !operators(later.Kind)
	case ResolveEffect, ResolveNoEffect: // the owner of a lease that was broken is told that it is lost
		return ended
	}
	return ended || lost && later.Kind == Complete
}

// triedBefore reports whether a settlement was refused that may have been applied by an earlier try of its call.
func triedBefore(op Op, l Limits) bool {
	return resolves(op.Kind) && (refused(op.Outcome) || op.Outcome == Lost) && l.Repeats > 0 && op.Return-op.Call >= l.Repeats
}

// operators reports whether the request is an operator's.
func operators(k Kind) bool { return k == Revoke || resolves(k) }

// refused reports whether an acquire was told that others come first.
func refused(o Outcome) bool { return o == Busy || o == Reserved || o == Completed || o == InDoubt }
