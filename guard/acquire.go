package guard

import (
	"cmp"
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
	errInQueue    = errors.New("the run could not leave the queue, and may be handed the key")
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
		if o.guard.shared == r.guard.shared && o.report.Key == key && !o.window.closed() {
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
	r.awaitTrace()
	a := attempt{retry: r.retry(0), repeatable: r.request.Owner != ""}
	a.begin()
	outcome, err = r.try(&a)
	if err != nil {
		return r.giveUp(&a, outcome, err)
	}
	return outcome, err
}

// tooLate is the answer when too little time is left until the caller's deadline.
func (r *run) tooLate(left time.Duration) (Outcome, error) {
	return OutcomeDeadline, &LockDeadline{Key: r.report.Key, Left: max(0, left), DeadlineMargin: r.guard.opt.DeadlineMargin}
}

// attempt is the acquisition of a run, also while it waits. It has one owner at a time. It needs a new one
// if the store grants the old one nothing any more, or if the old one's lease came too late to be used.
type attempt struct {
	retry
	owner      lockstore.Owner
	repeatable bool            // the caller gave the owner and asks again with it, so nothing is given back
	queued     bool            // the owner may have a place in the queue
	joins      bool            // the present request asks for a place
	place      int             // in the queue at the last refusal; 0 is none
	seen       lockstore.Fence // of the key's last grant at the last refusal
	handed     lockstore.Fence // of a hand-over that the owner has learned of since; 0 is none
	busy       *LockBusy       // the last refusal; nil before the first
	heard      time.Duration   // when the store last said what is in the way
	early      int             // how many turns in a row came without any wait
	sent       time.Duration   // when the present request was first sent; the trust counts from here
	ttl        time.Duration   // of the present request
	note       lockstore.Note  // of the last answer
	lease      lockstore.Lease // that the store has given to the owner, and that the run does not work under yet
	kept       error           // why giveBack failed
}

// begin gives the attempt its owner: another one, unless the caller gave it.
func (a *attempt) begin() {
	a.owner = a.request.Owner
	if !a.repeatable {
		a.owner = lockstore.NewOwner()
	}
	a.unknown, a.queued, a.place, a.handed, a.early, a.note, a.lease = nil, false, 0, 0, 0, "", lockstore.Lease{}
	a.askAfresh()
}

// refused notes a refusal. The owner has missed its turn if others got the key since the last refusal and its
// place is gone or has not come nearer to the front. This counts as a lapse.
func (a *attempt) refused(busy *LockBusy) {
	done := busy.State.Done() || busy.State == lockstore.InDoubt // the queue has ended
	place, fence := busy.QueuePosition, busy.refused().Fence
	if a.place != 0 && !done && fence > a.seen && (place == 0 || place >= a.place) {
		a.report.Lapsed++
	}
	a.report.NoPlace = (a.report.NoPlace || a.joins && !done) && place == 0
	a.report.QueuePosition = cmp.Or(a.report.QueuePosition, place)
	a.queued = place > 0
	a.handed, a.place, a.seen, a.busy, a.heard = 0, place, fence, busy, a.elapsed()
}

// askAfresh prepares the next request after an answer that is final for the last one. The trust counts from
// the next request: the repeat of one that was granted after all is answered with the time that is left.
func (a *attempt) askAfresh() {
	a.sent = a.elapsed()
	a.ttl = a.run.ttl(a.sent)
}

// try asks the store until the run has the lease, or until the time to ask is over. If the
// store refuses the lock, try waits. If an outcome is unknown, the same owner asks again. If
// the store is unavailable, try asks again after a pause.
//
// After a refusal the same owner asks again: the place in the queue belongs to it.
func (r *run) try(a *attempt) (Outcome, error) {
	key := r.report.Key
	waitEnd := min(r.wait, r.left/2)
	a.end = max(waitEnd, r.toAsk())
	waits := r.guard.pauses(maxPause)
	for {
		var lease lockstore.Lease
		outcome, err := a.ask(func(ctx context.Context) (err error) {
			a.joins = a.handed == 0 && (r.elapsed() < waitEnd || r.request.Parked > 0)
			lease, err = r.guard.store.Acquire(ctx, lockstore.Request{
				Key: key, Owner: a.owner, Fence: a.handed, TTL: a.ttl, HolderInfo: r.since(a.sent), MaxHolders: r.guard.maxHolders, JoinQueue: a.joins, Note: a.note,
				Parked: r.request.Parked, Address: r.request.Address,
			})
			if said := outcomeOf(err); said == OutcomeBusy || said == OutcomeUnknown {
				a.queued = a.queued || a.joins
			}
			return err
		})
		switch outcome {
		case OutcomeOK:
			if r.granted(a.sent, lease) {
				return OutcomeOK, nil
			}
			// The lease is there, but too late to work under it.
			err, a.queued, a.lease = errLate, false, lease
			if left := r.left - r.elapsed(); left < r.guard.opt.DeadlineMargin+leastWork {
				return r.tooLate(left)
			}
			if a.repeatable {
				a.askAfresh()
				break
			}
			// Without a release the new owner could find the key held by its own run. If the outcome
			// of the release is unknown, the old owner must get no lease any more: the release may
			// still arrive, and would end that lease under the work.
			if r.giveBack(a) != nil {
				return OutcomeUnavailable, &LockStoreUnavailable{key, err}
			}
			a.begin()
		case OutcomeBusy:
			busy := newLockBusy(key, err)
			a.note, a.lease = busy.refused().Note, lockstore.Lease{}
			a.refused(busy)
			again := r.waitUntilFree(busy, a, &waits, waitEnd)
			r.report.State = busy.State
			r.noteHolder(busy)
			switch {
			case r.callerGone() != nil:
				return OutcomeDeadline, &LockDeadline{Key: key, Err: r.callerGone()}
			case !again:
				return OutcomeBusy, busy
			case r.startsAtOnce(a):
				return OutcomeOK, nil
			}
			a.askAfresh()
			continue
		case OutcomeLost:
			if a.handed != 0 { // this lease has lapsed, and the owner may ask for another one
				r.report.Lapsed++
				a.handed, a.place, a.lease = 0, 0, lockstore.Lease{}
				a.askAfresh()
				continue
			}
			// The store grants this owner nothing any more.
			if a.unknown, a.queued, a.lease = nil, false, (lockstore.Lease{}); a.repeatable {
				return r.refused(err)
			}
			a.begin()
		case OutcomeInvalid, OutcomeCorrupt:
			return r.refused(err)
		default:
			return r.notGranted(a, err)
		}
		if !a.again() {
			return r.notGranted(a, err)
		}
	}
}

// notGranted is the answer when the time to ask is over. If the store said less than 5 s ago what is in
// the way, and no answer was lost, the answer is busy, although the last request failed: an overloaded pool or store
// drops requests.
func (r *run) notGranted(a *attempt, err error) (Outcome, error) {
	if cause := r.callerGone(); cause != nil {
		return OutcomeDeadline, &LockDeadline{Key: r.report.Key, Err: cause}
	}
	if a.busy != nil && a.lease.Fence == 0 && outcomeOf(err) == OutcomeUnavailable && a.unknown == nil && r.elapsed()-a.heard < storeRetryBudget {
		return OutcomeBusy, a.busy
	}
	return OutcomeUnavailable, &LockStoreUnavailable{r.report.Key, err}
}

// noteHolder notes how long the holder has had the key that was refused.
func (r *run) noteHolder(busy *LockBusy) {
	r.report.HeldFor = 0
	if since := busy.Holder.Since; busy.State == lockstore.Held && !since.IsZero() {
		r.report.HeldFor = max(0, r.began.Add(r.elapsed()).Sub(since))
	}
	r.report.HeldLong = r.report.HeldFor > r.guard.opt.MaxHold
}

// since says that the run asked for its lease at this time.
func (r *run) since(sent time.Duration) lockstore.HolderInfo {
	if r.holderInfo.Since.IsZero() {
		r.report.HolderInfo.Since = time.UnixMilli(r.began.Add(sent).UnixMilli())
	}
	return r.report.HolderInfo
}

// granted takes the lease if there is time to work under it.
func (r *run) granted(sent time.Duration, lease lockstore.Lease) bool {
	r.check() // the run around this run may have lost its lease meanwhile
	now := r.elapsed()
	stop, trust := min(r.left-r.guard.opt.DeadlineMargin, now+r.guard.opt.MaxHold), sent+lease.TTL-margin
	if r.inSameCall() {
		stop = min(stop, r.outer.stop)
	}
	if min(stop, trust)-now < leastWork || r.Context.Err() != nil {
		return false
	}
	r.mu.Lock()
	r.stop = stop
	r.extended(trust)
	r.mu.Unlock()
	r.lease, r.holdEnd = lease, now+r.guard.opt.MaxHold
	r.report.Fence, r.report.Seat = lease.Fence, lease.Seat
	r.report.AcquiredAt = r.began.Add(now)
	return true
}

// startsAtOnce takes a lease that was handed over, if the run may work under this short lease. A run that will
// mark its start, store a result or begin a cooldown may not, nor a DoAll that still needs keys: they have more
// to lose. Acquire may not, because it returns a full lease. All of these send an Acquire first, as does a run that
// has seen its lease too late.
func (r *run) startsAtOnce(a *attempt) bool {
	if a.lease.Fence == 0 || r.completes || r.more || r.request.TTL != 0 || !r.granted(a.sent, a.lease) {
		return false
	}
	r.since(a.sent)
	r.handed = true
	return true
}

// slowed is how long a run without a place pauses before it asks again, when its last call took d: a store
// that answers slowly has too many who ask.
func slowed(d time.Duration) time.Duration { return min(4*d, 2*maxPause) }

// callerGone says why nobody waits for this run any more; nil while somebody does.
func (r *run) callerGone() error {
	if r.Context.Err() == nil {
		return nil
	}
	return context.Cause(r.Context)
}

// waitUntilFree waits until an acquire may succeed, and returns false when the time to
// wait is over. With a place in the key's queue it waits for its turn. Without a place,
// mostly because the queue is full, it polls the key by reads: a refused write costs more. After
// 1 to 2 s (and the time of a poll that is under way then), or when a poll finds the key free, it returns true, and
// try acquires again: the queue may have room now.
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
	l, leave := r.guard.look(busy)
	defer leave()
	slow := slowed(a.took)
	askAgain := a.sent + max(maxPause, slow)
	for r.sleep(min(max(waits.next(), slow), askAgain-r.elapsed(), waitEnd-r.elapsed())) && r.elapsed() < waitEnd {
		asked := r.elapsed()
		if asked >= askAgain {
			return true
		}
		status, err := r.inspect(l, busy.Key, min(callTime, waitEnd-r.elapsed()))
		slow = slowed(r.elapsed() - asked)
		switch {
		case err != nil:
		case status.State == lockstore.Free, status.State.Done(), status.State == lockstore.InDoubt:
			return true // a refusal of an acquire says more
		default:
			busy.State, busy.Holder, busy.Remaining, a.heard = status.State, status.Holder, status.Remaining, r.elapsed()
		}
	}
	return false
}

// look is what the runs share that wait for a key without a place, until leave.
func (s *shared) look(busy *LockBusy) (l *look, leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l = s.looks[busy.Key]; l == nil {
		l = &look{status: lockstore.Status{State: busy.State, Holder: busy.Holder, Remaining: busy.Remaining}}
		s.looks[busy.Key] = l
	}
	l.runs++
	return l, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if l.runs--; l.runs == 0 {
			delete(s.looks, busy.Key)
		}
	}
}

// inspect reads the state of a key. If another run has begun to read it less than firstPause ago, inspect returns what was read
// last.
func (r *run) inspect(l *look, key string, limit time.Duration) (lockstore.Status, error) {
	s := r.guard.shared
	s.mu.Lock()
	if last := l.status; time.Since(l.began) < firstPause {
		s.mu.Unlock()
		return last, nil
	}
	l.began = time.Now()
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(r, limit)
	defer cancel()
	status, err := r.guard.store.Inspect(ctx, key)
	if r.asked(err); err == nil {
		s.mu.Lock()
		l.status = status
		s.mu.Unlock()
	}
	return status, err
}

// mostNotYet is how many answers without news a run takes before it sends an Acquire: a store that gives them
// at once, again and again, must not keep a processor busy.
const mostNotYet = 1000

// awaitTurn waits until the store says that it is the owner's turn, until the key is handed over to
// the owner, or until the holder's lease must have ended. It returns true then: try acquires again,
// or starts under the lease that was handed over. A store that says so within 50 ms
// may be wrong. So the run pauses first if it is the second wait in a row that ended within 50 ms, or if the
// wait failed within 50 ms.
func (r *run) awaitTurn(busy *LockBusy, a *attempt, waitEnd time.Duration) bool {
	refused, began := a.sent, r.elapsed()
	if began >= waitEnd {
		return false
	}
	ctx, cancel := r.until(min(waitEnd, began+max(busy.Remaining, firstPause)))
	defer cancel()
	var news lockstore.Awaited
	var err error
	for n := 0; n < mostNotYet && err == nil && !news.Ask && news.Lease.Fence == 0; n++ {
		a.sent = r.elapsed() // the trust in a lease that is handed over counts from here
		news, err = r.guard.store.AwaitTurn(ctx, lockstore.Place{Key: busy.Key, Owner: a.owner, Elapsed: a.sent - refused, Note: a.note})
		if ctx.Err() != nil {
			r.asked(nil) // the wait is over, and nothing has failed
		} else {
			r.asked(err)
		}
		a.note = cmp.Or(news.Lease.Note, news.Note, a.note)
	}
	if a.lease, a.handed = news.Lease, news.Lease.Fence; a.handed != 0 {
		a.queued = false
		return true // also if Wait is over now
	}
	if a.early++; r.elapsed()-began >= firstPause {
		a.early = 0
	}
	if a.early > 1 || a.early == 1 && err != nil {
		r.sleep(min(r.guard.random(maxWaitPause)+1, waitEnd-r.elapsed()))
	}
	return r.Err() == nil && r.elapsed() < waitEnd
}

// giveUp cleans up after an acquisition that failed: the store may still apply a request of it, and
// its owner may have a place in the queue or a lease. It returns outcome and err. If a lease or
// a place may remain in the store, it returns OutcomeUnknown, unless outcome is invalid or corrupt.
//
// The owner that a caller has chosen keeps all of that, because the caller asks again. Its place alone makes
// no outcome unknown.
func (r *run) giveUp(a *attempt, outcome Outcome, err error) (Outcome, error) {
	var remains error // why the store may still have something of the attempt
	cause := errInQueue
	if a.queued && a.unknown == nil && a.lease.Fence == 0 && !a.repeatable {
		remains = r.leave(a)
	}
	if a.unknown != nil || a.lease.Fence != 0 {
		cause, remains = fmt.Errorf("%w; the attempt could not be abandoned and may block the key for up to %v", cmp.Or(a.unknown, errLate), a.ttl), errRepeatable
		if !a.repeatable {
			remains = r.giveBack(a)
		}
		if u, ok := err.(*LockStoreUnavailable); ok && remains == nil {
			u.Err = fmt.Errorf("%w; the attempt was abandoned", u.Err)
		}
	}
	r.report.ReleaseErr = remains
	if remains == nil || outcome == OutcomeInvalid || outcome == OutcomeCorrupt {
		return outcome, err
	}
	// Whatever ended the run, the store may grant the attempt now or later. So the
	// outcome is unknown, also if the store refused the abandon and the last request. remains is only text: the
	// error must not match lockstore.ErrUnavailable, which would say that nothing is left in the store.
	return OutcomeUnknown, &LockStoreUnavailable{r.report.Key, fmt.Errorf("%w: %v", cause, remains)}
}

// leave gives up the owner's place in the queue. If the owner was handed the key meanwhile, it has
// a lease then.
func (r *run) leave(a *attempt) error {
	return r.releasing(false, releaseTime, func(ctx context.Context) error {
		err := r.guard.store.Leave(ctx, r.report.Key, a.owner)
		if granted, ok := errors.AsType[*lockstore.Granted](err); ok {
			a.lease = lockstore.Lease{Key: r.report.Key, Owner: a.owner, Fence: granted.Fence}
			if granted.Fence == 0 {
				a.unknown = granted // a store that does not say which lease it is
			}
			return nil
		}
		return err
	})
}

// giveBack gives back what the attempt has in the store. If a request of it may arrive later, it
// abandons the owner: then no request of this owner takes the lock any more. An abandon ends the
// place, too. But it leaves a mark in the store, and DynamoDB keeps only one. So it is only for unknown
// outcomes. giveBack tries once: after a failure every further call returns the
// same error.
func (r *run) giveBack(a *attempt) error {
	if a.kept == nil {
		lease := a.lease
		if a.unknown != nil {
			lease = lockstore.Lease{Key: r.report.Key, Owner: a.owner}
		}
		a.kept = r.release(lease, 0, false, releaseTime)
		if outcomeOf(a.kept) == OutcomeLost {
			a.kept = nil // the lease has ended by itself
		}
	}
	return a.kept
}
