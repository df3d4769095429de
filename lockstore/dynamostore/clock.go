package dynamostore

import (
	"sync/atomic"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// clock is the local clock, corrected by what the service's Date headers say.
// All of it is wall time: stamps are compared with other machines'.
type clock struct {
	now     func() time.Time
	offset  atomic.Int64 // nanoseconds to add to the local time
	highest atomic.Int64 // the largest fence stamp that was sent, see abandon
}

// local reads the local clock, not corrected. The zero Store's is time.Now.
func (c *clock) local() time.Time {
	if c.now == nil {
		return time.Now().Round(0)
	}
	return c.now().Round(0)
}

// read returns the corrected time.
func (c *clock) read() time.Time { return c.correct(c.local()) }

func (c *clock) correct(t time.Time) time.Time {
	return t.Add(time.Duration(c.offset.Load()))
}

// learn moves the offset as little as needed to agree with a reply: when the
// service wrote date, its time was in [date, date + 1 s), and the local time
// was between sent and now. A clock that is right is left alone, and a slow
// reply, which says little, moves little.
func (c *clock) learn(sent, date time.Time) {
	if date.IsZero() {
		return
	}
	least, most := date.Sub(c.local()), date.Add(dateStep).Sub(sent)
	if least > most {
		return // the local clock was set back in between
	}
	for {
		old := c.offset.Load()
		offset := min(max(time.Duration(old), least), most)
		if c.offset.CompareAndSwap(old, int64(offset)) {
			return
		}
	}
}

// stamped notes a fence stamp that is about to be sent.
func (c *clock) stamped(f lockstore.Fence) {
	for {
		old := c.highest.Load()
		if int64(f) <= old || c.highest.CompareAndSwap(old, int64(f)) {
			return
		}
	}
}

// stamp returns the end of a lease of ttl that is asked for at now, as the row
// keeps it: the writer's clock tolerance is in it, so that all others wait for
// as long as this writer may trust.
func (s *Store) stamp(now time.Time, ttl time.Duration) time.Time {
	return now.Add(ttl + s.skew).Truncate(time.Millisecond)
}

// lasts returns how long a lease that ends at expires may be trusted from a
// reading of the local clock on, at most ttl. date is the service's time at some
// moment after that reading: if the local clock is behind, expires comes too
// early, and so does this end. The margin is not yet taken off.
func lasts(ttl time.Duration, expires, date time.Time) time.Duration {
	return min(ttl, expires.Sub(date))
}

// takeable reports whether another may take over the lease in the row. Only
// the service's own time decides; without it nothing is taken.
func takeable(r row, date time.Time) bool {
	return !date.IsZero() && !r.expires.Add(dateStep).After(date)
}

// left is what is left of a lease that ends at expires, counted from before the
// request. It ends before the moment of a takeover by the tolerances that a grant
// has, so that clocks may run at different rates. The lease may be another process's
// with another tolerance: then the one that is usual is kept.
func (s *Store) left(expires time.Time, r reply) time.Duration {
	stamped := expires.Add(-s.skew).Sub(s.clock.correct(r.sent))
	most := expires.Sub(r.date)
	return min(most, max(stamped, most-DefaultSkew-dateStep))
}

// remaining is the longest time from the reply on until takeable becomes true.
func (s *Store) remaining(seen row, r reply) time.Duration {
	from := r.date
	if from.IsZero() {
		from = s.clock.read()
	}
	end := seen.expires.Add(dateStep)
	if whole := end.Truncate(dateStep); whole.Before(end) {
		end = whole.Add(dateStep) // Date moves in whole seconds
	}
	return max(0, end.Sub(from))
}
