// Package wrongrules is the rule book, package rules, with one mistake at a time. Each is one that
// a careful person may make. The induction (internal/lib/rules, TestInduction) and the suite of the stores
// (lockstore/storetest) have to find them.
package wrongrules

import (
	"reflect"
	"slices"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/rules"
)

// Mistake changes what goes into a decision, or what comes out of it.
type Mistake struct {
	Name          string // with the ids of its planted bugs
	before, after func(*call)
}

// call is one decision. The embedded State is the one before until the decision is made, and then the one after.
type call struct {
	rules.Book
	rules.State
	rules.Clock
	driver.Request
	was    rules.State
	most   int // the MaxHolders of the request
	answer driver.Answer
	basis  rules.Basis
}

// Decide is rules.Book.Decide with the mistake.
func (m Mistake) Decide(b rules.Book, s rules.State, clock rules.Clock, r driver.Request) (rules.State, bool, driver.Answer, rules.Basis) {
	c := &call{Book: b, State: s, Clock: clock, Request: r, was: s, most: r.MaxHolders}
	c.Holders, c.Queue, c.Ended = slices.Clone(s.Holders), slices.Clone(s.Queue), slices.Clone(s.Ended)
	if m.before != nil {
		m.before(c)
	}
	changed := false
	if c.State, changed, c.answer, c.basis = c.Book.Decide(c.State, c.Clock, c.Request); !changed {
		c.State = s
	}
	c.Holders, c.Queue, c.Ended = slices.Clone(c.Holders), slices.Clone(c.Queue), slices.Clone(c.Ended)
	if m.after != nil {
		m.after(c)
	}
	return c.State, !reflect.DeepEqual(c.State, s), c.answer, c.basis
}

// Find returns the mistake with the name.
func Find(name string) Mistake {
	i := slices.IndexFunc(All, func(m Mistake) bool { return m.Name == name })
	if i < 0 {
		panic("no mistake has the name " + name)
	}
	return All[i]
}

func (c *call) live(h rules.Holder) bool { return c.Early.Before(h.End()) }

// when does something if the condition is true.
func when(is bool, do func()) {
	if is {
		do()
	}
}

// holder is the first lease of a state that fits, or one that is in no state.
func holder(s rules.State, fits func(rules.Holder) bool) *rules.Holder {
	if i := slices.IndexFunc(s.Holders, fits); i >= 0 {
		return &s.Holders[i]
	}
	return &rules.Holder{}
}

// mine is the owner's lease, live or not.
func (c *call) mine() *rules.Holder {
	return holder(c.State, func(h rules.Holder) bool { return h.Owner == c.Owner })
}

// holds reports whether the owner has a lease, live or not.
func (c *call) holds() bool { return c.mine().Fence != 0 }

// first is the lease that was granted first.
func (c *call) first() *rules.Holder { return holder(c.State, whichever) }

func whichever(rules.Holder) bool { return true }

// hadMine is the owner's lease before the decision.
func (c *call) hadMine() *rules.Holder {
	return holder(c.was, func(h rules.Holder) bool { return h.Owner == c.Owner })
}

// hadExpired reports whether the owner had a lease that has expired.
func (c *call) hadExpired() bool { return c.hadMine().TTL > 0 && !c.live(*c.hadMine()) }

// undo takes the decision back, and answers something else.
func (c *call) undo(o driver.Outcome) {
	c.State = c.was
	c.say(o)
}

func (c *call) place() int { return place(c.State, c.Owner) }

func place(s rules.State, o driver.Owner) int {
	return slices.IndexFunc(s.Queue, func(w rules.Waiter) bool { return w.Owner == o })
}

// number gives the lease that the decision has made another fence.
func (c *call) number(f driver.Fence) {
	c.LastFence, c.answer.Fence, c.Holders[len(c.Holders)-1].Fence = f, f, f
}

// granted reports whether the decision has made a new lease.
func (c *call) granted() bool {
	return c.answer.Outcome == driver.Granted && c.LastFence != c.was.LastFence
}

func (c *call) repeated() bool {
	return c.Kind == driver.Acquire && c.answer.Outcome == driver.Granted && !c.granted()
}

func (c *call) lost() bool { return c.answer.Outcome == driver.Lost }

func (c *call) refused() bool { return c.answer.Outcome == driver.Refused }

// ended reports whether the owner has the mark, in the state before.
func (c *call) ended(how rules.How) bool {
	return slices.ContainsFunc(c.was.Ended, func(e rules.Ended) bool { return e.Owner == c.Owner && e.How == how })
}

// unknown reports whether the key has no entry.
func (c *call) unknown() bool { return c.was.LastFence == 0 && len(c.was.Ended) == 0 }

func (c *call) closed() bool { return c.Closed.For > 0 && c.Early.Before(c.Closed.End()) }

// grant gives the owner a lease whatever else is so.
func (c *call) grant(fence driver.Fence) {
	c.LastFence = max(c.LastFence, fence)
	c.Holders = []rules.Holder{{Owner: c.Owner, Fence: c.LastFence, MaxHolders: 1, Since: c.Late, TTL: c.TTL, Text: c.Request.Holder}}
}

// free ends whatever lease the key has.
func (c *call) free() { c.Holders, c.Closed = nil, rules.Closed{} }

// say replaces the answer.
func (c *call) say(o driver.Outcome) { c.answer = driver.Answer{Outcome: o} }

// sayGranted makes the answer a lease.
func (c *call) sayGranted(fence driver.Fence, ttl time.Duration) {
	c.answer = driver.Answer{Outcome: driver.Granted, Fence: fence, TTL: ttl}
}

// names makes the request one of whoever holds the key.
func (c *call) names() {
	if len(c.Holders) > 0 {
		c.Owner, c.Fence = c.first().Owner, c.first().Fence
	}
}

// revive makes a lease that has ended live for one moment more.
func (c *call) revive(h *rules.Holder) {
	if !c.live(*h) {
		h.Since = c.Early.Add(time.Millisecond - h.TTL)
	}
}
