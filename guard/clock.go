package guard

import (
	"sync"
	"time"
)

// instant is one moment on both local clocks. They are kept apart because each
// can stand still or jump while the other goes on: a frozen Lambda environment
// may stop the monotonic clock, and a wall clock can be set.
type instant struct{ mono, wall time.Duration }

func systemClock() func() instant {
	born := time.Now()
	return func() instant {
		now := time.Now()
		return instant{mono: now.Sub(born), wall: time.Duration(now.UnixNano())}
	}
}

// clock measures time so that it never understates how much has passed: between
// two looks it goes on by the longer of the two local clocks' answers. To
// compare the clocks with the start alone is not enough: a wall clock that was
// set back would hide a later freeze, and one that was ahead when a request was
// sent and is corrected afterwards would make its lease longer.
type clock struct {
	now func() instant

	mu    sync.Mutex
	ahead time.Duration // wall less monotonic clock, when that last changed
	extra time.Duration // what the monotonic clock has missed
}

// clockNoise is a difference between the two clocks that means nothing: they
// are read one after the other.
const clockNoise = 10 * time.Millisecond

// look returns the time on this clock and on the wall clock.
func (c *clock) look() (t, wall time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	ahead := now.wall - now.mono
	switch change := ahead - c.ahead; {
	case change > clockNoise:
		c.extra += change
		c.ahead = ahead
	case change < -clockNoise:
		c.ahead = ahead
	}
	return now.mono + c.extra, now.wall
}

// missed is what the monotonic clock has missed since the clock was made.
func (c *clock) missed() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.extra
}
