package guard

import (
	"context"
	"time"
)

// Shutdown cancels all running work and all waiting, with the cause ErrShutdown, and
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
// A call of the store that ends later adds as much: up to 50 ms, and in a DoAll for each key.
func (g *Guard) Shutdown() {
	if g.Validate() == errNoGuard {
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
		if r.releases.cut != nil {
			time.AfterFunc(shutdownTime/time.Duration(r.releases.left), r.cutRelease)
			r.releaseEnd = min(r.releaseEnd, r.elapsed()+shutdownTime) // 0 stays 0
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

// releases is the time that a run has for its releases. The guard's mutex guards it, because
// Shutdown ends it.
type releases struct {
	latest time.Duration      // the end of the time of this release, however often it is extended
	left   int                // how many releases of this call are still to come, this run's included: a DoAll has one run inside another
	cut    context.CancelFunc // ends the present call or pause; nil if no release is under way
	isCut  bool               // the time is over
}

// beginRelease returns how long a release, a completion or an abandon that begins now may take;
// the parameter most is the upper bound. It leaves time for the handler's answer before the caller's
// deadline. From now on Shutdown reaches this release.
//
// The releases after the work of a DoAll share the time of one release. Each may take an
// equal part of what is left of it.
func (r *run) beginRelease(afterWork bool, most time.Duration) time.Duration {
	g := r.guard
	g.mu.Lock()
	defer g.mu.Unlock()
	now, d, longest := r.elapsed(), most, contendedTime
	if g.shutdown.IsZero() {
		r.releases.cut = func() {} // no call is under way yet
	} else {
		d = shutdownTime - time.Since(g.shutdown)
	}
	d, longest = max(answerTime, min(d, r.left-now-answerTime)), min(longest, r.left-now-answerTime)
	r.releases.latest = now + longest
	if !afterWork {
		return d
	}
	if r.releaseEnd == 0 {
		r.releaseEnd, r.releaseLatest = now+d, now+longest
	}
	r.releaseEnd, r.releases.latest = min(r.releaseEnd, now+d), r.releaseLatest
	return (r.releaseEnd - now) / time.Duration(r.releases.left)
}

// extendRelease returns the new end of the time of a release that the store has answered as contended. The releases
// that come after it in a DoAll begin later by as much, and Shutdown ends the extension.
func (r *run) extendRelease(end time.Duration) time.Duration {
	r.guard.mu.Lock()
	defer r.guard.mu.Unlock()
	more := min(r.elapsed()+releaseTime, r.releases.latest) - end
	if r.releaseEnd != 0 { // the others keep their parts
		more = min(more, r.releases.latest-r.releaseEnd)
	}
	if more <= 0 || !r.guard.shutdown.IsZero() {
		return end
	}
	if r.releaseEnd != 0 {
		r.releaseEnd += more
	}
	return end + more
}

func (r *run) setCut(cut context.CancelFunc) {
	r.guard.mu.Lock()
	defer r.guard.mu.Unlock()
	r.releases.cut = cut
	if r.releases.isCut && cut != nil {
		cut()
	}
}

// cutRelease cuts the release that was under way at Shutdown.
func (r *run) cutRelease() {
	r.guard.mu.Lock()
	defer r.guard.mu.Unlock()
	r.releases.isCut = true
	if r.releases.cut != nil {
		r.releases.cut()
	}
}
