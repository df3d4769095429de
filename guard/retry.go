package guard

import (
	"context"
	"fmt"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// retry is a request to the store with its repeats. A call that fails is repeated after a
// pause, until the store gives a clear answer, or until the time is over.
type retry struct {
	*run
	end       time.Duration // no repeat begins later
	releasing bool          // the run's context has ended, and Shutdown cuts the repeats
	repeats   bool          // this call is not the first
	pause     pauses
	failed    func(error) // is told each answer that is not clear; may be nil
	unknown   error       // the first answer that was lost: the store may apply that request, now or later
}

func (r *run) retry(end time.Duration) retry {
	return retry{run: r, end: end, pause: r.guard.pauses(maxPause)}
}

// toAsk is how long a store that fails is asked from now on.
func (r *run) toAsk() time.Duration {
	now := r.elapsed()
	return now + min(storeRetryBudget, (r.left-now)/2)
}

// ask repeats a call until its answer is clear. It returns an unclear one when the time is over.
//
// If a reply is lost, it is open whether the store applied that request, and an unclear answer
// to a repeat does not say so. The error is then that of the lost answer.
func (t *retry) ask(call func(context.Context) error) (Outcome, error) {
	for {
		ctx, cancel := t.context()
		err := call(ctx)
		cancel()
		t.asked()
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
	d := min(t.pause.next(), t.end-t.elapsed())
	if !t.releasing {
		return t.sleep(d) && t.elapsed() < t.end
	}
	ctx, cancel := t.step(d)
	defer cancel()
	<-ctx.Done()
	return ctx.Err() == context.DeadlineExceeded && t.elapsed() < t.end
}

// context is for one call.
func (t *retry) context() (context.Context, context.CancelFunc) {
	if t.releasing {
		return t.step(t.limit())
	}
	return context.WithTimeout(t.run, t.limit())
}

// limit is how long the next call may take: half of the time that is left, so that one repeat fits
// in. The repeats of a release may take all of it.
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

// releasing repeats a call that ends something in the store, within the time d that
// beginRelease has returned. Only nil says that a request whose answer was lost was applied.
func (r *run) releasing(d time.Duration, call func(context.Context) error) error {
	t := r.retry(r.elapsed() + d)
	t.releasing = true
	defer r.setCut(nil)
	_, err := t.ask(call)
	if outcomeOf(err) != OutcomeOK && outcomeOf(err) != OutcomeUnknown && t.unknown != nil {
		err = t.askedAgain(err)
	}
	return err
}

// release releases a lease, or with a cooldown completes it, within the time d.
func (r *run) release(lease lockstore.Lease, d, cooldown time.Duration) error {
	return r.releasing(d, func(ctx context.Context) error {
		if cooldown > 0 {
			return r.guard.store.Complete(ctx, lease, nil, cooldown)
		}
		return r.guard.store.Release(ctx, lease)
	})
}

// releaseAfterWork releases the run's lease, in the time most at the longest.
func (r *run) releaseAfterWork(cooldown, most time.Duration) {
	r.report.ReleaseErr = r.release(r.lease, r.beginRelease(true, most), cooldown)
	r.lostUnderWork(r.report.ReleaseErr)
}
