package guard

import (
	"context"
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
	runs := g.runs
	runs.mu.Lock()
	defer runs.mu.Unlock()
	if runs.over.Err() != nil {
		return
	}
	runs.shutdown = g.clock.moment()
	runs.end()
	for r := range runs.runs {
		r.window.cancel(errShutdown)
	}
}

// registry has the runs of a guard, for Shutdown. The guards that WithMaxHolders and WithCooldown make share it.
type registry struct {
	mu       sync.Mutex
	runs     map[*run]struct{}
	shutdown time.Duration      // when Shutdown was called first; set before over ends
	over     context.Context    // ends then
	end      context.CancelFunc // ends over
}

// newRegistry makes the registry of a new guard. New calls it.
func newRegistry() *registry {
	over, end := context.WithCancel(context.Background())
	return &registry{runs: make(map[*run]struct{}), over: over, end: end}
}

// add enters a run, also after Shutdown: mayStart refuses those that want a lock. newRun calls it.
func (g *registry) add(r *run) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.runs[r] = struct{}{}
}

// remove takes out a run that has ended. endRun calls it.
func (g *registry) remove(r *run) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.runs, r)
}
