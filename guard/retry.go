package guard

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// storeCalls counts the calls of the store that a run makes. A renewal and MarkStarted may run at the same time.
type storeCalls struct{ all, failed atomic.Int64 }

// count counts one call. A call that was cut off because the run ended does not count as failed. send calls it after each
// call, and so do awaitTurn and inspectKey.
func (c *storeCalls) count(err error) {
	c.all.Add(1)
	if o := outcomeOf(err); (o == OutcomeUnavailable || o == OutcomeUnknown) && !errors.Is(err, context.Canceled) {
		c.failed.Add(1)
	}
}

// retrier sends one request to the store, again and again after pauses, until the store gives a clear answer, or until the
// time is over. One goroutine uses it.
type retrier struct {
	run     *run
	ctx     context.Context // of the calls and of the pauses between them
	end     time.Duration   // no repeat begins later
	pauses  pauses          // between the calls
	release bool            // the request ends something, so that limit has other bounds
	failed  func(error)     // is told each answer that is not clear; may be nil

	repeats bool          // the next call is not the first
	took    time.Duration // by the last call
	unknown error         // the first answer that was lost: the store may apply that request, now or later
}

// newRetrier makes a retrier whose calls count as those of the run. acquire, sendRelease, renew and request call it.
func (r *run) newRetrier(ctx context.Context, end time.Duration) *retrier {
	return &retrier{run: r, ctx: ctx, end: end, pauses: r.guard.newPauses()}
}

// send calls the store until its answer is clear, and counts each call. It returns an unclear one when the time is over. It sets repeats,
// took and unknown.
//
// If a reply is lost, nobody knows whether the store applied that request, and an unclear answer
// to a repeat does not tell. The error is then that of the lost answer. requestLease, sendRelease, renew and request call it.
func (t *retrier) send(call func(context.Context) error) (Outcome, error) {
	for {
		ctx, cancel := context.WithTimeout(t.ctx, t.limit())
		began := t.run.now()
		err := call(ctx)
		t.took = t.run.now() - began
		cancel()
		t.run.calls.count(err)
		t.repeats = true
		outcome := outcomeOf(err)
		if outcome != OutcomeUnavailable && outcome != OutcomeUnknown {
			return outcome, err
		}
		if t.failed != nil {
			t.failed(err)
		}
		switch {
		case t.unknown != nil:
			outcome, err = OutcomeUnknown, t.askedAgain(err)
		case outcome == OutcomeUnknown:
			t.unknown = err
		}
		if !t.backOff() {
			return outcome, err
		}
	}
}

// askedAgain is the error of an answer that does not say what became of a request whose answer was
// lost. send calls it for an unclear answer to a repeat, sendRelease for a clear error, too.
func (t *retrier) askedAgain(err error) error {
	return fmt.Errorf("%w; asked again: %v", t.unknown, err)
}

// backOff waits before a repeat. It returns false if there is no time for one. send calls it, and acquire before it asks again after a
// lease that came too late, or as a new owner.
func (t *retrier) backOff() bool {
	return sleep(t.ctx, min(t.pauses.next(), t.end-t.run.now())) && t.run.now() < t.end
}

// limit is how long the next call may take: half of the time that is left, so that one repeat fits in, but at most 2 s and at least 200 ms.
// A release ends in time: its first request has no more than is left, but at least 100 ms, also after a freeze, and a repeat may take all
// that is left, but at most 2 s. send calls it.
func (t *retrier) limit() time.Duration {
	left := t.end - t.run.now()
	switch {
	case !t.release:
		return min(callTime, max(minCallTimeout, left/2))
	case !t.repeats:
		return min(callTime, max(left/2, min(minCallTimeout, max(left, answerTime))))
	}
	return min(callTime, left)
}

// request sends a request that takes no lock and ends nothing (Renew, MarkStarted or Inspect), until its answer is clear, or until the time
// to ask is over. Guard.Renew, markStarted and Guard.Inspect call it.
func (r *run) request(call func(context.Context) error) error {
	t := r.newRetrier(&r.window, r.askUntil())
	outcome, err := t.send(call)
	if err != nil && outcome != OutcomeUnknown && t.unknown != nil {
		err = fmt.Errorf("%w; the answer to an earlier request was lost: %v", err, t.unknown)
	}
	return err
}

// askUntil is when the guard stops asking a store that fails. acquire and request (Renew, MarkStarted, Inspect) call it; releases and renew have ends of
// their own.
func (r *run) askUntil() time.Duration {
	now := r.now()
	return now + min(storeRetryBudget, (r.call.deadline-now)/2)
}

// isContended says that the store was too busy with the requests of others. sendRelease and renew call it.
func isContended(err error) bool { return errors.Is(err, lockstore.ErrContended) }
