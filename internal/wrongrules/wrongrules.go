// Package wrongrules is the rule book, package rules, with one mistake at a time. Each is one that
// a careful person may make. The search (internal/modelcheck) and the suite of the stores
// (lockstore/storetest) have to find them.
package wrongrules

import (
	"reflect"
	"slices"
	"time"

	"github.com/lambdalock/lambdalock/internal/rules"
	"github.com/lambdalock/lambdalock/lockstore/driver"
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
	answer driver.Answer
	basis  rules.Basis
}

// Decide is rules.Book.Decide with the mistake.
func (m Mistake) Decide(b rules.Book, s rules.State, clock rules.Clock, r driver.Request) (rules.State, bool, driver.Answer, rules.Basis) {
	c := &call{Book: b, State: s, Clock: clock, Request: r, was: s}
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

// asks reports whether the request has one of the kinds.
func (c *call) asks(kinds ...driver.Kind) bool { return slices.Contains(kinds, c.Kind) }

func (c *call) live(h rules.Holder) bool { return c.Early.Before(h.End()) }

// mine is the owner's lease, live or not, or nil.
func (c *call) mine() *rules.Holder {
	for i := range c.Holders {
		if c.Holders[i].Owner == c.Owner {
			return &c.Holders[i]
		}
	}
	return nil
}

// first is the lease that was granted first, or nil.
func (c *call) first() *rules.Holder {
	if len(c.Holders) == 0 {
		return nil
	}
	return &c.Holders[0]
}

func (c *call) place() int { return place(c.State, c.Owner) }

func place(s rules.State, o driver.Owner) int {
	return slices.IndexFunc(s.Queue, func(w rules.Waiter) bool { return w.Owner == o })
}

// granted reports whether the decision has made a new lease.
func (c *call) granted() bool {
	return c.answer.Outcome == driver.Granted && c.LastFence != c.was.LastFence
}

// names makes the request one of whoever holds the key.
func (c *call) names() {
	if h := c.first(); h != nil {
		c.Owner, c.Fence = h.Owner, h.Fence
	}
}

// revive makes a lease that has ended live for one moment more.
func (c *call) revive(h *rules.Holder) {
	if h != nil && !c.live(*h) {
		h.Since = c.Early.Add(time.Millisecond - h.TTL)
	}
}

// All are the mistakes.
var All = []Mistake{
	{Name: "M05 a release compares no owner", before: func(c *call) {
		if c.asks(driver.Release) {
			c.names()
		}
	}},
	{Name: "M08 a renewal after the end of the lease", before: func(c *call) {
		if c.asks(driver.Renew) {
			c.revive(c.mine())
		}
	}},
	{Name: "M18 a store that forgets the owners that have ended", after: func(c *call) { c.Ended = nil }},
	{Name: "M31 a queue whose turns have no end", before: func(c *call) {
		if c.asks(driver.Acquire) && c.place() != 0 && len(c.Queue) > 0 {
			c.Freed, c.Closed = c.Late, rules.Closed{}
		}
	}},
	{Name: "M32 callers without a place pass by the queue", before: func(c *call) {
		if c.asks(driver.Acquire) && c.place() < 0 {
			c.Queue = nil
		}
	}, after: func(c *call) {
		if c.asks(driver.Acquire) && place(c.was, c.Owner) < 0 && c.answer.Outcome == driver.Refused {
			c.Queue = append(slices.Clone(c.was.Queue), c.Queue...)
		}
	}},
	{Name: "a queue whose last owner is served first", after: func(c *call) {
		if last := len(c.Queue) - 1; last >= len(c.was.Queue) {
			c.Queue = slices.Concat(c.Queue[last:], c.Queue[:last])
		}
	}},
	{Name: "a grant keeps the owner's place", after: func(c *call) {
		if c.asks(driver.Acquire) && c.granted() {
			c.Queue = c.was.Queue
		}
	}},
	{Name: "a hand-over keeps the owner's place", after: func(c *call) {
		if len(c.answer.HandedOver) > 0 {
			c.Queue = append([]rules.Waiter{{Owner: c.answer.HandedOver[0], MaxHolders: 1}}, c.Queue...)
		}
	}},
	{Name: "a release hands over to nobody", after: func(c *call) {
		if c.asks(driver.Release) && len(c.answer.HandedOver) > 0 {
			c.Holders, c.Queue, c.answer.HandedOver = c.was.Holders[1:], c.was.Queue, nil
		}
	}},
	{Name: "an abandon keeps the owner's place", after: func(c *call) {
		if c.asks(driver.Abandon) {
			c.Queue = c.was.Queue
		}
	}},
	{Name: "a leave keeps the owner's place", after: func(c *call) {
		if c.asks(driver.Leave) {
			c.Queue = c.was.Queue
		}
	}},
	{Name: "a leave gives the next owner the rest of the turn", after: func(c *call) {
		if c.asks(driver.Leave) {
			c.Freed = c.was.Freed
		}
	}},
	{Name: "M153 a release after the end of its lease begins the turns again", after: func(c *call) {
		if c.asks(driver.Release) && c.answer.Outcome == driver.Done && len(c.Holders) < len(c.was.Holders) {
			c.Freed = c.Late
		}
	}},
	{Name: "a completion keeps the queue", after: func(c *call) {
		if c.asks(driver.Complete) {
			c.Queue = c.was.Queue
		}
	}},
	{Name: "a completed key is granted", before: func(c *call) {
		if c.asks(driver.Acquire) {
			c.Closed = rules.Closed{}
		}
	}},
	{Name: "M123 a key in doubt is granted", before: func(c *call) {
		for i := range c.Holders {
			c.Holders[i].Started = c.Holders[i].Started && !c.asks(driver.Acquire)
		}
	}},
	{Name: "M120 a revocation shortens the lease", after: func(c *call) {
		if c.asks(driver.Revoke) && c.first() != nil {
			c.first().TTL -= time.Second
		}
	}},
	{Name: "M154 a revocation opens the key at once", before: func(c *call) { c.AtOnce = c.AtOnce || c.asks(driver.Revoke) }},
	{Name: "a lease begins at the earliest time", before: func(c *call) { c.Late = c.Early }},
	{Name: "M118 others' leases end by the latest time", before: func(c *call) {
		if c.asks(driver.Acquire) && c.mine() == nil {
			c.Early = c.Late
		}
	}},
	{Name: "M110 a takeover by a guess", after: func(c *call) {
		if c.granted() {
			c.basis = rules.OnAnything
		}
	}},
	{Name: "M111 lost, by a guess", after: func(c *call) {
		if c.answer.Outcome == driver.Lost {
			c.basis = rules.OnAnything
		}
	}},
	{Name: "M113 an abandon ends another's lease", before: func(c *call) {
		if c.asks(driver.Abandon) && c.mine() == nil {
			c.names()
		}
	}},
	{Name: "M10 the fence does not grow", after: func(c *call) {
		if c.granted() && c.was.LastFence > 0 {
			c.LastFence = c.was.LastFence
			c.Holders[len(c.Holders)-1].Fence, c.answer.Fence = c.LastFence, c.LastFence
		}
	}},
}
