package guard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// LeaseRequest asks for a long-lived lease: one that stays held after the call. It is for
// services that hold locks for others, such as a workflow or a program on another
// machine. The guard neither renews nor releases such a lease by itself; the caller does,
// with Renew and Release. If the caller dies, the lease ends by its TTL.
type LeaseRequest struct {
	Key string

	// TTL is how long the lease is, lockstore.MinTTL to lockstore.MaxTTL.
	TTL time.Duration

	// Wait is how long the call waits for a lock that another owner holds. It waits for
	// at most half of the time that its context has left.
	Wait time.Duration

	// Owner makes the call repeatable: the same owner gets the same lease again, with
	// the time that is left, at most its TTL. If it is "", the call makes an owner of its own.
	//
	// If the outcome of a repeatable call is unknown, the call abandons nothing, because
	// the caller will retry with this owner. Its error is then *LockStoreUnavailable, also if a later
	// answer said that another owner has the lock: the request without an answer may still get a lease.
	// If the store knows that the owner's lease has ended, the error is *LockLost: take a new owner.
	//
	// A call with Wait that is told busy keeps its place in the key's queue for the next call with
	// this owner. The caller cannot see when its turn begins, so it has to call at least every
	// lockstore.Turn (2 s). The guard does not end this place. If no call comes, it delays
	// those behind it by one Turn. A Release with this owner and Fence 0 leaves the queue at
	// once, and the owner cannot be used any more.
	Owner lockstore.Owner

	// Parked, if it is not 0, is for an owner that does not wait in this process. A call that is refused takes
	// a place in the key's queue and returns *LockBusy at once; QueuePosition 0 says that it has no
	// place. Set it in the owner's first call: nobody wakes a place that a call without Parked has taken.
	// A guard with Options.Wake that hands the key over to this owner, or completes the key, wakes the owner at
	// Address. The owner then has the time Parked, lockstore.Turn to lockstore.MaxParked, to call again: only this
	// call says whether it has the lease. A wake-up may be lost, late or doubled, so the owner also calls again
	// after a time of its own. It keeps its place if it calls before its turn is over.
	//
	// Parked needs Owner, Address, a Wait of 0, and a store that has parked places: DynamoDB, Redis,
	// PostgreSQL or memstore. Otherwise the error is *LockInvalid.
	Parked  time.Duration
	Address lockstore.Address

	// HolderInfo says, for people who inspect the lock, who has it. Acquire sets its Since.
	// A zero HolderInfo takes what Options.HolderInfo says of the call.
	HolderInfo lockstore.HolderInfo
}

func (l LeaseRequest) validate(parks bool) error {
	if l.Wait < 0 {
		return lockstore.Invalidf("guard: Wait is %v; want 0 or more", l.Wait)
	}
	if l.Parked != 0 || l.Address != "" {
		switch {
		case l.Owner == "":
			return lockstore.Invalidf("guard: Parked is %v without Owner; who is woken asks again with the same Owner", l.Parked)
		case l.Wait != 0:
			return lockstore.Invalidf("guard: Parked is %v and Wait is %v; want Wait 0, a parked owner does not wait here", l.Parked, l.Wait)
		case !parks:
			return lockstore.Invalidf("guard: Parked is %v, but this store has no parked places: %w", l.Parked, errors.ErrUnsupported)
		}
	}
	return lockstore.ValidateTTL(l.TTL)
}

// Acquire takes a lock and leaves it held. The lease's TTL is the time for which the
// caller may trust the lease, counted from the return of Acquire; the margin of Do is
// already subtracted. The errors are those of Do, and *LockLost as LeaseRequest says.
func (g *Guard) Acquire(ctx context.Context, req LeaseRequest) (lockstore.Lease, error) {
	if err := g.usable(ctx); err != nil {
		return lockstore.Lease{}, err
	}
	r := g.newCall(ctx).newRun(ctx, req.Key)
	defer r.close()
	if err := req.validate(g.parks); err != nil {
		return lockstore.Lease{}, r.end(r.refused(err))
	}
	r.request, r.wait = req, req.Wait
	if req.HolderInfo != (lockstore.HolderInfo{}) {
		req.HolderInfo.Since = r.report.HolderInfo.Since
		r.report.HolderInfo = req.HolderInfo
	}
	if outcome, err := r.acquire(); err != nil {
		return lockstore.Lease{}, r.end(outcome, err)
	}
	err := r.end(OutcomeAcquired, nil)
	lease := r.lease
	lease.TTL = max(0, r.trust-r.elapsed()) // wake-ups and the observer have taken time
	return lease, err
}

// Renew makes a long-lived lease last at least ttl from now. It returns the time for which
// the caller may trust the lease, counted as for Acquire. *LockLost says that the lease
// has ended or that another owner has the key. After *LockStoreUnavailable nobody knows
// whether the lease is renewed, unless the error matches lockstore.ErrUnavailable: then it is as
// before. The caller may call Renew again. Other errors are *LockInvalid and *LockCorrupt.
func (g *Guard) Renew(ctx context.Context, lease lockstore.Lease, ttl time.Duration) (time.Duration, error) {
	if err := g.usable(ctx); err != nil {
		return 0, err
	}
	r := g.newCall(ctx).newRun(ctx, lease.Key)
	defer r.close()
	r.report.Fence = lease.Fence
	var trusted time.Duration
	outcome, err := r.ask(func(ctx context.Context) error {
		sent := r.elapsed()
		renewed, err := g.store.Renew(ctx, lease, ttl)
		trusted = sent + renewed.TTL - margin
		return err
	})
	if err != nil {
		return 0, r.end(outcome, err)
	}
	err = r.end(OutcomeRenewed, nil)
	return max(0, trusted-r.elapsed()), err
}

// Release frees the lock of a long-lived lease. The same release again returns nil, for as
// long as the store remembers the first one. *LockLost says that the lease is gone:
// another owner was granted the key, the store knows nothing of this lease, or an operator has revoked it.
// If the lease has expired and nobody was granted the key since, Release returns nil.
//
// With Fence 0 it ends all that this owner has: its lease, its place in the queue, and requests of
// Acquire that the store receives later. It returns nil also if the owner has nothing, or if its
// lease was revoked; a revoked lease may then stay until its end.
func (g *Guard) Release(ctx context.Context, lease lockstore.Lease) error {
	return g.endLease(ctx, lease, 0)
}

// Complete is Release with a cooldown: for the time d nobody can acquire the key, see [Guard.WithCooldown]. The
// errors are those of Release, *LockInvalid if d is not within lockstore.MinTTL and lockstore.MaxResultTime, and one
// that says so if MaxHolders is above 1.
func (g *Guard) Complete(ctx context.Context, lease lockstore.Lease, d time.Duration) error {
	return g.endLease(ctx, lease, max(d, 1)) // 0 would be no cooldown; the store refuses both
}

func (g *Guard) endLease(ctx context.Context, lease lockstore.Lease, cooldown time.Duration) error {
	if err := g.usable(ctx); err != nil {
		return err
	}
	if err := g.alone("a cooldown"); err != nil && cooldown > 0 {
		return err
	}
	r := g.newCall(ctx).newRun(ctx, lease.Key)
	defer r.close()
	r.report.Fence = lease.Fence
	if err := r.release(lease, cooldown, false, releaseTime); err != nil {
		return r.end(r.refused(err))
	}
	return r.end(OutcomeReleased, nil)
}

// Inspect returns the state of a lock without changing it. It reports to no observer.
func (g *Guard) Inspect(ctx context.Context, key string) (lockstore.Status, error) {
	if err := g.usable(ctx); err != nil {
		return lockstore.Status{}, err
	}
	r := g.newCall(ctx).newRun(ctx, key)
	defer r.close()
	var status lockstore.Status
	_, err := r.ask(func(ctx context.Context) (err error) {
		status, err = g.store.Inspect(ctx, key)
		return err
	})
	return status, err
}

// ask calls the store until it gives a clear answer, or until the time to ask is over.
func (r *run) ask(call func(context.Context) error) (Outcome, error) {
	t := r.retry(r.toAsk())
	outcome, err := t.ask(call)
	switch {
	case err == nil:
		return outcome, nil
	case outcome != OutcomeUnknown && t.unknown != nil:
		err = fmt.Errorf("%w; the answer to an earlier request was lost: %v", err, t.unknown)
	}
	return r.refused(err)
}
