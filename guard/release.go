package guard

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// releases is the time that a call has for its releases: for what ends something in the store. One is under way at a time,
// and Shutdown may shorten it. The mutex guards all fields.
type releases struct {
	mu     sync.Mutex
	end    time.Duration      // of all releases after the work: those of a DoAll have the time of one, and what late ones have taken; 0 before the first
	latest time.Duration      // the same, however often it is extended; before the work that of the present release
	parts  int                // how many releases are to share the time until end, the present one included
	cut    context.CancelFunc // ends the present one; nil if none is under way
}

// beginRelease begins the time of a release, a completion, an abandon or a leave (sendRelease), or of a wait for wake-ups alone
// (finishWakeUps), and sets the fields of releases, end only after the work. It says when this time ends; the parameter most is the upper
// bound. After the work all releases share one time: the first one sets its end, and later ones only make it earlier. It leaves time for the
// handler's answer before the caller's deadline. The context is for what the release does: it ends with endRelease, and soon after Shutdown.
func (r *run) beginRelease(afterWork bool, most time.Duration) (ctx context.Context, end time.Duration) {
	p := &r.call.releases
	p.mu.Lock()
	defer p.mu.Unlock()
	ctx, p.cut = context.WithCancel(context.WithoutCancel(&r.window)) // the run's context may have ended
	p.parts = r.depth + 1
	now, d := r.now(), most
	if at, shutDown := r.guard.runs.shutdownAt(); shutDown {
		d = at + shutdownTime - now
	}
	rest := r.call.deadline - now - answerTime
	d = max(answerTime, min(d, rest))
	if p.end == 0 {
		p.latest = now + min(contendedTime, rest)
	}
	if !afterWork {
		return ctx, now + d
	}
	p.end = min(cmp.Or(p.end, now+d), now+d)
	return ctx, now + (p.end-now)/time.Duration(p.parts) // each takes an equal part of what is left
}

// extendRelease returns the new end of the time of a release that the store has answered as contended; sendRelease calls it. The releases
// that come after it in a DoAll begin later by as much, and Shutdown ends the extension.
func (r *run) extendRelease(end time.Duration) time.Duration {
	p := &r.call.releases
	p.mu.Lock()
	defer p.mu.Unlock()
	more := min(r.now()+releaseTime, p.latest) - end
	if p.end != 0 { // the others keep their parts
		more = min(more, p.latest-p.end)
	}
	if _, shutDown := r.guard.runs.shutdownAt(); more <= 0 || shutDown {
		return end
	}
	if p.end != 0 {
		p.end += more
	}
	return end + more
}

// endRelease ends the context of beginRelease, and sets cut to nil. A release that ends later than due takes nothing from those that come after it in a
// DoAll: it moves end, to latest at most. sendRelease and finishWakeUps defer it.
func (r *run) endRelease(due time.Duration) {
	p := &r.call.releases
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut()
	p.cut = nil
	if late := r.now() - due; p.end != 0 && late > 0 {
		p.end = max(p.end, min(p.end+late, p.latest))
	}
}

// shortenRelease is called by Shutdown, on its goroutine: a release that is under way has only a short time left.
func (r *run) shortenRelease() {
	p := &r.call.releases
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut != nil {
		time.AfterFunc(shutdownTime/time.Duration(p.parts), p.cut)
		p.end = min(p.end, r.now()+shutdownTime) // 0 stays 0
	}
}

// sendRelease repeats a call that ends something in the store, within the time that beginRelease
// gives, and then waits for the wake-ups that the call has made necessary. The call sends a Leave, Release, Abandon or Complete: leaveQueue, releaseLease,
// abandon and complete call sendRelease. If an answer was lost, only nil as
// the answer to a repeat shows that the request was applied. It changes releases, wakes and calls, as all below do.
func (r *run) sendRelease(afterWork bool, most time.Duration, call func(context.Context) error) error {
	ctx, end := r.beginRelease(afterWork, most)
	t := r.newRetrier(ctx, end)
	defer func() { r.endRelease(t.end) }()
	t.release = true
	t.failed = func(err error) {
		if isContended(err) {
			t.end, t.pauses.most = r.extendRelease(t.end), maxWaitPause
		}
	}
	outcome, err := t.send(call)
	r.awaitWakeUps(r.wakes.collect(), ctx, t.end)
	if err != nil && outcome != OutcomeUnknown && t.unknown != nil {
		err = t.askedAgain(err)
	}
	return err
}

// releaseLease sends Release, or with a cooldown Complete. giveBack, releaseAfterWork, Guard.Release and Guard.Complete call it.
func (r *run) releaseLease(lease lockstore.Lease, cooldown time.Duration, afterWork bool, most time.Duration) error {
	return r.sendRelease(afterWork, most, func(ctx context.Context) error {
		if cooldown > 0 {
			return r.guard.store.Complete(ctx, lease, nil, cooldown)
		}
		return r.guard.store.Release(ctx, lease)
	})
}

// abandon sends Abandon, which ends all that an owner has, and all that its requests may get later. giveBack and Guard.Abandon call it.
func (r *run) abandon(owner lockstore.Owner) error {
	return r.sendRelease(false, releaseTime, func(ctx context.Context) error { return r.guard.store.Abandon(ctx, r.key, owner) })
}

// releaseAfterWork releases the run's lease, also if it is known to be lost: if it was revoked, the key opens now. There is no
// cooldown if the work returned an error, or if the lease is lost. The parameter most bounds the time. It sets releaseErr, and may note a
// loss in the window. The endLease of a job calls it, after the end of renew.
func (r *run) releaseAfterWork(err error, cooldown, most time.Duration) {
	if err != nil || r.window.look().lost != nil {
		cooldown = 0
	}
	r.releaseErr = r.releaseLease(r.lease(), cooldown, true, most)
	r.window.loseByRelease(r.releaseErr)
}
