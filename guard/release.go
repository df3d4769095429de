package guard

import (
	"context"
	"sync"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// ending is the time that a run has for its releases: what ends something of the run in the store. One is under way at a
// time, and Shutdown may shorten it.
type ending struct {
	left int // how many releases of this call are still to come, this run's included: in a DoAll one run is inside another

	mu     sync.Mutex
	latest time.Duration      // the end of the time of the present release, however often it is extended
	cut    context.CancelFunc // ends the present one; nil if none is under way
	isCut  bool               // Shutdown has ended the time
}

// share is the time that the releases after the work of a DoAll have together: that of one. Each may take an equal part of what is left of it.
type share struct {
	mu          sync.Mutex
	end, latest time.Duration // 0 before the first release
}

// beginRelease begins a release, a completion or an abandon, and says when its time ends;
// the parameter most is the upper bound. It leaves time for the handler's answer before the caller's
// deadline. The context is for what the release does: Shutdown ends it, and endRelease does.
func (r *run) beginRelease(afterWork bool, most time.Duration) (ctx context.Context, end time.Duration) {
	e, s := &r.ending, &r.call.share
	ctx, cancel := context.WithCancel(context.WithoutCancel(&r.window)) // the run's context may have ended
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.cut = cancel; e.isCut {
		cancel()
	}
	now := r.now()
	d, longest := most, contendedTime
	if at, shutDown := r.guard.runs.shutdownAt(); shutDown {
		d = at + shutdownTime - now
	}
	rest := r.call.deadline - now - answerTime
	d, longest = max(answerTime, min(d, rest)), min(longest, rest)
	e.latest = now + longest
	if !afterWork {
		return ctx, now + d
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end == 0 {
		s.end, s.latest = now+d, now+longest
	}
	s.end, e.latest = min(s.end, now+d), s.latest
	return ctx, now + (s.end-now)/time.Duration(e.left)
}

// extendRelease returns the new end of the time of a release that the store has answered as contended. The releases
// that come after it in a DoAll begin later by as much, and Shutdown ends the extension.
func (r *run) extendRelease(end time.Duration) time.Duration {
	e, s := &r.ending, &r.call.share
	e.mu.Lock()
	defer e.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	more := min(r.now()+releaseTime, e.latest) - end
	if s.end != 0 { // the others keep their parts
		more = min(more, e.latest-s.end)
	}
	if _, shutDown := r.guard.runs.shutdownAt(); more <= 0 || shutDown {
		return end
	}
	if s.end != 0 {
		s.end += more
	}
	return end + more
}

func (r *run) endRelease() {
	r.ending.mu.Lock()
	defer r.ending.mu.Unlock()
	r.ending.cut()
	r.ending.cut = nil
}

// shortenRelease is for Shutdown: a release that is under way has only a short time left.
func (r *run) shortenRelease() {
	e, s := &r.ending, &r.call.share
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.cut == nil {
		return
	}
	r.guard.clock.after(shutdownTime/time.Duration(e.left), func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.isCut = true; e.cut != nil {
			e.cut()
		}
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end = min(s.end, r.now()+shutdownTime) // 0 stays 0
}

// sendRelease repeats a call that ends something in the store, within the time that beginRelease
// gives, and then waits for the wake-ups that the call has made necessary. If an answer was lost, only nil as
// the answer to a repeat shows that the request was applied.
func (r *run) sendRelease(afterWork bool, most time.Duration, call func(context.Context) error) error {
	ctx, end := r.beginRelease(afterWork, most)
	defer r.endRelease()
	t := r.newRetrier(ctx, end)
	t.release = true
	t.failed = func(err error) {
		if isContended(err) {
			t.end, t.pauses.most = r.extendRelease(t.end), maxWaitPause
			r.wakes.setEnd(t.end)
		}
	}
	r.wakes.setEnd(t.end)
	outcome, err := t.send(call)
	r.awaitWakeUps(ctx, t.end)
	r.wakes.setEnd(0)
	if err != nil && outcome != OutcomeUnknown && t.unknown != nil {
		err = t.askedAgain(err)
	}
	return err
}

// releaseLease releases a lease, or with a cooldown completes it.
func (r *run) releaseLease(lease lockstore.Lease, cooldown time.Duration, afterWork bool, most time.Duration) error {
	return r.sendRelease(afterWork, most, func(ctx context.Context) error {
		if cooldown > 0 {
			return r.guard.store.Complete(ctx, lease, nil, cooldown)
		}
		return r.guard.store.Release(ctx, lease)
	})
}

// releaseAfterWork releases the run's lease, also if it is known to be lost: if it was revoked, the key opens now. There is no
// cooldown if the work returned an error, or if the lease is lost. The parameter most bounds the time.
func (r *run) releaseAfterWork(err error, cooldown, most time.Duration) {
	if err != nil || r.window.loss() != nil {
		cooldown = 0
	}
	lease, _, _ := r.lease.get()
	r.releaseErr = r.releaseLease(lease, cooldown, true, most)
	r.window.loseByRelease(r.releaseErr)
}
