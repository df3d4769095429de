package guard

import (
	"sync"
	"time"
)

// instant is one moment on both local clocks. The guard needs both, because each can
// stand still or jump while the other goes on: a frozen Lambda environment may stop the
// monotonic clock, and a wall clock can be set.
type instant struct{ mono, wall time.Duration }

func systemClock() func() instant {
	born := time.Now()
	return func() instant {
		now := time.Now()
		return instant{mono: now.Sub(born), wall: time.Duration(now.UnixNano())}
	}
}

// clock measures time by the monotonic clock and by the wall clock. If one of them has moved on by more than
// clockNoise further than the other, its time counts. So the result is too short only if both clocks show too little:
// if the process stood still and the wall clock was set back between the same two readings.
//
// It compares each reading with the last change and not with the start alone. Otherwise a wall clock that was
// set back would hide a later freeze. And after a wall clock that was ahead is set right, time
// that had counted already would count no more.
type clock struct {
	now func() instant

	mu    sync.Mutex
	ahead time.Duration // wall clock - monotonic clock, when this difference last changed
	extra time.Duration // grows by what the monotonic clock misses
}

// clockNoise is a difference that means nothing: the two clocks are read one after the
// other.
const clockNoise = 10 * time.Millisecond

// read returns the time on this clock and on the wall clock.
func (c *clock) read() (t, wall time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if change := now.wall - now.mono - c.ahead; change > clockNoise || change < -clockNoise {
		now = c.now() // a busy machine may have stopped the process between the two clocks; a freeze shows again
	}
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

// missed grows by the time that the monotonic clock misses. Only the difference of two results says something.
func (c *clock) missed() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.extra
}
