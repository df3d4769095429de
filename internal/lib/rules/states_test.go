package rules_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/rules"
	"github.com/lambdalock/lambdalock/lockstore"
)

// States that satisfy the invariant, and requests that make a difference to them.

// grid is a set of states: all that satisfy the invariant and have at most so many holders, places and marks of so many
// owners, with these times. States that differ in the names of owners only are one.
type grid struct {
	holders, places, marks, owners int
	ends                           []time.Duration // of leases, from now on; one that ends after a TTL begins in the future
	numbers                        []int           // MaxHolders of leases; of places and requests it is 1 or 2
}

const ttl = 4 * tick

var few = []int{1, 2}

var names = []driver.Owner{"a", "b", "c", "d"}

// all calls each with every state of the grid, and with how many owners the state has.
func (g grid) all(each func(s rules.State, owners int)) {
	each(rules.State{}, 0)
	g.leases(rules.State{LastFence: 10}, 0, each)
}

func (g grid) leases(s rules.State, owners int, each func(rules.State, int)) {
	if len(s.Holders) == 0 {
		for _, end := range g.ends {
			for _, result := range []driver.HiddenBytes{nil, driver.HiddenBytes("done")} {
				closed := s
				closed.Closed = rules.Closed{Since: noon.Add(end - ttl), For: ttl, Result: result}
				g.ended(closed, owners, each)
			}
		}
	}
	g.queue(s, owners, each)
	if len(s.Holders) < 2 { // a fence above that of the last holder
		above := s
		above.LastFence++
		g.queue(above, owners, each)
	}
	if len(s.Holders) == g.holders || owners == g.owners {
		return
	}
	for _, number := range g.numbers {
		for _, end := range g.ends {
			for seat := range g.holders {
				for flags := range 8 {
					if flags&3 == 3 {
						continue // a revocation ends the hand-over
					}
					h := rules.Holder{
						Owner: names[owners], Fence: s.LastFence + 1, Seat: seat, MaxHolders: number, Since: noon.Add(end - ttl), TTL: ttl,
						HandedOver: flags&1 > 0, Revoked: flags&2 > 0, Started: flags&4 > 0,
					}
					next := s
					next.LastFence++
					next.Holders = append(slices.Clip(s.Holders), h)
					if next.Broken() == "" {
						g.leases(next, owners+1, each)
					}
				}
			}
		}
	}
}

func (g grid) queue(s rules.State, owners int, each func(rules.State, int)) {
	g.ended(s, owners, each)
	if len(s.Queue) == g.places {
		return
	}
	for o := range min(owners+1, g.owners) {
		for _, number := range few {
			for _, w := range []rules.Waiter{{}, {Parked: 3 * tick, Work: "index", Event: "1"}} {
				w.Owner, w.MaxHolders = names[o], number
				next := s
				next.Queue = append(slices.Clip(s.Queue), w)
				if next.Broken() == "" {
					g.queue(next, max(owners, o+1), each)
				}
			}
		}
	}
}

func (g grid) ended(s rules.State, owners int, each func(rules.State, int)) {
	each(s, owners)
	if len(s.Ended) == g.marks || owners == g.owners {
		return
	}
	for _, fence := range []driver.Fence{0, 9, s.LastFence} {
		for how := rules.Released; how <= rules.Revoked; how++ {
			next := s
			next.Ended = append(slices.Clip(s.Ended), rules.Ended{Owner: names[owners], Fence: fence, How: how})
			if fence > 0 && leaseWith(&s, fence) != nil || fence == 0 && how > rules.Expired {
				continue
			}
			g.ended(next, owners+1, each)
		}
	}
}

// requests are all that make a difference to a state: by each of its owners and by a new one, with the right fence and a wrong one.
func requests(s rules.State, owners int) (all []driver.Request) {
	var fences []driver.Fence
	for _, h := range s.Holders {
		fences = append(fences, h.Fence)
	}
	for _, m := range s.Ended {
		fences = append(fences, m.Fence)
	}
	fences = append(fences, s.LastFence, 5)
	slices.Sort(fences)
	fences = slices.Compact(fences)
	base := driver.Request{TTL: 3 * tick, MaxHolders: 1, Holder: "who asks"}
	for o := range owners + 1 {
		r := base
		r.Owner = names[o]
		of := []driver.Fence{5} // nobody's
		if len(s.Holders) > 0 && s.Holders[0].Owner != r.Owner {
			of = []driver.Fence{s.Holders[0].Fence}
		}
		if h := leaseOf(&s, r.Owner); h != nil {
			of = append(of, h.Fence)
		} else if m := markOf(&s, r.Owner); m != nil && m.Fence > 0 {
			of = append(of, m.Fence)
		}
		for _, kind := range []driver.Kind{driver.Renew, driver.Release, driver.MarkStarted, driver.Complete} {
			for _, fence := range of {
				r := r
				r.Kind, r.Fence = kind, fence
				if kind == driver.Renew {
					r.TTL = 5 * tick
				}
				all = append(all, r)
			}
		}
		for _, kind := range []driver.Kind{driver.Abandon, driver.Leave} {
			r := r
			r.Kind = kind
			all = append(all, r)
		}
		for _, fence := range of {
			r := r
			r.Kind, r.Fence = driver.Acquire, fence
			all = append(all, r)
		}
		for _, number := range numberOf(s, r.Owner) {
			r := r
			r.Kind, r.MaxHolders = driver.Acquire, number
			all = append(all, r)
			r.Join = true
			all = append(all, r)
			r.Work, r.Event = "index", "2"
			all = append(all, r)
			r.Event = "1"
			all = append(all, r)
			r.Work, r.Parked = "sort", 3*tick
			all = append(all, r)
		}
	}
	for _, fence := range fences {
		for n := range 2 {
			r := base
			r.Fence, r.AtOnce, r.Effect, r.Result = fence, n == 0, n == 0, driver.HiddenBytes("resolved")
			for _, kind := range []driver.Kind{driver.Revoke, driver.Resolve} {
				r.Kind = kind
				all = append(all, r)
			}
		}
	}
	return append(all, driver.Request{Kind: driver.Inspect})
}

// numberOf is with what an owner may ask: always with the same.
func numberOf(s rules.State, o driver.Owner) []int {
	if h := leaseOf(&s, o); h != nil {
		return []int{h.MaxHolders}
	}
	if i := placeOf(&s, o); i >= 0 {
		return []int{s.Queue[i].MaxHolders}
	}
	return few
}

// people are the owners of random states. Some differ in little.
var people = func() (all []driver.Owner) {
	all = []driver.Owner{"a", "A", "ab", "b", "abc", "B"}
	for n := range 2 * lockstore.MaxHolders {
		all = append(all, driver.Owner(fmt.Sprint("owner ", n)))
	}
	return all
}()

// chance makes random states and requests.
type chance struct {
	*rand.Rand
	now     time.Time
	owners  []driver.Owner // in a random order
	holders int            // at most
	places  int
	long    time.Duration // for how long a time is, about
}

func (c *chance) one(n int) bool { return c.IntN(n) == 0 }

// instant is a time up to the limit in both directions, often a whole second.
func (c *chance) instant(limit time.Duration) time.Duration {
	d := time.Duration(c.Int64N(int64(2*limit))) - limit
	if c.IntN(3) > 0 {
		d = d.Round(tick)
	}
	return d
}

// length is a time above 0.
func (c *chance) length(limit time.Duration) time.Duration { return 1 + c.instant(limit).Abs() }

func (c *chance) parked() time.Duration {
	return min(driver.MaxParkedTurn, c.length(driver.MaxParkedTurn))
}

// work is what an owner does and for which event, or nothing.
func (c *chance) work() (work, event string) {
	if c.one(2) {
		return "", ""
	}
	return []string{"index", "index", "Index"}[c.IntN(3)], []string{"1", "2", "12"}[c.IntN(3)]
}

func (c *chance) text() string {
	return []string{"somebody", "somebody else", lockstore.HolderInfo{}.Encode()}[c.IntN(3)]
}

// number is a MaxHolders, often as many as a state of this size may have.
func (c *chance) number() int {
	if c.one(2) {
		return c.holders
	}
	return 1 + c.IntN(c.holders)
}

func (c *chance) result() driver.HiddenBytes {
	return driver.HiddenBytes([]string{"done", "line\n", "\xff\x00 \x00", "{} "}[c.IntN(4)])
}

func (c *chance) state() (s rules.State) {
	if c.one(50) {
		return s // a key that nobody has had
	}
	s.LastFence = max(10, driver.Fence(c.now.UnixMicro()-100))
	marks, holders := s.LastFence, c.IntN(c.holders+1)
	if c.one(4) {
		holders = c.holders
	}
	for i := range holders {
		s.LastFence += driver.Fence(1 + c.IntN(2))
		h := rules.Holder{
			Owner: c.owners[i], Fence: s.LastFence, Seat: i, MaxHolders: min(lockstore.MaxHolders, holders+c.IntN(2)),
			Since: c.now.Add(c.instant(c.long) - c.long/2), TTL: c.length(c.long), Text: c.text(),
		}
		if c.one(3) {
			h.Seat = c.IntN(holders + 1)
		}
		h.HandedOver, h.Revoked = c.one(4), c.one(4)
		h.HandedOver = h.HandedOver && !h.Revoked
		if h.Started = holders == 1 && c.one(2); h.Started {
			h.MaxHolders = 1
		}
		s.Holders = append(s.Holders, h)
	}
	first := max(0, holders-c.IntN(3)) // the first owners that wait may hold, too
	for i := range c.IntN(c.places) {
		w := rules.Waiter{Owner: c.owners[min(first+i, len(c.owners)-1)], MaxHolders: c.number(), Since: c.now.Add(-time.Duration(i) * tick)}
		if h := leaseOf(&s, w.Owner); h != nil {
			w.MaxHolders = h.MaxHolders
		}
		if c.one(3) {
			w.Parked = c.parked()
		}
		w.Work, w.Event = c.work()
		s.Queue = append(s.Queue, w)
	}
	for i := range c.IntN(5) {
		m := rules.Ended{Owner: c.owners[len(c.owners)-1-i], How: rules.How(c.IntN(5)), Fence: marks - driver.Fence(c.IntN(8))}
		if c.one(3) {
			m = rules.Ended{Owner: m.Owner}
		}
		s.Ended = append(s.Ended, m)
	}
	if len(s.Holders)+len(s.Queue) == 0 && c.one(2) {
		s.Closed = rules.Closed{Since: c.now.Add(c.instant(c.long) - c.long/2), For: c.length(c.long), Text: c.text()}
		if c.one(2) {
			s.Closed.Result = c.result()
		}
	}
	s.LastFence += driver.Fence(c.IntN(2))
	return s
}

// request is a request that may meet something of the state.
func (c *chance) request(s rules.State) driver.Request {
	r := driver.Request{
		Kind: driver.Kind(c.IntN(int(driver.AwaitTurn))), Owner: c.owners[c.IntN(len(c.owners))], Fence: s.LastFence, TTL: c.length(c.long), Holder: c.text(),
		AtOnce: c.one(2), Effect: c.one(2),
	}
	if m := len(s.Ended); m > 0 && c.one(3) {
		r.Owner, r.Fence = s.Ended[c.IntN(m)].Owner, s.Ended[c.IntN(m)].Fence
	}
	if h := len(s.Holders); h > 0 && c.IntN(3) > 0 {
		i := c.IntN(h)
		if r.Owner, r.Fence = s.Holders[i].Owner, s.Holders[i].Fence; c.one(4) {
			r.Fence = s.Holders[c.IntN(h)].Fence
		}
	}
	if c.one(8) {
		r.Fence += 1 << 32
	}
	switch r.Kind {
	case driver.Acquire:
		if c.IntN(6) > 0 {
			r.Fence = 0
		}
		numbers := numberOf(s, r.Owner)
		if r.MaxHolders = numbers[0]; len(numbers) > 1 {
			r.MaxHolders = c.number()
		}
		if r.Join = c.one(2); r.Join && c.one(3) {
			r.Parked = c.parked()
		}
		if r.Join {
			r.Work, r.Event = c.work()
		}
	case driver.Complete:
		r.Result = c.result()
	case driver.Resolve:
		r.Owner, r.Result = "an operator", c.result()
	case driver.Revoke, driver.Inspect:
		r.Owner = "an operator"
	}
	return r
}
