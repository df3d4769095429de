package guard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// Loan asks for a lock that stays held after the call. It is for services that
// hold locks for others, such as a workflow or a program on another machine.
// Nobody renews it and nobody releases it but its holder, and it ends by its
// TTL when that one dies.
type Loan struct {
	Key string

	// TTL is how long the lock is lent for, lockstore.MinTTL to
	// lockstore.MaxTTL.
	TTL time.Duration

	// Wait is how long the call waits for a lock that another holds, at most half
	// of the time that its context has left.
	Wait time.Duration

	// Owner, when it is given, makes the call one that can be repeated: the same
	// owner gets the same lease again, with the time that is left. Such a call
	// withdraws nothing when its outcome is unknown, because it is to be made
	// again; its error is then *LockStoreUnavailable, also when another has the
	// lock. An owner whose lease has ended gets *LockLost: take a new one. "" is a
	// new owner for this call alone.
	Owner lockstore.Owner

	// Holder says, for people who look at the lock, who has it; since when, the
	// call says itself. The zero value is what Options.Holder says of the call.
	Holder lockstore.Holder
}

func (l Loan) validate() error {
	if l.Wait < 0 {
		return fmt.Errorf("%w: Wait is %v; want 0 or more", lockstore.ErrInvalid, l.Wait)
	}
	return lockstore.ValidateTTL(l.TTL)
}

// Acquire takes a lock and leaves it held. The lease's TTL is the time for which
// it may be trusted from the return on, Do's margin taken off. The errors are
// those of Do: *LockBusy, *LockDeadline, *LockInvalid, *LockCorrupt,
// *LockStoreUnavailable, and *LockLost as Loan says.
func (g *Guard) Acquire(ctx context.Context, loan Loan) (lockstore.Lease, error) {
	if g == nil || g.store == nil {
		return lockstore.Lease{}, errNoGuard
	}
	r := g.newRun(ctx, loan.Key)
	defer r.close()
	if err := loan.validate(); err != nil {
		return lockstore.Lease{}, r.end(r.refused(err))
	}
	r.loan, r.wait = loan, loan.Wait
	if loan.Holder != (lockstore.Holder{}) {
		loan.Holder.Since = r.report.Holder.Since
		r.report.Holder = loan.Holder
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
	if g == nil || g.store == nil {
		return 0, errNoGuard
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
// it. With Fence 0 it withdraws a call of Acquire with this owner whose outcome
// is not known, also one that the store has yet to see. *LockLost says that the
// lease had ended and the key is another's, or that nothing is known of it.
func (g *Guard) Release(ctx context.Context, lease lockstore.Lease) error {
	if g == nil || g.store == nil {
		return errNoGuard
	}
	r := g.newRun(ctx, lease.Key)
	defer r.close()
	r.report.Fence = lease.Fence
	if err := r.release(lease, closing{}); err != nil {
		return r.end(r.refused(err))
	}
	return r.end("released", nil)
}

// Inspect looks at a lock without changing it. It reports to no observer. A
// store that is no lockstore.Inspector gives a plain error.
func (g *Guard) Inspect(ctx context.Context, key string) (lockstore.Status, error) {
	if g == nil || g.store == nil {
		return lockstore.Status{}, errNoGuard
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
	end := min(troubleTime, r.left/2)
	pause := r.guard.pauses()
	for {
		ctx, cancel := context.WithTimeout(r.Context, min(callTime, max(leastCall, (end-r.elapsed())/2)))
		err := call(ctx)
		cancel()
		r.report.Requests++
		if err == nil {
			return "", nil
		}
		outcome, named := r.refused(err)
		if outcome != "unavailable" && outcome != "unknown" {
			return outcome, named
		}
		if !r.sleep(min(pause.next(), end-r.elapsed())) || r.elapsed() >= end {
			return outcome, named
		}
	}
}

// refused is the outcome and the error of a call other than Acquire.
func (r *run) refused(err error) (outcome string, named error) {
	key := r.report.Key
	switch {
	case errors.Is(err, lockstore.ErrLost):
		return "lost", &LockLost{Key: key, Cause: err}
	case errors.Is(err, lockstore.ErrInvalid):
		r.report.Key = key[:min(len(key), lockstore.MaxKeyBytes)]
		return "invalid", &LockInvalid{r.report.Key, err}
	case errors.Is(err, lockstore.ErrCorrupt):
		return "corrupt", &LockCorrupt{key, err}
	case errors.Is(err, lockstore.ErrUnavailable):
		return "unavailable", &LockStoreUnavailable{key, err}
	default:
		return "unknown", &LockStoreUnavailable{key, err}
	}
}
