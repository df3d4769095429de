// Package checker judges a history: what clients asked of a store, what they were told, and when.
//
// Sweep looks at what no store may do, whatever the order of the requests was: who may trust a key at the same time, seats, fences,
// ends of a lease that come too late or too early, grants of a key that is shut, doubt, results, and
// refusals that nothing explains. Whether each answer is the
// one of the rule book is not its question: the comparison of each store with the rule book asks that.
//
// A store that loses data is not excused. What it lost, and when, is part of the history (Forget, CutOff, Promote).
package checker

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"
)

// Kind is what was asked, or what happened to the store.
type Kind string

// The requests have the names of driver.Kind. A grant that an owner learns of while it waits in the queue is an Acquire,
// too. An Abandon has no fence, as it ends an Acquire whose outcome is unknown.
const (
	Acquire     Kind = "acquire"
	Renew       Kind = "renew"
	Release     Kind = "release"
	Abandon     Kind = "abandon"
	MarkStarted Kind = "mark started"
	Complete    Kind = "complete"
	Resolve     Kind = "resolve"
	Revoke      Kind = "revoke"

	Forget  Kind = "forget"  // the key's entry is gone
	CutOff  Kind = "cutoff"  // from now on the replica gets no changes
	Promote Kind = "promote" // the replica takes over as it was at the last CutOff
)

// Outcome is what the client was told.
type Outcome string

// The outcomes. After NotApplied certainly nothing was applied. After Unknown the request may have been applied, or will
// be later. Invalid is what no request of a history may be told.
const (
	OK         Outcome = "ok"
	Busy       Outcome = "busy"      // others come first
	Completed  Outcome = "completed" // a result is stored, and was told
	InDoubt    Outcome = "in doubt"  // a lease has ended under work that had started
	Lost       Outcome = "lost"
	NotApplied Outcome = "not applied"
	Unknown    Outcome = "unknown"
	Invalid    Outcome = "invalid"
)

// Op is one operation. Times count from the history's beginning, on one clock that never jumps.
type Op struct {
	Client  int
	Kind    Kind
	Key     string
	Owner   string        // one client's, and new for each acquisition
	Fence   int64         // of the lease: told by an Acquire, named by the others
	Seat    int           // of the lease
	Most    int           // the MaxHolders of an Acquire; 0 is 1
	Waits   bool          // an Acquire that asked for a place in the queue, or that was told of a grant there
	TTL     time.Duration // asked for; of a Complete and a Resolve for how long the result is stored
	Trust   time.Duration // from Call on; of an Acquire and a Renew
	Data    string        // the result that a Complete or a Resolve stores, and an Acquire is told; each lease has its own
	Outcome Outcome
	Call    time.Duration
	Return  time.Duration
	Cause   string // the error, for people
}

func (o Op) String() string {
	return fmt.Sprintf("client %d %s %s as %.6s: %s, fence %d, seat %d of %d, trusted for %v, %q  [%v, %v]  %s",
		o.Client, o.Kind, o.Key, o.Owner, o.Outcome, o.Fence, o.Seat, o.most(), o.Trust, o.Data, o.Call.Round(time.Microsecond), o.Return.Round(time.Microsecond), o.Cause)
}

// most is how many may hold the key with this request.
func (o Op) most() int { return max(1, o.Most) }

// stores reports whether the request stores a result.
func (o Op) stores() bool { return (o.Kind == Complete || o.Kind == Resolve) && o.TTL > 0 }

// Limits are what a store's tolerance adds to the times that clients know.
type Limits struct {
	Early time.Duration // by how much a grant may come before the end of the trust in the earlier one: the error of the recording
	Late  time.Duration // how long after the end of a TTL the key may still be busy
	// Refusals says that a refusal proves that somebody has the key. It does not where a client repeats a request within a call, or
	// where a request may arrive late or be answered by an old read: then it may be the duplicate of another request that has it.
	Refusals bool
}

// History collects operations from many clients.
type History struct {
	Start time.Time

	mu  sync.Mutex
	ops []Op
}

// New is an empty history that begins now.
func New() *History { return &History{Start: time.Now()} }

// Now is the time on the history's clock.
func (h *History) Now() time.Duration { return time.Since(h.Start) }

// Add records an operation that has returned.
func (h *History) Add(op Op) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, op)
}

// Ops are the operations so far, in the order of their calls.
func (h *History) Ops() []Op {
	h.mu.Lock()
	defer h.mu.Unlock()
	return inOrder(h.ops)
}

func inOrder(ops []Op) []Op {
	return slices.SortedStableFunc(slices.Values(ops), func(a, b Op) int { return cmp.Compare(a.Call, b.Call) })
}

// Sweep returns what no order of the operations could excuse. Each text begins with what is wrong, and has the operations.
func Sweep(ops []Op, l Limits) (violations []string) {
	keys := map[string]*key{}
	for _, op := range inOrder(ops) {
		if op.Outcome == Invalid {
			violations = append(violations, "an answer that no request may get\n  "+op.String())
		}
		k := keys[op.Key]
		if k == nil {
			k = &key{limits: l, leases: map[int64]*lease{}}
			keys[op.Key] = k
		}
		k.ops = append(k.ops, op)
	}
	for _, k := range keys {
		k.follow()
		k.overlaps()
		k.fences()
		k.refusals()
		k.overtaken()
		k.shut()
		k.doubt()
		k.results()
		violations = append(violations, k.violations...)
	}
	slices.Sort(violations)
	return violations
}

// key is the history of one key.
type key struct {
	limits     Limits
	ops        []Op
	losses     []loss
	leases     map[int64]*lease // by fence, as their owners know them
	granted    []*lease         // all of them, also those that have a fence that was there before
	violations []string
}

// lease is one, and for how long its owner may trust it.
type lease struct {
	grant      Op            // the first answer that told of it
	told       Op            // the answer that end is from
	asked      time.Duration // it was not granted before: the owner's first request
	begin, end time.Duration
}

// before reports whether a lease that was trusted began when the other was over.
func (l *lease) before(next *lease, early time.Duration) bool {
	return l.begin < next.begin && l.end <= next.begin+early && next.begin < next.end
}

// excludes reports whether the two may not be at the same time.
func (l *lease) excludes(other *lease) bool {
	return min(l.grant.most(), other.grant.most()) == 1 || l.grant.Seat == other.grant.Seat
}

// loss is a time in which a store may have lost what it had told since a moment.
type loss struct{ since, from, to time.Duration }

func (k *key) violation(what string, ops ...Op) {
	for _, op := range ops {
		what += "\n  " + op.String()
	}
	k.violations = append(k.violations, what)
}

// lost reports whether the store may have lost what the first was told before it answered the second.
func (k *key) lost(first, second Op) bool {
	return slices.ContainsFunc(k.losses, func(l loss) bool {
		return first.Return >= l.since && l.to >= first.Call && l.from <= second.Return
	})
}

// follow finds the losses, and the leases with what their owners were told of them. A holder may be told to have no
// lease only after the end of its trust, or if an operator has revoked it, or if the store has lost it.
func (k *key) follow() {
	cut, asked, revoked := time.Duration(0), map[string]Op{}, map[int64]time.Duration{}
	for _, op := range k.ops {
		switch op.Kind {
		case Forget:
			k.losses = append(k.losses, loss{0, op.Call, op.Return})
		case CutOff:
			cut = op.Call
		case Promote: // it has what was told before it was cut off
			k.losses = append(k.losses, loss{cut, op.Call, op.Return})
		case Revoke: // whatever was told: an earlier try may have been applied
			if _, again := revoked[op.Fence]; !again {
				revoked[op.Fence] = op.Call
			}
		}
	}
	for _, op := range k.ops {
		if _, again := asked[op.Owner]; op.Kind == Acquire && !again {
			asked[op.Owner] = op
		}
		own := k.leases[op.Fence]
		if own != nil && own.grant.Owner != op.Owner {
			own = nil
		}
		switch {
		case op.Kind == Acquire && op.Outcome == OK && own == nil:
			op.Most = max(op.Most, asked[op.Owner].Most) // who learns of its grant while it waits has asked before
			own = &lease{op, op, asked[op.Owner].Call, op.Return, op.Call + op.Trust}
			k.leases[op.Fence], k.granted = own, append(k.granted, own)
		case op.Kind == Renew && op.Outcome == OK && own == nil:
			k.violation("a renewal without a lease", op)
		case own == nil || op.Kind == Revoke || op.Kind == Resolve:
		case slices.Contains([]Outcome{Lost, Busy, Completed, InDoubt}, op.Outcome):
			at, gone := revoked[op.Fence]
			if op.Return < own.end-k.limits.Early && !(gone && at <= op.Return) && !k.lost(own.told, op) {
				k.violation(fmt.Sprintf("a holder was told to have no lease %v before the end of its trust", own.end-op.Return), own.grant, op)
			}
			own.end = min(own.end, op.Return)
		case op.Outcome == OK && (op.Kind == Acquire || op.Kind == Renew) && op.Call+op.Trust > own.end:
			own.told, own.end = op, op.Call+op.Trust
		}
		switch op.Kind { // a holder that ends its lease has stopped
		case Resolve:
			l := k.leases[op.Fence]
			ends := func(o Op) bool { // meanwhile: then a Resolve has nothing to do
				return (o.Kind == Release || o.Kind == Complete) && o.Fence == op.Fence && o.Owner == l.grant.Owner && o.Call < op.Return
			}
			if _, gone := revoked[op.Fence]; l != nil && op.Outcome == OK && op.Return < l.end-k.limits.Early && !gone && !k.lost(l.told, op) && !slices.ContainsFunc(k.ops, ends) {
				k.violation("resolved before the end of the trust in the lease", l.grant, op)
			}
		case Release, Complete:
			if own != nil {
				own.end = min(own.end, op.Call)
			}
		case Abandon:
			for _, l := range k.granted {
				if l.grant.Owner == op.Owner {
					l.end = min(l.end, op.Call)
				}
			}
		}
	}
}

// overlaps are moments at which more trust the key than one of them allows, or two the same seat.
func (k *key) overlaps() {
	for _, b := range k.granted {
		at, least, twin := []Op{b.grant}, b.grant.most(), false
		for _, a := range k.granted {
			if a == b || a.begin > b.begin || a.begin >= a.end || b.begin >= b.end || a.end-b.begin <= k.limits.Early || k.lost(a.told, b.grant) || k.lost(b.told, a.grant) {
				continue
			}
			at, least, twin = append(at, a.grant), min(least, a.grant.most()), twin || a.grant.Seat == b.grant.Seat
		}
		switch {
		case len(at) > least:
			k.violation(fmt.Sprintf("%d trusted the key, and %d may", len(at), least), at...)
		case twin:
			k.violation("two have the same seat", at...)
		}
	}
}

// fences have to differ, and a grant that began after another had ended has the larger one. Who waited has asked before that.
func (k *key) fences() {
	for _, b := range k.granted {
		for _, a := range k.granted {
			switch {
			case a != b && a.grant.Fence == b.grant.Fence && a.begin <= b.begin:
				k.violation("two have the same fence", a.grant, b.grant)
			case a.grant.Return < b.asked && a.grant.Fence > b.grant.Fence,
				a.before(b, k.limits.Early) && a.excludes(b) && a.grant.Fence > b.grant.Fence && !k.lost(a.told, b.grant) && !k.lost(b.told, a.grant):
				k.violation("the fence did not grow", a.grant, b.grant)
			}
		}
	}
}

// forever is after all that is known.
const forever = time.Duration(math.MaxInt64)

// refusals are those that nobody explains. A place in the queue may keep a key for a while when there is room, so keys
// for which somebody waits are left out. An owner may have the key from the call of its first Acquire on until it has ended its
// lease, or until its lease must be over, which an unknown outcome leaves open.
func (k *key) refusals() {
	if !k.limits.Refusals || slices.ContainsFunc(k.ops, func(op Op) bool { return op.Waits }) {
		return
	}
	type held struct {
		most       int
		begin, end time.Duration
	}
	owners := map[string]*held{}
	for _, op := range k.ops {
		h := owners[op.Owner]
		if h == nil && op.Kind == Acquire && (op.Outcome == OK || op.Outcome == Unknown) {
			h = &held{most: op.most(), begin: op.Call}
			owners[op.Owner] = h
		}
		if h == nil {
			continue
		}
		switch {
		case op.Kind != Acquire && op.Kind != Renew:
			if op.Outcome == OK && (op.Kind == Release || op.Kind == Abandon || op.Kind == Complete) {
				h.end = min(h.end, op.Return)
			}
		case op.Outcome == OK:
			h.end = max(h.end, op.Return+max(op.TTL, op.Trust)+k.limits.Late)
		case op.Outcome == Unknown:
			h.end = forever
		}
	}
	for _, op := range k.ops {
		if op.Kind != Acquire || op.Outcome != Busy {
			continue
		}
		n, least := 0, op.most()
		for owner, h := range owners {
			if owner != op.Owner && h.begin <= op.Return && h.end >= op.Call {
				n, least = n+1, min(least, h.most)
			}
		}
		if n < least {
			k.violation(fmt.Sprintf("refused, and only %d of %d had the key", n, least), op)
		}
	}
}

// overtaken are ends that were confirmed to an owner that had lost its lease: another had been granted its seat, or the whole
// key, before the owner asked for the end. A repeat may be confirmed as the first request was, and so may the release of a lease that
// an operator has resolved.
func (k *key) overtaken() {
	asked := map[string]bool{}
	for _, op := range k.ops {
		own := k.leases[op.Fence]
		if op.Kind == Resolve && own != nil {
			asked[own.grant.Owner] = true
		}
		if op.Kind != Release && op.Kind != Complete && op.Kind != Abandon {
			continue
		}
		again := asked[op.Owner]
		asked[op.Owner] = true
		if own == nil || own.grant.Owner != op.Owner || op.Outcome != OK || again {
			continue
		}
		for _, l := range k.granted {
			if l.excludes(own) && l.grant.Fence > op.Fence && l.grant.Return < op.Call && !k.lost(own.told, l.grant) && !k.lost(l.grant, op) {
				k.violation("an end was confirmed after another had been granted the key", own.grant, l.grant, op)
				break
			}
		}
	}
}

// doubt needs work that has started, and whose end nobody was told.
func (k *key) doubt() {
	for _, op := range k.ops {
		if op.Outcome != InDoubt {
			continue
		}
		started := slices.ContainsFunc(k.ops, func(s Op) bool {
			return s.Kind == MarkStarted && s.Outcome != NotApplied && s.Call <= op.Return && !slices.ContainsFunc(k.ops, func(end Op) bool {
				ends := end.Fence == s.Fence && slices.Contains([]Kind{Release, Complete, Resolve}, end.Kind) || end.Owner == s.Owner && end.Kind == Abandon
				return ends && end.Outcome == OK && end.Return < op.Call && !k.lost(end, op)
			})
		})
		if !started {
			k.violation("in doubt, and no work is under way", op)
		}
	}
}

// shut looks at grants while a result is stored, or under work that has started and did not end. Each request that may
// have ended such a time has ended it. The grant of an owner that waits may have been asked for before that time.
func (k *key) shut() {
	for _, began := range k.ops {
		if began.Outcome != OK || !began.stores() && began.Kind != MarkStarted {
			continue
		}
		opens := forever
		for _, op := range k.ops {
			switch {
			case op.Fence != began.Fence && (op.Kind != Abandon || op.Owner != began.Owner):
			case op.stores():
				opens = min(opens, op.Call+op.TTL) // a repeat changes nothing
			case began.Kind == MarkStarted && slices.Contains([]Kind{Release, Abandon, Complete, Resolve}, op.Kind):
				opens = min(opens, op.Call)
			}
		}
		for _, op := range k.ops {
			if op.Kind == Acquire && op.Outcome == OK && op.Fence != began.Fence && (op.Call > began.Return || op.Fence > began.Fence) && op.Return < opens-k.limits.Early && !k.lost(began, op) && !k.lost(op, began) {
				k.violation("the key was not shut", began, op)
			}
		}
	}
}

// results have to be those that somebody has stored, in their time.
func (k *key) results() {
	for _, op := range k.ops {
		if op.Outcome != Completed {
			continue
		}
		known, until := false, time.Duration(0)
		for _, s := range k.ops {
			if !s.stores() || s.Data != op.Data || s.Call > op.Return {
				continue
			}
			known, until = true, max(until, s.Return+s.TTL+k.limits.Late)
			if s.Outcome == Unknown { // it may arrive late
				until = forever
			}
		}
		switch {
		case !known:
			k.violation("a result that nobody stored", op)
		case op.Call > until:
			k.violation("a result was told after its time", op)
		}
	}
}
