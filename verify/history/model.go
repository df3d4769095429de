package history

import (
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// entry is what a store keeps of one key. The moment of expiry is known only to
// lie between lo, until which its holder may trust it, and hi, from which on it
// must be had by others.
type entry struct {
	owner     string // "" when the key is free
	fence     int64  // of the owner's grant; 0 when its reply was lost
	lo, hi    time.Duration
	open      time.Duration // TTL of a request whose moment is not known yet; hi follows from it
	released  string        // the last owner that ended its own lease: it takes nothing any more
	withdrawn string        // the last owner that withdrew without having the key: the same
}

// state is the model's state of one key.
type state struct {
	entry
	replica entry         // as of the last Keep
	last    int64         // the largest fence that anybody was told
	at      time.Duration // what comes next was not over before
	now     time.Duration // it is not earlier than the latest call so far
}

// request is an operation with what its owner did before it.
type request struct {
	Op
	repeat bool // it asked for something before
	again  bool // it released or withdrew before
}

// model says which answers a store may give in which state. Unknown outcomes
// lead to both states.
func model(l Limits) porcupine.Model {
	m := porcupine.NondeterministicModel{
		Partition: partition,
		Init:      func() []any { return []any{state{}} },
		Equal:     func(a, b any) bool { return a == b },
		Step: func(before, input, _ any) []any {
			var next []any
			for _, s := range step(before.(state), input.(request), l) {
				next = append(next, s)
			}
			return next
		},
		DescribeOperation: func(input, _ any) string { return input.(request).String() },
	}
	return m.ToModel()
}

func partition(history []porcupine.Operation) [][]porcupine.Operation {
	keys := map[string][]porcupine.Operation{}
	var order []string
	for _, op := range history {
		key := op.Input.(request).Key
		if keys[key] == nil {
			order = append(order, key)
		}
		keys[key] = append(keys[key], op)
	}
	var parts [][]porcupine.Operation
	for _, key := range order {
		parts = append(parts, keys[key])
	}
	return parts
}

// step returns the states that an operation may lead to; none when the answer
// is not allowed in this state.
func step(s state, op request, l Limits) []state {
	s.now = max(s.now, op.Call)
	if op.Outcome == Unknown {
		return unknown(s, op.Op, l)
	}
	if op.Return < s.at {
		return nil
	}
	s.at = 0
	if s.open > 0 {
		// The request before this operation was applied before this one returned.
		s.hi, s.open = max(s.hi, op.Return+s.open), 0
	}
	switch op.Kind {
	case Forget:
		s.entry = entry{}
		if l.Stamped {
			s.last = 0
		}
		return []state{s}
	case Keep:
		s.replica = s.entry
		return []state{s}
	case Back:
		s.entry = s.replica
		return []state{s}
	}

	mine := s.owner == op.Owner
	same := mine && (s.fence == op.Fence || s.fence == 0)
	mayBeOver := s.owner == "" || op.Return >= s.lo-l.Early
	mustBeOver := s.owner == "" || op.Call > s.hi+l.Late
	switch {
	case op.Kind == Acquire && op.Outcome == OK:
		return granted(s, op.Op, mayBeOver)
	case op.Kind == Acquire && op.Outcome == Busy:
		if mine || mustBeOver {
			return nil
		}
	case op.Kind == Acquire && op.Outcome == Lost:
		// A new owner cannot have lost anything, unless that very call outlived it.
		if mine && !mayBeOver || !mine && !op.repeat && op.Return-op.Call < op.TTL-l.Early {
			return nil
		}
		return []state{ended(s, op.Op, mine)}
	case op.Kind == Renew && op.Outcome == OK:
		if !same || op.Call > s.hi {
			return nil
		}
		s.fence = op.Fence
		s.lo, s.hi = max(s.lo, op.Call+op.Trust), max(s.hi, op.Return+op.TTL)
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
		if same && !mayBeOver {
			return nil
		}
		return []state{ended(s, op.Op, same)}
	case op.Kind == Withdraw && op.Outcome == OK:
		s.entry = withdrawn(s.entry, op.Owner, l)
	default:
		return nil
	}
	return []state{s}
}

func granted(s state, op Op, mayBeOver bool) []state {
	if s.owner == op.Owner {
		// The same lease again. An expired one is lost, and never granted anew.
		first := s.fence == 0 && op.Fence > s.last
		if s.fence != op.Fence && !first || op.Call > s.hi {
			return nil
		}
		s.fence, s.last = op.Fence, max(s.last, op.Fence)
		s.lo = max(s.lo, op.Call+op.Trust)
		return []state{s}
	}
	if op.Owner == s.withdrawn || op.Owner == s.released || !mayBeOver || op.Fence <= s.last {
		return nil
	}
	s.owner, s.fence, s.last = op.Owner, op.Fence, op.Fence
	s.lo, s.hi = op.Call+op.Trust, op.Return+op.TTL
	return []state{s}
}

// ended is the state after its owner was told that its lease is lost. It may
// still stand there, and block others for as long as the store tolerates.
func ended(s state, op Op, same bool) state {
	if same {
		s.hi = min(s.hi, op.Return)
	}
	return s
}

func freed(e entry, owner string) entry {
	return entry{released: owner, withdrawn: e.withdrawn}
}

func withdrawn(e entry, owner string, l Limits) entry {
	switch {
	case e.owner == owner:
		return freed(e, owner)
	case e.owner == "" || !l.Stamped:
		e.withdrawn = owner
	}
	return e
}

// unknown is nothing, or what the request would have done. It may be applied as
// late as the checker likes, so its times are as open as its return.
func unknown(s state, op Op, l Limits) []state {
	next := []state{s}
	applied := s.now // or later
	if l.Stamped {
		applied = op.Call
	}
	mine := s.owner == op.Owner
	same := mine && (s.fence == op.Fence || s.fence == 0)
	switch op.Kind {
	case Acquire:
		if !mine && op.Owner != s.withdrawn && op.Owner != s.released {
			taken := s
			if s.owner != "" {
				taken.at = max(s.at, s.lo-l.Early)
			}
			// The fence is told by a later answer to this owner, or never.
			taken.owner, taken.fence = op.Owner, 0
			taken.lo, taken.hi, taken.open = applied+op.TTL, 0, op.TTL
			next = append(next, taken)
		}
	case Renew:
		if same && (s.open > 0 || op.Call <= s.hi) {
			longer := s
			longer.lo, longer.open = max(s.lo, applied+op.TTL), max(s.open, op.TTL)
			next = append(next, longer)
		}
	case Release:
		if same {
			s.entry = freed(s.entry, op.Owner)
			next = append(next, s)
		}
	case Withdraw:
		s.entry = withdrawn(s.entry, op.Owner, l)
		next = append(next, s)
	}
	return next
}

// Check searches for an order of the operations that explains every answer. It
// returns false when there is none, and for people the longest orders that
// explain a part. decided is false when the search took longer than limit, which
// is no success.
//
// A request of unknown outcome may be applied late, but changes nothing any more
// once its owner has been told how its lease ended. See Haunted.
func Check(ops []Op, l Limits, limit time.Duration) (ok, decided bool, info porcupine.LinearizationInfo) {
	return check(ops, l, limit, false)
}

// Haunted reports whether late requests of owners that had ended explain what
// Check could not, on a store that forgets them.
func Haunted(ops []Op, l Limits, limit time.Duration) bool {
	if !l.Forgets {
		return false
	}
	ok, _, _ := check(ops, l, limit, true)
	return ok
}

func check(ops []Op, l Limits, limit time.Duration, ghosts bool) (ok, decided bool, info porcupine.LinearizationInfo) {
	ops = sorted(ops)
	owners := map[grantOf][]Op{}
	for _, op := range ops {
		id := grantOf{op.Key, op.Owner}
		owners[id] = append(owners[id], op)
	}
	done := map[grantOf]int{} // how many operations of an owner came before
	var all []porcupine.Operation
	for _, op := range ops {
		id := grantOf{op.Key, op.Owner}
		before, after := owners[id][:done[id]], owners[id][done[id]+1:]
		done[id]++
		if op.Outcome == Refused || op.Outcome == Broken || op.Kind == Write {
			continue // certainly not applied, or not the store's
		}
		end := op.Return
		if op.Outcome == Unknown {
			if op.Kind != Acquire && !slices.ContainsFunc(owners[id], func(o Op) bool { return o.Kind == Acquire }) {
				continue // a stranger's: if it did anything, the others' answers show it
			}
			end = forever
			if i := slices.IndexFunc(after, op.settledBy); i >= 0 && (!ghosts || op.Kind != Acquire) {
				end = after[i].Return
			}
		}
		repeat, again := len(before) > 0, slices.ContainsFunc(before, ends)
		if first, may := repeated(op, l); may {
			all = append(all, porcupine.Operation{
				ClientId: op.Client, Input: request{first, repeat, again}, Call: int64(op.Call), Return: int64(op.Return),
			})
			repeat = true
		}
		all = append(all, porcupine.Operation{
			ClientId: op.Client,
			Input:    request{op, repeat, again},
			Call:     int64(op.Call),
			Return:   int64(end),
		})
	}
	m := model(l)
	result := porcupine.CheckOperationsTimeout(m, all, limit)
	if result == porcupine.Illegal && !ghosts {
		_, info = porcupine.CheckOperationsVerbose(m, all, limit)
	}
	return result == porcupine.Ok, result != porcupine.Unknown, info
}

// repeated is what a call may have done before it did what it was told. A client
// repeats within its call what had no answer, so an acquire or a renewal that
// took longer than its TTL can be told how the lease that it made itself ended.
func repeated(op Op, l Limits) (first Op, may bool) {
	first = op
	first.Outcome, first.Trust = Unknown, 0
	may = (op.Kind == Acquire || op.Kind == Renew) && (op.Outcome == Lost || op.Outcome == Busy)
	return first, may && op.Return-op.Call >= op.TTL-l.Early
}

// settledBy reports whether a request of unknown outcome changes nothing any more
// after a later answer to the same owner. A lost acquire is the later one's lease,
// or refused for good; a lost renewal or release needs the lease to be there.
func (o Op) settledBy(later Op) bool {
	over := later.Outcome == Lost && (later.Fence == 0 || later.Fence == o.Fence || o.Kind == Acquire) ||
		later.Outcome == OK && (later.Kind == Release || later.Kind == Withdraw)
	switch o.Kind {
	case Withdraw:
		return later.Kind == Withdraw && later.Outcome == OK
	case Acquire:
		return over || later.Outcome == OK && later.Kind != Write
	}
	return over
}
