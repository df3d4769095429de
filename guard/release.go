package guard

import (
	"context"
	"errors"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// beginRelease begins the time of a release, a completion, an abandon or a leave, or of a wait for wake-ups alone. It says when this time ends, which
// most bounds, and when it ends at the latest if the store answers as contended. Both leave time for the handler's answer before the caller's deadline.
// The context is for what the release does: it ends with endRelease, and shortly after Shutdown. sendRelease and finishWakeUps call it.
func (r *run) beginRelease(most time.Duration) (ctx context.Context, endRelease func(), end, latest time.Duration) {
	ctx, cut := context.WithCancel(context.WithoutCancel(&r.window)) // the run's context may have ended
	runs, now := r.guard.runs, r.now()
	stop := context.AfterFunc(runs.over, func() { time.AfterFunc(shutdownTime, cut) })
	endRelease = func() {
		stop()
		cut()
	}
	rest := r.call.deadline - now - answerTime
	if runs.over.Err() != nil {
		rest = min(rest, runs.shutdown+shutdownTime-now)
	}
	rest = max(rest, answerTime)
	return ctx, endRelease, now + min(most, rest), now + min(contendedTime, rest)
}

// sendRelease repeats a call that ends something in the store, within the time that beginRelease gives, and then waits for the wake-ups that the call
// has made necessary. While the store answers as contended, there is more time. The call sends a Leave, Release, Abandon or Complete: leaveQueue,
// releaseLease, abandon and complete call sendRelease. If an answer was lost, only nil as the answer to a repeat shows that the request was applied. It
// changes wakes, notes.OwnersWoken and calls, as all below do.
func (r *run) sendRelease(most time.Duration, call func(context.Context) error) error {
	ctx, endRelease, end, latest := r.beginRelease(most)
	defer endRelease()
	t := r.newRetrier(ctx, end)
	t.release = true
	t.failed = func(err error) {
		if isContended(err) {
			t.end, t.pauses.most = max(t.end, min(r.now()+releaseTime, latest)), maxWaitPause
		}
	}
	outcome, err := t.send(call)
	r.awaitWakeUps(ctx, t.end)
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

// releaseAfterWork releases the run's lease, also if it is known to be lost: if it was revoked, the key opens now. There is no cooldown if
// the work returned an error, or if the lease is lost. It sets ReleaseErr, and may note a loss in the window. The endLease of a job calls
// it, after the end of renew.
func (r *run) releaseAfterWork(err error) {
	cooldown, most := r.guard.cooldown, releaseTime
	if r.started { // without the release the key would be in doubt
		most = r.guard.completeTime()
	}
	if err != nil || r.window.look().lost != nil {
		cooldown = 0
	}
	r.notes.ReleaseErr = errStoreNotReturned
	r.notes.ReleaseErr = r.releaseLease(r.lease(), cooldown, most)
	r.window.loseByRelease(r.notes.ReleaseErr)
}
