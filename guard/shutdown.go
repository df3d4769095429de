package guard

import (
	"context"
	"time"
)

// Shutdown cancels the context of all running work, with the cause ErrShutdown, and
// refuses new calls of Do, DoAll and Acquire. It returns at once. Each run releases its
// lease when its work has returned, never before.
//
// A release may take until 300 ms after Shutdown. If the work returns later than 200 ms
// after Shutdown, the release has 100 ms. Shutdown also cuts a release that is under way.
// So Do returns within 400 ms of Shutdown, if the work returns at once and each call of
// the store ends within 50 ms of its context.
func (g *Guard) Shutdown() {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.shutdown.IsZero() {
		return
	}
	g.shutdown = time.Now()
	for r := range g.runs {
		r.cancel(ErrShutdown)
		if r.cut != nil {
			time.AfterFunc(shutdownTime, r.endRelease)
		}
	}
}

func (g *Guard) isShutDown() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.shutdown.IsZero()
}

// register makes Shutdown reach the run.
func (g *Guard) register(r *run) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.runs[r] = struct{}{}
}

func (g *Guard) unregister(r *run) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.runs, r)
}

// beginRelease returns how long a release that begins now may take. From now on Shutdown
// ends this release.
func (r *run) beginRelease() time.Duration {
	g := r.guard
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.shutdown.IsZero() {
		return shutdownTime - time.Since(g.shutdown)
	}
	r.cut = func() {} // no call is under way yet
	return releaseTime
}

// step is a context for one step of a release, which Shutdown may cut.
func (r *run) step(parent context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(parent, d)
	r.setCut(cancel)
	return ctx, cancel
}

func (r *run) setCut(cut context.CancelFunc) {
	r.guard.mu.Lock()
	defer r.guard.mu.Unlock()
	r.cut = cut
	if r.isCut && cut != nil {
		cut()
	}
}

// endRelease cuts the release that was under way at Shutdown.
func (r *run) endRelease() {
	r.guard.mu.Lock()
	defer r.guard.mu.Unlock()
	r.isCut = true
	if r.cut != nil {
		r.cut()
	}
}
