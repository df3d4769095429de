package guard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

var (
	errNested     = lockstore.Invalidf("this key is already held by the run around this one")
	errLate       = errors.New("the lease arrived too late to be used")
	errRepeatable = errors.New("the caller will ask again with the same owner, and an abandon would refuse that owner")
)

// acquire gets the lease. If it does not, it returns the outcome and the error of a run
// whose work does not start.
func (r *run) acquire() (outcome Outcome, err error) {
	defer func() { r.report.WaitTime = r.elapsed() }()
	key := r.report.Key
	if err := lockstore.ValidateKey(key); err != nil {
		return r.refused(err)
	}
	for o := r.outer; o != nil; o = o.outer {
		if o.guard == r.guard && o.report.Key == key && !o.finished() {
			return r.refused(errNested)
		}
	}
	if r.guard.isShutDown() {
		return OutcomeDeadline, &LockDeadline{Key: key, Err: ErrShutdown}
	}
	if r.left < r.guard.opt.DeadlineMargin+leastWork {
		return r.tooLate(r.left)
	}
	r.trace(PhaseAsking, nil)
	a := r.newAttempt()
	outcome, err = r.try(&a)
	if err != nil && (a.unknown != nil || a.queued) {
		return r.giveUp(&a, outcome, err)
	}
	return outcome, err
}

// tooLate is the answer when only left remains until the caller's deadline.
func (r *run) tooLate(left time.Duration) (Outcome, error) {
	return OutcomeDeadline, &LockDeadline{Key: r.report.Key, Left: max(0, left), DeadlineMargin: r.guard.opt.DeadlineMargin}
}

// attempt is one owner's acquisition: all requests of this owner, also while it waits.
type attempt struct {
	owner      lockstore.Owner
	repeatable bool          // the caller gave the owner and asks again with it, so nothing is abandoned
	queued     bool          // the owner may have a place in the queue
	early      int           // how many turns have come at once, one after the other
	sent       time.Duration // when the present request was first sent; the trust counts from here
	ttl        time.Duration
	unknown    error // not nil: the store may apply a request of this owner, now or later
	abandonErr error // why the abandon failed
}

func (r *run) newAttempt() attempt {
	a := attempt{owner: r.request.Owner, repeatable: r.request.Owner != ""}
	if !a.repeatable {
		a.owner = lockstore.NewOwner()
	}
	r.askAfresh(&a)
	return a
}

// askAfresh prepares the next request after an answer that is final for the last one. If an
// earlier request was granted after all, the store answers with the TTL that is left. So the
// trust counts from the next request.
func (r *run) askAfresh(a *attempt) {
	a.sent = r.elapsed()
	a.ttl = r.ttl(a.sent)
}

// try asks the store until the run has the lease, or until the time to ask is over. If the
// store refuses the lock, try waits. If an outcome is unknown, the same owner asks again. If
// the store is unavailable, try asks again after a pause.
//
// An owner that is refused asks again, because its place in the queue is its own.
func (r *run) try(a *attempt) (Outcome, error) {
	key, began := r.report.Key, r.elapsed()
	waitEnd := min(r.wait, r.left/2)
	retryEnd := max(waitEnd, began+min(storeRetryBudget, (r.left-began)/2))
	waits, pause := r.guard.pauses(maxPause), r.guard.pauses(maxPause)
	for {
		queue := r.elapsed() < waitEnd
		if r.holderInfo.Since.IsZero() {
			r.report.HolderInfo.Since = time.UnixMilli(r.began.Add(a.sent).UnixMilli())
		}
		var lease lockstore.Lease
		err := r.oneCall(retryEnd, func(ctx context.Context) (err error) {
			lease, err = r.guard.store.Acquire(ctx, lockstore.Request{Key: key, Owner: a.owner, TTL: a.ttl, HolderInfo: r.report.HolderInfo, JoinQueue: queue})
			return err
		})

		switch outcomeOf(err) {
		case OutcomeOK:
			if r.granted(*a, lease) {
				return OutcomeOK, nil
			}
			// The lease is there, but too late to work under it.
			err, a.unknown, a.queued = errLate, errLate, false
			if left := r.left - r.elapsed(); left < r.guard.opt.DeadlineMargin+leastWork {
				return r.tooLate(left)
			}
			if a.repeatable {
				r.askAfresh(a)
				break
			}
			// Without an abandon the new owner could find the key held by its own run. After an
			// abandon whose outcome is unknown the old owner must get no lease any more: it may
			// arrive at any time, and would release the lease under the work.
			if r.abandon(a) != nil {
				return OutcomeUnavailable, &LockStoreUnavailable{key, err}
			}
			*a = r.newAttempt()
		case OutcomeBusy:
			busy := newLockBusy(key, err)
			a.queued = a.queued || queue
			if r.report.QueuePosition == 0 {
				r.report.QueuePosition = busy.QueuePosition
			}
			again := r.waitUntilFree(busy, a, &waits, waitEnd)
			r.report.State = busy.State
			if !again {
				if cause := r.callerGone(); cause != nil {
					return OutcomeDeadline, &LockDeadline{Key: key, Err: cause}
				}
				return OutcomeBusy, busy
			}
			r.askAfresh(a)
			continue
		case OutcomeLost:
			a.unknown, a.queued = nil, false // the store grants this owner nothing any more
			if a.repeatable {
				return r.refused(err)
			}
			*a = r.newAttempt()
		case OutcomeInvalid, OutcomeCorrupt:
			return r.refused(err)
		case OutcomeUnknown:
			a.queued = a.queued || queue
			if a.unknown == nil {
				a.unknown = err
			}
		}

		if !r.mayAskAgain(&pause, retryEnd) {
			if cause := r.callerGone(); cause != nil {
				return OutcomeDeadline, &LockDeadline{Key: key, Err: cause}
			}
			return OutcomeUnavailable, &LockStoreUnavailable{key, err}
		}
	}
}

// granted takes the lease if there is time to work under it.
func (r *run) granted(a attempt, lease lockstore.Lease) bool {
	r.check() // the run around this run may have lost its lease meanwhile
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.elapsed()
	stop := min(r.left-r.guard.opt.DeadlineMargin, now+r.guard.opt.MaxHold)
	if r.inSameCall() {
		stop = min(stop, r.outer.stop)
	}
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

// waitUntilFree waits until an acquire may succeed, and returns false when the time to
// wait is over. With a place in the key's queue it waits for its turn. Without a place,
// because the queue is full, it polls the key. The caller acquires again once a second,
// because the queue may have room for it now. Between these requests waitUntilFree reads: a
// refused write costs more than a read.
func (r *run) waitUntilFree(busy *LockBusy, a *attempt, waits *pauses, waitEnd time.Duration) bool {
	switch {
	case busy.State == lockstore.InDoubt:
		return false // nobody knows when it is free
	case busy.State.Done():
		// It is free at a known time. The run does not wait if it asks for the result.
		a.queued = false // the queue has ended
		return !r.completes && busy.Remaining < waitEnd-r.elapsed() && r.sleep(busy.Remaining)
	case busy.QueuePosition > 0:
		return r.awaitTurn(busy, a, waitEnd)
	}
	askAgain := a.sent + maxPause
	for r.sleep(min(waits.next(), askAgain-r.elapsed(), waitEnd-r.elapsed())) && r.elapsed() < waitEnd {
		if r.elapsed() >= askAgain {
			return true
		}
		ctx, cancel := context.WithTimeout(r, min(callTime, waitEnd-r.elapsed()))
		status, err := r.guard.store.Inspect(ctx, busy.Key)
		cancel()
		r.report.Calls++
		switch {
		case err != nil:
		case status.State == lockstore.Free, status.State.Done(), status.State == lockstore.InDoubt:
			return true // a refusal of an acquire says more
		default:
			busy.State, busy.Holder, busy.Remaining = status.State, status.Holder, status.Remaining
		}
	}
	return false
}

// awaitTurn waits until the store says that it is the owner's turn, or until the holder's
// lease must have ended. The caller then acquires again. A turn that comes at once may be
// none. So from the second such turn on, the run pauses before it acquires again.
func (r *run) awaitTurn(busy *LockBusy, a *attempt, waitEnd time.Duration) bool {
	began := r.elapsed()
	if began >= waitEnd {
		return false
	}
	ctx, cancel := r.until(min(waitEnd, began+max(busy.Remaining, firstPause)))
	_, err := r.guard.store.AwaitTurn(ctx, lockstore.Place{Key: busy.Key, Owner: a.owner, Elapsed: began - a.sent})
	cancel()
	r.report.Calls++
	if a.early++; r.elapsed()-began >= firstPause {
		a.early = 0
	}
	if a.early > 1 || a.early == 1 && err != nil {
		r.sleep(min(r.guard.random(maxWaitPause)+1, waitEnd-r.elapsed()))
	}
	return r.Err() == nil && r.elapsed() < waitEnd
}

// giveUp ends an acquisition that failed while the store may still apply a request of
// it, or while its owner may have a place in the queue. outcome and err are what the run
// would return otherwise.
//
// An abandon ends the place, too. But it leaves a mark in the store, and a store may remember
// only one. So an attempt without an unknown outcome only leaves the queue.
func (r *run) giveUp(a *attempt, outcome Outcome, err error) (Outcome, error) {
	if a.queued && (a.unknown == nil || a.repeatable) {
		granted, leaveErr := r.leave(a)
		r.report.ReleaseErr = leaveErr
		if granted && a.unknown == nil {
			a.unknown = lockstore.ErrGranted // to a request that the store had refused before
		}
	}
	if a.unknown == nil {
		return outcome, err
	}
	remains := errRepeatable // why the request remains in the store
	if !a.repeatable {
		remains = r.abandon(a)
	}
	r.report.ReleaseErr = remains
	switch {
	case remains == nil:
		if u, ok := err.(*LockStoreUnavailable); ok {
			u.Err = fmt.Errorf("%w; the attempt was abandoned", u.Err)
		}
	case outcome != OutcomeInvalid && outcome != OutcomeCorrupt:
		// Whatever ended the run, the store may grant the attempt now or later. So the
		// outcome is unknown, also if the store refused the abandon and the last request.
		return OutcomeUnknown, &LockStoreUnavailable{r.report.Key, fmt.Errorf("%w; the attempt could not be abandoned and may block the key for up to %v: %v", a.unknown, a.ttl, remains)}
	}
	return outcome, err
}

// leave gives up the owner's place in the queue. It says whether the owner holds the key.
func (r *run) leave(a *attempt) (granted bool, err error) {
	err = r.withRetries(r.beginRelease(false, releaseTime), func(ctx context.Context) error {
		err := r.guard.store.Leave(ctx, r.report.Key, a.owner)
		if granted = errors.Is(err, lockstore.ErrGranted); granted {
			return nil
		}
		return err
	})
	return granted, err
}

// abandon makes sure that no request of this owner takes the lock, also no request that
// arrives later. It uses its time once: after a failure it returns the same error again.
func (r *run) abandon(a *attempt) error {
	if a.abandonErr == nil {
		a.abandonErr = r.release(lockstore.Lease{Key: r.report.Key, Owner: a.owner}, r.beginRelease(false, releaseTime), 0)
	}
	return a.abandonErr
}
