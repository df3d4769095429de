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

// wanted is the lease that a run asks for.
type wanted struct {
	ttl   time.Duration   // 0 fits the lease to the time that is left
	owner lockstore.Owner // that the caller has chosen, and asks again with; "" is a new one

	// long says that the run uses no short lease of a hand-over, and makes it a long one first. So does a run that will mark
	// its start, store a result or begin a cooldown, and one that still needs keys: they have more to lose.
	long bool
	once bool // the run does not wait for a key that is completed or in a cooldown

	work, event string // of a run that coalesces

	turn    time.Duration // of a parked place; 0 is none
	address lockstore.WakeAddress
}

// attempt is the acquisition of a run, also while it waits. It has one owner at a time. It needs a new one
// if the store grants the old one nothing any more, or if the old one's lease came too late to be used.
// It lives in acquire, and only the goroutine of the call uses it.
type attempt struct {
	run      *run
	acquires *retrier
	pauses   pauses // between polls
	owner    lockstore.Owner
	queued   bool            // the owner may have a place in the queue: it has had one, and nothing has ended it surely
	joins    bool            // the present request asks for one
	place    int             // in the queue at the last refusal; 0 is none
	seen     lockstore.Fence // of the key's last grant at the last refusal
	handed   bool            // lease is that of a hand-over
	busy     *LockBusy       // the last refusal; nil before the first
	heard    time.Duration   // when the store last said what is in the way
	early    int             // how many turns in a row came without any wait
	sent     time.Duration   // when the present request was first sent; the trust counts from here
	ttl      time.Duration   // of the present request
	note     lockstore.Hint  // of the last answer
	lease    lockstore.Lease // that the store has given to the owner, and that the run does not work under yet
}

// acquire asks until the run has a lease (r.held, r.window), or returns the outcome and the error of a run
// whose work does not start. After a refusal the same owner asks again: the place in the queue belongs to it.
// It sends an Acquire or, for what was handed over, an Extend; while it waits, AwaitTurn or Inspect; and what giveBack
// and giveUp send for a lease that came too late and at the end. It starts no renewals.
// do and acquireLease call it.
func (r *run) acquire() (outcome Outcome, err error) {
	defer func() { r.notes.WaitTime = r.now() - r.call.start }()
	if outcome, err := r.mayStart(); err != nil {
		return outcome, err
	}
	a := &attempt{run: r, acquires: r.newRetrier(&r.window, max(r.call.waitEnd, r.askUntil())), pauses: r.guard.newPauses()}
	a.startOver()
	for {
		outcome, err := a.requestLease()
		switch outcome {
		case OutcomeOK:
			if r.take(a.lease, a.sent, false) {
				return OutcomeOK, nil
			}
			// The lease is there, but too late to work under it.
			a.queued, err = false, errLate
			if outcome, tooLate := r.hasTime(); tooLate != nil {
				return a.giveUp(outcome, tooLate)
			}
			if r.wanted.owner != "" {
				a.askAfresh()
				break
			}
			// Without a release the new owner could find the key held by its own run. If the outcome
			// of the release is unknown, the old owner must get no lease any more: the release may
			// still arrive, and would end that lease under the work.
			if kept := a.giveBack(); kept != nil {
				return a.ended(OutcomeUnavailable, err, a.mayBlock(), kept)
			}
			a.startOver()
		case OutcomeBusy:
			if covered := a.noteRefusal(err); covered {
				r.noteHolder(a.busy)
				return a.giveUp(OutcomeCovered, &LockCovered{r.key, r.wanted.work, a.busy.Holder, err})
			}
			again := a.wait()
			r.noteHolder(a.busy)
			switch gone := r.whyEnded(); {
			case gone != nil:
				return a.giveUp(OutcomeDeadline, &LockNoTime{Key: r.key, Err: gone})
			case !again:
				return a.giveUp(OutcomeBusy, a.busy)
			case a.handed && !r.wanted.long && r.take(a.lease, a.sent, true): // it was handed over
				return OutcomeOK, nil
			case a.handed: // Wait may be over, and the extension has the rest of the turn
				a.acquires.end = max(a.acquires.end, a.sent+a.lease.TTL-margin)
			}
			a.askAfresh()
			continue
		case OutcomeLost:
			if a.handed { // this lease has lapsed, and the owner may ask for another one
				r.notes.MissedTurns++
				a.handed, a.place, a.lease = false, 0, lockstore.Lease{}
				a.askAfresh()
				continue
			}
			// The store grants this owner nothing any more.
			if a.acquires.unknown, a.queued, a.lease = nil, false, (lockstore.Lease{}); r.wanted.owner != "" {
				return a.giveUp(r.failure(err))
			}
			a.startOver()
		case OutcomeInvalid, OutcomeCorrupt:
			return a.giveUp(r.failure(err))
		default:
			return a.giveUp(a.notGranted(err))
		}
		if !a.acquires.backOff() {
			return a.giveUp(a.notGranted(err))
		}
	}
}

// mayStart says why a run ends before its first request: the key is invalid, a run around this one has it, the guard is shut down, or the deadline is too
// near. It sends and changes nothing. Only acquire calls it, at its beginning; checkBegin is the one before the work, and changes the window.
func (r *run) mayStart() (Outcome, error) {
	if err := lockstore.ValidateKey(r.key); err != nil {
		return r.failure(err)
	}
	for around := r.around; around != nil; around = around.around {
		if around.guard.runs == r.guard.runs && around.key == r.key && !around.window.look().closed {
			return r.failure(errNested)
		}
	}
	if r.guard.runs.over.Err() != nil {
		return OutcomeDeadline, &LockNoTime{Key: r.key, Err: errShutdown}
	}
	return r.hasTime()
}

// hasTime returns a *LockNoTime if too little time is left for the work until the caller's deadline. mayStart, acquire and checkBegin call it.
func (r *run) hasTime() (Outcome, error) {
	if left := r.left(); left < r.guard.opt.DeadlineMargin+leastWork {
		return OutcomeDeadline, &LockNoTime{Key: r.key, left: max(0, left), reserve: r.guard.opt.DeadlineMargin}
	}
	return OutcomeOK, nil
}

// whyEnded says why the run's context has ended, nil while it has not: the caller's cancellation, Shutdown, and, noted by window.check, that the time
// for the work is over (ErrDeadline) or that a run around has lost its lease. acquire, notGranted and checkBegin call it.
func (r *run) whyEnded() error { return context.Cause(r.window.ctx) }

// take makes the lease the run's, if there is time to work under it: it sets held, holdEnd, notes and holder, and opens the window. short says that it is
// the lease of a hand-over. It checks the window first, which may end this context and those of the runs around. It returns false, and sets nothing, if the
// context has ended or too little time is left: then acquire extends the lease of a hand-over, and gives back every other one. It sends nothing; only acquire
// calls it.
func (r *run) take(lease lockstore.Lease, sent time.Duration, short bool) bool {
	r.window.check() // the run around this run may have lost its lease meanwhile
	now := r.now()
	stop, trust := min(r.call.deadline-r.guard.opt.DeadlineMargin, now+r.guard.opt.MaxHold), sent+lease.TTL-margin
	if r.inside != nil {
		stop = min(stop, r.inside.window.look().stop)
	}
	least := leastWork
	if short {
		least = leastTurn
	}
	if stop-now < leastWork || trust-now < least || r.window.ctx.Err() != nil {
		return false
	}
	r.window.open(stop, trust)
	r.setSince(sent)
	r.held.Store(&held{lease, sent, short})
	r.holdEnd, r.notes.AcquiredAt = now+r.guard.opt.MaxHold, r.call.wall(now)
	return true
}

// startOver gives the attempt another owner, unless the caller has chosen it, and forgets what the store has for the last one: its place,
// a hand-over, its lease, its hint, answers that were lost. The last refusal stays. It sets sent and ttl (askAfresh), and sends nothing. acquire calls it at
// its beginning, after a lease that came too late, and for an owner that the store grants nothing any more.
func (a *attempt) startOver() {
	a.owner = cmp.Or(a.run.wanted.owner, lockstore.NewOwner())
	a.acquires.unknown, a.queued, a.place, a.handed, a.early, a.note, a.lease = nil, false, 0, false, 0, "", lockstore.Lease{}
	a.askAfresh()
}

// askAfresh sets sent and ttl for the next request, after an answer that is final for the last one, and sends nothing. The trust counts from
// the next request: the repeat of one that was granted after all is answered with the time that is left. acquire and startOver call it.
func (a *attempt) askAfresh() {
	a.sent = a.run.now()
	a.ttl = a.run.ttl(a.sent)
}

// requestLease sends an Acquire, or an Extend if the owner was handed the key, until the answer is clear, or until the time to ask is over. It sets
// joins, the holder's Since, lease if it is granted (take makes it the run's), and after a lost answer acquires.unknown. acquire calls it.
func (a *attempt) requestLease() (Outcome, error) {
	r := a.run
	return a.acquires.send(func(ctx context.Context) (err error) {
		holder := r.setSince(a.sent)
		a.joins = !a.handed && (r.now() < r.call.waitEnd || r.wanted.turn > 0)
		req := lockstore.Request{
			Key: r.key, Owner: a.owner, TTL: a.ttl, HolderInfo: holder, MaxHolders: r.guard.maxHolders, JoinQueue: a.joins, Hint: a.note,
			Parked: r.wanted.turn, Address: r.wanted.address,
		}
		if a.joins {
			req.Work, req.Event = r.wanted.work, r.wanted.event
		}
		var lease lockstore.Lease
		if a.handed {
			lease, err = r.guard.store.Extend(ctx, lockstore.Lease{Key: r.key, Owner: a.owner, Fence: a.lease.Fence, Hint: a.note}, a.ttl, holder)
		} else {
			lease, err = r.guard.store.Acquire(ctx, req)
		}
		if err == nil {
			a.lease = lease
		}
		return err
	})
}

// noteRefusal makes a refusal the last thing that is known of the owner; acquire calls it when an Acquire or an Extend was refused as busy, and not after a
// look at the queue (AwaitTurn). It sets place, seen, busy, heard, note and queued, ends a hand-over (handed, lease), adds to notes, and sends nothing.
// The owner has missed its turn if others got the key since the last refusal and its place is gone or has not come nearer to the front. This counts as a
// lapse. A place that a refusal does not show may be there all the same: some stores refuse by an old read.
func (a *attempt) noteRefusal(err error) (covered bool) {
	refusal, ok := errors.AsType[*lockstore.Refused](err)
	if !ok { // a store need not say why
		refusal = new(lockstore.Refused)
	}
	notes, place := &a.run.notes, refusal.QueuePosition
	ended := refusal.State.Done() || refusal.Covered      // the queue has ended, or the owner is surely not in it
	hidden := ended || refusal.State == lockstore.InDoubt // the refusal shows no place
	if a.place != 0 && !hidden && refusal.Fence > a.seen && (place == 0 || place >= a.place) {
		notes.MissedTurns++
	}
	notes.NoPlace = (notes.NoPlace || a.joins && !hidden) && place == 0
	notes.QueuePosition, notes.OldestWait = cmp.Or(notes.QueuePosition, place), max(notes.OldestWait, refusal.OldestWait)
	a.queued, a.handed, a.place, a.seen = !ended && (a.queued || place > 0), false, place, refusal.Fence
	a.busy = &LockBusy{
		Key: a.run.key, State: refusal.State, Holder: refusal.Holder, StateEndsIn: refusal.StateEndsIn, QueuePosition: place, err: err,
	}
	a.heard, a.note, a.lease = a.run.now(), refusal.Hint, lockstore.Lease{}
	return refusal.Covered
}

// notGranted is the answer when the time to ask is over. If the store said less than 5 s ago what is in
// the way, and no answer was lost, the answer is busy, although the last request failed: an overloaded pool or store
// drops requests. It sends and changes nothing. acquire calls it, also when backOff leaves no time to ask again, and passes what it
// returns to giveUp.
func (a *attempt) notGranted(err error) (Outcome, error) {
	r := a.run
	if gone := r.whyEnded(); gone != nil {
		return OutcomeDeadline, &LockNoTime{Key: r.key, Err: gone}
	}
	if a.busy != nil && a.lease.Fence == 0 && outcomeOf(err) == OutcomeUnavailable && a.acquires.unknown == nil && r.now()-a.heard < storeRetryBudget {
		return OutcomeBusy, a.busy
	}
	return OutcomeUnavailable, &LockStoreUnavailable{r.key, err}
}

// giveUp cleans up after an acquisition that failed, and says how it ends; only acquire calls it. It sends a Leave if there is only a place in the queue, and
// then giveBack's request if there is a lease, or may be one. These may hand the key over, and then sendRelease wakes parked owners. For an owner that the
// caller has chosen it sends nothing, because the caller asks again. If something may be left in the store, the outcome is unknown (ended, which sets
// ReleaseErr). The place alone of an owner that the caller has chosen does not make it so.
func (a *attempt) giveUp(outcome Outcome, err error) (Outcome, error) {
	repeatable := a.run.wanted.owner != ""
	var remains error // why the store may still have something of the attempt
	cause := errInQueue
	if a.queued && a.acquires.unknown == nil && a.lease.Fence == 0 && !repeatable {
		remains = a.leaveQueue()
	}
	if a.acquires.unknown != nil || a.lease.Fence != 0 {
		cause, remains = a.mayBlock(), errRepeatable
		if !repeatable {
			remains = a.giveBack()
		}
		if u, ok := err.(*LockStoreUnavailable); ok && remains == nil {
			u.Err = fmt.Errorf("%w; the attempt was abandoned", u.Err)
		}
	}
	return a.ended(outcome, err, cause, remains)
}

// mayBlock is why the key may stay blocked if the attempt cannot be given back. acquire and giveUp pass it to ended as the cause, so the error of the
// call wraps it.
func (a *attempt) mayBlock() error {
	return fmt.Errorf("%w; the attempt could not be abandoned and may block the key for up to %v", cmp.Or(a.acquires.unknown, errLate), a.ttl)
}

// ended is how the acquisition ends with outcome and err. If a lease or a place may remain in the store, it is OutcomeUnknown, with
// this cause, unless outcome is corrupt. remains says why, and becomes Report.ReleaseErr. acquire and giveUp call it.
func (a *attempt) ended(outcome Outcome, err, cause, remains error) (Outcome, error) {
	a.run.notes.ReleaseErr = remains
	if remains == nil || outcome == OutcomeCorrupt {
		return outcome, err
	}
	// Whatever ended the run, the store may grant the attempt now or later. So the
	// outcome is unknown, also if the store refused the abandon and the last request. remains is only text: the
	// error must not match lockstore.ErrUnavailable, which would say that nothing is left in the store.
	return OutcomeUnknown, &LockStoreUnavailable{a.run.key, fmt.Errorf("%w: %v", cause, remains)}
}

// leaveQueue sends Leave: it gives up the owner's place in the queue. If the owner was handed the key meanwhile, it returns nil and sets
// a.lease: giveUp, its only caller, then gives that back. queued stays. It may hand the key over, and then sendRelease wakes parked owners.
func (a *attempt) leaveQueue() error {
	return a.run.sendRelease(releaseTime, func(ctx context.Context) error {
		err := a.run.guard.store.Leave(ctx, a.run.key, a.owner)
		if granted, ok := errors.AsType[*lockstore.StillHolds](err); ok {
			a.lease = lockstore.Lease{Key: a.run.key, Owner: a.owner, Fence: granted.Fence}
			return nil
		}
		return err
	})
}

// giveBack sends a Release of the lease that the attempt has in the store. If a request of it may arrive later, it sends an Abandon: then no request of this
// owner takes the lock any more. An abandon ends the place, too. But it leaves a mark in the store, and DynamoDB keeps only one. So it is only for unknown
// outcomes. giveUp calls it, and acquire after a lease that came too late; at most once for an owner. It changes nothing of the attempt. It may hand the key
// over, and then sendRelease wakes parked owners. nil says that nothing is left, also if the lease had ended by itself.
func (a *attempt) giveBack() (err error) {
	if a.acquires.unknown != nil {
		err = a.run.abandon(a.owner)
	} else {
		err = a.run.releaseLease(a.lease, 0, releaseTime)
	}
	if outcomeOf(err) == OutcomeLost {
		return nil // the lease has ended by itself
	}
	return err
}
