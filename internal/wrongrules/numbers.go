package wrongrules

import (
	"slices"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/rules"
)

// uncounted is a mistake in counting: an Acquire does not see the holders from first to last, once there are so many.
func uncounted(name string, first, last int) Mistake {
	hides := func(c *call) bool {
		return c.Kind == driver.Acquire && len(c.was.Holders) >= last && c.hadMine().Fence == 0
	}
	return Mistake{name, func(c *call) { when(hides(c), func() { c.Holders = slices.Delete(c.Holders, first, last) }) }, func(c *call) {
		when(hides(c), func() {
			c.Holders = slices.Insert(c.Holders, min(first, len(c.Holders)), c.was.Holders[first:last]...)
			if n := len(c.Holders) - 1; c.granted() {
				c.Holders[n].Seat = n
				c.answer.Seat = n
			}
		})
	}}
}

// lasts is a mistake in how long a lease lasts.
func lasts(name string, f func(time.Duration) time.Duration) Mistake {
	return Mistake{name, nil, func(c *call) {
		for i, h := range c.Holders {
			when(h.Since.Equal(c.Late) && !h.Revoked, func() { c.Holders[i].TTL = f(h.TTL) })
		}
	}}
}

func wraps(at time.Duration) func(time.Duration) time.Duration {
	return func(d time.Duration) time.Duration { return d % at }
}

// turns is a mistake in the turn of a parked place.
func turns(name string, f func(time.Duration) time.Duration) Mistake {
	return Mistake{name, nil, func(c *call) {
		when(len(c.answer.HandedOver) > 0 && len(c.answer.Wake) > 0, func() {
			last := &c.Holders[len(c.Holders)-1]
			last.TTL = f(last.TTL)
		})
	}}
}

// numbering are mistakes in numbers that are larger, or more exact, than somebody has tried.
var numbering = []Mistake{
	uncounted("several: the ninth holder is not counted", 8, 9),
	uncounted("several: the number of holders has four bits", 0, 16),
	before("several: at most ten hold a key", driver.Acquire, func(c *call) { c.MaxHolders = min(c.MaxHolders, 10) }),
	after("several: a seat has three bits", driver.Acquire, func(c *call) {
		when(c.granted(), func() {
			c.answer.Seat %= 8
			c.Holders[len(c.Holders)-1].Seat = c.answer.Seat
		})
	}),
	{"several: eight are handed the key at once", nil, func(c *call) {
		const most = 8
		if late := len(c.answer.HandedOver) - most; late > 0 {
			n := len(c.was.Queue) - len(c.Queue)
			c.Queue, c.Holders = c.was.Queue[n-late:], c.Holders[:len(c.Holders)-late]
			c.answer.HandedOver = c.answer.HandedOver[:most]
			c.LastFence = c.Holders[len(c.Holders)-1].Fence
		}
	}},
	after("queue: the tenth and the eleventh change places", driver.Acquire, func(c *call) {
		when(len(c.Queue) == 11 && len(c.was.Queue) == 10, func() { c.Queue[9], c.Queue[10] = c.Queue[10], c.Queue[9] })
	}),
	lasts("a lease's microseconds wrap at 2^31", wraps(1<<31*time.Microsecond)),
	lasts("a lease's seconds wrap at 2^16", wraps(1<<16*time.Second)),
	lasts("a lease's time is a float32", func(d time.Duration) time.Duration { return time.Duration(float32(d)) }),
	lasts("a lease of hours has whole minutes", func(d time.Duration) time.Duration {
		when(d > time.Hour, func() { d = d.Truncate(time.Minute) })
		return d
	}),
	before("complete: its milliseconds wrap at 2^31", driver.Complete, func(c *call) { c.TTL %= 1 << 31 * time.Millisecond }),
	before("complete: its microseconds wrap at 2^32", driver.Complete, func(c *call) { c.TTL %= 1 << 32 * time.Microsecond }),
	turns("parked: turns of whole seconds", func(d time.Duration) time.Duration { return d.Truncate(time.Second) }),
	turns("parked: a turn of 20 s at most", func(d time.Duration) time.Duration { return min(d, 20*time.Second) }),
	fence("fence is a float64", func(_, next driver.Fence, _ time.Time) driver.Fence { return driver.Fence(float64(next)) }),
	fence("fence has 52 bits", func(_, next driver.Fence, _ time.Time) driver.Fence { return next % (1 << 52) }),
	ends("no time is after 2038", func(begin, end time.Time) time.Time {
		if last := time.Unix(1<<31, 0); end.After(last) && begin.Before(last) {
			return last
		}
		return end
	}),
}

// bystanders are mistakes about owners that have done nothing: somebody else has.
var bystanders = []Mistake{
	after("a reader's place ends when the writer before it leaves", driver.Leave, func(c *call) {
		i := place(c.was, c.Owner)
		if i >= 0 && i < len(c.Queue) && len(c.Queue) < len(c.was.Queue) && c.was.Queue[i].MaxHolders == 1 && c.Queue[i].MaxHolders > 1 {
			c.Queue = slices.Delete(c.Queue, i, i+1)
		}
	}),
	after("a reader waits as a writer after the reader before it has abandoned", driver.Abandon, func(c *call) {
		i := place(c.was, c.Owner)
		when(i >= 0 && i < len(c.Queue) && c.was.Queue[i].MaxHolders > 1, func() { c.Queue[i].MaxHolders = 1 })
	}),
	after("a revocation ends the places of all who wait", driver.Revoke, func(c *call) { when(!c.lost(), func() { c.Queue = nil }) }),
	before("resolve: whatever the fence", driver.Resolve, func(c *call) { when(c.first().Started, func() { c.Fence = c.first().Fence }) }),
	after("several: a release ends the leases that were granted later", driver.Release, func(c *call) {
		had := c.hadMine().Fence
		when(!c.lost() && had > 0, func() {
			c.Holders = slices.DeleteFunc(c.Holders, func(h rules.Holder) bool { return h.Fence > had && !h.HandedOver })
		})
	}),
	after("several: a release beside others does nothing", driver.Release, func(c *call) {
		when(c.answer.Outcome == driver.Done && len(c.was.Holders) > 1, func() { c.undo(driver.Done) })
	}),
	after("several: a release moves the others to lower seats", driver.Release, func(c *call) {
		for i := range c.Holders {
			when(c.Holders[i].Seat > c.hadMine().Seat && c.hadMine().Fence > 0, func() { c.Holders[i].Seat-- })
		}
	}),
	after("several: a revocation at once ends every lease", driver.Revoke, func(c *call) {
		when(c.AtOnce && !c.lost(), func() { c.Holders = nil })
	}),
	after("several: who is revoked makes the others revoked", driver.Revoke, func(c *call) {
		for i := range c.Holders {
			c.Holders[i].Revoked = c.Holders[i].Revoked || !c.lost()
		}
	}),
	before("several: a lease that has ended ends the others", driver.Acquire, func(c *call) {
		when(slices.ContainsFunc(c.Holders, func(h rules.Holder) bool { return !c.live(h) && !h.Started }), func() { c.Holders = nil })
	}),
}
