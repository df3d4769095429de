// Package modelcheck visits every state that a few clients and one key can reach under the
// rules of the lock, breadth first, and looks for a state in which something is wrong. It calls
// the rule book itself, package rules. A search is bounded by its [Size], and so it is no proof.
//
// # The network
//
// What a client has sent may arrive at any time, in any order, again and again, or never. The
// reply to a request that arrives reaches its client if the client still waits for it, or is
// lost. (A late reply is as good as one that came at once to a client that then did nothing.)
// Time may pass between any two steps. So a client may stand still at any point, and it
// may die at any point: then it goes on with a new owner, and the requests of one earlier owner
// may still arrive.
//
// # The clock of the store
//
// It is right, or it knows the time to a tick, or it guesses and has the stamps of its writes: see [Size].
//
// # A client
//
// It sends an Acquire with a new owner and may send it again. It trusts a lease for the time
// that the answer says, from before the request on. If it is refused, it waits in the queue,
// and asks again, or learns of a hand-over in one of two ways. It may read the key: then it trusts what is
// left of the lease, from before the read on. Or the releaser pushes it the fence of the lease, and the
// push may be lost, late or doubled: then it ignores every fence that is not above the one of its
// last refusal, and trusts the lease for a turn from before this refusal on. It extends the lease by
// an Acquire with the fence of the hand-over, renews, marks the start of its work, writes with its fence,
// releases, completes, and leaves or abandons at any time. The last client may be a parked one: it learns
// of a hand-over by a wake-up, which may be lost, late, early or doubled, and all it does then is to ask again.
//
// # What must be true in every state
//
//   - Who trusts a lease has it, by owner and fence. So no more clients trust than the
//     smallest number among them allows, and no two of them have the same seat.
//   - Each grant has a larger fence than all grants before, so a resource that compares fences
//     takes no write of an earlier lease after one of a later lease.
//   - An owner that has released, abandoned or completed, or whose lease was taken over, never has the
//     key again, and neither it nor a holder has a place. A leave ends the place.
//   - Whatever an owner that the store remembers as ended has sent changes nothing. So the search forgets it.
//   - Who is told that it has no lease has none. A renewal revives no lease.
//   - Nobody is granted a key that is completed or in doubt, and nobody waits for a completed one.
//   - A revocation changes neither the end of the lease nor the queue.
//   - Nobody waits for a key that nobody holds or held.
//   - Whoever hands the key over to a parked place learns whom to wake, and so does who closes the key. Nobody else is woken.
//   - When all leases have ended and the turns of MaxTurns places have passed, a new owner is granted the key,
//     and so is each client that waits, when its own turn comes.
//
// The first client may be a healthy one: its requests arrive once and are answered, and no time passes while one is
// under way, or while its turn has come and it has not asked. Everything may happen to the others. Then, too:
//
//   - It keeps its place until it is served or leaves, or until the key is completed, and nobody gets
//     a place before it. So nobody overtakes it, unless another leaves before it while the key is free: then
//     its turn may have come already, and that of others, too, until it asks again.
//   - Between two grants the key is kept from it for at most one turn for each place before it.
//
// # The number of states
//
// Most searches end after a number of states that the test names, some hundred thousand each: with hand-over
// no space was visited to its end. A mistake that needs more steps than a search is deep is not found.
//
// A state has only differences: the time that is left and not the date, the order of
// fences and not their numbers, and clients of one kind without an order. What can change nothing
// any more is forgotten.
package modelcheck

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/lambdalock/lambdalock/internal/rules"
	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// Size bounds a search, and says what may happen in it.
type Size struct {
	MaxHolders []int // of each client
	Register   bool  // the time is guessed or stamped, as in a store that compares and swaps
	Blurred    bool  // the store knows the time to a tick: it may be a tick earlier or later than it says
	Healthy    bool  // the first client is
	Parked     bool  // the last client parks: nobody waits at its place
	Does       Does
	Earlier    int // clients that may have an earlier owner whose requests still arrive
	Dead       int // places of owners whose requests no longer arrive; their leases are as many, and at least one
	States     int // the search ends after so many; 0 is all
}

// Does is what the clients and an operator do besides asking, releasing and abandoning.
type Does int

const (
	Queue Does = 1 << iota
	Renew
	Write
	Complete
	Start
	Revoke
)

func (s Size) String() string {
	text := fmt.Sprintf("%d clients with MaxHolders %v", len(s.MaxHolders), s.MaxHolders)
	add := func(is bool, what string) {
		if is {
			text += ", " + what
		}
	}
	add(s.Healthy, "the first healthy")
	add(s.Parked, "the last parked")
	add(s.Register, "over a register")
	add(s.Blurred, "clocks that are late and early")
	for i, what := range []string{"a queue", "renewals", "fenced writes", "completions", "starts", "an operator"} {
		add(s.Does&(1<<i) != 0, what)
	}
	add(s.Earlier > 0, fmt.Sprintf("%d earlier owners", s.Earlier))
	add(s.Dead > 0, fmt.Sprintf("%d dead places", s.Dead))
	return text
}

const (
	tick = time.Second
	turn = int8(driver.Turn / tick)
	// longAgo bounds how far back a time is kept.
	longAgo = -driver.MaxTurns*int(max(driver.Turn, parked)/tick) - 1
)

// now is the time in every state. It is before 1970, so that each fence is the next number.
var now = time.Unix(-3600, 0).UTC()

const (
	ttl    = 4 * tick
	parked = 3 * tick // the turn of a parked place
)

// Store is what the clients ask: the rule book, or one with a mistake, under a mutex or in a short model of a loop.
type Store struct {
	Decide func(rules.Book, rules.State, rules.Clock, driver.Request) (rules.State, bool, driver.Answer, rules.Basis)
}

// Rules is the rule book itself.
func Rules() Store { return Store{Decide: rules.Book.Decide} }

// Mistake is one of a client.
type Mistake string

const (
	None            Mistake = ""
	LongTrust       Mistake = "M20: trust that ends a tick late, as if it counted from a reply that took a tick"
	AskAfterAbandon Mistake = "an acquire again after an abandon without an answer"
	TrustFromWakeUp Mistake = "trust in a hand-over counts from the wake-up"
	StaleElement    Mistake = "an old fence of a push is believed"
	OldFence        Mistake = "trust in a hand-over with the fence that the refusal named"
	HandOverForTTL  Mistake = "a hand-over is trusted for a whole TTL"
	Unfenced        Mistake = "a resource that compares no fences"
)

// client is one client in a state. Times are in ticks from now.
type client struct {
	now, before owner
	trusts      bool
	left        int8 // of the trust
	fence       int8 // of the lease that it trusts
	waits       bool // it was refused, and has a place
	moment      int8 // how long ago it sent the request that was refused last
	refused     int8 // the largest fence in that refusal
	ended       bool // it has stopped, or was told that its owner has ended
	writes      int8 // the fence of a write that it is about to send
	credit      int8 // of the healthy client with a place: ticks for which the key may still be free
	dropped     bool // of the healthy client: a completion has ended its place, or a grant to another may
}

// owner is what an owner has sent that may arrive, and what others have pushed to it.
type owner struct {
	asked, acquire, abandon, leave bool
	over                           bool // it must have no lease any more
	age                            int8 // since the last Acquire or Renew was sent
	extend, renew, start           int8 // their fences; 0 is not sent
	release, complete              int8
	pushed                         [2]int8
}

// underWay reports whether a request may still arrive.
func (o *owner) underWay() bool {
	return o.acquire || o.abandon || o.leave || o.extend|o.renew|o.start|o.release|o.complete != 0
}

const most = 3 // clients

// node is a state of the whole.
type node struct {
	key     rules.State
	clients [most]client
	written int8 // the largest fence that the resource has accepted
}

func (n *node) owner(who int, earlier bool) *owner {
	if earlier {
		return &n.clients[who].before
	}
	return &n.clients[who].now
}

// name is the owner of a client: its present or its earlier one.
func name(who int, earlier bool) driver.Owner {
	if earlier {
		return driver.Owner("abc"[who : who+1])
	}
	return driver.Owner("ABC"[who : who+1])
}

// gone is the owner of leases and places that nobody will name again.
const gone driver.Owner = "-"

func holder(s rules.State, o driver.Owner) *rules.Holder {
	if i := slices.IndexFunc(s.Holders, func(h rules.Holder) bool { return h.Owner == o }); i >= 0 {
		return &s.Holders[i]
	}
	return nil
}

func place(s rules.State, o driver.Owner) int {
	return slices.IndexFunc(s.Queue, func(w rules.Waiter) bool { return w.Owner == o })
}

func live(h rules.Holder) bool { return h.End().After(now) }

func closed(s rules.State) bool { return s.Closed.For > 0 && s.Closed.End().After(now) }

func inDoubt(s rules.State) bool {
	return slices.ContainsFunc(s.Holders, func(h rules.Holder) bool { return h.Started && !live(h) })
}

// step is what happened between two states.
type step struct {
	what    string
	who     int
	earlier bool
	fence   int8
	answer  driver.Outcome
	told    bool
}

func (s step) String() string {
	text := s.what
	if s.who >= 0 {
		text = "client " + string(name(s.who, s.earlier)) + ": " + text
	}
	if s.fence != 0 {
		text += fmt.Sprintf(" with fence %d", s.fence)
	}
	if s.answer != 0 {
		text += ", " + [...]string{"", "granted", "done", "refused", "lost", "holding", "exclusive"}[s.answer]
		if !s.told {
			text += ", and the reply is lost or late"
		}
	}
	return text
}

// model says which states follow a state.
type model struct {
	size    Size
	mistake Mistake
	store   Store
	book    rules.Book
	orders  [][most]int // in which the clients may be put
}

func newModel(size Size, mistake Mistake, store Store) *model {
	m := &model{size: size, mistake: mistake, store: store, book: rules.Book{Places: 8, Marks: 8}}
	for _, o := range [][most]int{{0, 1, 2}, {1, 0, 2}, {0, 2, 1}, {2, 1, 0}, {1, 2, 0}, {2, 0, 1}} {
		kind := func(i int) int {
			switch {
			case i >= len(size.MaxHolders):
				return -1 - i
			case i == 0 && size.Healthy:
				return 0
			case size.Parked && i == len(size.MaxHolders)-1:
				return 1000
			}
			return size.MaxHolders[i]
		}
		if kind(o[0]) == kind(0) && kind(o[1]) == kind(1) && kind(o[2]) == kind(2) {
			m.orders = append(m.orders, o)
		}
	}
	return m
}

func (m *model) does(what Does) bool { return m.size.Does&what != 0 }

// visit is told a state that follows, and what is wrong in it, if the step shows that.
type visit func(next node, what step, bad string)

// follow visits all states that follow.
func (m *model) follow(n *node, visit visit) {
	if bad := cmp.Or(m.deadEnd(n), m.lateDuplicates(n)); bad != "" {
		visit(*n, step{what: "nobody moves", who: -1}, bad)
	}
	m.timePasses(n, visit)
	for who := range m.size.MaxHolders {
		m.acts(n, who, visit)
		m.learns(n, who, visit)
		for _, earlier := range []bool{false, true} {
			m.arrives(n, who, earlier, visit)
		}
	}
	m.operator(n, visit)
}

func (m *model) healthy(who int) bool { return m.size.Healthy && who == 0 }

func (m *model) parks(who int) bool { return m.size.Parked && who == len(m.size.MaxHolders)-1 }

func (m *model) timePasses(n *node, visit visit) {
	next, bad := *n, ""
	if m.size.Healthy {
		c := &next.clients[0]
		if c.now.underWay() || c.waits && m.book.Wait(n.key, rules.At(now), name(0, false)) <= 0 {
			return
		}
		if place(n.key, name(0, false)) >= 0 && !slices.ContainsFunc(n.key.Holders, live) && !closed(n.key) {
			if c.credit == 0 {
				bad = "a place has cost more than a turn"
			}
			c.credit = max(0, c.credit-1)
		}
	}
	next.key.Holders = slices.Clone(next.key.Holders)
	for i := range next.key.Holders {
		next.key.Holders[i].Since = next.key.Holders[i].Since.Add(-tick)
	}
	next.key.Closed.Since = next.key.Closed.Since.Add(-tick)
	tooOld := int8(ttl/tick) + 1
	for i := range next.clients {
		c := &next.clients[i]
		if c.trusts {
			if c.left--; c.left <= 0 {
				c.stops() // and releases nothing
			}
		}
		c.moment = min(c.moment+1, tooOld)
		c.now.age = min(c.now.age+1, tooOld)
	}
	visit(next, step{what: "time passes", who: -1}, bad)
}

func (c *client) stops() { c.trusts, c.waits, c.ended = false, false, true }

// acts visits what a client may do without an answer.
func (m *model) acts(n *node, who int, visit visit) {
	do := func(what string, change func(*client)) {
		next := *n
		change(&next.clients[who])
		visit(next, step{what: what, who: who}, "")
	}
	c := n.clients[who]
	if m.healthy(who) && c.now.underWay() {
		return
	}
	if !c.trusts && !c.ended {
		do("sends an acquire", func(c *client) { c.now.asked, c.now.acquire, c.now.age = true, true, 0 })
	}
	if c.trusts {
		do("sends an extension", func(c *client) { c.now.extend, c.now.age = c.fence, 0 })
		if m.does(Renew) {
			do("sends a renewal", func(c *client) { c.now.renew, c.now.age = c.fence, 0 })
		}
		if m.does(Start) {
			do("marks the start of its work", func(c *client) { c.now.start = c.fence })
		}
		if m.does(Write) {
			do("checks its lease", func(c *client) { c.writes = c.fence })
		}
		do("sends a release and stops", func(c *client) { c.now.release = c.fence; c.stops() })
		if m.does(Complete) {
			do("sends a completion and stops", func(c *client) { c.now.complete = c.fence; c.stops() })
		}
	}
	if c.writes != 0 {
		next, bad := *n, ""
		if c.writes < n.written && m.mistake == Unfenced {
			bad = "a stale write was taken"
		}
		next.written, next.clients[who].writes = max(n.written, c.writes), 0
		visit(next, step{what: "writes", who: who, fence: c.writes}, bad)
	}
	if c.now.asked && !c.trusts && !(m.healthy(who) && c.ended) {
		if m.does(Queue) {
			do("sends a leave and stops", func(c *client) { c.now.leave = true; c.stops() })
		}
		do("sends an abandon and stops", func(c *client) {
			c.now.abandon = true
			if m.mistake != AskAfterAbandon {
				c.stops()
			}
		})
	}
	m.ends(n, who, visit)
}

// ends visits the death of a client, which goes on with a new owner, and the end of its earlier
// owner's requests.
func (m *model) ends(n *node, who int, visit visit) {
	c := n.clients[who]
	if c.now.asked && (!m.healthy(who) || c.ended) {
		next := *n
		if earlier := m.earlier(n); c.before.asked || earlier >= m.size.Earlier || m.healthy(who) {
			next.forget(name(who, false))
			next.clients[who] = client{before: c.before}
		} else {
			next.rename(name(who, false), name(who, true))
			next.clients[who] = client{before: c.now}
		}
		next.clients[who].writes = c.writes
		visit(next, step{what: "dies, or has ended, and has a new owner", who: who}, "")
	}
	if c.before.asked {
		next := *n
		next.forget(name(who, true))
		next.clients[who].before = owner{}
		visit(next, step{what: "the requests of its earlier owner are lost", who: who}, "")
	}
}

func (m *model) earlier(n *node) (count int) {
	for _, c := range n.clients {
		if c.before.asked {
			count++
		}
	}
	return count
}

// operator visits what an operator may do.
func (m *model) operator(n *node, visit visit) {
	for _, h := range n.key.Holders {
		if m.does(Revoke) && live(h) && !h.Revoked {
			for _, o := range m.outcomes(n.key, driver.Request{Kind: driver.Revoke, Fence: h.Fence, Holder: "operator"}) {
				next, bad := *n, ""
				next.key = o.State
				i := slices.IndexFunc(next.key.Holders, func(x rules.Holder) bool { return x.Fence == h.Fence })
				switch {
				case o.Answer.Outcome != driver.Done || i < 0:
					bad = "the revocation of a live lease was refused, or ended it"
				case !m.size.Register && !m.size.Blurred && !next.key.Holders[i].End().Equal(h.End()) || others(next.key.Queue, h.Owner) != others(n.key.Queue, h.Owner):
					bad = "a revocation changed the end of the lease, or the queue"
				}
				visit(next, step{what: "an operator revokes", who: -1, fence: int8(h.Fence)}, bad)
			}
		}
		for _, effect := range []bool{false, true} {
			if h.Started && !live(h) {
				for _, o := range m.outcomes(n.key, driver.Request{Kind: driver.Resolve, Fence: h.Fence, TTL: tick, Effect: effect}) {
					next := *n
					next.key = o.State
					next.push(o.Answer)
					visit(next, step{what: "an operator resolves", who: -1, fence: int8(h.Fence), answer: o.Answer.Outcome, told: true}, wakes(n.key, next.key, "", o.Answer.Wake))
				}
			}
		}
	}
}

// others counts the places of others than an owner.
func others(queue []rules.Waiter, owner driver.Owner) (count int) {
	for _, w := range queue {
		if w.Owner != owner {
			count++
		}
	}
	return count
}

// push tells each owner that was handed the key its fence.
func (n *node) push(a driver.Answer) {
	for _, to := range a.HandedOver {
		h := holder(n.key, to)
		for who := range n.clients {
			for _, earlier := range []bool{false, true} {
				if o := n.owner(who, earlier); h != nil && name(who, earlier) == to {
					o.pushed = [2]int8{o.pushed[1], int8(h.Fence)}
				}
			}
		}
	}
}

// learns visits the two ways in which a client that waits learns of a hand-over.
func (m *model) learns(n *node, who int, visit visit) {
	c := n.clients[who]
	if !c.waits || m.size.Register || m.parks(who) {
		return // its Acquire is what it trusts from
	}
	trusts := func(what string, fence, left int8) {
		next := *n
		to := &next.clients[who]
		to.trusts, to.waits, to.fence, to.left = true, false, fence, left
		visit(next, step{what: what, who: who, fence: fence}, "")
	}
	if h := holder(n.key, name(who, false)); h != nil && h.HandedOver && live(*h) {
		fence := int8(h.Fence)
		if m.mistake == OldFence {
			fence = c.refused
		}
		for _, clock := range m.clocks() {
			if left := min(turn, int8(h.End().Sub(clock.Late)/tick)); left > 0 && fence > 0 {
				trusts("reads that it was handed the key", fence, left)
			}
		}
	}
	for _, fence := range c.now.pushed {
		if fence == 0 || fence <= c.refused && m.mistake != StaleElement {
			continue
		}
		left := turn - c.moment
		switch m.mistake {
		case TrustFromWakeUp:
			left = turn
		case HandOverForTTL:
			left = int8(ttl/tick) - c.moment
		}
		if left > 0 {
			trusts("is woken", fence, left)
		}
	}
}

// arrives delivers each request that an owner has sent.
func (m *model) arrives(n *node, who int, earlier bool, visit visit) {
	o := *n.owner(who, earlier)
	if !o.asked {
		return
	}
	limit := m.size.MaxHolders[who]
	if o.acquire {
		r := driver.Request{Kind: driver.Acquire, TTL: ttl, MaxHolders: limit, Join: m.does(Queue)}
		if m.parks(who) {
			r.Parked = parked
		}
		m.deliver(n, who, earlier, "an acquire", r, visit)
	}
	if o.extend != 0 {
		m.deliver(n, who, earlier, "an extension", driver.Request{Kind: driver.Acquire, Fence: driver.Fence(o.extend), TTL: ttl, MaxHolders: limit}, visit)
	}
	if o.renew != 0 {
		m.deliver(n, who, earlier, "a renewal", driver.Request{Kind: driver.Renew, Fence: driver.Fence(o.renew), TTL: ttl}, visit)
	}
	if o.start != 0 {
		m.deliver(n, who, earlier, "a start", driver.Request{Kind: driver.MarkStarted, Fence: driver.Fence(o.start)}, visit)
	}
	if o.release != 0 {
		m.deliver(n, who, earlier, "a release", driver.Request{Kind: driver.Release, Fence: driver.Fence(o.release)}, visit)
	}
	if o.complete != 0 {
		m.deliver(n, who, earlier, "a completion", driver.Request{Kind: driver.Complete, Fence: driver.Fence(o.complete), TTL: tick}, visit)
	}
	if o.abandon {
		m.deliver(n, who, earlier, "an abandon", driver.Request{Kind: driver.Abandon}, visit)
	}
	if o.leave {
		m.deliver(n, who, earlier, "a leave", driver.Request{Kind: driver.Leave}, visit)
	}
}

func (m *model) deliver(n *node, who int, earlier bool, what string, r driver.Request, visit visit) {
	r.Owner = name(who, earlier)
	for _, out := range m.outcomes(n.key, r) {
		next := *n
		next.key = out.State
		next.push(out.Answer)
		bad := m.changed(n, &next, r, out)
		if m.healthy(who) {
			next.arrivedOnce(r)
		}
		s := step{what: what + " arrives", who: who, earlier: earlier, fence: int8(r.Fence), answer: out.Answer.Outcome}
		if !m.healthy(who) {
			visit(next, s, bad)
		}
		if c := &next.clients[who]; !earlier && !c.ended && (r.Kind == driver.Acquire || r.Kind == driver.Renew) {
			m.answered(c, out.Answer)
			s.told = true
			visit(next, s, bad)
		} else if m.healthy(who) {
			visit(next, s, bad)
		}
	}
}

// arrivedOnce forgets a request of the healthy client.
func (n *node) arrivedOnce(r driver.Request) {
	o := &n.clients[0].now
	switch {
	case r.Kind == driver.Acquire && r.Fence == 0:
		o.acquire = false
	case r.Kind == driver.Acquire:
		o.extend = 0
	case r.Kind == driver.Renew:
		o.renew = 0
	case r.Kind == driver.MarkStarted:
		o.start = 0
	case r.Kind == driver.Release:
		o.release = 0
	case r.Kind == driver.Complete:
		o.complete = 0
	case r.Kind == driver.Abandon:
		o.abandon = false
	case r.Kind == driver.Leave:
		o.leave = false
	}
}

// answered is what a client does with the answer to an Acquire or a Renew.
func (m *model) answered(c *client, a driver.Answer) {
	left := int8((a.TTL+tick/2)/tick) - c.now.age
	if m.mistake == LongTrust {
		left++
	}
	switch {
	case a.Outcome == driver.Granted && left > 0:
		if c.trusts && c.fence == int8(a.Fence) {
			left = max(left, c.left)
		}
		c.trusts, c.waits, c.left, c.fence = true, false, left, int8(a.Fence)
	case a.Outcome == driver.Refused && !c.trusts:
		c.waits, c.moment, c.refused = a.Position > 0, c.now.age, int8(a.Status.Fence)
	case a.Outcome == driver.Lost:
		c.stops()
	}
}
