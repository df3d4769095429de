package guard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

var (
	errNested = errors.New("this key is already held by the run around this one")
	errLate   = errors.New("the lease arrived too late to be used")
	errAgain  = errors.New("its owner is to ask again, which would be refused after an abandon")
)

// acquire gets the lease, or returns the outcome and the error of a run whose
// work does not start.
func (r *run) acquire() (outcome string, err error) {
	defer func() { r.report.Waited = r.elapsed() }()
	key := r.report.Key
	if err := lockstore.ValidateKey(key); err != nil {
		// It may be as large as an event; an error and a log line must not be.
		r.report.Key = key[:min(len(key), lockstore.MaxKeyBytes)]
		return "invalid", &LockInvalid{r.report.Key, err}
	}
	for o := r.outer; o != nil; o = o.outer {
		if o.guard == r.guard && o.report.Key == key && !o.finished() {
			return "invalid", &LockInvalid{key, errNested}
		}
	}
	if r.guard.isShutDown() {
		return "deadline", &LockDeadline{Key: key, Err: ErrShutdown}
	}
	if r.left < r.guard.opt.Reserve+leastWork {
		return r.tooLate(r.left)
	}
	a := r.newAttempt()
	outcome, err = r.try(&a)
	if err == nil || a.unknown == nil {
		return outcome, err
	}
	abandonErr := r.abandon(&a)
	r.report.ReleaseErr = abandonErr
	switch {
	case abandonErr == nil:
		if u, ok := err.(*LockStoreUnavailable); ok {
			u.Err = fmt.Errorf("%w; the attempt was abandoned", u.Err)
		}
	case outcome != "invalid" && outcome != "corrupt":
		// Whatever ended the run, the store may grant the attempt now or later.
		// The abandon and the last request may have been refused by a store
		// that is down; the outcome is unknown all the same.
		return "unknown", &LockStoreUnavailable{key, fmt.Errorf("%w; the attempt could not be abandoned and may block the key for up to %v: %v", a.unknown, a.ttl, abandonErr)}
	}
	return outcome, err
}

// tooLate is the answer when a run has only left until the caller's deadline.
func (r *run) tooLate(left time.Duration) (outcome string, err error) {
	return "deadline", &LockDeadline{Key: r.report.Key, Left: max(0, left), Reserve: r.guard.opt.Reserve}
}

// attempt is one owner's acquisition: a request and its repeats.
type attempt struct {
	owner   lockstore.Owner
	sent    time.Duration // when it was first sent; the trust counts from here
	ttl     time.Duration
	unknown error // not nil: a request of this owner may be applied, now or later

	abandonErr error // why it could not be abandoned
}

func (r *run) newAttempt() attempt {
	now := r.elapsed()
	a := attempt{owner: r.request.Owner, sent: now, ttl: r.ttl(now)}
	if a.owner == "" {
		a.owner = lockstore.NewOwner()
	}
	return a
}

// try asks until it has the lease or there is nothing more to hope for. A held
// lock is waited for; an unknown outcome is asked about again by the same
// owner; an unavailable store is asked again after a pause.
func (r *run) try(a *attempt) (string, error) {
	key := r.report.Key
	waitEnd := min(r.wait, r.left/2)
	troubleEnd := max(waitEnd, min(storeRetryBudget, r.left/2))
	waits, pause := r.guard.pauses(), r.guard.pauses()
	for {
		ctx, cancel := context.WithTimeout(r.Context, min(callTime, max(minCallTimeout, (troubleEnd-r.elapsed())/2)))
		lease, err := r.guard.store.Acquire(ctx, lockstore.Request{Key: key, Owner: a.owner, TTL: a.ttl, Holder: r.report.Holder})
		cancel()
		r.report.Requests++

		switch outcome := outcomeOf(err); outcome {
		case "":
			if r.granted(*a, lease) {
				return "", nil
			}
			// Too late to work under it.
			err, a.unknown = errLate, errLate
			if left := r.left - r.elapsed(); left < r.guard.opt.Reserve+leastWork {
				return r.tooLate(left)
			}
			if r.retryAsNewOwner(a) != nil {
				return "unavailable", &LockStoreUnavailable{key, err}
			}
		case "busy":
			busy := newLockBusy(key, err)
			if !r.waitFree(busy, &waits, waitEnd) {
				if cause := r.callerGone(); cause != nil {
					return "deadline", &LockDeadline{Key: key, Err: cause}
				}
				return "busy", busy
			}
			if r.retryAsNewOwner(a) != nil {
				return "unavailable", &LockStoreUnavailable{key, a.unknown}
			}
			continue
		case "lost":
			a.unknown = nil // this owner is granted nothing any more
			if r.request.Owner != "" {
				return r.refused(err)
			}
			*a = r.newAttempt()
		case "invalid", "corrupt":
			return r.refused(err)
		case "unknown":
			if a.unknown == nil {
				a.unknown = err
			}
		}

		if !r.sleep(min(pause.next(), troubleEnd-r.elapsed())) || r.elapsed() >= troubleEnd {
			if cause := r.callerGone(); cause != nil {
				return "deadline", &LockDeadline{Key: key, Err: cause}
			}
			return "unavailable", &LockStoreUnavailable{key, err}
		}
	}
}

// retryAsNewOwner makes way for a new owner. Another's grant settles nothing about an own
// request that is still under way: it is abandoned first, or the new owner could
// find the key held by this very run. When the abandon's own outcome is not
// known, the run is over: it may arrive at any time, and would free a key that the
// old owner had meanwhile been granted.
func (r *run) retryAsNewOwner(a *attempt) error {
	if a.unknown != nil {
		switch err := r.abandon(a); err {
		case nil:
		case errAgain:
			a.sent = r.elapsed() // the store says what is left of the lease, if it is there
			return nil
		default:
			return err
		}
	}
	*a = r.newAttempt()
	return nil
}

// granted takes the lease if there is time to work under it.
func (r *run) granted(a attempt, lease lockstore.Lease) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.elapsed()
	stop := min(r.left-r.guard.opt.Reserve, now+r.guard.opt.MaxHold)
	trust := a.sent + lease.TTL - margin
	if min(stop, trust)-now < leastWork || r.Context.Err() != nil {
		return false
	}
	r.holding = true
	r.lease, r.sent = lease, a.sent
	r.stop, r.holdEnd = stop, now+r.guard.opt.MaxHold
	r.extended(trust)
	r.report.Fence = lease.Fence
	r.report.AcquiredAt = r.began.Add(now)
	return true
}

// callerGone says why nobody waits for this run any more; nil while somebody does.
func (r *run) callerGone() error {
	if r.Context.Err() == nil {
		return nil
	}
	return context.Cause(r.Context)
}

// waitFree looks at the key until a request may win, and returns false when the
// time to wait is over. It reads, because a refused write costs more than a
// read; holds are short and leases long, so the lease's remaining time is no
// time to sleep for. A store that cannot be looked at, or does not answer such a
// look, is asked again instead.
func (r *run) waitFree(busy *LockBusy, waits *pauses, waitEnd time.Duration) bool {
	inspector, canLook := lockstore.As[lockstore.Inspector](r.guard.store)
	for r.sleep(min(waits.next(), waitEnd-r.elapsed())) && r.elapsed() < waitEnd {
		if !canLook {
			return true
		}
		ctx, cancel := context.WithTimeout(r, min(callTime, waitEnd-r.elapsed()))
		status, err := inspector.Inspect(ctx, busy.Key)
		cancel()
		r.report.Requests++
		switch {
		case err == nil && status.Held:
			busy.Holder, busy.Remaining = status.Holder, status.Remaining
		case err == nil, r.Err() == nil:
			// It is free, or the look failed. A failed look says nothing, so the
			// store is asked: busy is never a guess.
			return true
		}
	}
	return false
}

func (r *run) finished() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.done
}

// release gives a lease back, asking again when the answer was lost. It does
// not depend on the run's context, which has ended by now, but it leaves time
// for the handler's answer before the caller's deadline, and ends in time after
// Shutdown.
func (r *run) release(lease lockstore.Lease, after cooldown) error {
	now := r.elapsed()
	end := now + max(answerTime, min(r.beginRelease(), r.left-now-answerTime))
	caller := context.WithoutCancel(r.caller)
	defer r.setCut(nil)
	// The first call may use half of the time, so that one repeat fits in.
	limit := (end - now) / 2
	pause := r.guard.pauses()
	var answers answers
	for {
		call, cancel := r.step(caller, limit)
		err := after.release(call, r.guard.store, lease)
		cancel()
		r.report.Requests++
		if err == nil {
			return nil
		}
		outcome := outcomeOf(err)
		err = answers.add(outcome, err)
		if outcome != "unavailable" && outcome != "unknown" {
			return err
		}
		rest, cancel := r.step(caller, min(pause.next(), end-r.elapsed()))
		<-rest.Done()
		isCut := rest.Err() == context.Canceled
		cancel()
		if limit = end - r.elapsed(); limit <= 0 || isCut {
			return err
		}
	}
}

// step is a context for one step of a release, which Shutdown may cut.
func (r *run) step(parent context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(parent, d)
	r.setCut(cancel)
	return ctx, cancel
}

func (r *run) setCut(cut context.CancelFunc) {
	r.guard.mu.Lock()
	defer r.guard.mu.Unlock()
	r.cut = cut
	if r.isCut && cut != nil {
		cut()
	}
}

// endRelease cuts the release that was under way at Shutdown.
func (r *run) endRelease() {
	r.guard.mu.Lock()
	defer r.guard.mu.Unlock()
	r.isCut = true
	if r.cut != nil {
		r.cut()
	}
}

// answers are what the store says to a request and its repeats. A reply that was
// lost leaves open whether its request was applied, and what a repeat is told
// does not settle that.
type answers struct{ unknown error }

// after adds to a last answer that an earlier one was lost.
func (a *answers) after(err error) error {
	if a.unknown == nil {
		return err
	}
	return fmt.Errorf("%w; the answer to an earlier request was lost: %v", err, a.unknown)
}

// add returns what is known after one more answer, an error with this outcome.
func (a *answers) add(outcome string, err error) error {
	switch {
	case a.unknown != nil:
		return fmt.Errorf("%w; asked again: %v", a.unknown, err)
	case outcome == "unknown":
		a.unknown = err
	}
	return err
}

// abandon makes sure that no request of this owner takes the lock, also one
// that arrives later.
func (r *run) abandon(a *attempt) error {
	switch {
	case r.request.Owner != "":
		return errAgain
	case a.abandonErr == nil: // else it has had its time
		a.abandonErr = r.release(lockstore.Lease{Key: r.report.Key, Owner: a.owner}, cooldown{})
	}
	return a.abandonErr
}
