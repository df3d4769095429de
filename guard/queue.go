package guard

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// noteHolder notes the state and the holder of the key that was refused. acquire calls it after each
// refusal, when the wait is over, because a poll may have brought newer news.
func (r *run) noteHolder(busy *LockBusy) {
	notes := &r.notes
	notes.KeyState, notes.HeldFor = busy.State, 0
	if since := busy.Holder.Since; busy.State == lockstore.Held && !since.IsZero() {
		notes.HeldFor = max(0, r.call.wall(r.now()).Sub(since))
	}
	notes.heldLong = notes.HeldFor > r.guard.opt.MaxHold
}

// wait waits until an Acquire may succeed, or until the key was handed over (a.handed), and returns false when the time to wait is
// over. acquire calls it after each refusal. What it sends is in awaitTurn and pollKey.
func (a *attempt) wait() bool {
	r, busy := a.run, a.busy
	switch {
	case busy.State == lockstore.InDoubt:
		return false // nobody knows when it is free
	case busy.State.Done():
		// It is free at a known time. The run does not wait if it asks for the result. After a freeze the time to wait may be over.
		return !r.wanted.once && busy.StateEndsIn < r.call.waitEnd-r.now() && r.sleepUntil(r.now()+busy.StateEndsIn) && r.now() < r.call.waitEnd
	case busy.QueuePosition > 0:
		return a.awaitTurn()
	}
	return a.pollKey()
}

// mostNotYet is how many answers without news a run takes before it sends an Acquire: a store that gives them
// at once, again and again, must not keep a processor busy.
const mostNotYet = 1000

// awaitTurn sends AwaitTurn until the store says that it is the owner's turn, until the key is handed over to
// the owner, or until the holder's lease must have ended. It sets sent, note, lease, handed, queued and early. A store that says so within 50 ms
// may be wrong. So the run pauses first if it is the second wait in a row that ended within 50 ms, or if the
// wait failed within 50 ms. wait calls it.
func (a *attempt) awaitTurn() bool {
	r := a.run
	refused, began := a.sent, r.now()
	if began >= r.call.waitEnd {
		return false
	}
	ctx, cancel := r.guard.clock.withEnd(&r.window, min(r.call.waitEnd, began+max(a.busy.StateEndsIn, firstPause)))
	defer cancel()
	var news lockstore.AwaitedTurn
	var err error
	for n := 0; n < mostNotYet && err == nil && !news.Ask && news.Lease.Fence == 0; n++ {
		a.sent = r.now() // the trust in a lease that is handed over counts from here
		news, err = r.guard.store.AwaitTurn(ctx, lockstore.Request{Key: r.key, Owner: a.owner, Hint: a.note}, a.sent-refused)
		if ctx.Err() != nil {
			r.calls.count(nil) // the wait is over, and nothing has failed
		} else {
			r.calls.count(err)
		}
		a.note = cmp.Or(news.Lease.Hint, news.Hint, a.note)
	}
	if a.lease, a.handed = news.Lease, news.Lease.Fence != 0; a.handed {
		a.queued = false
		return true // also if Wait is over now
	}
	if a.early++; r.now()-began >= firstPause {
		a.early = 0
	}
	if a.early > 1 || a.early == 1 && err != nil {
		r.sleep(min(r.guard.random(maxWaitPause)+1, r.call.waitEnd-r.now()))
	}
	return r.window.Err() == nil && r.now() < r.call.waitEnd
}

// pollKey sends Inspect for a key in whose queue the run has no place, mostly because it is full: a refused write costs more. It sets what busy says of
// the key, heard and pauses; its sleep may find the lease of the run around it lost (window.check). After 1 to 2 s (and the time of a poll that is under
// way then), or when a poll finds the key free, it returns true: the queue may have room now. wait calls it.
func (a *attempt) pollKey() bool {
	r, busy := a.run, a.busy
	slow := slowed(a.acquires.took)
	askAgain := a.sent + max(maxPause, slow)
	for r.sleep(min(max(a.pauses.next(), slow), askAgain-r.now(), r.call.waitEnd-r.now())) && r.now() < r.call.waitEnd {
		began := r.now()
		if began >= askAgain {
			return true
		}
		status := a.inspectKey(min(callTime, r.call.waitEnd-began))
		slow = slowed(r.now() - began)
		switch {
		case status == nil:
		case status.State == lockstore.Free, status.State.Done(), status.State == lockstore.InDoubt:
			return true // a refusal of an acquire says more
		default:
			busy.State, busy.Holder, busy.StateEndsIn, a.heard = status.State, status.Holder, status.Remaining, r.now()
		}
	}
	return false
}

// slowed is how long a run without a place pauses before it asks again, when its last call took d: a store
// that answers slowly has too many who ask. pollKey calls it, for the pause before a poll and for that before the next Acquire.
func slowed(d time.Duration) time.Duration { return min(4*d, 2*maxPause) }

// inspectKey is one poll: it sends Inspect. If another run of the guard has begun to read it less than firstPause ago, it
// returns what that run has read (Guard.polls). It is nil if there is no news. pollKey calls it.
func (a *attempt) inspectKey(limit time.Duration) *lockstore.Status {
	r, polls := a.run, a.run.guard.polls
	shared, begun := polls.LoadOrStore(r.key, new(atomic.Pointer[lockstore.Status]))
	last := shared.(*atomic.Pointer[lockstore.Status])
	if begun {
		return last.Load()
	}
	time.AfterFunc(firstPause, func() { polls.Delete(r.key) })
	ctx, cancel := context.WithTimeout(&r.window, limit)
	defer cancel()
	status, err := r.guard.store.Inspect(ctx, r.key)
	if r.calls.count(err); err != nil {
		return nil
	}
	last.Store(&status)
	return &status
}
