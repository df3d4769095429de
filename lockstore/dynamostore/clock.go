package dynamostore

import (
	"fmt"
	"sync"
	"time"
)

// clock is the local clock, corrected by the Date headers of DynamoDB. It is wall time,
// because other machines compare it with theirs.
type clock struct {
	now     func() time.Time
	started time.Time

	mu     sync.Mutex
	offset time.Duration // to add to the local time
	known  bool          // a reply has corrected the time
	ahead  time.Duration // by which the local clock was ahead of the monotonic clock then
}

// local reads the local clock without the correction. Replies and notes are stamped with it: learn and correct expect it so. What goes into
// a row uses read. read, learn and aheadOfMonotonic call it, too.
func (c *clock) local() time.Time { return c.now().Round(0) }

// read returns the corrected time. It is used all over the package, mostly for what goes into a row.
func (c *clock) read() time.Time { return c.correct(c.local()) }

// correct adds the offset to a local time. clock.read and trust call it.
func (c *clock) correct(t time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return t.Add(c.offset)
}

// learn corrects the offset by as little as a reply needs. When DynamoDB wrote date,
//
//	its own time was in    [date, date + 1 s)
//	the local time was in  [sent, now]
//
// So a clock that is right is not changed, and a slow reply changes little. Nor does a slow reply show whether the local clock
// was set ahead meanwhile: only a quick one sets ahead and known, too. update, read and List call it after each reply, also after an error
// that has a date.
func (c *clock) learn(sent, date time.Time) {
	if date.IsZero() {
		return
	}
	ahead := c.aheadOfMonotonic() // before the reading of the clock: if it is set in between, right says so
	least, most := date.Sub(c.local()), date.Add(dateStep).Sub(sent)
	if least > most {
		return // the local clock was set back after the request
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.offset = min(max(c.offset, least), most)
	if most-least < 2*dateStep {
		c.known, c.ahead = true, ahead
	}
}

// right reports whether a reply has corrected the time, and nobody has set the local clock since. acquire and remembered call it.
func (c *clock) right() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known && (c.aheadOfMonotonic()-c.ahead).Abs() < margin
}

// aheadOfMonotonic is how much more time has passed on the local clock than on the monotonic one since started. learn and right call it.
func (c *clock) aheadOfMonotonic() time.Duration {
	return c.local().Sub(c.started.Round(0)) - time.Since(c.started)
}

// expiresAt is the end of the lease, or of the closed time, that arrivalWrite and CompleteItem write: these two do not ask the rules. The rules make
// every other end, of clockOf's Late; end and correctTurn correct that of a hand-over. The end includes this writer's skew, so that other owners wait
// for as long as this writer may trust the lease.
func (t *table) expiresAt(now time.Time, ttl time.Duration) time.Time {
	return now.Add(ttl + t.skew).Truncate(time.Millisecond)
}

// trust is for how long an owner may trust a lease with this end in the row, counted from before the request; it may be 0 or less. It changes nothing; only
// answerWrite and answerUnchanged call it, for the answer Granted. Await reckons the trust of a hand-over by itself. Date is of the reply, so the trust ends
// before a takeover can begin, also if the clocks run at different rates. Another process may have written the lease with another skew; then it allows for
// DefaultSkew.
func (t *table) trust(key string, end time.Time, r reply) (time.Duration, error) {
	if r.date.IsZero() {
		// The row may be written, but the time of trust is not known.
		return 0, fmt.Errorf("dynamostore: key %q: the reply has no Date header, so the lease cannot be trusted; something between here and DynamoDB removes it", key)
	}
	byClock, byDate := end.Add(-t.skew).Sub(t.clock.correct(r.sent)), end.Sub(r.date)
	return min(byDate, max(byClock, byDate-DefaultSkew-dateStep)) - margin, nil
}
