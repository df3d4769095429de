package guard

import (
	"context"
	"time"
)

// sleep waits for d, or returns false when the run's context ends.
func (r *run) sleep(d time.Duration) bool { return sleep(r, d) }

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// pauses are the times between two requests to the store. Each is random up to a bound,
// and the bound doubles each time up to maxPause ("full jitter", Brooker, AWS
// Architecture Blog 2015).
type pauses struct {
	random func(time.Duration) time.Duration
	bound  time.Duration
}

func (g *Guard) pauses() pauses { return pauses{random: g.random} }

func (p *pauses) next() time.Duration {
	p.bound = min(max(2*p.bound, firstPause), maxPause)
	return p.random(p.bound) + 1
}
