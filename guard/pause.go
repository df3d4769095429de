package guard

import (
	"context"
	"time"

	"github.com/lambdalock/lambdalock/internal/pause"
)

// sleep waits for d, or returns false when the run's context ends.
func (r *run) sleep(d time.Duration) bool { return pause.For(r, d) == nil && r.Err() == nil }

// pauses are the times between two requests to the store. Each is random up to a bound,
// and the bound doubles each time up to most ("full jitter", Brooker, AWS Architecture
// Blog 2015).
type pauses struct {
	random      func(time.Duration) time.Duration
	bound, most time.Duration
}

func (g *Guard) pauses(most time.Duration) pauses { return pauses{random: g.random, most: most} }

func (p *pauses) next() time.Duration {
	p.bound = min(max(2*p.bound, firstPause), p.most)
	return p.random(p.bound) + 1
}

// until returns a context that ends at a moment on the guard's clock. A timer alone does
// not notice a freeze that stops the monotonic clock, so the context reads the clock once
// a second.
func (r *run) until(end time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(r, end-r.elapsed())
	joined := make(chan struct{})
	go func() {
		defer close(joined)
		defer cancel()
		for r.elapsed() < end && pause.For(ctx, time.Second) == nil {
		}
	}()
	return ctx, func() {
		cancel()
		<-joined
	}
}
