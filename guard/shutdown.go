package guard

import (
	"sync"
	"time"
)

// Shutdown cancels all running work and all waiting, and
// refuses every new call that takes a lock. It returns at once. Each run releases its
// lease when its work has returned, never before. With LOCK_SIGTERM=true boot.Start calls it.
//
// How long after Shutdown these end at the latest, if the work returns at once, and calls of the store end with
// their context:
//
//	a release that is under way or begins within 200 ms   300 ms
//	Do                                                    400 ms: a release that begins later than
//	                                                      these 200 ms has 100 ms
//	DoAll                                                 500 ms: a run that is handed a key while it
//	                                                      leaves the queue releases that key, too
//
// A call of the store that outlasts its context adds as much: up to 50 ms, and in a DoAll up to twice.
func (g *Guard) Shutdown() {
	if g.Validate() == errNoGuard {
		return
	}
	for _, r := range g.runs.shutDown(g.clock.moment()) {
		r.window.cancel(errShutdown)
		r.shortenRelease()
	}
}

// registry has the runs of a guard, for Shutdown. The guards that WithMaxHolders and WithCooldown make share it.
type registry struct {
	mu       sync.Mutex
	runs     map[*run]struct{}
	isOver   bool          // Shutdown was called
	over     chan struct{} // closed then
	shutdown time.Duration // when it was called first
}

// add enters a run. newRun calls it.
func (g *registry) add(r *run) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.runs[r] = struct{}{}
}

// remove takes a run out. endRun calls it.
func (g *registry) remove(r *run) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.runs, r)
}

// shutDown notes the first Shutdown, and returns the runs whose contexts Shutdown cancels. Later runs are added as before, and mayStart
// refuses those that want a lock. Guard.Shutdown calls it.
func (g *registry) shutDown(now time.Duration) (runs []*run) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.isOver {
		return nil
	}
	g.isOver, g.shutdown = true, now
	close(g.over)
	for r := range g.runs {
		runs = append(runs, r)
	}
	return runs
}

// shutdownAt says whether Shutdown was called, and when first. mayStart and beginRelease call it.
func (g *registry) shutdownAt() (at time.Duration, called bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.shutdown, g.isOver
}
