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
	r.follow(PhaseAsking, nil)
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

// attempt is one owner's acquisition: a request and its repeats. If the store keeps a
// queue, all further requests belong to the same attempt.
type attempt struct {
	owner      lockstore.Owner
	repeatable bool             // the caller gave the owner and asks again with it, so nothing is abandoned
	queuer     lockstore.Queuer // nil if the store keeps no queue
	queued     bool             // the owner may have a place in the queue
	early      int              // how many turns have come at once, one after the other
	sent       time.Duration    // when the present request was first sent; the trust counts from here
	ttl        time.Duration
	unknown    error // not nil: the store may apply a request of this owner, now or later
	abandonErr error // why the abandon failed
}

func (r *run) newAttempt() attempt {
	now := r.elapsed()
	a := attempt{owner: r.request.Owner, repeatable: r.request.Owner != "", sent: now, ttl: r.ttl(now)}
	if !a.repeatable {
		a.owner = lockstore.NewOwner()
	}
	a.queuer, _ = lockstore.As[lockstore.Queuer](r.guard.store)
	return a
}

// try asks the store until the run has the lease, or until the time to ask is over. If
// another owner holds the lock, try waits. If an outcome is unknown, the same owner asks
// again. If the store is unavailable, try asks again after a pause.
func (r *run) try(a *attempt) (Outcome, error) {
	key, began := r.report.Key, r.elapsed()
	waitEnd := min(r.wait, r.left/2)
	retryEnd := max(waitEnd, began+min(storeRetryBudget, (r.left-began)/2))
	waits, pause := r.guard.pauses(maxWaitPause), r.guard.pauses(maxPause)
	if a.queuer != nil {
		waits.most = maxPause // who waits without a place is behind all who have one
	}
	for {
		queue := a.queuer != nil && r.elapsed() < waitEnd
		if r.holder.Since.IsZero() {
			r.report.Holder.Since = time.UnixMilli(r.began.Add(a.sent).UnixMilli())
		}
		ctx, cancel := context.WithTimeout(r.Context, min(callTime, max(minCallTimeout, (retryEnd-r.elapsed())/2)))
		lease, err := r.guard.store.Acquire(ctx, lockstore.Request{Key: key, Owner: a.owner, TTL: a.ttl, HolderInfo: r.report.Holder, JoinQueue: queue})
		cancel()
		r.report.Calls++

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
			if r.startOver(a) != nil {
				return OutcomeUnavailable, &LockStoreUnavailable{key, err}
			}
		case OutcomeBusy:
			busy := newLockBusy(key, err)
			a.queued = a.queued || queue
			if r.report.QueuePosition == 0 {
				r.report.QueuePosition = busy.QueuePosition
			}
			if !r.waitUntilFree(busy, a, &waits, waitEnd) {
				if cause := r.callerGone(); cause != nil {
					return OutcomeDeadline, &LockDeadline{Key: key, Err: cause}
				}
				return OutcomeBusy, busy
			}
			if r.startOver(a) != nil {
				return OutcomeUnavailable, &LockStoreUnavailable{key, a.unknown}
			}
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

		if !r.sleep(min(pause.next(), retryEnd-r.elapsed())) || r.elapsed() >= retryEnd {
			if cause := r.callerGone(); cause != nil {
				return OutcomeDeadline, &LockDeadline{Key: key, Err: cause}
			}
			return OutcomeUnavailable, &LockStoreUnavailable{key, err}
		}
	}
}

// startOver prepares the next request after an answer that is final for the last one.
//
// An owner that waits in a queue asks again, because its place is its own. If an earlier
// request was granted after all, the store answers with the TTL that is left. So the trust
// counts from the next request.
//
// Without a queue the next request has a new owner. If a request of the old owner is still
// under way, another owner's grant says nothing about this request. So startOver abandons
// the request first; otherwise the new owner could find the key held by its own run.
//
// If the abandon's outcome is unknown, too, startOver returns an error and the run is
// over. Such an abandon may arrive at any time. If the run went on with the old owner and
// got the lease, the abandon would release the lease under the work.
func (r *run) startOver(a *attempt) error {
	if a.repeatable || a.queued {
		a.sent = r.elapsed()
		a.ttl = r.ttl(a.sent)
		return nil
	}
	if a.unknown != nil {
		if err := r.abandon(a); err != nil {
			return err
		}
	}
	*a = r.newAttempt()
	return nil
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
// wait is over. With a place in the key's queue it waits for its turn. Without a place it
// polls the key, by reading, because a refused write costs more than a read. It does not
// sleep until the lease's end: leases are long, but most holders release early.
//
// The caller acquires again at once if the store cannot inspect a key, or if an
// inspection fails. If the store keeps a queue, the caller acquires again once a second,
// because the queue may have room for it now.
func (r *run) waitUntilFree(busy *LockBusy, a *attempt, waits *pauses, waitEnd time.Duration) bool {
	if busy.Err != nil {
		return r.waitUntilOpen(busy, a, waitEnd)
	}
	if busy.QueuePosition > 0 && a.queuer != nil {
		return r.awaitTurn(busy, a, waitEnd)
	}
	inspector, canInspect := lockstore.As[lockstore.Inspector](r.guard.store)
	next := func() time.Duration {
		if a.queuer == nil {
			return waits.next()
		}
		return min(waits.next(), a.sent+maxPause-r.elapsed())
	}
	for r.sleep(min(next(), waitEnd-r.elapsed())) && r.elapsed() < waitEnd {
		if !canInspect || a.queuer != nil && r.elapsed()-a.sent >= maxPause {
			return true
		}
		ctx, cancel := context.WithTimeout(r, min(callTime, waitEnd-r.elapsed()))
		status, err := inspector.Inspect(ctx, busy.Key)
		cancel()
		r.report.Calls++
		switch {
		case err == nil && (status.Kept || status.InDoubt):
			return true // the refusal of an acquire says more
		case err == nil && (status.Held || a.queuer != nil && status.Waiting > 0):
			busy.Holder, busy.Remaining, busy.Reserved = status.Holder, status.Remaining, !status.Held
		case err == nil, a.queuer == nil && r.Err() == nil:
			// The key is free, or the inspection failed. A failed one says nothing, so
			// the store is asked for the lease: the outcome busy is never a guess.
			return true
		}
	}
	return false
}

// waitUntilOpen waits for a kept key only if it is sure to be free in time, and if the
// answer is not what the run asks for. Nobody knows when a key in doubt is free.
func (r *run) waitUntilOpen(busy *LockBusy, a *attempt, waitEnd time.Duration) bool {
	if _, kept := busy.Err.(*lockstore.KeptError); !kept {
		return false
	}
	a.queued = false // the queue has ended
	return !r.keeps && busy.Remaining < waitEnd-r.elapsed() && r.sleep(busy.Remaining)
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
	err := a.queuer.AwaitTurn(ctx, busy.Key, a.owner)
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
// An abandon ends the place, too. But it leaves a mark in the store, and a store may keep
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
		err := a.queuer.Leave(ctx, r.report.Key, a.owner)
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
		a.abandonErr = r.release(lockstore.Lease{Key: r.report.Key, Owner: a.owner}, r.beginRelease(false, releaseTime), cooldown{})
	}
	return a.abandonErr
}
