package guard

import "context"

// renew extends the lease until the work ends, or until the trust reaches past the
// work's time. It renews after each third of the time that the store lets the guard
// trust, which may be much less than the TTL.
func (r *run) renew() {
	defer close(r.joined)
	next, pause := r.sent+r.lease.TTL/3, r.guard.pauses(maxPause)
	for r.sleep(next - r.elapsed()) {
		sent := r.elapsed()
		ctx, cancel := context.WithTimeout(r, min(callTime, r.check()/2))
		trusted, err := r.guard.store.Renew(ctx, r.lease, r.ttl(sent))
		cancel()
		r.asked()
		switch outcomeOf(err) {
		case OutcomeOK:
			r.mu.Lock()
			// A renewal never shortens the trust, though a store that rounds to whole
			// seconds may return less.
			r.extended(max(r.trust, sent+trusted-margin))
			enough := r.trust > r.stop
			next, pause = sent+(r.trust+margin-sent)/3, r.guard.pauses(maxPause)
			r.mu.Unlock()
			r.trace(PhaseRenewed, nil)
			if enough {
				return
			}
		case OutcomeLost:
			r.lose(err)
			return
		case OutcomeCorrupt, OutcomeInvalid:
			r.lose(&loss{err.Error(), err})
			return
		default:
			r.mu.Lock()
			r.why.renewal = err
			r.mu.Unlock()
			if r.Context.Err() != nil {
				return // the end of the work has cut the renewal off
			}
			r.trace(PhaseRenewFailed, err)
			next = r.elapsed() + pause.next()
		}
	}
}
