package checker

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// trust is the time for which a client may trust its lease. One of several holders may learn of its
// grant after others of theirs: it was handed the key while it waited, or its first reply was lost.
type trust struct {
	op         Op            // the grant
	told       Op            // the answer that end is from
	granted    time.Duration // not before
	begin, end time.Duration
}

// loss is a time in which a store may have lost what it had told since a moment.
type loss struct{ since, from, to time.Duration }

// Sweep returns what no order of the operations could excuse:
//   - a fence that did not grow, or was told to two owners
//   - a holder who is told to have no lease while it may trust its lease, or that another fence is right, or more
//     holders who trust theirs at the same time than one of them allows, or two of them with
//     one seat, unless the store lost a lease
//   - a refusal of a key for which nobody waits, when there must have been room
//   - a renewal of a lease that must have been over, or of none
//   - a resource that accepted a write after a write of a later holder of the same seat
//   - a grant or an effect while an answer is kept, or under work that has begun and did not
//     end
//   - a result that nobody stored, that another one of the same lease came before, or whose time is over
//   - an answer that took too long or should never be given
func Sweep(ops []Op, l Limits) (violations []string) {
	ops = sorted(ops)
	keys := map[string][]*trust{}
	losses := lost(ops)
	leases, denied := trusts(ops, losses, l)
	violations = append(violations, denied...)
	for id, own := range leases {
		keys[id.key] = append(keys[id.key], own...)
	}
	for key, all := range keys {
		violations = append(violations, overlaps(all, losses[key], l)...)
		violations = append(violations, fences(all)...)
	}
	violations = append(violations, refusals(ops, l)...)
	violations = append(violations, staleWrites(ops)...)
	violations = append(violations, entered(ops, losses, l)...)
	violations = append(violations, results(ops, losses, l)...)
	for _, op := range ops {
		switch {
		case op.Outcome == Invalid:
			violations = append(violations, fmt.Sprintf("an answer that no request may get:\n  %v", op))
		case l.Answer > 0 && op.Return-op.Call-op.Stood > l.Answer && op.Kind != Forget && op.Kind != CutOff && op.Kind != Promote:
			violations = append(violations, fmt.Sprintf("an answer took longer than %v:\n  %v", l.Answer, op))
		}
	}
	slices.Sort(violations)
	return violations
}

// lost is what happened to each key. A replica that takes over has what was told before it was cut off.
func lost(ops []Op) map[string][]loss {
	losses := map[string][]loss{}
	cut := map[string]time.Duration{}
	for _, op := range ops {
		switch op.Kind {
		case Forget:
			losses[op.Key] = append(losses[op.Key], loss{0, op.Call, op.Return})
		case CutOff:
			cut[op.Key] = op.Call
		case Promote:
			losses[op.Key] = append(losses[op.Key], loss{cut[op.Key], op.Call, op.Return})
		}
	}
	return losses
}

func sorted(ops []Op) []Op {
	ops = slices.Clone(ops)
	slices.SortStableFunc(ops, func(a, b Op) int { return cmp.Compare(a.Call, b.Call) })
	return ops
}

// ends reports whether the operation may have ended its owner's lease.
func ends(op Op) bool {
	switch op.Kind {
	case Release, Abandon, Complete, Revoke, ResolveEffect, ResolveNoEffect:
		return mayHave(op)
	}
	return false
}

// mayHave reports whether the request may have been applied.
func mayHave(op Op) bool { return op.Outcome == OK || op.Outcome == Unknown }

func keeps(k Kind) bool { return k == Complete || k == ResolveEffect }

func resolves(k Kind) bool { return k == ResolveEffect || k == ResolveNoEffect }

// operators reports whether the request is an operator's.
func operators(k Kind) bool { return k == Revoke || resolves(k) }

// refused reports whether an acquire was told that others come first.
func refused(o Outcome) bool { return o == Busy || o == Reserved || o == Completed || o == InDoubt }

// revokesOver reports whether the lease may have been revoked by a Revoke that was told that it is lost: the first
// try broke it, and the repeat came after its end.
func revokesOver(op Op, l Limits) bool {
	return op.Kind == Revoke && op.Outcome == Lost && l.Repeats > 0
}

// triedBefore reports whether a settlement was refused that may have been applied by an earlier try of its call.
func triedBefore(op Op, l Limits) bool {
	return resolves(op.Kind) && (refused(op.Outcome) || op.Outcome == Lost) && l.Repeats > 0 && op.Return-op.Call >= l.Repeats
}

// trusts follows what each owner was told of its leases, in the order of the
// calls. denied are answers that contradict what its owner was told before.
func trusts(ops []Op, losses map[string][]loss, l Limits) (leases map[grantOf][]*trust, denied []string) {
	leases = map[grantOf][]*trust{}
	breaks := map[grantOf][]loss{}
	for _, op := range ops {
		if op.Kind == Revoke && (mayHave(op) || revokesOver(op, l)) {
			id := grantOf{op.Key, op.Owner}
			breaks[id] = append(breaks[id], loss{0, op.Call, op.Return})
		}
	}
	asked := map[grantOf]time.Duration{} // since when each may have been granted the key unseen
	for _, op := range ops {
		if op.Kind == Effect || operators(op.Kind) {
			continue
		}
		id := grantOf{op.Key, op.Owner}
		if _, again := asked[id]; op.Kind == Acquire && op.Most > 1 && (op.Waits || op.Outcome == Unknown) && !again {
			asked[id] = op.Call
		}
		own := leases[id]
		var last *trust
		if len(own) > 0 {
			last = own[len(own)-1]
		}
		if op.Kind == Acquire && op.Outcome == OK && (last == nil || last.op.Fence != op.Fence) {
			granted := op.Call
			if since, ok := asked[id]; ok {
				granted = since
			}
			leases[id] = append(own, &trust{op, op, granted, op.Return, op.Call + op.Trust})
			continue
		}
		if last != nil && op.Outcome == OK && op.Fence != 0 && op.Fence != last.op.Fence && op.Kind != Acquire && op.Kind != Write && op.Return < last.end-l.Early {
			denied = append(denied, fmt.Sprintf("another fence than that of the lease was accepted:\n  %v\n  %v", last.op, op))
		}
		if last == nil || op.Kind == Write || op.Kind != Acquire && op.Kind != Abandon && op.Fence != last.op.Fence {
			continue
		}
		if (op.Outcome == Lost || refused(op.Outcome)) && op.Return < last.end-l.Early && !lostBetween(last.op, op, breaks[id]) && !lostBetween(last.told, op, losses[op.Key]) {
			denied = append(denied, fmt.Sprintf("a holder was told to have no lease %v before the end of its trust:\n  %v\n  %v", last.end-op.Return, last.op, op))
		}
		switch {
		case (op.Kind == Acquire || op.Kind == Renew) && op.Outcome == OK:
			if end := op.Call + op.Trust; end > last.end {
				last.told, last.end = op, end
			}
		case (op.Kind == Acquire || op.Kind == Renew) && op.Outcome == Lost:
			last.end = min(last.end, op.Return)
		case op.Kind == Release, op.Kind == Abandon, op.Kind == Complete:
			last.end = min(last.end, op.Call) // a holder that ends its lease has stopped
		}
	}
	return leases, denied
}

// overlaps are moments at which more trust the key than one of them allows, or two the same seat.
func overlaps(all []*trust, losses []loss, l Limits) (violations []string) {
	slices.SortFunc(all, func(a, b *trust) int { return cmp.Compare(a.begin, b.begin) })
	for i, b := range all {
		if b.begin >= b.end {
			continue // it came too late to be of use
		}
		least, at, twin := b.op.most(), []*trust{b}, ""
		for _, a := range all[:i] {
			// Who was granted the key first may be told last.
			if a.begin >= a.end || a.end-b.begin <= l.Early || lostBetween(a.told, b.op, losses) || lostBetween(b.told, a.op, losses) {
				continue
			}
			least, at = min(least, a.op.most()), append(at, a)
			if a.op.Seat == b.op.Seat {
				twin = fmt.Sprintf("two have the seat %d for %v:\n  %v\n  %v", b.op.Seat, a.end-b.begin, a.op, b.op)
			}
		}
		switch {
		case len(at) > least:
			last := slices.MaxFunc(at[1:], func(a, b *trust) int { return cmp.Compare(a.end, b.end) })
			text := fmt.Sprintf("two trusted the key for %v:\n  %v\n  %v", last.end-b.begin, last.op, b.op)
			if len(at) > 2 {
				text = fmt.Sprintf("%d trusted the key, and %d may:", len(at), least)
				for _, a := range at {
					text += fmt.Sprintf("\n  %v", a.op)
				}
			}
			violations = append(violations, text)
		case twin != "":
			violations = append(violations, twin)
		}
	}
	return violations
}

// most is how many may hold the key with this request.
func (o Op) most() int { return max(1, o.Most) }

// held is when an owner may have the key, as far as its answers say.
type held struct {
	most       int
	fence      int64
	ttl        time.Duration // the longest so far: no renewal makes a lease shorter
	begin, end time.Duration
	open       bool // a request without an answer may make it last for longer
}

// refusals are those that nobody explains, of keys for which nobody waits: a place in the queue may keep a key for a
// while when there is room. They are also the renewals without a lease. A holder explains a
// refusal from the call of its acquire until its release was answered, or its lease must be over. Only a request
// that got no answer, or that its client repeated, has a duplicate that may arrive later.
func refusals(ops []Op, l Limits) (violations []string) {
	byKey := map[string][]Op{}
	for _, op := range ops {
		byKey[op.Key] = append(byKey[op.Key], op)
	}
	for _, ops := range byKey {
		leases, revived := holds(ops, l)
		violations = append(violations, revived...)
		if l.OldReads || l.LateDuplicates > 0 && l.Repeats > 0 || slices.ContainsFunc(ops, func(op Op) bool { return op.Waits }) {
			continue
		}
		for _, op := range ops {
			if op.Kind != Acquire || op.Outcome != Busy && op.Outcome != Reserved {
				continue
			}
			n, least := 0, op.most()
			for owner, h := range leases {
				if owner != op.Owner && h.begin <= op.Return && (h.open || h.end >= op.Call) {
					n, least = n+1, min(least, h.most)
				}
			}
			if n < least {
				violations = append(violations, fmt.Sprintf("refused, and only %d of %d had the key:\n  %v", n, least, op))
			}
		}
	}
	return violations
}

// holds follows the leases of one key. revived are renewals without a lease: it must have been over, or nobody had it.
func holds(ops []Op, l Limits) (leases map[string]*held, revived []string) {
	leases = map[string]*held{}
	turn := time.Duration(0) // of who is handed the key
	if slices.ContainsFunc(ops, func(op Op) bool { return op.Waits }) {
		turn = lockstore.Turn
	}
	// A replica that takes over may not know that a lease has ended.
	fallsBack := slices.ContainsFunc(ops, func(op Op) bool { return op.Kind == Promote })
	late := l.Late
	if l.Repeats > 0 {
		late += l.LateDuplicates
	}
	for _, op := range ops {
		h := leases[op.Owner]
		// With repeats an earlier try of the same call may have had the key, whatever was told.
		if h == nil && op.Kind == Acquire && (mayHave(op) || l.Repeats > 0) {
			h = &held{most: op.most(), begin: op.Call}
			leases[op.Owner] = h
		}
		if op.Kind == Renew && (h == nil || op.Call > h.end && !h.open) {
			if op.Outcome == OK {
				revived = append(revived, fmt.Sprintf("a renewal without a lease:\n  %v", op))
			}
			continue
		}
		if h == nil {
			continue
		}
		switch op.Kind {
		case Acquire, Renew:
			if l.Repeats > 0 {
				h.end = max(h.end, op.Return)
			}
			if op.Outcome == OK || op.Kind == Renew && op.Outcome == Lost && l.Repeats > 0 {
				h.ttl = max(h.ttl, op.TTL, op.Trust, turn)
				h.end = max(h.end, op.Return+h.ttl+late)
			}
			if op.Outcome == OK && h.fence == 0 { // the acquires that got no answer before made this lease, or none
				h.fence, h.open = op.Fence, h.open && l.LateDuplicates > 0
			}
			h.open = h.open || op.Outcome == Unknown
		case Release, Abandon, Complete:
			if op.Outcome != OK || fallsBack {
				continue
			}
			if h.open || h.end > op.Return {
				h.end = op.Return
			}
			h.open = h.open && l.LateDuplicates > 0
		}
	}
	return leases, revived
}

// lostBetween reports whether the store may have lost what the first was told before it
// answered the second, or an operator may have broken it.
func lostBetween(first, second Op, losses []loss) bool {
	return slices.ContainsFunc(losses, func(loss loss) bool {
		return first.Return >= loss.since && loss.to >= first.Call && loss.from <= second.Return
	})
}

// fences have to differ, and a grant that began after another had ended has the
// larger one.
func fences(all []*trust) (violations []string) {
	byReturn := slices.Clone(all)
	slices.SortFunc(byReturn, func(a, b *trust) int { return cmp.Compare(a.op.Return, b.op.Return) })
	slices.SortFunc(all, func(a, b *trust) int { return cmp.Compare(a.granted, b.granted) })
	seen := map[int64]*trust{}
	var largest *trust
	i := 0
	for _, b := range all {
		for ; i < len(byReturn) && byReturn[i].op.Return < b.granted; i++ {
			if largest == nil || byReturn[i].op.Fence > largest.op.Fence {
				largest = byReturn[i]
			}
		}
		if largest != nil && b.op.Fence <= largest.op.Fence {
			violations = append(violations, fmt.Sprintf("the fence did not grow:\n  %v\n  %v", largest.op, b.op))
		}
		if twin := seen[b.op.Fence]; twin != nil {
			violations = append(violations, fmt.Sprintf("two have the same fence:\n  %v\n  %v", twin.op, b.op))
		}
		seen[b.op.Fence] = b
	}
	return violations
}

// seat is one of those that a key has.
type seat struct {
	key string
	n   int
}

// staleWrites are accepted writes of a lease after an accepted write of one that
// was granted later.
func staleWrites(ops []Op) (violations []string) {
	type lease struct {
		grantOf
		fence int64
	}
	grants := map[lease]Op{} // the first that told of the lease
	for _, op := range ops {
		id := lease{grantOf{op.Key, op.Owner}, op.Fence}
		if _, again := grants[id]; op.Kind == Acquire && op.Outcome == OK && !again {
			grants[id] = op
		}
	}
	latest := map[seat]Op{} // the latest grant of each seat that has written
	for _, op := range ops {
		if op.Kind != Write || op.Outcome != OK {
			continue
		}
		grant := grants[lease{grantOf{op.Key, op.Owner}, op.Fence}]
		own := seat{op.Key, op.Seat}
		later := latest[own]
		if grant.Return < later.Call {
			violations = append(violations, fmt.Sprintf("a stale write was accepted:\n  %v\n  %v\n  %v", grant, later, op))
		}
		if grant.Call >= later.Call {
			latest[own] = grant
		}
	}
	return violations
}

// interval is a time in which nobody but its owner may be granted the key or have an effect.
type interval struct {
	Op
	begin, end time.Duration
}

// forever is after all that is known.
const forever = time.Duration(math.MaxInt64)

// shut are the times in which an answer is kept, and the times in which work has begun and
// did not end.
func shut(ops []Op, l Limits) (all map[string][]interval) {
	all = map[string][]interval{}
	own := map[grantOf][]Op{}
	for _, op := range ops {
		if op.Kind == MarkStarted || ends(op) || triedBefore(op, l) {
			id := grantOf{op.Key, op.Owner}
			own[id] = append(own[id], op)
		}
	}
	for id, ops := range own {
		kept, ended := forever, forever // by when a kept key may open again, and a begun one
		for _, op := range ops {
			switch {
			case keeps(op.Kind):
				kept = min(kept, op.Call+op.TTL) // a repeat changes nothing
			case op.Kind != MarkStarted && op.Kind != Revoke:
				ended = min(ended, op.Call)
			}
		}
		for _, op := range ops {
			switch {
			case keeps(op.Kind) && op.Outcome == OK:
				all[id.key] = append(all[id.key], interval{op, op.Return, kept})
			case op.Kind == MarkStarted && op.Outcome == OK:
				all[id.key] = append(all[id.key], interval{op, op.Return, min(kept, ended)})
			}
		}
	}
	return all
}

// entered are grants and effects of others in such a time.
func entered(ops []Op, losses map[string][]loss, l Limits) (violations []string) {
	all := shut(ops, l)
	for _, op := range ops {
		if op.Kind != Effect && (op.Kind != Acquire || op.Outcome != OK) {
			continue
		}
		for _, i := range all[op.Key] {
			if op.Owner != i.Owner && op.Call > i.begin && op.Return < i.end-l.Early && !lostBetween(i.Op, op, losses[op.Key]) {
				violations = append(violations, fmt.Sprintf("the key was not shut:\n  %v\n  %v", i.Op, op))
			}
		}
	}
	return violations
}

// results are those that were told and should not have been. Each call stores another one.
func results(ops []Op, losses map[string][]loss, l Limits) (violations []string) {
	type result struct{ key, data string }
	stores := map[result]Op{}
	first := map[grantOf]Op{} // that was told to be stored, of each lease
	for _, op := range ops {
		if !keeps(op.Kind) {
			continue
		}
		stores[result{op.Key, op.Data}] = op
		id := grantOf{op.Key, op.Owner}
		if before, ok := first[id]; op.Outcome == OK && (!ok || op.Return < before.Return) {
			first[id] = op
		}
	}
	for _, op := range ops {
		if op.Outcome != Completed {
			continue
		}
		stored, ok := stores[result{op.Key, op.Data}]
		before, told := first[grantOf{op.Key, stored.Owner}]
		switch {
		case !ok, stored.Call > op.Return, !mayHave(stored) && l.Repeats == 0:
			violations = append(violations, fmt.Sprintf("a result that nobody stored:\n  %v", op))
		case told && before.Return < stored.Call && !lostBetween(before, op, losses[op.Key]):
			violations = append(violations, fmt.Sprintf("a result was replaced:\n  %v\n  %v", before, op))
		case stored.Outcome == OK && op.Call > stored.Return+stored.TTL+l.Late && !l.OldReads:
			violations = append(violations, fmt.Sprintf("a result was told after its time:\n  %v\n  %v", stored, op))
		}
	}
	return violations
}

// Counts say what happened in a history.
type Counts struct {
	Operations int // that the store answered
	Contended  int // acquires that were told busy
	Takeovers  int // grants after a lease that nobody had released
	Unknown    int
	NotApplied int
	Lost       int // leases that their own holder was told to have lost
	Stale      int // writes that the resource refused
	Losses     int // of an entry by the store

	Effects     int // of runs, each counted once
	Completions int // that were told ok
	Results     int // acquires that were told an answer
	InDoubt     int // acquires that were told that the key is in doubt
	Resolved    int
	Revocations int // of leases
}

// Count counts.
func Count(ops []Op) Counts {
	var c Counts
	ops = sorted(ops)
	released := map[grantOf]time.Duration{}
	breaks := map[grantOf]bool{}
	for _, op := range ops {
		id := grantOf{op.Key, op.Owner}
		if op.Kind == Revoke && mayHave(op) {
			breaks[id] = true
		}
		if _, ok := released[id]; ends(op) && op.Kind != Revoke && !ok { // a broken lease is taken over
			released[id] = op.Call
		}
	}
	grants := map[grantOf]Op{}
	last := map[seat]Op{} // the last grant of each seat
	for _, op := range ops {
		id := grantOf{op.Key, op.Owner}
		switch {
		case op.Kind == Write:
			if op.Outcome == Lost {
				c.Stale++
			}
			continue
		case op.Kind == Effect:
			c.Effects++
			continue
		case op.Kind == Forget || op.Kind == Promote:
			c.Losses++
			continue
		case op.Kind == CutOff, op.Outcome == Invalid:
			continue
		case op.Outcome == Unknown:
			c.Unknown++
			continue
		case op.Outcome == NotApplied:
			c.NotApplied++
			continue
		}
		c.Operations++
		switch {
		case operators(op.Kind) && op.Outcome != OK:
		case op.Kind == Revoke:
			c.Revocations++
		case resolves(op.Kind):
			c.Resolved++
		case op.Kind == Complete && op.Outcome == OK:
			c.Completions++
		case op.Outcome == Completed:
			c.Results++
		case op.Outcome == InDoubt:
			c.InDoubt++
		case op.Outcome == Busy, op.Outcome == Reserved:
			c.Contended++
		case op.Outcome == Lost && op.Fence != 0 && grants[id].Fence == op.Fence && !breaks[id]:
			c.Lost++
		case op.Kind == Acquire && op.Outcome == OK && grants[id].Fence != op.Fence:
			own := seat{op.Key, op.Seat}
			before, ok := last[own]
			end, ended := released[grantOf{op.Key, before.Owner}]
			if ok && before.Owner != op.Owner && (!ended || end > op.Return) {
				c.Takeovers++
			}
			grants[id], last[own] = op, op
		}
	}
	return c
}
