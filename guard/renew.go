package guard

import (
	"context"
	"fmt"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// firstExtension is how long after the start of the work a lease that was handed over is extended at the
// latest, if the work still runs then and may outlast it. It is short, so that a full lease soon replaces the short one of a
// hand-over: until then the work has only what is left of the turn.
const firstExtension = 50 * time.Millisecond

// renew sends Renew (or a first Extend) until the work ends, or until the lease is sure to outlast it (outlasts). It does so after each third of the
// time that the store lets the guard trust, which may be much less than the TTL. It changes held (atomic), the window (with its mutex) and calls.
// beginHold starts it on a goroutine of its own, and endHold waits for its end.
func (r *run) renew() {
	defer close(r.renewing)
	h := r.held.Load()
	next := h.sent + h.lease.TTL/3
	if h.short {
		now := r.now()
		next = min(now+firstExtension, now+r.window.trusted()-time.Second)
	}
	for r.sleepUntil(next) {
		t := r.newRetrier(&r.window, r.now()+r.window.check())
		t.failed = func(err error) {
			if isContended(err) {
				t.pauses.most = maxWaitPause
			}
			r.window.renewalFailed(err)
		}
		var sent time.Duration
		var lease lockstore.Lease
		outcome, err := t.send(func(ctx context.Context) (err error) {
			sent = r.now()
			if h.short { // an Extend writes the name of the holder, too
				lease, err = r.guard.store.Extend(ctx, h.lease, r.ttl(sent), r.holder)
			} else {
				lease, err = r.guard.store.Renew(ctx, h.lease, r.ttl(sent))
			}
			return err
		})
		switch outcome {
		case OutcomeOK:
			h = &held{lease, sent, false}
			r.held.Store(h)
			ends := r.window.extend(sent + lease.TTL - margin)
			next = sent + (ends.trust+margin-sent)/3
			if r.outlasts(ends) {
				return
			}
		case OutcomeLost:
			r.window.loseBy(err)
			return
		case OutcomeBusy, OutcomeCorrupt, OutcomeInvalid:
			r.window.loseBy(fmt.Errorf("%w: %w", err, lockstore.ErrLost))
			return
		default:
			return // the trust or the work's time is over
		}
	}
}

// sleepUntil waits for a moment, or returns false when the run's context ends. It reads the clocks once a second: a freeze may stop the clock of a timer,
// and a longer sleep would then end after the lease, or after the time to wait. renew and attempt.wait call it.
func (r *run) sleepUntil(t time.Duration) bool {
	for r.now() < t && r.sleep(min(t-r.now(), time.Second)) {
	}
	return r.window.Err() == nil
}
