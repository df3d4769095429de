package dynamostore

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
)

// clock is the local clock, corrected by the Date headers of DynamoDB. It is wall time,
// because other machines compare it with theirs.
type clock struct {
	now     func() time.Time
	offset  atomic.Int64 // nanoseconds to add to the local time
	started time.Time
	known   atomic.Bool  // a reply has corrected the time
	ahead   atomic.Int64 // nanoseconds by which the local clock was ahead of the monotonic clock then
}

// local reads the local clock without the correction.
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

// learn corrects the offset by as little as a reply needs. When DynamoDB wrote date,
//
//	its own time was in    [date, date + 1 s)
//	the local time was in  [sent, now]
//
// So a clock that is right is not changed, and a slow reply changes little.
func (c *clock) learn(sent, date time.Time) {
	if date.IsZero() {
		return
	}
	least, most := date.Sub(c.local()), date.Add(dateStep).Sub(sent)
	if least > most {
		return // the local clock was set back after the request
	}
	c.ahead.Store(int64(c.aheadOfMonotonic()))
	c.known.Store(true)
	for {
		old := c.offset.Load()
		offset := min(max(time.Duration(old), least), most)
		if c.offset.CompareAndSwap(old, int64(offset)) {
			return
		}
	}
}

// right reports whether a reply has corrected the time, and nobody has set the local clock since.
func (c *clock) right() bool {
	return c.known.Load() && (c.aheadOfMonotonic()-time.Duration(c.ahead.Load())).Abs() < margin
}

func (c *clock) aheadOfMonotonic() time.Duration {
	return c.local().Sub(c.started.Round(0)) - time.Since(c.started)
}

// sentFences are the largest fence from the local time that was sent for each of the last owners, see raise.
type sentFences struct {
	mu    sync.Mutex
	of    map[driver.Owner]driver.Fence
	order []driver.Owner
}

const maxSentFences = 1024

// note remembers a fence that is about to be sent.
func (s *sentFences) note(o driver.Owner, f driver.Fence) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, there := s.of[o]; there {
		s.of[o] = max(old, f)
		return
	}
	if len(s.order) == maxSentFences {
		delete(s.of, s.order[0])
		s.order = s.order[1:]
	}
	s.of[o], s.order = f, append(s.order, o)
}

// highest is 0 for an owner whose acquire this process has not sent.
func (s *sentFences) highest(o driver.Owner) driver.Fence {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of[o]
}

// expiresAt is the end of a lease that is requested at now, as the row keeps it. The
// end includes this writer's skew, so that other owners wait for as long as this writer
// may trust the lease.
func (t *table) expiresAt(now time.Time, ttl time.Duration) time.Time {
	return now.Add(ttl + t.skew).Truncate(time.Millisecond)
}

// trustedFor is for how long a lease may be trusted, from a reading of the local clock on
// and without the margin. date is DynamoDB's time at some moment after that reading. If
// the local clock is behind, expires is too early, and the trust ends earlier too.
func trustedFor(ttl time.Duration, expires, date time.Time) time.Duration {
	return min(ttl, expires.Sub(date))
}

// left is what is left of a lease that ends at expires, counted from before the request.
// It ends as long before a takeover as the trust in a grant does, so that clocks may
// run at different rates. Another process may have written the lease with another skew;
// then left allows for DefaultSkew.
func (t *table) left(expires time.Time, r reply) time.Duration {
	byClock := expires.Add(-t.skew).Sub(t.clock.correct(r.sent))
	byDate := expires.Sub(r.date)
	return min(byDate, max(byClock, byDate-DefaultSkew-dateStep))
}
