package guard

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/pause"
	"github.com/lambdalock/lambdalock/internal/lib/seam"
)

func init() {
	seam.Guard = func(g any, clocks func() (mono, wall time.Duration), upTo func(time.Duration) time.Duration) {
		guard := g.(*Guard)
		guard.random, guard.clock.now = upTo, clocks
	}
}

// clock is where a guard reads the time: besides it, only the function until reads a clock in this package. A simulator, and a page in a
// browser, puts its own function in the place of now.
//
// It measures time by the monotonic clock and by the wall clock, because each can stand still or jump while the other goes on: a frozen
// Lambda environment may stop the monotonic clock, and a wall clock can be set. If one of them has moved on by more than
// clockNoise further than the other, its time counts. So the result is too short only if both clocks show too little:
// if the process stood still and the wall clock was set back between the same two readings.
//
// It compares each reading with the last change and not with the start alone. Otherwise a wall clock that was
// set back would hide a later freeze. And after a wall clock that was ahead is set right, time
// that had counted already would count no more.
type clock struct {
	now func() (mono, wall time.Duration)

	mu    sync.Mutex
	ahead time.Duration // wall clock - monotonic clock, when this difference last changed
	extra time.Duration // grows by what the monotonic clock misses
}

// systemClock makes a clock that reads the clocks of this process. New calls it.
func systemClock() *clock {
	born := time.Now()
	return &clock{now: func() (mono, wall time.Duration) {
		now := time.Now()
		return now.Sub(born), time.Duration(now.UnixNano())
	}}
}

// until is the time until a moment that a caller has chosen: what is less on one of the two clocks. It reads the clocks of the process.
// Guard.HolderInfo, newCall and wakeOwner call it, for the deadline of a context.
func until(t time.Time) time.Duration {
	now := time.Now()
	return min(t.Sub(now), t.Round(0).Sub(now.Round(0)))
}

// clockNoise is a difference that means nothing: the two clocks are read one after the
// other.
const clockNoise = 10 * time.Millisecond

// never is a moment that does not come.
const never time.Duration = math.MaxInt64

// later is the moment d after t, at most never. newCall, askHolder and outlasts call it.
func later(t, d time.Duration) time.Duration { return t + min(d, never-t) }

// read returns the time on this clock and on the wall clock. All moments in this package are on this clock. It sets ahead and extra. newCall and moment
// call it.
func (c *clock) read() (t, wall time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	mono, wall := c.now()
	if (wall - mono - c.ahead).Abs() > clockNoise {
		mono, wall = c.now() // a busy machine may have stopped the process between the two clocks; a freeze shows again
	}
	if change := wall - mono - c.ahead; change.Abs() > clockNoise {
		c.extra += max(0, change)
		c.ahead += change
	}
	return mono + c.extra, wall
}

// moment is the time on this clock. run.now calls it, and so do Guard.Renew, Shutdown, askHolder and withEnd.
func (c *clock) moment() time.Duration {
	t, _ := c.read()
	return t
}

// missed grows by the time that the monotonic clock misses. Only the difference of two results says something. trustUntil and expiry call it.
func (c *clock) missed() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.extra
}

// sleep waits for d, or returns false when ctx ends. withEnd, backOff, wakeOwner and run.sleep call it.
func sleep(ctx context.Context, d time.Duration) bool {
	_ = pause.For(ctx, d)
	return ctx.Err() == nil // the run's context reads the clocks
}

// withEnd returns a context that ends at a moment on this clock. A timer alone does not notice a freeze that stops
// the monotonic clock, so the context reads the clock once a second. awaitTurn calls it; the function that it returns ends the goroutine,
// and waits for that.
func (c *clock) withEnd(ctx context.Context, end time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, end-c.moment())
	joined := make(chan struct{})
	go func() {
		defer close(joined)
		defer cancel()
		for c.moment() < end && sleep(ctx, time.Second) {
		}
	}()
	return ctx, func() {
		cancel()
		<-joined
	}
}

// pauses are the times between two requests to the store. Each is random up to a bound,
// and the bound doubles each time up to most ("full jitter", Brooker, AWS Architecture
// Blog 2015).
type pauses struct {
	random      func(time.Duration) time.Duration
	bound, most time.Duration
}

// next returns the next pause, and sets bound. pollKey, backOff and wakeOwner call it.
func (p *pauses) next() time.Duration {
	p.bound = min(max(2*p.bound, firstPause), p.most)
	return p.random(p.bound)
}
