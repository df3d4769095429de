package guard

import (
	"cmp"
	"context"
	"errors"
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
	// The guard releases nothing of such an owner, because the caller asks again with it. If the outcome of the call is
	// unknown, the error is *LockStoreUnavailable, also if a later answer said that another owner has the lock. If the store
	// knows that the owner's lease has ended, the error is *LockLost: take a new owner. A call with Wait
	// that is told busy keeps its place in the key's queue. Its turn there lasts lockstore.TurnTime (2 s): call again within it.
	// Abandon ends all of that.
	Owner lockstore.Owner

	// Coalesce names the work, and EventID is the id by which the source of the event sends it again, as in Options. Then the
	// call may end with *LockCovered. It needs a Wait, or Park.
	Coalesce, EventID string

	// HolderInfo says, for people who inspect the lock, who has it. Acquire sets its Since.
	// A zero HolderInfo takes what Options.HolderInfo says of the call.
	HolderInfo lockstore.HolderInfo
}

// Acquire takes a lock and leaves it held. The lease's TTL is the time for which the
// caller may trust the lease, counted from the return of Acquire; the margin of Do is
// already subtracted. The errors are those of Do, and *LockLost as LeaseRequest says.
func (g *Guard) Acquire(ctx context.Context, req LeaseRequest) (lockstore.Lease, error) {
	return g.acquireLease(ctx, req, wanted{}, nil)
}

// Park is Acquire for an owner that does not wait in this process. If the key is busy, it takes a parked place in the key's queue and
// returns *LockBusy at once; QueuePosition 0 says that it has no place. Call Park before Acquire: nobody wakes a place
// that Acquire has taken.
//
// A guard with Options.Wake that hands the key over to this owner, or completes the key, wakes the owner at
// the address. The owner then has the duration turn (lockstore.TurnTime to lockstore.MaxParkedTurn) to call Park or Acquire again: only this
// call says whether it has the lease. A wake-up may be lost, late or doubled, so the owner also calls again
// after a time of its own. It keeps its place if it calls before its turn is over.
//
// The request has an Owner and no Wait, and the store has parked places: DynamoDB, Redis
// or memstore. Otherwise the error is *LockBadRequest.
func (g *Guard) Park(ctx context.Context, req LeaseRequest, turn time.Duration, address lockstore.WakeAddress) (lockstore.Lease, error) {
	var mistake error
	switch {
	case req.Owner == "":
		mistake = lockstore.Invalidf("guard: Park without Owner; who is woken asks again with the same Owner")
	case req.Wait != 0:
		mistake = lockstore.Invalidf("guard: Park with Wait %v; want 0, a parked owner does not wait here", req.Wait)
	case turn == 0:
		mistake = lockstore.Invalidf("guard: the turn is 0s; want %v to %v", lockstore.TurnTime, lockstore.MaxParkedTurn)
	case g.Validate() == nil && !g.parks:
		mistake = lockstore.Invalidf("guard: this store has no parked places: %w", errors.ErrUnsupported)
	}
	return g.acquireLease(ctx, req, wanted{turn: turn, address: address}, mistake)
}

// acquireLease is the run of Acquire and Park, up to its report. mistake is one of the request. The lease stays in the store; the run and
// its window end here. It sets wanted and holder before it calls acquire.
func (g *Guard) acquireLease(ctx context.Context, req LeaseRequest, w wanted, mistake error) (lockstore.Lease, error) {
	if err := g.usable(ctx); err != nil {
		return lockstore.Lease{}, err
	}
	c := g.newCall(ctx, req.Wait)
	c.askHolder()
	r := c.newRun(req.Key, nil)
	defer r.endRun()
	switch coalesces := req.Coalesce != ""; {
	case req.Wait < 0:
		mistake = lockstore.Invalidf("guard: Wait is %v; want 0 or more", req.Wait)
	case coalesces != (req.EventID != ""):
		mistake = lockstore.Invalidf("guard: Coalesce is %.70q and EventID is %.70q; want both or none", req.Coalesce, req.EventID)
	case coalesces && req.Wait == 0 && w.turn == 0:
		mistake = lockstore.Invalidf("guard: Coalesce is %.70q but Wait is 0; want a Wait, or Park: only who waits is covered", req.Coalesce)
	case coalesces && lockstore.ValidateWork(req.Coalesce) != nil:
		mistake = lockstore.Invalidf(badWork, req.Coalesce, lockstore.MaxWorkBytes)
	}
	if err := cmp.Or(mistake, lockstore.ValidateTTL(req.TTL)); err != nil {
		return lockstore.Lease{}, r.finish(r.failure(err))
	}
	r.wanted = w
	r.wanted.ttl, r.wanted.owner, r.wanted.long = req.TTL, req.Owner, true
	r.wanted.work, r.wanted.event = req.Coalesce, req.EventID
	if req.HolderInfo != (lockstore.HolderInfo{}) {
		req.HolderInfo.Since = r.holder.Since
		r.holder = req.HolderInfo
	}
	if outcome, err := r.acquire(); err != nil {
		return lockstore.Lease{}, r.finish(outcome, err)
	}
	err := r.finish(outcomeAcquired, nil)
	lease := r.lease()
	lease.TTL = r.window.trusted() // wake-ups and the observer have taken time
	return lease, err
}

// finish ends a run of one request: it waits for the wake-ups that this request has begun, sets holder if nobody has asked for it, reports, and returns
// err. refuse, acquireLease and requestFor call it.
func (r *run) finish(outcome Outcome, err error) error {
	r.finishWakeUps()
	r.holder = cmp.Or(r.holder, r.call.askHolder())
	r.observe(outcome, err)
	return err
}

// Renew makes a long-lived lease last at least ttl from now. It returns the time for which
// the caller may trust the lease, counted as for Acquire. *LockLost says that the lease
// has ended or that another owner has the key. After *LockStoreUnavailable nobody knows
// whether the lease is renewed, unless the error matches lockstore.ErrUnavailable: then it is as
// before. The caller may call Renew again. Other errors are *LockBadRequest and *LockCorrupt.
func (g *Guard) Renew(ctx context.Context, lease lockstore.Lease, ttl time.Duration) (time.Duration, error) {
	var trusted time.Duration
	err := g.requestFor(ctx, lease, outcomeRenewed, func(r *run) error {
		return r.request(func(ctx context.Context) error {
			sent := r.now()
			renewed, err := g.store.Renew(ctx, lease, ttl)
			trusted = sent + renewed.TTL - margin
			return err
		})
	})
	if err != nil {
		return 0, err
	}
	return max(0, trusted-g.clock.moment()), nil
}

// Release frees the lock of a long-lived lease. The same release again returns nil, for as
// long as the store remembers the first one. *LockLost says that the lease is gone:
// another owner was granted the key, the store knows nothing of this lease, or an operator has revoked it.
// If the lease has expired and nobody was granted the key since, Release returns nil.
func (g *Guard) Release(ctx context.Context, lease lockstore.Lease) error {
	return g.requestFor(ctx, lease, outcomeReleased, func(r *run) error { return r.releaseLease(lease, 0, releaseTime) })
}

// Abandon ends all that an owner has of a key, see LeaseRequest.Owner: its lease, its place in the queue, and requests of
// Acquire that the store receives later. It returns nil also if the owner has nothing, or if its
// lease was revoked; a revoked lease may then stay until its end.
func (g *Guard) Abandon(ctx context.Context, key string, owner lockstore.Owner) error {
	return g.requestFor(ctx, lockstore.Lease{Key: key}, outcomeReleased, func(r *run) error { return r.abandon(owner) })
}

// Complete is Release with a cooldown: for the time d nobody can acquire the key, see [Guard.WithCooldown]. The
// errors are those of Release, *LockBadRequest if d is not within lockstore.MinTTL and lockstore.MaxResultTime, and one
// that says so if MaxHolders is above 1 or the guard has Options.Coalesce.
func (g *Guard) Complete(ctx context.Context, lease lockstore.Lease, d time.Duration) error {
	if err := g.alone("a cooldown"); err != nil {
		return err
	}
	return g.requestFor(ctx, lease, outcomeReleased, func(r *run) error {
		return r.releaseLease(lease, max(d, 1), releaseTime) // 0 would be no cooldown; the store refuses both
	})
}

// requestFor is the run of Renew, Release, Abandon and Complete: send sends its request, and done is the outcome if that succeeds. It calls the
// program, too, after the wake-ups: Options.HolderInfo and Options.Observe (finish). It sets held to a lease that has only the fence, for the report.
func (g *Guard) requestFor(ctx context.Context, lease lockstore.Lease, done Outcome, send func(*run) error) error {
	if err := g.usable(ctx); err != nil {
		return err
	}
	r := g.newCall(ctx, 0).newRun(lease.Key, nil)
	defer r.endRun()
	r.held.Store(&held{lease: lockstore.Lease{Fence: lease.Fence}})
	outcome, err := r.failure(send(r))
	if err == nil {
		outcome = done
	}
	return r.finish(outcome, err)
}

// Inspect returns the state of a lock without changing it. It reports to no observer.
func (g *Guard) Inspect(ctx context.Context, key string) (lockstore.Status, error) {
	if err := g.usable(ctx); err != nil {
		return lockstore.Status{}, err
	}
	r := g.newCall(ctx, 0).newRun(key, nil)
	defer r.endRun()
	var status lockstore.Status
	_, err := r.failure(r.request(func(ctx context.Context) (err error) {
		status, err = g.store.Inspect(ctx, key)
		return err
	}))
	return status, err
}
