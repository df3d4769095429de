package guard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// LeaseRequest asks for a lock that stays held after the call. It is for services that
// hold locks for others, such as a workflow or a program on another machine.
// Nobody renews it and nobody releases it but its holder, and it ends by its
// TTL when that one dies.
type LeaseRequest struct {
	Key string

	// TTL is how long the lock is lent for, lockstore.MinTTL to
	// lockstore.MaxTTL.
	TTL time.Duration

	// Wait is how long the call waits for a lock that another holds, at most half
	// of the time that its context has left.
	Wait time.Duration

	// Owner, when it is given, makes the call one that can be repeated: the same
	// owner gets the same lease again, with the time that is left. Such a call
	// abandons nothing when its outcome is unknown, because it is to be made
	// again; its error is then *LockStoreUnavailable, also when another has the
	// lock. An owner whose lease has ended gets *LockLost: take a new one. "" is a
	// new owner for this call alone.
	Owner lockstore.Owner

	// Holder says, for people who look at the lock, who has it; since when, the
	// call says itself. The zero value is what Options.Holder says of the call.
	Holder lockstore.Holder
}

func (l LeaseRequest) validate() error {
	if l.Wait < 0 {
		return fmt.Errorf("%w: Wait is %v; want 0 or more", lockstore.ErrInvalid, l.Wait)
	}
	return lockstore.ValidateTTL(l.TTL)
}

// Acquire takes a lock and leaves it held. The lease's TTL is the time for which
// it may be trusted from the return on, Do's margin taken off. The errors are
// those of Do: *LockBusy, *LockDeadline, *LockInvalid, *LockCorrupt,
// *LockStoreUnavailable, and *LockLost as LeaseRequest says.
func (g *Guard) Acquire(ctx context.Context, req LeaseRequest) (lockstore.Lease, error) {
	if err := g.usable(ctx); err != nil {
		return lockstore.Lease{}, err
	}
	r := g.newRun(ctx, req.Key)
	defer r.close()
	if err := req.validate(); err != nil {
		return lockstore.Lease{}, r.end(r.refused(err))
	}
	r.request, r.wait = req, req.Wait
	if req.Holder != (lockstore.Holder{}) {
		req.Holder.Since = r.report.Holder.Since
		r.report.Holder = req.Holder
	}
	if outcome, err := r.acquire(); err != nil {
		return lockstore.Lease{}, r.end(outcome, err)
	}
	lease := r.lease
	lease.TTL = max(0, r.trust-r.elapsed())
	return lease, r.end("acquired", nil)
}

// Renew makes a lent lock last at least ttl from now, and returns the time for
// which it may be trusted from the return on, Do's margin taken off. *LockLost
// says that the lease has ended or is another's; *LockStoreUnavailable says
// nothing about that, and the call may be made again.
func (g *Guard) Renew(ctx context.Context, lease lockstore.Lease, ttl time.Duration) (time.Duration, error) {
	if err := g.usable(ctx); err != nil {
		return 0, err
	}
	r := g.newRun(ctx, lease.Key)
	defer r.close()
	var trusted time.Duration
	outcome, err := r.ask(func(ctx context.Context) error {
		sent := r.elapsed()
		d, err := g.store.Renew(ctx, lease, ttl)
		trusted = sent + d - margin
		return err
	})
	if err != nil {
		return 0, r.end(outcome, err)
	}
	r.report.Fence = lease.Fence
	return max(0, trusted-r.elapsed()), r.end("renewed", nil)
}

// Release frees a lent lock. Again is nil, for as long as the store remembers
// it. With Fence 0 it abandons a call of Acquire with this owner whose outcome
// is not known, also one that the store has yet to see. *LockLost says that the
// lease had ended and the key is another's, or that nothing is known of it.
func (g *Guard) Release(ctx context.Context, lease lockstore.Lease) error {
	if err := g.usable(ctx); err != nil {
		return err
	}
	r := g.newRun(ctx, lease.Key)
	defer r.close()
	r.report.Fence = lease.Fence
	if err := r.release(lease, cooldown{}); err != nil {
		return r.end(r.refused(err))
	}
	return r.end("released", nil)
}

// Inspect looks at a lock without changing it. It reports to no observer. A
// store that is no lockstore.Inspector gives a plain error.
func (g *Guard) Inspect(ctx context.Context, key string) (lockstore.Status, error) {
	if err := g.usable(ctx); err != nil {
		return lockstore.Status{}, err
	}
	inspector, ok := lockstore.As[lockstore.Inspector](g.store)
	if !ok {
		return lockstore.Status{}, fmt.Errorf("guard: the store (%T) cannot look at a key: it is no lockstore.Inspector", g.store)
	}
	r := g.newRun(ctx, key)
	defer r.close()
	var status lockstore.Status
	_, err := r.ask(func(ctx context.Context) (err error) {
		status, err = inspector.Inspect(ctx, key)
		return err
	})
	return status, err
}

// ask calls the store until it gives a clear answer, or the time to ask is over.
func (r *run) ask(call func(context.Context) error) (outcome string, err error) {
	end := min(storeRetryBudget, r.left/2)
	pause := r.guard.pauses()
	var answers answers
	for {
		ctx, cancel := context.WithTimeout(r.Context, min(callTime, max(minCallTimeout, (end-r.elapsed())/2)))
		err := call(ctx)
		cancel()
		r.report.Requests++
		outcome := outcomeOf(err)
		switch outcome {
		case "":
			return "", nil
		case "unavailable", "unknown":
			err = answers.add(outcome, err)
		case "corrupt", "invalid":
			return r.refused(answers.after(err))
		default:
			return r.refused(err)
		}
		if !r.sleep(min(pause.next(), end-r.elapsed())) || r.elapsed() >= end {
			return r.refused(err)
		}
	}
}

// outcomeOf is the outcome that a store's answer stands for; "" is that of nil.
func outcomeOf(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, lockstore.ErrHeld):
		return "busy"
	case errors.Is(err, lockstore.ErrLost):
		return "lost"
	case errors.Is(err, lockstore.ErrInvalid):
		return "invalid"
	case errors.Is(err, lockstore.ErrCorrupt):
		return "corrupt"
	case errors.Is(err, lockstore.ErrUnavailable):
		return "unavailable"
	}
	return "unknown"
}

// refused is the outcome and the error of a call that the store answered with err.
func (r *run) refused(err error) (outcome string, named error) {
	key := r.report.Key
	switch outcome = outcomeOf(err); outcome {
	case "lost":
		return outcome, &LockLost{Key: key, Cause: err}
	case "invalid":
		r.report.Key = key[:min(len(key), lockstore.MaxKeyBytes)]
		return outcome, &LockInvalid{r.report.Key, err}
	case "corrupt":
		return outcome, &LockCorrupt{key, err}
	case "unavailable":
		return outcome, &LockStoreUnavailable{key, err}
	default:
		return "unknown", &LockStoreUnavailable{key, err}
	}
}
