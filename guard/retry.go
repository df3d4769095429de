package guard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// retry is a request to the store with its repeats. A call that fails is repeated after a
// pause, until the store gives a clear answer, or until the time is over.
type retry struct {
	*run
	ctx       context.Context // of the calls and of the pauses between them
	end       time.Duration   // no repeat begins later
	releasing bool            // it ends something: Shutdown cuts it, and limit has other bounds
	repeats   bool            // this call is not the first
	took      time.Duration   // by the last call
	pause     pauses
	failed    func(error) // is told each answer that is not clear; may be nil
	unknown   error       // the first answer that was lost: the store may apply that request, now or later
}

func (r *run) retry(end time.Duration) retry {
	return retry{run: r, ctx: r, end: end, pause: r.guard.pauses(maxPause)}
}

// toAsk is when the guard stops asking a store that fails.
func (r *run) toAsk() time.Duration {
	now := r.elapsed()
	return now + min(storeRetryBudget, (r.left-now)/2)
}

// ask repeats a call until its answer is clear. It returns an unclear one when the time is over.
//
// If a reply is lost, nobody knows whether the store applied that request, and an unclear answer
// to a repeat does not tell. The error is then that of the lost answer.
func (t *retry) ask(call func(context.Context) error) (Outcome, error) {
	for {
		ctx, cancel := t.context(t.limit())
		began := t.elapsed()
		err := call(ctx)
		t.took = t.elapsed() - began
		cancel()
		t.asked(err)
		t.repeats = true
		outcome := outcomeOf(err)
		if outcome != OutcomeUnavailable && outcome != OutcomeUnknown {
			return outcome, err
		}
		if t.failed != nil {
			t.failed(err)
		}
		if errors.Is(err, lockstore.ErrContended) {
			switch {
			case t.releasing:
				t.end = t.extendRelease(t.end)
				t.wakes.end, t.pause.most = t.end, maxWaitPause
			case t.failed != nil: // a renewal
				t.pause.most = maxWaitPause
			}
		}
		switch {
		case t.unknown != nil:
			outcome, err = OutcomeUnknown, t.askedAgain(err)
		case outcome == OutcomeUnknown:
			t.unknown = err
		}
		if !t.again() {
			return outcome, err
		}
	}
}

// askedAgain is the error of an answer that does not say what became of a request whose answer was
// lost.
func (t *retry) askedAgain(err error) error {
	return fmt.Errorf("%w; asked again: %v", t.unknown, err)
}

// again pauses before a repeat. It returns false if there is no time for one.
func (t *retry) again() bool {
	ctx, cancel := t.context(min(t.pause.next(), t.end-t.elapsed()))
	defer cancel()
	<-ctx.Done()
	return t.ctx.Err() == nil && ctx.Err() == context.DeadlineExceeded && t.elapsed() < t.end
}

// context is for one call, or for one pause.
func (t *retry) context(d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(t.ctx, d)
	if t.releasing {
		t.setCut(cancel)
	}
	return ctx, cancel
}

// limit is how long the next call may take: half of the time that is left, but at most 2 s and at least
// 200 ms. A release has no minimum, and its repeat may take all the time that is left, but at most 2 s.
func (t *retry) limit() time.Duration {
	left := t.end - t.elapsed()
	switch {
	case !t.releasing:
		return min(callTime, max(minCallTimeout, left/2))
	case !t.repeats:
		return min(callTime, left/2)
	}
	return min(callTime, left)
}

// releasing repeats a call that ends something in the store, within the time that beginRelease
// gives, and then waits for the wake-ups that the call has made necessary. If an answer was lost, only nil as
// the answer to a repeat shows that the request was applied.
func (r *run) releasing(afterWork bool, most time.Duration, call func(context.Context) error) error {
	d := r.beginRelease(afterWork, most)
	defer r.setCut(nil)
	t := r.retry(r.elapsed() + d)
	t.ctx, t.releasing = context.WithoutCancel(r), true // the run's context may have ended
	r.wakes.end = t.end
	outcome, err := t.ask(call)
	r.endWakes(t.end)
	r.wakes.end = 0
	if err != nil && outcome != OutcomeUnknown && t.unknown != nil {
		err = t.askedAgain(err)
	}
	return err
}

// release releases a lease, or with a cooldown completes it.
func (r *run) release(lease lockstore.Lease, cooldown time.Duration, afterWork bool, most time.Duration) error {
	return r.releasing(afterWork, most, func(ctx context.Context) error {
		if cooldown > 0 {
			return r.guard.store.Complete(ctx, lease, nil, cooldown)
		}
		return r.guard.store.Release(ctx, lease)
	})
}

// releaseAfterWork releases the run's lease; the parameter most bounds the time.
func (r *run) releaseAfterWork(cooldown, most time.Duration) {
	r.report.ReleaseErr = r.release(r.lease, cooldown, true, most)
	r.lostUnderWork(r.report.ReleaseErr)
}
