package guard

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// release is what a run ends in the store: one request at a time is under way, and Shutdown may shorten it. The mutex guards the field.
type release struct {
	mu  sync.Mutex
	cut context.CancelFunc // ends the present one; nil if none is under way
}

// beginRelease begins the time of a release, a completion, an abandon or a leave (sendRelease), or of a wait for wake-ups alone
// (finishWakeUps), and sets cut. It says when this time ends, which most bounds, and when it ends at the latest if the store answers as contended. Both leave
// time for the handler's answer before the caller's deadline. The context is for what the release does: it ends with endRelease, and soon after Shutdown.
func (r *run) beginRelease(most time.Duration) (ctx context.Context, end, latest time.Duration) {
	p := &r.release
	p.mu.Lock()
	defer p.mu.Unlock()
	ctx, p.cut = context.WithCancel(context.WithoutCancel(&r.window)) // the run's context may have ended
	now := r.now()
	rest := r.call.deadline - now - answerTime
	if at, shutDown := r.guard.runs.shutdownAt(); shutDown {
		rest = min(rest, at+shutdownTime-now)
	}
	rest = max(rest, answerTime)
	return ctx, now + min(most, rest), now + min(contendedTime, rest)
}

// endRelease ends the context of beginRelease, and sets cut to nil. sendRelease and finishWakeUps defer it.
func (r *run) endRelease() {
	p := &r.release
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut()
	p.cut = nil
}

// shortenRelease is called by Shutdown, on its goroutine: a release that is under way has only a short time left.
func (r *run) shortenRelease() {
	p := &r.release
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut != nil {
		time.AfterFunc(shutdownTime, p.cut)
	}
}

// sendRelease repeats a call that ends something in the store, within the time that beginRelease
// gives, and then waits for the wake-ups that the call has made necessary. While the store answers as contended, there is more time. The call sends a Leave,
// Release, Abandon or Complete: leaveQueue, releaseLease,
// abandon and complete call sendRelease. If an answer was lost, only nil as
// the answer to a repeat shows that the request was applied. It changes release, wakes and calls, as all below do.
func (r *run) sendRelease(most time.Duration, call func(context.Context) error) error {
	ctx, end, latest := r.beginRelease(most)
	defer r.endRelease()
	t := r.newRetrier(ctx, end)
	t.release = true
	t.failed = func(err error) {
		if isContended(err) {
			t.end, t.pauses.most = max(t.end, min(r.now()+releaseTime, latest)), maxWaitPause
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
func (r *run) releaseLease(lease lockstore.Lease, cooldown, most time.Duration) error {
	return r.sendRelease(most, func(ctx context.Context) error {
		if cooldown > 0 {
			return r.guard.store.Complete(ctx, lease, nil, cooldown)
		}
		return r.guard.store.Release(ctx, lease)
	})
}

// abandon sends Abandon, which ends all that an owner has, and all that its requests may get later. giveBack and Guard.Abandon call it.
func (r *run) abandon(owner lockstore.Owner) error {
	return r.sendRelease(releaseTime, func(ctx context.Context) error { return r.guard.store.Abandon(ctx, r.key, owner) })
}

var errStoreNotReturned = errors.New("the store did not return: it panicked or called runtime.Goexit")

// releaseAfterWork releases the run's lease, also if it is known to be lost: if it was revoked, the key opens now. There is no
// cooldown if the work returned an error, or if the lease is lost. The parameter most bounds the time. It sets releaseErr, and may note a
// loss in the window. The endLease of a job calls it, after the end of renew.
func (r *run) releaseAfterWork(err error, cooldown, most time.Duration) {
	if err != nil || r.window.look().lost != nil {
		cooldown = 0
	}
	r.releaseErr = errStoreNotReturned
	r.releaseErr = r.releaseLease(r.lease(), cooldown, most)
	r.window.loseByRelease(r.releaseErr)
}
