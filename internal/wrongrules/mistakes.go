package wrongrules

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/rules"
	"github.com/lambdalock/lambdalock/lockstore"
)

// before is a mistake in what goes into a decision about requests of one kind.
func before(name string, kind driver.Kind, f func(*call)) Mistake {
	return Mistake{name, func(c *call) { when(c.Kind == kind, func() { f(c) }) }, nil}
}

// after is a mistake in what comes out of it.
func after(name string, kind driver.Kind, f func(*call)) Mistake {
	return Mistake{name, nil, func(c *call) { when(c.Kind == kind, func() { f(c) }) }}
}

// ends is a mistake about the end of a lease or of a time for which a key is closed.
func ends(name string, f func(begin, end time.Time) time.Time) Mistake {
	return Mistake{name, nil, func(c *call) {
		for i, h := range c.Holders {
			if h.Since.Equal(c.Late) && !h.Revoked {
				c.Holders[i].TTL = f(h.Since, h.End()).Sub(h.Since)
			}
		}
		if c.Closed.For > 0 && c.Closed.Since.Equal(c.Late) {
			c.Closed.For = f(c.Closed.Since, c.Closed.End()).Sub(c.Closed.Since)
		}
	}}
}

// judged is a mistake about the time by which others' leases end.
func judged(name string, f func(time.Time) time.Time) Mistake {
	return before(name, driver.Acquire, func(c *call) { when(!c.holds(), func() { c.Early = f(c.Early) }) })
}

func early(by time.Duration) func(time.Time) time.Time {
	return func(now time.Time) time.Time { return now.Add(by) }
}

// All are the mistakes.
var All = slices.Concat(acquiring, renewing, releasing, abandoning, completing, starting, resolving, revoking, queueing, handingOver, parking, coalescing, several, times, fences, inspecting, numbering, bystanders, Careful, Induced)

var acquiring = []Mistake{
	before("M01 acquire unconditional", driver.Acquire, func(c *call) { c.free() }),
	before("M02 expiry compare flipped", driver.Acquire, func(c *call) {
		for i, h := range c.Holders {
			if c.Holders[i].Since = c.Late; c.live(h) {
				c.Holders[i].Since = c.Early.Add(-h.TTL)
			}
		}
	}),
	before("M02 never expires", driver.Acquire, func(c *call) {
		for i := range c.Holders {
			c.revive(&c.Holders[i])
		}
	}),
	after("F29 trusted longer than asked", driver.Acquire, func(c *call) { c.answer.TTL += time.Second }),
	before("M15 own retry reads busy", driver.Acquire, func(c *call) {
		when(c.live(*c.mine()), func() { c.Owner, c.Join = "another owner than the holder", false })
	}),
	after("own retry extends", driver.Acquire, func(c *call) {
		when(c.repeated(), func() { c.mine().Since, c.mine().TTL, c.answer.TTL = c.Late, c.TTL, c.TTL })
	}),
	after("M12 fence moves on busy", driver.Acquire, func(c *call) { when(c.refused(), func() { c.first().Fence++; c.LastFence++ }) }),
	{"owners are compared by prefix", func(c *call) {
		when(c.first().Owner != "" && c.Owner != "" && (strings.HasPrefix(string(c.first().Owner), string(c.Owner)) || strings.HasPrefix(string(c.Owner), string(c.first().Owner))), func() { c.Owner = c.first().Owner })
	}, nil},
	{"owners are compared without case", func(c *call) {
		when(strings.EqualFold(string(c.first().Owner), string(c.Owner)), func() { c.Owner = c.first().Owner })
	}, nil},
	before("F64 same holder shares", driver.Acquire, func(c *call) {
		when(c.first().Text == c.Request.Holder || c.closed() && c.Closed.Text == c.Request.Holder, c.free)
	}),
	before("caller is not stored", driver.Acquire, func(c *call) {
		h := lockstore.DecodeHolderInfo(c.Request.Holder)
		h.Caller = ""
		c.Request.Holder = h.Encode()
	}),
	before("unknown holder gets a name", driver.Acquire, func(c *call) {
		when(c.Request.Holder == (lockstore.HolderInfo{}).Encode(), func() { c.Request.Holder = "0\t\tunknown" })
	}),
	after("overtaken owner shares the new lease", driver.Acquire, func(c *call) {
		when(c.lost() && c.ended(rules.Expired), func() { c.sayGranted(c.LastFence, time.Second) })
	}),
	before("M18 late duplicate of an acquire", driver.Acquire, func(c *call) { c.Ended = nil }),
	{"M18 M117 a store that forgets the owners that have ended", nil, func(c *call) { c.Ended = nil }},
}

var renewing = []Mistake{
	before("F24 renew again is lost", driver.Renew, func(c *call) { when(!c.Late.Add(c.TTL).After(c.mine().End()), func() { c.Fence++ }) }),
	after("M09 renew shortens", driver.Renew, func(c *call) { when(!c.lost(), func() { c.mine().Since, c.mine().TTL = c.Late, c.TTL }) }),
	after("M84 shorter renew is trusted for its TTL alone", driver.Renew, func(c *call) { c.answer.TTL = min(c.answer.TTL, c.TTL) }),
	after("shorter renew is trusted for nothing", driver.Renew, func(c *call) { when(c.answer.TTL > c.TTL, func() { c.answer.TTL = 0 }) }),
	before("M08 renew after expiry", driver.Renew, func(c *call) { c.revive(c.mine()) }),
	after("M08 renew says lost and revives", driver.Renew, func(c *call) { when(c.lost() && c.mine().Fence == c.Fence, func() { c.mine().Since = c.Late }) }),
	after("M07 renew recreates lost", driver.Renew, func(c *call) {
		when(c.lost() && len(c.Holders) == 0, func() { c.grant(c.Fence); c.sayGranted(c.Fence, c.TTL) })
	}),
	after("M07 renew recreates deleted", driver.Renew, func(c *call) {
		when(c.lost() && c.unknown(), func() { c.grant(c.Fence); c.sayGranted(c.Fence, c.TTL) })
	}),
	after("M07 renew says lost and recreates", driver.Renew, func(c *call) { when(c.lost() && len(c.Holders) == 0, func() { c.grant(c.Fence) }) }),
	after("M36 lost as held", driver.Renew, func(c *call) {
		when(c.lost(), func() { c.answer = driver.Answer{Outcome: driver.Refused, Status: driver.Status{State: driver.Held}} })
	}),
	before("M06 renew unchecked", driver.Renew, func(c *call) { c.names() }),
	before("M06 renew checks the owner alone", driver.Renew, func(c *call) { c.Fence = c.mine().Fence }),
	before("M06 renew checks the fence alone", driver.Renew, func(c *call) { when(c.first().Fence == c.Fence, func() { c.Owner = c.first().Owner }) }),
	after("M06 renew says lost and extends", driver.Renew, func(c *call) {
		when(c.lost() && (c.first().Owner != c.Owner || c.first().Fence != c.Fence), func() { c.first().Since, c.first().TTL = c.Late, max(c.first().TTL, c.TTL) })
	}),
	before("M14 fence compared in 32 bits", driver.Renew, func(c *call) { when(int32(c.mine().Fence) == int32(c.Fence), func() { c.Fence = c.mine().Fence }) }),
	after("renew of abandoned is held", driver.Renew, func(c *call) {
		when(c.lost() && c.ended(rules.Released) && len(c.Holders) == 0, func() { c.sayGranted(c.Fence, c.TTL) })
	}),
}

var releasing = []Mistake{
	before("M04 release unchecked", driver.Release, func(c *call) { c.names() }),
	before("M05 release ignores the fence", driver.Release, func(c *call) { c.Fence = c.mine().Fence }),
	before("M04 release again frees the next", driver.Release, func(c *call) { when(c.ended(rules.Released), c.names) }),
	after("M04 release says lost and frees", driver.Release, func(c *call) { when(c.lost(), c.free) }),
	after("F25 release again is lost", driver.Release, func(c *call) { when(c.ended(rules.Released), func() { c.say(driver.Lost) }) }),
	after("M11 release deletes the fence", driver.Release, func(c *call) { c.LastFence = 0 }),
	after("M153 a release after the end of its lease hands over from that end on", driver.Release, func(c *call) {
		when(c.hadExpired() && len(c.answer.HandedOver) > 0, func() { c.Holders[len(c.Holders)-1].Since = c.hadMine().End() })
	}),
}

var abandoning = []Mistake{
	after("abandon leaves no mark", driver.Abandon, func(c *call) { when(len(c.Holders) == len(c.was.Holders), func() { c.Ended = c.was.Ended }) }),
	after("abandon of nothing is lost", driver.Abandon, func(c *call) {
		when(len(c.Holders) == len(c.was.Holders) && !c.ended(rules.Released), func() { c.say(driver.Lost) })
	}),
	after("abandon does nothing", driver.Abandon, func(c *call) { c.State = c.was }),
	before("M113 abandon frees everybody's", driver.Abandon, func(c *call) { when(!c.holds(), c.names) }),
	after("queue: an abandon keeps the place", driver.Abandon, func(c *call) { c.Queue = c.was.Queue }),
}

var completing = []Mistake{
	before("cooldown of half the time", driver.Complete, func(c *call) { c.TTL /= 2 }),
	after("cooldown again is longer", driver.Complete, func(c *call) { when(c.ended(rules.Completed), func() { c.Closed.Since = c.Late }) }),
	before("cooldown by anybody", driver.Complete, func(c *call) {
		c.names()
		if len(c.Holders) == 0 {
			c.grant(c.Fence)
			c.Fence, c.Ended = c.LastFence, nil
		}
	}),
	before("complete: the result is a text", driver.Complete, func(c *call) { c.Result = []byte(strings.ToValidUTF8(string(c.Result), "?")) }),
	before("complete: the result ends at a NUL", driver.Complete, func(c *call) {
		text, _, _ := strings.Cut(string(c.Result), "\x00")
		c.Result = []byte(text)
	}),
	before("complete: a newline at the end is cut", driver.Complete, func(c *call) { c.Result = []byte(strings.TrimSuffix(string(c.Result), "\n")) }),
	before("complete: a result that looks like a queue is none", driver.Complete, func(c *call) { when(strings.HasSuffix(string(c.Result), " "), func() { c.Result = nil }) }),
	before("complete: 64 KiB", driver.Complete, func(c *call) { c.Result = c.Result[:min(len(c.Result), 64<<10)] }),
	before("complete: the error knows no holder", driver.Acquire, func(c *call) { c.Closed.Text = "" }),
	after("complete: a plain refusal", driver.Acquire, func(c *call) {
		when(c.answer.Status.State == driver.Completed, func() { c.answer.Status.State = driver.Held })
	}),
	before("complete: at most a day", driver.Complete, func(c *call) { c.TTL = min(c.TTL, 24*time.Hour) }),
	before("complete: for ever", driver.Complete, func(c *call) { c.TTL += 100 * 24 * time.Hour }),
	after("complete: the result survives the next grant", driver.Acquire, func(c *call) {
		if old := c.was.Closed; c.granted() && len(old.Result) > 0 {
			c.Closed.Result = old.Result
		} else if len(c.Closed.Result) > 0 && c.refused() {
			c.answer.Status.State, c.answer.Status.Result = driver.Completed, c.Closed.Result
		}
	}),
	after("M128 complete: the result stays in the entry", driver.Acquire, func(c *call) { when(c.granted(), func() { c.Closed.Result = c.was.Closed.Result }) }),
	after("complete: lost after the end", driver.Complete, func(c *call) {
		when(slices.ContainsFunc(c.was.Holders, func(h rules.Holder) bool { return !c.live(h) }), func() { c.undo(driver.Lost) })
	}),
	before("M127 complete: after another's grant", driver.Complete, func(c *call) { when(c.ended(rules.Expired), c.names) }),
	before("M124 complete: without the owner", driver.Complete, func(c *call) { when(c.first().Fence == c.Fence, func() { c.Owner = c.first().Owner }) }),
	before("complete: without the fence", driver.Complete, func(c *call) { c.Fence = c.mine().Fence }),
	before("M125 complete: on a free key", driver.Complete, func(c *call) {
		when(len(c.Holders) == 0 && c.Closed.For == 0 && len(c.Ended) == 0, func() { c.grant(c.Fence); c.Fence = c.LastFence })
	}),
	before("M126 a released lease counts as completed", driver.Complete, func(c *call) {
		for i := range c.Ended {
			if c.Ended[i].How == rules.Released {
				c.Ended[i].How = rules.Completed
			}
		}
	}),
	before("a completed key is granted", driver.Acquire, func(c *call) { c.Closed = rules.Closed{} }),
	after("queue: stays through a cooldown", driver.Complete, func(c *call) { c.Queue = c.was.Queue }),
}

var starting = []Mistake{
	before("M123 started: ignored by a takeover", driver.Acquire, func(c *call) {
		for i := range c.Holders {
			c.Holders[i].Started = false
		}
	}),
	after("started: a renewal forgets it", driver.Renew, func(c *call) { c.mine().Started = false }),
	before("started: forgotten after a day", driver.Acquire, func(c *call) {
		when(c.Early.Sub(c.first().End()) > 24*time.Hour, func() { c.first().Started = false })
	}),
	before("started: whatever the fence", driver.MarkStarted, func(c *call) { c.Fence = c.mine().Fence }),
	after("started: says lost and starts", driver.MarkStarted, func(c *call) { when(c.lost() && c.first().Fence != c.Fence, func() { c.first().Started = true }) }),
}

var resolving = []Mistake{
	after("resolve: again is lost", driver.Resolve, func(c *call) { when(len(c.was.Holders) == 0, func() { c.say(driver.Lost) }) }),
	after("M156 resolve: the owner itself has completed it", driver.Resolve, func(c *call) {
		for i := range c.Ended {
			if c.Effect && c.Ended[i].Fence == c.Fence {
				c.Ended[i].How = rules.Completed
			}
		}
	}),
}

var revoking = []Mistake{
	after("M120 revoke: end shortened", driver.Revoke, func(c *call) { when(!c.lost(), func() { c.first().TTL -= time.Second }) }),
	after("M121 M155 revoke: released not set", driver.Revoke, func(c *call) { c.Ended = c.was.Ended }),
	after("revoke: the second one takes over", driver.Revoke, func(c *call) {
		when(c.first().Revoked, func() { c.first().Text, c.answer.Status.Holder = c.Request.Holder, c.Request.Holder })
	}),
	after("M122 revoke: ends a cooldown", driver.Revoke, func(c *call) {
		when(c.was.Closed.For > 0 && c.Fence == c.LastFence, func() { c.Closed = rules.Closed{}; c.say(driver.Done) })
	}),
	after("M134 revoke: started is dropped", driver.Revoke, func(c *call) { c.first().Started = false }),
	before("M135 revoke: at once frees a started key", driver.Revoke, func(c *call) { when(c.AtOnce, func() { c.first().Started = false }) }),
	before("M154 a revocation opens the key at once", driver.Revoke, func(c *call) { c.AtOnce = true }),
}

var queueing = []Mistake{
	{"queue: last in, first out", nil, func(c *call) {
		if last := len(c.Queue) - 1; last >= len(c.was.Queue) {
			c.Queue = slices.Concat(c.Queue[last:], c.Queue[:last])
		}
	}},
	before("M32 callers without a place overtake the queue", driver.Acquire, func(c *call) { when(c.place() < 0, c.overtake) }),
	after("queue: a grant keeps the place", driver.Acquire, func(c *call) { when(c.granted(), func() { c.Queue = c.was.Queue }) }),
	after("queue: leave does nothing", driver.Leave, func(c *call) { c.Queue = c.was.Queue }),
	after("M99 who leaves gives half a turn back", driver.Leave, func(c *call) { c.turnOf(driver.TurnTime / 2) }),
	before("M31 a dead waiter blocks the queue", driver.Acquire, func(c *call) {
		for i, h := range c.Holders {
			when(h.HandedOver && h.Owner != c.Owner, func() { c.revive(&c.Holders[i]) })
		}
	}),
	{"M95 M97 queue: turns of a second", func(c *call) { c.roomFor(func(free time.Duration) time.Duration { return 2 * free }) }, func(c *call) { c.turnOf(driver.TurnTime / 2) }},
	before("M96 M98 a queue of dead owners closes a key for three turns", driver.Acquire, func(c *call) {
		when(c.place() > 3 || c.place() < 0 && len(c.Queue) > 3, func() { c.roomFor(plus(2 * driver.TurnTime)) })
	}),
	before("queue: every place is a turn", driver.Acquire, func(c *call) {
		if i := c.place(); i > driver.MaxTurnsBefore {
			c.roomFor(plus(-time.Duration(i-driver.MaxTurnsBefore) * driver.TurnTime))
		} else if i < 0 && len(c.Queue) > driver.MaxTurnsBefore {
			c.roomFor(plus(-time.Duration(len(c.Queue)-driver.MaxTurnsBefore) * driver.TurnTime))
		}
	}),
	before("queue: who leaves behind the first hands the key to it", driver.Leave, func(c *call) {
		if i := c.place(); i > 0 {
			c.Queue = slices.Concat(c.Queue[i:i+1], c.Queue[:i], c.Queue[i+1:])
		}
	}),
	{"queue: no end", func(c *call) { c.Places *= 100 }, nil},
	after("queue: an owner joins again", driver.Acquire, func(c *call) {
		when(c.refused() && c.Join && place(c.was, c.Owner) >= 0, func() { c.Queue = append(c.Queue, rules.Waiter{Owner: c.Owner, MaxHolders: 1}) })
	}),
	after("queue: one waits for the end of a cooldown", driver.Acquire, func(c *call) {
		when(c.refused() && c.Join && c.closed() && c.place() < 0, func() {
			c.Queue = append(c.Queue, rules.Waiter{Owner: c.Owner, MaxHolders: 1})
			c.answer.Position = len(c.Queue)
		})
	}),
}

// parking are mistakes about parked places.
var parking = []Mistake{
	{"parked: nobody is woken by a hand-over", nil, func(c *call) {
		when(c.Kind != driver.Complete && c.Kind != driver.Resolve, func() { c.answer.Wake = nil })
	}},
	after("parked: a completion wakes nobody", driver.Complete, func(c *call) { c.answer.Wake = nil }),
	{"parked: who waits is woken, too", nil, func(c *call) { c.answer.Wake = slices.Concat(c.answer.Wake, c.answer.HandedOver) }},
	after("parked: a completion wakes one", driver.Complete, func(c *call) { c.answer.Wake = c.answer.Wake[:min(1, len(c.answer.Wake))] }),
	before("parked: the turns add up without an end", driver.Acquire, func(c *call) {
		before, all := c.Queue, time.Duration(0)
		if i := c.place(); i >= 0 {
			before = c.Queue[:i]
		}
		for _, w := range before[:min(len(before), driver.MaxTurnsBefore)] {
			all += max(driver.TurnTime, w.Parked)
		}
		c.roomFor(plus(min(0, driver.MaxDelay-all)))
	}),
	before("parked: all places may be parked", driver.Acquire, func(c *call) { when(c.Parked > 0 && len(c.Queue) < c.Places, func() { c.Places *= 2 }) }),
}

// roomFor changes for how long there has been room, after leases that have expired.
func (c *call) roomFor(change func(time.Duration) time.Duration) {
	for i, h := range c.Holders {
		when(!c.live(h), func() { c.Holders[i].Since = c.Early.Add(-max(0, change(c.Early.Sub(h.End()))) - h.TTL) })
	}
}

func plus(d time.Duration) func(time.Duration) time.Duration {
	return func(free time.Duration) time.Duration { return free + d }
}

// overtake lets the owner take the turn of everybody.
func (c *call) overtake() {
	for i, h := range c.Holders {
		when(h.HandedOver && h.Owner != c.Owner && c.live(h), func() { c.Holders[i].Since = c.Early.Add(-h.TTL) })
	}
	c.roomFor(plus(driver.MaxTurnsBefore * driver.TurnTime))
}

// turnOf changes the turn of who was handed the key.
func (c *call) turnOf(d time.Duration) {
	when(len(c.answer.HandedOver) > 0, func() { c.Holders[len(c.Holders)-1].TTL = d })
}

// coveredBy is a mistake about who covers an event: a place does that fits.
func coveredBy(name string, fits func(c *call, w rules.Waiter) bool) Mistake {
	return after(name, driver.Acquire, func(c *call) {
		when(c.refused() && c.Work != "" && slices.ContainsFunc(c.was.Queue, func(w rules.Waiter) bool { return fits(c, w) }), c.cover)
	})
}

// cover answers that the event is covered, and takes the place back.
func (c *call) cover() {
	a := c.answer
	c.undo(driver.Refused)
	c.answer = a
	c.answer.Covered, c.answer.Position, c.answer.Status.Waiting = true, 0, len(c.was.Queue)
}

func (c *call) newcomer() bool { return place(c.was, c.Owner) < 0 }

// Losing are mistakes that lose events, in a simulation.
var Losing = coalescing[:3]

var coalescing = []Mistake{
	after("covered: by a holder that was handed the key", driver.Acquire, func(c *call) {
		when(c.refused() && c.Work != "" && c.newcomer() && slices.ContainsFunc(c.was.Holders, func(h rules.Holder) bool { return h.HandedOver && c.live(h) }), c.cover)
	}),
	coveredBy("covered: by the place of the same event, whose owner may be dead", func(c *call, w rules.Waiter) bool { return c.newcomer() && w.Work == c.Work }),
	coveredBy("covered: by another work", func(c *call, w rules.Waiter) bool { return c.newcomer() && w.Work != "" && w.Event != c.Event }),
	coveredBy("covered: by a place whose owner has had a lease", func(c *call, w rules.Waiter) bool {
		return c.newcomer() && w.Work == c.Work && w.Event != c.Event
	}),
	coveredBy("covered: by a run that does not coalesce", func(c *call, w rules.Waiter) bool { return c.newcomer() && w.Work == "" }),
	coveredBy("covered: an owner that has a place", func(c *call, w rules.Waiter) bool {
		return w.Work == c.Work && w.Event != c.Event && holder(c.was, func(h rules.Holder) bool { return h.Owner == w.Owner }).Fence == 0
	}),
	coveredBy("covered: by one's own place", func(c *call, w rules.Waiter) bool { return w.Owner == c.Owner && w.Work == c.Work }),
	after("covered: the owner takes a place", driver.Acquire, func(c *call) {
		when(c.answer.Covered, func() {
			c.Queue = append(c.Queue, rules.Waiter{Owner: c.Owner, MaxHolders: c.MaxHolders, Work: c.Work, Event: c.Event})
		})
	}),
	after("covered: nobody, everybody waits", driver.Acquire, func(c *call) { c.answer.Covered = false }),
	after("covered: a place that coalesces is the last of its queue", driver.Acquire, func(c *call) {
		n := len(c.was.Queue)
		when(c.refused() && c.newcomer() && !c.answer.Covered && n > 0 && c.was.Queue[n-1].Work != "", func() {
			a := c.answer
			c.undo(driver.Refused)
			c.answer = a
			c.answer.Position, c.answer.Status.Waiting = 0, n
		})
	}),
}

// handingOver are mistakes in hand-over.
var handingOver = []Mistake{
	after("a release hands over to nobody", driver.Release, func(c *call) { c.keepQueue() }),
	{"a hand-over keeps the place", nil, func(c *call) {
		when(len(c.answer.HandedOver) > 0, func() { c.Queue = append([]rules.Waiter{{Owner: c.answer.HandedOver[0], MaxHolders: 1}}, c.Queue...) })
	}},
	after("an extension of a hand-over makes the lease shorter", driver.Acquire, func(c *call) {
		when(c.extended(), func() { c.mine().TTL = c.Request.TTL })
	}),
	before("a hand-over that has lapsed is extended", driver.Acquire, func(c *call) { when(c.mine().HandedOver, func() { c.revive(c.mine()) }) }),
	before("who was handed the key leaves it", driver.Leave, func(c *call) {
		when(c.mine().HandedOver && c.live(*c.mine()), func() { c.Kind = driver.Abandon })
	}),
}

// keepQueue takes the hand-overs of the decision back.
func (c *call) keepQueue() {
	when(len(c.answer.HandedOver) > 0, func() {
		c.Holders, c.Queue, c.answer.HandedOver = slices.DeleteFunc(c.Holders, func(h rules.Holder) bool { return h.HandedOver }), c.was.Queue, nil
	})
}

// extended reports whether the decision has extended a hand-over.
func (c *call) extended() bool { return c.repeated() && c.hadMine().HandedOver }

// numbers is a mistake in the numbers of holders by which an acquire is decided. What is stored is right.
func numbers(name string, f func(*call)) Mistake {
	return Mistake{name, func(c *call) { when(c.Kind == driver.Acquire, func() { f(c) }) }, func(c *call) {
		if c.Kind != driver.Acquire {
			return
		}
		right := func(o driver.Owner) int {
			if i := place(c.was, o); i >= 0 && o != c.Owner {
				return c.was.Queue[i].MaxHolders
			}
			return c.most
		}
		for i, h := range c.Holders {
			c.Holders[i].MaxHolders = right(h.Owner)
			if before := holder(c.was, func(o rules.Holder) bool { return o.Fence == h.Fence }); before.Fence != 0 {
				c.Holders[i].MaxHolders = before.MaxHolders
			}
		}
		for i, w := range c.Queue {
			c.Queue[i].MaxHolders = right(w.Owner)
			if before := place(c.was, w.Owner); before >= 0 {
				c.Queue[i].MaxHolders = c.was.Queue[before].MaxHolders
			}
		}
	}}
}

// add changes every number above 1.
func (c *call) add(n int) {
	change := func(most *int) { when(*most > 1, func() { *most += n }) }
	change(&c.MaxHolders)
	for i := range c.Holders {
		change(&c.Holders[i].MaxHolders)
	}
	for i := range c.Queue {
		change(&c.Queue[i].MaxHolders)
	}
}

// several are mistakes about keys that several may hold.
var several = []Mistake{
	numbers("several: one more than may hold the key", func(c *call) { c.add(1) }),
	numbers("several: one fewer than may hold the key", func(c *call) { c.add(-1) }),
	numbers("several: who asks counts alone", func(c *call) {
		for i := range c.Holders {
			c.Holders[i].MaxHolders = lockstore.MaxHolders
		}
	}),
	numbers("several: a reader passes a writer that waits", func(c *call) {
		for i := range c.Queue {
			c.Queue[i].MaxHolders = lockstore.MaxHolders
		}
	}),
	after("several: a holder that has a place is handed the key again", driver.Leave, func(c *call) {
		for _, h := range c.was.Holders {
			when(place(c.was, h.Owner) >= 0 && len(c.Holders) > len(c.was.Holders), func() { c.Holders[len(c.Holders)-1].Owner = h.Owner })
		}
	}),
	after("several: a seat is given twice", driver.Acquire, func(c *call) {
		if n := len(c.Holders) - 1; c.granted() {
			c.Holders[n].Seat, c.answer.Seat = n, n // how many there are is no free seat
		}
	}),
}

var times = []Mistake{
	judged("M81 takeover 1 ms early", early(time.Millisecond)),
	judged("takeover 100 ms early", early(100*time.Millisecond)),
	judged("takeover 500 ms early", early(500*time.Millisecond)),
	judged("takeover 999 ms early", early(999*time.Millisecond)),
	judged("takeover by whole seconds, rounded up", func(now time.Time) time.Time { return now.Add(time.Second - 1).Truncate(time.Second) }),
	judged("takeover by whole seconds, rounded", func(now time.Time) time.Time { return now.Round(time.Second) }),
	ends("M37 TTL in other units", func(begin, end time.Time) time.Time { return begin.Add(end.Sub(begin) / 1000) }),
	ends("TTL in whole seconds", func(begin, end time.Time) time.Time { return begin.Add(end.Sub(begin).Truncate(time.Second)) }),
	ends("end in whole milliseconds", func(_, end time.Time) time.Time { return end.Truncate(time.Millisecond) }),
	ends("M83 end in whole seconds", func(_, end time.Time) time.Time { return end.Truncate(time.Second) }),
	ends("end in whole seconds, rounded", func(_, end time.Time) time.Time { return end.Round(time.Second) }),
	ends("begin in whole seconds", func(begin, end time.Time) time.Time { return end.Add(begin.Truncate(time.Second).Sub(begin)) }),
	before("M85 a cooldown ends 1 ms early", driver.Complete, func(c *call) { c.TTL -= time.Millisecond }),
}

// fence makes the number of each new lease.
func fence(name string, f func(last, next driver.Fence, now time.Time) driver.Fence) Mistake {
	return Mistake{name, nil, func(c *call) {
		if c.granted() {
			c.number(f(c.was.LastFence, c.LastFence, c.Early))
		}
	}}
}

var fences = []Mistake{
	fence("M10 fence constant", func(_, _ driver.Fence, _ time.Time) driver.Fence { return 1_700_000_000_000_000 }),
	fence("M14 fence int32", func(_, next driver.Fence, _ time.Time) driver.Fence { return driver.Fence(uint32(next)) }),
	fence("fence is the time alone", func(_, _ driver.Fence, now time.Time) driver.Fence { return driver.Fence(now.UnixMicro()) }),
	fence("fence is one more alone", func(last, _ driver.Fence, _ time.Time) driver.Fence { return max(last+1, 1_700_000_000_000_000) }),
	{"takeover keeps the fence", nil, func(c *call) {
		when(c.granted() && len(c.was.Holders) > 0, func() { c.number(c.was.LastFence) })
	}},
	falls(driver.Abandon), falls(driver.Leave), falls(driver.Resolve),
}

// falls is a mistake in the fence of who is handed the key. It is no number that another grant has.
func falls(kind driver.Kind) Mistake {
	return after(fmt.Sprintf("the fence falls at a hand-over by %s", kind), kind, func(c *call) {
		when(c.LastFence > c.was.LastFence+1, func() { c.number(max(1, c.was.LastFence-1<<20)) })
	})
}

var inspecting = []Mistake{
	after("inspect invents a fence", driver.Inspect, func(c *call) { c.answer.Status.Fence = max(1, c.answer.Status.Fence) }),
}

// Careful are mistakes of a careful person, who knows the rules: each needs a second request, or a
// state, that is easy to forget.
var Careful = []Mistake{
	after("a repeat for longer is trusted for longer", driver.Acquire, func(c *call) { when(c.repeated() && c.TTL > c.mine().TTL, func() { c.answer.TTL = c.TTL }) }),
	after("a start is forgotten when somebody joins the queue", driver.Acquire, func(c *call) { when(len(c.Queue) > len(c.was.Queue), func() { c.first().Started = false }) }),
	after("a start is forgotten when somebody leaves the queue", driver.Leave, func(c *call) { when(len(c.Queue) < len(c.was.Queue), func() { c.first().Started = false }) }),
	before("a result is stored after a revocation", driver.Complete, func(c *call) {
		when(c.first().Revoked && c.first().Fence == c.Fence, func() { c.first().Owner, c.first().Revoked, c.Ended = c.Owner, false, nil })
	}),
	before("a renewal revives an expired lease while somebody waits", driver.Renew, func(c *call) { when(len(c.Queue) > 0, func() { c.revive(c.mine()) }) }),
	after("a late duplicate closes the key again", driver.Complete, func(c *call) {
		when(c.ended(rules.Completed) && !c.closed() && len(c.Holders) == 0, func() { c.Closed = rules.Closed{Since: c.Late, For: c.TTL, Result: c.Result} })
	}),
	after("a repeat moves to the last place", driver.Acquire, func(c *call) {
		if i := c.place(); c.refused() && i >= 0 && i < len(c.Queue)-1 {
			c.Queue = append(slices.Delete(c.Queue, i, i+1), rules.Waiter{Owner: c.Owner, MaxHolders: 1})
			c.answer.Position = len(c.Queue)
		}
	}),
	after("a release of an expired lease is lost", driver.Release, func(c *call) { when(c.hadExpired(), func() { c.undo(driver.Lost) }) }),
	after("a release forgets who waits", driver.Release, func(c *call) { c.Queue = nil }),
	after("a takeover forgets the owner whose lease had ended", driver.Acquire, func(c *call) { when(c.granted() && len(c.was.Holders) > 0, func() { c.Ended = c.was.Ended }) }),
	before("a place is enough for a revoked lease's owner", driver.Acquire, func(c *call) {
		c.Ended = slices.DeleteFunc(c.Ended, func(e rules.Ended) bool { return e.Owner == c.Owner && e.Fence == c.LastFence && len(c.Holders) > 0 })
	}),
	after("an abandon of who waits ends the lease of the holder, too", driver.Abandon, func(c *call) { when(place(c.was, c.Owner) >= 0, c.free) }),
	before("a leave ends a live lease", driver.Leave, func(c *call) { when(c.holds(), c.free) }),
	after("a renewal ends the queue", driver.Renew, func(c *call) { c.Queue = nil }),
}

// Induced are mistakes that no answer of a store shows whose clock is right, and whose owners make no mistake: they are about
// clocks that guess or are off, about one instant, or about states that are rare. The induction has to find them.
var Induced = []Mistake{
	{"a lease begins at the earliest time", func(c *call) { c.Late = c.Early }, nil},
	before("M118 others' leases end by the latest time", driver.Acquire, func(c *call) { when(!c.holds(), func() { c.Early = c.Late }) }),
	after("M110 a takeover by a guess", driver.Acquire, func(c *call) { when(c.granted(), func() { c.basis = rules.OnAnything }) }),
	coveredBy("covered: two events by the places of each other", func(c *call, w rules.Waiter) bool {
		return c.newcomer() && w.Work == c.Work && w.Event != c.Event && holder(c.was, func(h rules.Holder) bool { return h.Owner == w.Owner }).Fence == 0
	}),
	after("covered: by an old read", driver.Acquire, func(c *call) { when(c.answer.Covered, func() { c.basis = rules.OnAnything }) }),
	{"M111 lost, by a guess", nil, func(c *call) { when(c.lost(), func() { c.basis = rules.OnAnything }) }},
	{"a hand-over that has lapsed lets its owner in beside the next", func(c *call) {
		when(c.Kind == driver.Acquire && c.mine().HandedOver, func() { c.revive(c.mine()) })
	}, func(c *call) {
		for _, h := range c.was.Holders {
			when(c.Kind == driver.Acquire && h.HandedOver && !c.live(h) && !slices.ContainsFunc(c.Holders, func(o rules.Holder) bool { return o.Fence == h.Fence }), func() { c.Holders = append(c.Holders, h) })
		}
	}},
	after("a renewal keeps the place of a hand-over that another clock saw lapse", driver.Renew, func(c *call) {
		if i := place(c.was, c.Owner); !c.lost() && i >= 0 {
			c.Queue = c.was.Queue
		}
	}),
	judged("M82 a lease is live at the instant of its end", func(now time.Time) time.Time { return now.Add(-1) }),
	after("a leave before a key in doubt hands it over", driver.Leave, func(c *call) {
		if i := place(c.was, c.Owner); i == 0 && len(c.Queue) > 0 && c.first().Started && !c.live(*c.first()) {
			c.Holders = c.Holders[1:]
			c.handOverFirst()
		}
	}),
	after("who has completed closes the key again after another's grant", driver.Complete, func(c *call) {
		when(c.ended(rules.Completed) && len(c.Holders) == 1 && !c.live(*c.first()), func() {
			c.Holders, c.Queue, c.Closed = nil, nil, rules.Closed{Since: c.Late, For: c.TTL, Result: c.Result}
		})
	}),
	before("a start counts no more once its lease is revoked", driver.Acquire, func(c *call) {
		when(c.first().Revoked && !c.live(*c.first()), func() { c.first().Started = false })
	}),
	after("a grant leaves the places before it", driver.Acquire, func(c *call) {
		if i := place(c.was, c.Owner); c.granted() && i > 0 && len(c.answer.HandedOver)+len(c.answer.Wake) == 0 {
			c.Queue = slices.Concat(c.was.Queue[:i], c.Queue)
		}
	}),
	after("an extension keeps the end of the lease, and begins shortly before it", driver.Acquire, func(c *call) {
		when(c.repeated() && c.hadMine().HandedOver, func() {
			c.mine().Since, c.mine().TTL = c.mine().End().Add(-time.Millisecond), time.Millisecond
		})
	}),
	after("a renewal begins at the end of the lease", driver.Renew, func(c *call) {
		when(!c.lost(), func() {
			c.mine().Since = c.hadMine().End()
			c.answer.TTL = c.mine().End().Sub(c.Late)
		})
	}),
	before("an abandon ends a revoked lease whose work has started", driver.Abandon, func(c *call) { c.mine().Revoked = false }),
	after("a renewal leaves a hand-over as it is", driver.Renew, func(c *call) { c.mine().HandedOver = c.hadMine().HandedOver }),
	after("a revoked lease that ends counts as expired", driver.Acquire, func(c *call) {
		for i, m := range c.Ended {
			when(m.How == rules.Revoked && c.granted(), func() { c.Ended[i].How = rules.Expired })
		}
	}),
	before("a hand-over passes a parked place", driver.Release, func(c *call) {
		when(len(c.Queue) > 1 && c.Queue[0].Parked > 0, func() { c.Queue[0], c.Queue[1] = c.Queue[1], c.Queue[0] })
	}),
	before("work is resolved by the latest time", driver.Resolve, func(c *call) { c.Early = c.Late }),
	{"a lease that begins in the future begins when it is looked at", func(c *call) {
		for i, h := range c.Holders {
			when(h.Since.After(c.Late) && c.Sure, func() { c.Holders[i].Since = c.Late.Add(-h.TTL / 2) })
		}
	}, nil},
	after("a start rests on nothing", driver.MarkStarted, func(c *call) { c.basis = rules.OnAnything }),
	after("an owner has left, by an old read", driver.Leave, func(c *call) { c.basis = min(c.basis, rules.OnAnything) }),
	after("a renewal that is lost rests on nothing", driver.Renew, func(c *call) { when(c.lost(), func() { c.basis = rules.OnAnything }) }),
	before("turns are over by the latest time", driver.Acquire, func(c *call) {
		off := c.Late.Sub(c.Early)
		for i, h := range c.Holders {
			when(!c.live(h) && !h.Started, func() { c.Holders[i].Since = h.Since.Add(-off) })
		}
	}),
	after("the seat of a lease that has ended is not free", driver.Acquire, func(c *call) {
		for _, h := range c.was.Holders {
			if n := len(c.Holders) - 1; c.granted() && !c.live(h) && h.Seat == c.Holders[n].Seat {
				c.Holders[n].Seat, c.answer.Seat = lockstore.MaxHolders, lockstore.MaxHolders
			}
		}
	}),
	after("a place that goes takes the next one along", driver.Renew, func(c *call) {
		if i := place(c.was, c.Owner); i >= 0 && c.place() < 0 && i < len(c.Queue) {
			c.Queue = slices.Delete(c.Queue, i, i+1)
		}
	}),
	after("a key closes for the longer of two times", driver.Complete, func(c *call) { c.Closed.For = max(c.Closed.For, c.hadMine().TTL) }),
}

// handOverFirst hands the key over to the first in the queue.
func (c *call) handOverFirst() {
	w := c.Queue[0]
	c.LastFence++
	c.Holders = append(c.Holders, rules.Holder{Owner: w.Owner, Fence: c.LastFence, MaxHolders: w.MaxHolders, Since: c.Late, TTL: max(driver.TurnTime, w.Parked), HandedOver: true})
	c.Queue = c.Queue[1:]
	if w.Parked > 0 {
		c.answer.Wake = append(c.answer.Wake, w.Owner)
	} else {
		c.answer.HandedOver = append(c.answer.HandedOver, w.Owner)
	}
}
