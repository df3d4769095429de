package guard

import (
	"context"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// firstExtension is how long after the start of the work a lease that was handed over is extended at the
// latest, if the work still runs then and may outlast it. It is short, so that a full lease soon replaces the short one of a
// hand-over: until then the work has only what is left of the turn.
const firstExtension = 50 * time.Millisecond

// renew extends the lease until the work ends, or until the lease is sure to outlast the
// work. It renews after each third of the time that the store lets the guard
// trust, which may be much less than the TTL.
func (r *run) renew() {
	defer close(r.joined)
	sent := r.trust + margin - r.lease.TTL
	next := sent + r.lease.TTL/3
	if r.handed {
		next = min(r.elapsed()+firstExtension, r.trust-time.Second)
	}
	for r.sleep(next - r.elapsed()) {
		t := r.retry(r.elapsed() + r.check())
		t.failed = func(err error) {
			r.mu.Lock()
			r.why.renewal = err
			r.mu.Unlock()
			if r.Context.Err() == nil { // otherwise the end of the work has cut the renewal off
				r.trace(PhaseRenewFailed, err)
			}
		}
		var lease lockstore.Lease
		outcome, err := t.ask(func(ctx context.Context) (err error) {
			sent = r.elapsed()
			lease, err = r.extend(ctx, sent)
			return err
		})
		switch outcome {
		case OutcomeOK:
			r.mu.Lock()
			// A renewal never shortens the trust, though a store that rounds to whole
			// seconds may return less.
			r.extended(max(r.trust, sent+lease.TTL-margin))
			r.lease, r.handed = lease, false
			enough := r.trust > r.stop
			next = sent + (r.trust+margin-sent)/3
			r.mu.Unlock()
			r.trace(PhaseRenewed, nil)
			if enough {
				return
			}
		case OutcomeLost, OutcomeBusy:
			r.lose(err)
			return
		case OutcomeCorrupt, OutcomeInvalid:
			r.lose(&loss{err.Error(), err})
			return
		default:
			return // the trust or the work's time is over
		}
	}
}

// extend asks once for a longer lease. The first request after a hand-over is an Acquire: it writes
// the name of the holder, and makes the lease a full one.
func (r *run) extend(ctx context.Context, now time.Duration) (lockstore.Lease, error) {
	lease, ttl := r.lease, r.ttl(now)
	if r.handed {
		return r.guard.store.Acquire(ctx, lockstore.Request{
			Key: lease.Key, Owner: lease.Owner, Fence: lease.Fence, TTL: ttl, HolderInfo: r.report.HolderInfo, MaxHolders: r.guard.maxHolders, Note: lease.Note,
		})
	}
	return r.guard.store.Renew(ctx, lease, ttl)
}
