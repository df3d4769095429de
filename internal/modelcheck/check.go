package modelcheck

import (
	"cmp"
	"slices"
	"time"

	"github.com/lambdalock/lambdalock/internal/rules"
	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// Outcome is what a store may make of a request.
type Outcome struct {
	State  rules.State
	Answer driver.Answer
	exact  bool // by the right time
}

// outcomes are those of a store that knows the time, or of one over a register.
//
// The latter guesses the time when it decides. The guess is right, a tick off, or so far
// off that every lease and turn is live or over. If the answer has to rest on a stamp, it
// writes the state as it is, and decides again by the stamp of this write. Each stamp is the
// right time or a tick earlier, as if it had been cut down to a tick. What begins with a write
// begins a tick after its stamp. Nobody else writes between the read and the writes of a
// request: a write is on the state that was read, or fails.
func (m *model) outcomes(s rules.State, r driver.Request) (all []Outcome) {
	switch {
	case !m.size.Register:
		for _, clock := range m.clocks() {
			next, _, answer, _ := m.store.Decide(m.book, s, clock, r)
			all = append(all, Outcome{next, answer, clock.Early.Equal(now)})
		}
		return all
	}
	const unstamped = time.Nanosecond // marks a time that comes with the write
	stamps := []time.Duration{0, -tick}
	write := func(next rules.State, a driver.Answer) {
		for _, stamp := range stamps {
			all = append(all, Outcome{State: stamped(next, now.Add(stamp+tick)), Answer: a})
		}
	}
	touched := false
	for _, guess := range []time.Duration{0, -24 * tick, -tick, tick, 24 * tick} {
		at := now.Add(guess)
		next, changed, answer, basis := m.store.Decide(m.book, s, rules.Clock{Early: at, Late: at.Add(unstamped)}, r)
		switch {
		case basis < rules.OnStamp && changed:
			write(next, answer)
		case basis < rules.OnStamp:
			all = append(all, Outcome{State: s, Answer: answer, exact: guess == 0})
		case !touched:
			touched = true
			for _, stamp := range stamps {
				at := now.Add(stamp)
				next, changed, answer, _ := m.store.Decide(m.book, s, rules.Clock{Early: at, Late: at.Add(tick + unstamped), Sure: true}, r)
				if changed {
					write(next, answer)
				} else {
					all = append(all, Outcome{State: s, Answer: answer})
				}
			}
		}
	}
	return all
}

// clocks are what a store may know of the time.
func (m *model) clocks() []rules.Clock {
	if !m.size.Blurred {
		return []rules.Clock{rules.At(now)}
	}
	window := func(early, late time.Duration) rules.Clock {
		return rules.Clock{Early: now.Add(early), Late: now.Add(late), Sure: true}
	}
	return []rules.Clock{window(0, 0), window(-tick, 0), window(0, tick), window(-tick, tick)}
}

// stamped is a state whose new times are those of its write.
func stamped(s rules.State, at time.Time) rules.State {
	set := func(t *time.Time) {
		if t.Nanosecond() != 0 {
			*t = at
		}
	}
	s.Holders = slices.Clone(s.Holders)
	for i := range s.Holders {
		set(&s.Holders[i].Since)
	}
	set(&s.Closed.Since)
	return s
}

// changed notes what a request has changed, and returns what is wrong with that.
func (m *model) changed(before, after *node, r driver.Request, out Outcome) (bad string) {
	largest := before.key.LastFence
	granted := false
	for _, h := range after.key.Holders {
		if slices.ContainsFunc(before.key.Holders, func(b rules.Holder) bool { return b.Fence == h.Fence && (b.Owner == h.Owner || h.Revoked) }) {
			continue
		}
		granted = true
		switch {
		case h.Fence <= largest:
			bad = "the fence did not grow"
		case closed(before.key) && r.Kind != driver.Release:
			bad = "a completed key was granted"
		case inDoubt(before.key) && r.Kind == driver.Acquire:
			bad = "a key in doubt was granted"
		}
	}
	me, was := holder(after.key, r.Owner), holder(before.key, r.Owner)
	switch {
	case after.key.LastFence < before.key.LastFence:
		bad = "the fence fell"
	case out.Answer.Outcome != driver.Lost && out.Answer.Outcome != driver.Done:
	case out.Answer.Outcome == driver.Lost && was != nil && live(*was) && !was.Revoked && (r.Fence == 0 || r.Fence == was.Fence):
		bad = "told that a live lease is lost"
	case me != nil && !me.Revoked && r.Kind != driver.MarkStarted && (r.Fence == 0 || r.Fence == me.Fence) && live(*me):
		bad = "told that it holds nothing, but it has the key"
	case r.Kind == driver.Leave && place(after.key, r.Owner) >= 0:
		bad = "an owner that has left has a place"
	}
	if r.Kind == driver.Renew && out.Answer.Outcome == driver.Granted && out.exact && was != nil && !live(*was) {
		bad = "an expired lease was revived"
	}
	for i, w := range after.key.Queue {
		if had := place(before.key, w.Owner); had >= 0 && i > had && w.Owner != gone {
			bad = "somebody got a place before a client that waits"
		}
	}
	bad = cmp.Or(wakes(before.key, after.key, r.Owner, out.Answer.Wake), bad)
	m.ended(before, after, r, out)
	if m.size.Healthy {
		c, me := &after.clients[0], name(0, false)
		had, has := place(before.key, me), place(after.key, me)
		switch {
		case has < 0:
			c.credit = 0
			c.dropped = c.dropped && r.Owner != me || closed(after.key) && had >= 0
		case had < 0 || granted:
			c.credit, c.dropped = int8(delay(after.key.Queue[:has])/tick), false
		case r.Owner == me:
			c.dropped = false
		case has < had && !slices.ContainsFunc(after.key.Holders, live):
			c.dropped = true // it has moved up and does not know it: until it asks, who has its turn by then may overtake it
		}
	}
	return bad
}

// ended notes the owners that must have no lease any more.
func (m *model) ended(before, after *node, r driver.Request, out Outcome) {
	for who := range m.size.MaxHolders {
		for _, earlier := range []bool{false, true} {
			me, o := name(who, earlier), after.owner(who, earlier)
			if out.Answer.Outcome == driver.Done && me == r.Owner && (r.Kind == driver.Release || r.Kind == driver.Abandon || r.Kind == driver.Complete) {
				o.over = true
			}
			if h := holder(before.key, me); h != nil && !h.HandedOver && holder(after.key, me) == nil {
				o.over = true
			}
		}
	}
}

// wakes says what is wrong with whom a request wakes: it has to wake all parked owners that it makes holders, or
// whose places end because it closes the key, and nobody else.
func wakes(before, after rules.State, asks driver.Owner, wake []driver.Owner) string {
	for _, w := range before.Queue {
		h := holder(after, w.Owner)
		has := h != nil && h.HandedOver && live(*h) || closed(after)
		if w.Parked > 0 && w.Owner != asks && w.Owner != gone && place(after, w.Owner) < 0 && has && !slices.Contains(wake, w.Owner) {
			return "a parked owner is not woken"
		}
	}
	for _, o := range wake {
		i, h := place(before, o), holder(after, o)
		if o != gone && (i < 0 || before.Queue[i].Parked == 0 || !closed(after) && (h == nil || !h.HandedOver)) {
			return "an owner is woken for nothing"
		}
	}
	return ""
}

// wrong is what is wrong in a state.
func (m *model) wrong(n *node) string {
	trusting, fewest := 0, 1<<30
	var seats [most * 2]bool
	for who := range m.size.MaxHolders {
		c := &n.clients[who]
		for _, earlier := range []bool{false, true} {
			me := name(who, earlier)
			h, waits := holder(n.key, me), place(n.key, me) >= 0
			switch over := n.owner(who, earlier).over; {
			case over && h != nil && live(*h) && !h.Revoked:
				return "an owner that has ended has the key"
			case over && waits:
				return "an owner that has ended has a place"
			case h != nil && waits && live(*h):
				return "a holder has a place"
			}
		}
		if m.healthy(who) && c.waits && !c.dropped && place(n.key, name(0, false)) < 0 && holder(n.key, name(0, false)) == nil {
			return "a healthy client lost its place"
		}
		if !c.trusts {
			continue
		}
		trusting++
		fewest = min(fewest, m.size.MaxHolders[who])
		i := slices.IndexFunc(n.key.Holders, func(h rules.Holder) bool {
			return int8(h.Fence) == c.fence && (h.Owner == name(who, false) || h.Revoked) && live(h)
		})
		if i < 0 {
			return "a client trusts a lease that it does not have"
		}
		if n.key.Holders[i].End().Sub(now) < time.Duration(c.left)*tick {
			return "a client trusts its lease for longer than it lasts"
		}
		if seats[n.key.Holders[i].Seat] {
			return "two have the same seat"
		}
		seats[n.key.Holders[i].Seat] = true
	}
	if trusting > fewest {
		return "more trust than one of them allows"
	}
	holding, fewest, room := 0, 1<<30, 1<<30
	for _, h := range n.key.Holders {
		room = min(room, h.MaxHolders)
		if live(h) {
			holding, fewest = holding+1, min(fewest, h.MaxHolders)
		}
	}
	switch {
	case holding > fewest:
		return "more hold the key than one of them allows"
	case len(n.key.Queue) > 0 && closed(n.key):
		return "somebody waits for a completed key"
	case len(n.key.Queue) > 0 && len(n.key.Holders) < min(room, n.key.Queue[0].MaxHolders):
		return "somebody waits for whom there is room, and nothing says since when"
	}
	return ""
}

// delay is for how long places may keep the key from who comes after them.
func delay(before []rules.Waiter) (d time.Duration) {
	for _, w := range before[:min(len(before), driver.MaxTurns)] {
		d += max(driver.Turn, w.Parked)
	}
	return min(d, driver.MaxDelay)
}

// deadEnd says what is wrong if time passes and nobody moves but one owner.
func (m *model) deadEnd(n *node) string {
	if !m.does(Queue) || slices.ContainsFunc(n.key.Holders, func(h rules.Holder) bool { return h.Started }) {
		return ""
	}
	end := now
	for _, h := range n.key.Holders {
		end = later(end, h.End())
	}
	if n.key.Closed.For > 0 {
		end = later(end, n.key.Closed.End())
	}
	granted := func(o driver.Owner, limit, before int) bool {
		at := rules.At(end.Add(delay(n.key.Queue[:before])))
		_, _, a, _ := m.store.Decide(m.book, n.key, at, driver.Request{Kind: driver.Acquire, Owner: o, TTL: tick, MaxHolders: limit})
		return a.Outcome == driver.Granted
	}
	if !granted("new", 1, len(n.key.Queue)) {
		return "a new owner can never be granted the key"
	}
	for who, limit := range m.size.MaxHolders {
		if before := place(n.key, name(who, false)); before >= 0 && n.clients[who].waits && !granted(name(who, false), limit, before) {
			return "a client that waits can never be granted the key"
		}
	}
	return ""
}

// lateDuplicates says what is wrong if a request changes something that comes from an owner
// that the store remembers as ended.
func (m *model) lateDuplicates(n *node) string {
	const late driver.Owner = "late"
	key, clock := n.key, rules.Clock{Early: now, Late: now, Sure: !m.size.Register}
	if m.size.Blurred {
		clock.Late = now.Add(tick) // nothing of the key begins later
	}
	for _, how := range []rules.How{rules.Released, rules.Expired} {
		key.Ended = append(slices.Clip(n.key.Ended), rules.Ended{Owner: late, Fence: stale, How: how})
		for _, kind := range []driver.Kind{driver.Acquire, driver.Renew, driver.Release, driver.Abandon, driver.Leave, driver.MarkStarted, driver.Complete} {
			r := driver.Request{Kind: kind, Owner: late, Fence: stale, TTL: tick, MaxHolders: 1, Join: true}
			if kind == driver.Acquire {
				r.Fence = 0
			}
			if _, changed, a, _ := m.store.Decide(m.book, key, clock, r); changed || a.Outcome == driver.Granted {
				return "a request of an owner that has ended changed the key"
			}
		}
	}
	return ""
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
