// Package modelcheck visits every state that a few clients and one key can reach under the
// rules of the lock, breadth first, and looks for a state in which something is wrong. It
// calls the rule book itself, package rules. A search is bounded by the number of clients and of states. So it
// is no proof.
//
// # The network
//
// What a client has sent may arrive at any time, in any order, again and again, or never. The
// reply to a request that arrives reaches its client if the client still waits for it, or is
// lost. Time may pass between any two steps. So a client may stand still at any point, and it
// may die at any point: then it goes on with a new owner, and the requests of one earlier owner
// may still arrive.
//
// # A client
//
// It sends an Acquire with a new owner and may send it again. It trusts a lease for the time
// that the answer says, from before the request on. If it is refused, it waits in the queue,
// and may learn of a hand-over in one of two ways. It may read the key: then it trusts what is
// left of the lease, from before the read on. Or the releaser pushes it the fence and the TTL
// of the lease, and the push may be lost, late or doubled: then it ignores every fence that is
// not above the one of its last refusal, and trusts the lease from before this refusal on. It extends the lease by
// an Acquire with the fence of the hand-over, renews, releases, and leaves or abandons at any time.
//
// # What must be true in every state
//
//   - Who trusts a lease has it, by owner and fence. So no more clients trust than the
//     smallest number among them allows, and no two of them have the same seat.
//   - Each grant has a larger fence than all grants before.
//   - An owner that was told of its release or abandon never has the key again.
//   - The first in the queue is not kept waiting by a key that has room for it, once a
//     request has been answered.
//   - A holder has no place in the queue.
package modelcheck

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lambdalock/lambdalock/internal/rules"
	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// Size bounds a search.
type Size struct {
	MaxHolders []int // of each client
	Earlier    int   // clients that may have an earlier owner whose requests still arrive
	Dead       int   // places and leases, each, of owners whose requests no longer arrive
	Revokes    bool  // an operator may revoke a lease
	States     int   // the search ends after so many; 0 is all
}

func (s Size) String() string {
	text := fmt.Sprintf("clients with %v, %d earlier owners", s.MaxHolders, s.Earlier)
	if s.Revokes {
		text += ", an operator"
	}
	return text
}

// Result is what a search found.
type Result struct {
	States, Depth int
	Closed        bool   // every state was visited
	Bad           string // what is wrong in a state, "" for nothing
	Trace         string // the steps to it
}

// Bug changes what a client or the rule book does, to show that the search finds it.
type Bug string

const (
	None                Bug = ""
	TrustFromWakeUp     Bug = "trust in a hand-over counts from the wake-up"
	StaleElement        Bug = "an old fence of a push is believed"
	PlaceStays          Bug = "a hand-over leaves the place in the queue"
	NoHandOver          Bug = "a release hands over to nobody"
	HandOverForTTL      Bug = "a hand-over is trusted for a whole TTL"
	ReleaseFreesAnybody Bug = "a release compares no owner"
)

const (
	ttl  = 4 * time.Second
	tick = time.Second
)

// client is one client in a state. Times are in ticks from now.
type client struct {
	now, before owner
	trusts      bool
	left        int8 // of the trust
	fence       int8 // of the lease that it trusts
	waits       bool // it was refused
	moment      int8 // how long ago it sent the request that was refused last
	refused     int8 // the largest fence in that refusal
	ended       bool // it was told that its owner has ended
}

// owner is what an owner has sent, and what others have pushed to it.
type owner struct {
	acquire, abandon, leave bool
	age                     int8 // since the last Acquire was sent
	extend, renew, release  int8 // their fence; 0 is not sent
	pushed                  [2]int8
}

// node is a state of the whole.
type node struct {
	key     rules.State // with times relative to epoch
	clients []client
}

var epoch = time.Unix(0, 0).UTC()

// longAgo bounds how far back a time is kept.
const longAgo = -driver.MaxTurns*int(driver.Turn/tick) - 1

type search struct {
	size    Size
	bug     Bug
	seen    map[string]bool
	queue   []link
	parents []parent
	result  Result
}

type link struct {
	node  node
	index int
	depth int
}

type parent struct {
	from int
	step string
}

// Search visits the states.
func Search(size Size, bug Bug) Result {
	s := &search{size: size, bug: bug, seen: map[string]bool{}}
	s.add(node{clients: make([]client, len(size.MaxHolders))}, -1, 0, "")
	for len(s.queue) > 0 && s.result.Bad == "" {
		if size.States > 0 && len(s.seen) >= size.States {
			s.result.States = len(s.seen)
			return s.result
		}
		next := s.queue[0]
		s.queue = s.queue[1:]
		s.expand(next)
	}
	s.result.States, s.result.Closed = len(s.seen), s.result.Bad == ""
	return s.result
}

// add notes a state unless it is known.
func (s *search) add(n node, from, depth int, step string) {
	if s.result.Bad != "" {
		return
	}
	n.normalize()
	if n.dead() > s.size.Dead {
		return
	}
	key := n.String()
	if s.seen[key] {
		return
	}
	s.seen[key] = true
	s.parents = append(s.parents, parent{from, step})
	s.result.Depth = depth
	if bad := s.wrong(n); bad != "" {
		s.fail(bad, len(s.parents)-1)
		return
	}
	s.queue = append(s.queue, link{n, len(s.parents) - 1, depth})
}

func (s *search) fail(bad string, at int) {
	s.result.Bad = bad
	var steps []string
	for ; at >= 0; at = s.parents[at].from {
		steps = append(steps, s.parents[at].step)
	}
	slices.Reverse(steps)
	s.result.Trace = strings.Join(steps, "\n")
}

// name is the owner of a client: its present or its earlier one.
func name(who int, earlier bool) driver.Owner {
	if earlier {
		return driver.Owner("abcdefgh"[who : who+1])
	}
	return driver.Owner("ABCDEFGH"[who : who+1])
}

// expand adds all states that follow.
func (s *search) expand(at link) {
	n := at.node
	add := func(next node, step string, args ...any) {
		s.add(next, at.index, at.depth+1, fmt.Sprintf(step, args...))
	}
	add(n.later(), "time passes")
	for who := range n.clients {
		c := n.clients[who]
		if !c.trusts && !c.ended {
			next := n.clone()
			o := &next.clients[who].now
			o.acquire, o.age = true, 0
			add(next, "client %d sends an acquire", who)
		}
		if c.trusts {
			next := n.clone()
			next.clients[who].now.extend, next.clients[who].now.age = c.fence, 0
			add(next, "client %d sends an extension", who)
			next = n.clone()
			next.clients[who].now.renew, next.clients[who].now.age = c.fence, 0
			add(next, "client %d sends a renewal", who)
			next = n.clone()
			next.clients[who].now.release = c.fence
			next.clients[who].trusts = false
			next.clients[who].waits = false
			next.clients[who].ended = true
			add(next, "client %d sends a release and stops", who)
		}
		if c.now.acquire && !c.trusts {
			for _, leaves := range []bool{false, true} {
				next := n.clone()
				c := &next.clients[who]
				c.waits, c.ended = false, true
				if c.now.leave = c.now.leave || leaves; leaves {
					add(next, "client %d sends a leave and stops", who)
					continue
				}
				c.now.abandon = true
				add(next, "client %d sends an abandon and stops", who)
			}
		}
		if c.now.acquire {
			// It dies, or starts again, with a new owner.
			next := n.clone()
			if s.earlier(n) < s.size.Earlier || c.before != (owner{}) || s.size.Earlier == 0 {
				if s.size.Earlier > 0 && (c.before == (owner{})) {
					next.rename(name(who, false), name(who, true))
					next.clients[who] = client{before: c.now}
				} else {
					next.forget(name(who, false))
					next.clients[who] = client{before: c.before}
				}
				add(next, "client %d has a new owner", who)
			}
		}
		if c.before != (owner{}) {
			next := n.clone()
			next.forget(name(who, true))
			next.clients[who].before = owner{}
			add(next, "the requests of client %d's earlier owner are lost", who)
		}
		if c.waits {
			s.reads(n, who, add)
		}
		for _, earlier := range []bool{false, true} {
			s.arrives(n, who, earlier, add)
		}
	}
	if s.size.Revokes {
		for _, h := range n.key.Holders {
			next := n.clone()
			s.do(&next, driver.Request{Kind: driver.Revoke, Fence: h.Fence})
			add(next, "an operator revokes fence %d", h.Fence)
		}
	}
}

func (s *search) earlier(n node) (count int) {
	for _, c := range n.clients {
		if c.before != (owner{}) {
			count++
		}
	}
	return count
}

// do has the rule book decide, and pushes what it hands over.
func (s *search) do(n *node, r driver.Request) driver.Answer {
	before := n.key
	book := rules.Book{Places: 8, Marks: 4}
	if s.bug == ReleaseFreesAnybody && r.Kind == driver.Release && len(before.Holders) > 0 {
		r.Owner, r.Fence = before.Holders[0].Owner, before.Holders[0].Fence
	}
	next, _, answer, _ := book.Decide(before, rules.At(epoch), r)
	if s.bug == NoHandOver && r.Kind == driver.Release && len(answer.HandedOver) > 0 {
		next.Holders, next.Queue, answer.HandedOver = before.Holders[1:], before.Queue, nil
	}
	if s.bug == PlaceStays && len(answer.HandedOver) > 0 {
		next.Queue = append([]rules.Waiter{{Owner: answer.HandedOver[0], MaxHolders: 1}}, next.Queue...)
	}
	n.key = next
	for _, o := range answer.HandedOver {
		for who := range n.clients {
			for _, earlier := range []bool{false, true} {
				if name(who, earlier) == o {
					for _, h := range next.Holders {
						if h.Owner == o {
							n.owner(who, earlier).push(int8(h.Fence))
						}
					}
				}
			}
		}
	}
	return answer
}

func (o *owner) push(fence int8) { o.pushed[0], o.pushed[1] = o.pushed[1], fence }

// reads are the two ways in which a client that waits learns of a hand-over.
func (s *search) reads(n node, who int, add func(node, string, ...any)) {
	me := name(who, false)
	for _, h := range n.key.Holders {
		if h.Owner == me && h.HandedOver && h.End().After(epoch) {
			next := n.clone()
			c := &next.clients[who]
			c.trusts, c.waits, c.fence, c.left = true, false, int8(h.Fence), int8(h.End().Sub(epoch)/tick)
			add(next, "client %d reads that it was handed the key", who)
		}
	}
	c := n.clients[who]
	for _, fence := range c.now.pushed {
		if fence == 0 || fence <= c.refused && s.bug != StaleElement {
			continue
		}
		left := int8(driver.Turn/tick) - c.moment
		switch s.bug {
		case TrustFromWakeUp:
			left = int8(driver.Turn / tick)
		case HandOverForTTL:
			left = int8(ttl/tick) - c.moment
		}
		if left <= 0 {
			continue
		}
		next := n.clone()
		to := &next.clients[who]
		to.trusts, to.waits, to.fence, to.left = true, false, fence, left
		add(next, "client %d is woken with fence %d", who, fence)
	}
}

// arrives delivers each request that an owner has sent.
func (s *search) arrives(n node, who int, earlier bool, add func(node, string, ...any)) {
	o := *n.owner(who, earlier)
	me, most := name(who, earlier), s.size.MaxHolders[who]
	deliver := func(what string, r driver.Request, answered func(*client, driver.Answer)) {
		r.Owner = me
		next := n.clone()
		answer := s.do(&next, r)
		if bad := s.grant(n, next); bad != "" {
			add(next, "%s of client %d arrives", what, who)
			s.fail(bad, len(s.parents)-1)
			return
		}
		add(next, "%s of client %d (earlier owner %t) arrives, and the reply is lost: %s", what, who, earlier, outcome(answer))
		if answered != nil && !earlier && s.result.Bad == "" {
			told := next.clone()
			answered(&told.clients[who], answer)
			add(told, "%s of client %d arrives and is answered: %s", what, who, outcome(answer))
		}
	}
	lease := func(c *client, a driver.Answer) {
		switch left := int8(a.TTL/tick) - o.age; {
		case a.Outcome == driver.Granted && left > 0 && !c.ended:
			if c.trusts && c.fence == int8(a.Fence) {
				left = max(left, c.left)
			}
			c.trusts, c.waits, c.left, c.fence = true, false, left, int8(a.Fence)
		case a.Outcome == driver.Refused && !c.trusts && !c.ended:
			c.waits, c.moment, c.refused = true, o.age, int8(a.Status.Fence)
		case a.Outcome == driver.Lost:
			c.trusts, c.waits, c.ended = false, false, true
		}
	}
	if o.acquire {
		deliver("an acquire", driver.Request{Kind: driver.Acquire, TTL: ttl, MaxHolders: most, Join: true, Holder: "h"}, lease)
	}
	if o.extend > 0 {
		deliver("an extension", driver.Request{Kind: driver.Acquire, Fence: driver.Fence(o.extend), TTL: ttl, MaxHolders: most, Holder: "h"}, lease)
	}
	if o.renew > 0 {
		deliver("a renewal", driver.Request{Kind: driver.Renew, Fence: driver.Fence(o.renew), TTL: ttl}, lease)
	}
	if o.release > 0 {
		deliver("a release", driver.Request{Kind: driver.Release, Fence: driver.Fence(o.release)}, nil)
	}
	if o.abandon {
		deliver("an abandon", driver.Request{Kind: driver.Abandon}, nil)
	}
	if o.leave {
		deliver("a leave", driver.Request{Kind: driver.Leave}, nil)
	}
}

func outcome(a driver.Answer) string {
	names := [...]string{"", "granted", "done", "refused", "lost", "holding", "exclusive", "not yet", "ask"}
	text := names[a.Outcome]
	if a.Fence > 0 {
		text += fmt.Sprintf(" fence %d", a.Fence)
	}
	if len(a.HandedOver) > 0 {
		text += fmt.Sprintf(", handed over to %d", len(a.HandedOver))
	}
	return text
}

// grant is what is wrong with the grants of a step.
func (s *search) grant(before, after node) string {
	largest := before.key.LastFence
	for _, h := range after.key.Holders {
		known := slices.ContainsFunc(before.key.Holders, func(b rules.Holder) bool { return b.Fence == h.Fence && b.Owner == h.Owner })
		switch {
		case !known && h.Fence <= largest:
			return fmt.Sprintf("a grant has the fence %d, and there was %d before", h.Fence, largest)
		case !known && slices.ContainsFunc(before.key.Ended, func(e rules.Ended) bool { return e.Owner == h.Owner }):
			return "an owner that has ended was granted the key"
		}
	}
	return ""
}

// wrong is what is wrong in a state.
func (s *search) wrong(n node) string {
	trusting, most := 0, 1<<30
	seats := map[int]bool{}
	for who, c := range n.clients {
		if !c.trusts {
			continue
		}
		trusting++
		most = min(most, s.size.MaxHolders[who])
		i := slices.IndexFunc(n.key.Holders, func(h rules.Holder) bool {
			return h.Owner == name(who, false) && int8(h.Fence) == c.fence && h.End().After(epoch)
		})
		if i < 0 {
			return fmt.Sprintf("client %d trusts a lease that it does not have", who)
		}
		if n.key.Holders[i].End().Sub(epoch) < time.Duration(c.left)*tick {
			return fmt.Sprintf("client %d trusts its lease for longer than it lasts", who)
		}
		if seats[n.key.Holders[i].Seat] {
			return "two have the same seat"
		}
		seats[n.key.Holders[i].Seat] = true
	}
	if trusting > most {
		return fmt.Sprintf("%d trust, and one of them wants at most %d", trusting, most)
	}
	live, fewest := 0, 1<<30
	for _, h := range n.key.Holders {
		if h.End().After(epoch) {
			live, fewest = live+1, min(fewest, h.MaxHolders)
		}
		if slices.ContainsFunc(n.key.Queue, func(w rules.Waiter) bool { return w.Owner == h.Owner && h.Owner != gone && h.End().After(epoch) }) {
			return "a holder has a place"
		}
	}
	if live > fewest {
		return fmt.Sprintf("%d hold the key, and one of them wants at most %d", live, fewest)
	}
	// Nobody is in the way of the first, not even somebody whose lease has ended.
	if len(n.key.Queue) > 0 && len(n.key.Holders) == 0 {
		return "somebody waits for a key that nobody holds or held"
	}
	return ""
}

func (n node) clone() node {
	n.clients = slices.Clone(n.clients)
	return n
}

func (n node) owner(who int, earlier bool) *owner {
	if earlier {
		return &n.clients[who].before
	}
	return &n.clients[who].now
}

// later is the state a tick later.
func (n node) later() node {
	n = n.clone()
	n.key.Holders = slices.Clone(n.key.Holders)
	for i := range n.key.Holders {
		n.key.Holders[i].Since = n.key.Holders[i].Since.Add(-tick)
	}
	for i := range n.clients {
		c := &n.clients[i]
		if c.trusts {
			if c.left--; c.left <= 0 {
				c.trusts, c.ended = false, true // it stops its work, and releases nothing
			}
		}
		c.moment = min(c.moment+1, int8(ttl/tick)+1)
		for _, o := range []*owner{&c.now, &c.before} {
			o.age = min(o.age+1, int8(ttl/tick)+1)
		}
	}
	return n
}

// rename gives an owner another name.
func (n *node) rename(from, to driver.Owner) {
	n.key.Holders, n.key.Queue, n.key.Ended = slices.Clone(n.key.Holders), slices.Clone(n.key.Queue), slices.Clone(n.key.Ended)
	for i := range n.key.Holders {
		if n.key.Holders[i].Owner == from {
			n.key.Holders[i].Owner = to
		}
	}
	for i := range n.key.Queue {
		if n.key.Queue[i].Owner == from {
			n.key.Queue[i].Owner = to
		}
	}
	for i := range n.key.Ended {
		if n.key.Ended[i].Owner == from {
			n.key.Ended[i].Owner = to
		}
	}
}

// gone is the owner of leases and places that nobody will name again.
const gone driver.Owner = "-"

// dead is how many places, or leases, the queue has of owners that nobody will name again.
func (n node) dead() int {
	places, leases := 0, 0
	for _, w := range n.key.Queue {
		if w.Owner == gone {
			places++
		}
	}
	for _, h := range n.key.Holders {
		if h.Owner == gone {
			leases++
		}
	}
	return max(places, leases)
}

// forget makes an owner one that nobody is.
func (n *node) forget(o driver.Owner) {
	n.rename(o, gone)
	n.key.Ended = slices.DeleteFunc(n.key.Ended, func(e rules.Ended) bool { return e.Owner == gone })
}

// normalize makes equal what differs in nothing that matters: old times, the numbers of fences,
// what was pushed and is never read.
func (n *node) normalize() {
	n.clients = slices.Clone(n.clients)
	n.key.Holders, n.key.Ended = slices.Clone(n.key.Holders), slices.Clone(n.key.Ended)
	n.key.Ended = slices.DeleteFunc(n.key.Ended, func(e rules.Ended) bool { return e.Owner == gone || e.Owner == "" })
	slices.SortFunc(n.key.Ended, func(a, b rules.Ended) int { return strings.Compare(string(a.Owner), string(b.Owner)) })
	var fences []int8
	use := func(fs ...*int8) {
		for _, f := range fs {
			if *f > 0 && !slices.Contains(fences, *f) {
				fences = append(fences, *f)
			}
		}
	}
	last := int8(n.key.LastFence)
	use(&last)
	for i := range n.key.Holders {
		h := &n.key.Holders[i]
		if left := int(h.End().Sub(epoch) / tick); left < longAgo {
			h.Since = epoch.Add(time.Duration(longAgo)*tick - h.TTL)
		}
		f := int8(h.Fence)
		use(&f)
	}
	for i := range n.key.Ended {
		n.key.Ended[i].Fence = 0 // the search resolves and revokes nothing twice
	}
	for i := range n.clients {
		c := &n.clients[i]
		if !c.trusts {
			c.left, c.fence = 0, 0
		}
		if !c.waits {
			c.moment, c.refused, c.now.pushed = 0, 0, [2]int8{}
		}
		c.before.pushed = [2]int8{}
		for _, o := range []*owner{&c.now, &c.before} {
			if !o.acquire {
				*o = owner{}
			}
			if o == &c.before || c.ended {
				o.age = 0
			}
			use(&o.extend, &o.renew, &o.release, &o.pushed[0], &o.pushed[1])
		}
		use(&c.fence, &c.refused)
	}
	slices.Sort(fences)
	rank := func(f int8) int8 {
		if f <= 0 {
			return 0
		}
		return int8(slices.Index(fences, f)) + 1
	}
	n.key.LastFence = driver.Fence(rank(last))
	for i := range n.key.Holders {
		n.key.Holders[i].Fence = driver.Fence(rank(int8(n.key.Holders[i].Fence)))
	}
	for i := range n.clients {
		c := &n.clients[i]
		c.fence, c.refused = rank(c.fence), rank(c.refused)
		for _, o := range []*owner{&c.now, &c.before} {
			o.extend, o.renew, o.release = rank(o.extend), rank(o.renew), rank(o.release)
			o.pushed = [2]int8{rank(o.pushed[0]), rank(o.pushed[1])}
		}
	}
}

// String is the state as a text, the same for equal states.
func (n node) String() string {
	b := make([]byte, 0, 256)
	b = append(b, byte(n.key.LastFence), '|')
	flags := func(fs ...bool) {
		v := byte(0)
		for i, f := range fs {
			if f {
				v |= 1 << i
			}
		}
		b = append(b, v)
	}
	for _, h := range n.key.Holders {
		b = append(b, h.Owner[0], byte(h.Fence), byte(h.Seat), byte(h.MaxHolders), byte(h.End().Sub(epoch)/tick), byte(h.TTL/tick))
		flags(h.HandedOver, h.Revoked)
	}
	b = append(b, '|')
	for _, w := range n.key.Queue {
		b = append(b, w.Owner[0], byte(w.MaxHolders))
	}
	b = append(b, '|')
	for _, e := range n.key.Ended {
		b = append(b, e.Owner[0], byte(e.How))
	}
	for _, c := range n.clients {
		b = append(b, '|')
		for _, o := range []owner{c.now, c.before} {
			flags(o.acquire, o.abandon, o.leave)
			b = append(b, byte(o.age), byte(o.extend), byte(o.renew), byte(o.release), byte(o.pushed[0]), byte(o.pushed[1]))
		}
		flags(c.trusts, c.waits, c.ended)
		b = append(b, byte(c.left), byte(c.fence), byte(c.moment), byte(c.refused))
	}
	return string(b)
}
