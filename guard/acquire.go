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
	errAgain  = errors.New("its owner is to ask again, which would be refused after a withdrawal")
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
	if !r.guard.enter(r) {
		return "deadline", &LockDeadline{key, ErrShutdown}
	}
	if r.left < r.guard.opt.Reserve+leastWork {
		return "deadline", &LockDeadline{Key: key}
	}
	a := r.newAttempt()
	outcome, err = r.try(&a)
	if err != nil && a.unknown != nil {
		withdrawErr := r.withdraw(a)
		r.report.ReleaseErr = withdrawErr
		u, ok := err.(*LockStoreUnavailable)
		switch {
		case ok && withdrawErr == nil:
			u.Err = fmt.Errorf("%w; the attempt was withdrawn", u.Err)
		case ok:
			outcome = "unknown"
			// The withdrawal may have been refused by a store that is down, and so
			// may the last request; the outcome is unknown all the same.
			u.Err = fmt.Errorf("%w; the attempt could not be withdrawn and may block the key for up to %v: %v", a.unknown, a.ttl, withdrawErr)
		}
	}
	return outcome, err
}

// attempt is one owner's acquisition: a request and its repeats.
type attempt struct {
	owner   lockstore.Owner
	sent    time.Duration // when it was first sent; the trust counts from here
	ttl     time.Duration
	unknown error // not nil: a request of this owner may be applied, now or later
}

func (r *run) newAttempt() attempt {
	now := r.elapsed()
	a := attempt{owner: r.loan.Owner, sent: now, ttl: r.ttl(now)}
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
	troubleEnd := max(waitEnd, min(troubleTime, r.left/2))
	waits, pause := r.guard.pauses(), r.guard.pauses()
	for {
		ctx, cancel := context.WithTimeout(r.Context, min(callTime, max(leastCall, (troubleEnd-r.elapsed())/2)))
		lease, err := r.guard.store.Acquire(ctx, lockstore.Request{Key: key, Owner: a.owner, TTL: a.ttl, Holder: r.report.Holder})
		cancel()
		r.report.Requests++

		switch {
		case err == nil:
			if r.granted(*a, lease) {
				return "", nil
			}
			// Too late to work under it.
			err, a.unknown = errLate, errLate
			if r.left-r.guard.opt.Reserve-r.elapsed() < leastWork {
				return "deadline", &LockDeadline{Key: key}
			}
			if r.askAnew(a) != nil {
				return "unavailable", &LockStoreUnavailable{key, err}
			}
		case errors.Is(err, lockstore.ErrHeld):
			busy := newLockBusy(key, err)
			if !r.waitFree(busy, &waits, waitEnd) {
				if cause := r.gone(); cause != nil {
					return "deadline", &LockDeadline{key, cause}
				}
				if a.unknown != nil && r.loan.Owner != "" {
					// It is not withdrawn, and may get the lock after that one.
					return "unknown", &LockStoreUnavailable{key, a.unknown}
				}
				return "busy", busy
			}
			if r.askAnew(a) != nil {
				return "unavailable", &LockStoreUnavailable{key, a.unknown}
			}
			continue
		case errors.Is(err, lockstore.ErrInvalid):
			return "invalid", &LockInvalid{key, err}
		case errors.Is(err, lockstore.ErrCorrupt):
			return "corrupt", &LockCorrupt{key, err}
		case errors.Is(err, lockstore.ErrLost) && r.loan.Owner != "":
			return "lost", &LockLost{Key: key, Cause: err}
		case errors.Is(err, lockstore.ErrLost):
			*a = r.newAttempt()
		case errors.Is(err, lockstore.ErrUnavailable):
		default:
			a.unknown = err
		}

		if !r.sleep(min(pause.next(), troubleEnd-r.elapsed())) || r.elapsed() >= troubleEnd {
			if cause := r.gone(); cause != nil {
				return "deadline", &LockDeadline{key, cause}
			}
			return "unavailable", &LockStoreUnavailable{key, err}
		}
	}
}

// askAnew makes way for a new owner. Another's grant settles nothing about an own
// request that is still under way: it is withdrawn first, or the new owner could
// find the key held by this very run. When the withdrawal's own outcome is not
// known, the run is over: it may arrive at any time, and would free a key that the
// old owner had meanwhile been granted.
func (r *run) askAnew(a *attempt) error {
	if a.unknown != nil {
		switch err := r.withdraw(*a); err {
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
	r.stop, r.trust, r.holdEnd = stop, trust, now+r.guard.opt.MaxHold
	r.report.Fence = lease.Fence
	r.report.Granted = r.began.Add(now)
	return true
}

// gone says why nobody waits for this run any more; nil while somebody does.
func (r *run) gone() error {
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
	for r.elapsed() < waitEnd && r.sleep(min(waits.next(), waitEnd-r.elapsed())) && r.elapsed() < waitEnd {
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
// for the handler's answer before the caller's deadline.
func (r *run) release(lease lockstore.Lease, after closing) error {
	now := r.elapsed()
	end := now + max(answerTime, min(releaseTime, r.left-now-answerTime))
	caller := context.WithoutCancel(r.caller)
	// The first call may use half of the time, so that one repeat fits in.
	limit := (end - now) / 2
	pause := r.guard.pauses()
	repeated := false // a request before this one may have been applied
	for {
		ctx, cancel := context.WithTimeout(caller, limit)
		err := after.release(ctx, r.guard.store, lease)
		cancel()
		r.report.Requests++
		switch {
		case err == nil:
			return nil
		case errors.Is(err, lockstore.ErrLost) && repeated:
			return fmt.Errorf("%w %w", err, errRepeated)
		case errors.Is(err, lockstore.ErrLost), errors.Is(err, lockstore.ErrCorrupt), errors.Is(err, lockstore.ErrInvalid):
			return err
		case !errors.Is(err, lockstore.ErrUnavailable):
			repeated = true
		}
		time.Sleep(min(pause.next(), max(0, end-r.elapsed())))
		if limit = end - r.elapsed(); limit <= 0 {
			return err
		}
	}
}

// withdraw makes sure that no request of this owner takes the lock, also one
// that arrives later.
func (r *run) withdraw(a attempt) error {
	if r.loan.Owner != "" {
		return errAgain
	}
	return r.release(lockstore.Lease{Key: r.report.Key, Owner: a.owner}, closing{})
}
