package guard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// releaseAfterWork releases the lease after the work. If the store answers that the lease
// is lost, and the lease could still be trusted, then the lease was lost under the work.
// After the end of trust, or after a lost reply, the same answer says nothing about the
// time of the work. The release and its repeats take at most the time most.
func (r *run) releaseAfterWork(cooldown, most time.Duration) {
	err := r.release(r.lease, r.beginRelease(true, most), cooldown)
	r.report.ReleaseErr = err
	if errors.Is(err, lockstore.ErrLost) && r.lost == nil && r.elapsed() < r.trust {
		r.lost = err
		r.trace(PhaseLost, err)
	}
}

// release releases a lease within the time d, which beginRelease returned. 0 is no cooldown.
func (r *run) release(lease lockstore.Lease, d, cooldown time.Duration) error {
	return r.withRetries(d, func(ctx context.Context) error {
		if cooldown > 0 {
			return r.guard.store.Complete(ctx, lease, nil, cooldown)
		}
		return r.guard.store.Release(ctx, lease)
	})
}

// withRetries calls the store within the time d. After a lost answer it calls again. It
// does not depend on the run's context, which has ended by now.
func (r *run) withRetries(d time.Duration, ask func(context.Context) error) error {
	end := r.elapsed() + d
	caller := context.WithoutCancel(r.caller)
	defer r.setCut(nil)
	// The first call may use half of the time, so that one repeat fits in.
	limit := min(d/2, callTime)
	pause := r.guard.pauses(maxPause)
	var answers answers
	for {
		call, cancel := r.step(caller, limit)
		err := ask(call)
		cancel()
		r.report.Calls++
		if err == nil {
			return nil
		}
		outcome := outcomeOf(err)
		err = answers.add(outcome, err)
		if !outcome.mayRetry() {
			return err
		}
		rest, cancel := r.step(caller, min(pause.next(), end-r.elapsed()))
		<-rest.Done()
		isCut := rest.Err() == context.Canceled
		cancel()
		if limit = end - r.elapsed(); limit <= 0 || isCut {
			return err
		}
		limit = min(limit, callTime)
	}
}

// answers are the store's answers to a request and its repeats. If one reply is lost, it
// is open whether the store applied that request, and the answer to a repeat does not
// say so.
type answers struct{ unknown error }

// add returns what is known after one more answer, an error with this outcome.
func (a *answers) add(outcome Outcome, err error) error {
	switch {
	case a.unknown != nil:
		return fmt.Errorf("%w; asked again: %v", a.unknown, err)
	case outcome == OutcomeUnknown:
		a.unknown = err
	}
	return err
}

// after adds to a final answer that an earlier one was lost.
func (a *answers) after(err error) error {
	if a.unknown == nil {
		return err
	}
	return fmt.Errorf("%w; the answer to an earlier request was lost: %v", err, a.unknown)
}
