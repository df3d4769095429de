package guard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// OnceOptions says how DoOnce treats a key whose work may have run before.
type OnceOptions struct {
	// MarkStarted says to the store, before the work, that the work begins. It costs a write.
	// If the work then does not end with an Completion that keeps or frees the key, the key is
	// in doubt when its lease ends: nobody gets it before somebody settles it.
	MarkStarted bool

	// Refused says how DoOnce ends when the key is kept or in doubt, so that the work does
	// not run: busy.Err is a *lockstore.KeptError or a *lockstore.DoubtError. nil returns
	// the *LockBusy.
	Refused func(busy *LockBusy) (Outcome, error)
}

// Completion says what work leaves in the place of its lease. The zero value keeps nothing.
type Completion struct {
	// ResultTime is for how long the key is kept with Data, lockstore.MinTTL to
	// lockstore.MaxResultTime. 0 keeps nothing: then the key is released, or with OnceOptions.MarkStarted
	// left in doubt. After work that returned an error nothing is kept.
	ResultTime time.Duration
	Result     lockstore.Secret

	// Substitute is kept instead of Data if the store refuses Data as invalid, because it is too
	// large for this store. nil keeps nothing then.
	Substitute lockstore.Secret

	// Err is why Data is not the answer itself. It stands in Report.CompleteErr.
	Err error

	// NoEffect releases the key also after OnceOptions.MarkStarted, because the work had no effect.
	NoEffect bool
}

// CanComplete returns an error unless DoOnce works with the guard's store, which must be a
// lockstore.Completer.
func (g *Guard) CanComplete() error {
	_, err := g.keeper()
	return err
}

func (g *Guard) keeper() (lockstore.Completer, error) {
	if err := g.Validate(); err != nil {
		return nil, err
	}
	keeper, ok := lockstore.As[lockstore.Completer](g.store)
	if !ok {
		return nil, fmt.Errorf("guard: the store (%T) cannot keep an answer: it is no lockstore.Completer", g.store)
	}
	return keeper, nil
}

// DoOnce is Do for work that must not run again, because its answer is kept in the key's
// entry. Package idempotency is built on it. A run that finds the key kept or in doubt does
// not wait: its work does not run, and k.Refused says how the run ends. A run that waits
// while another works gets the answer within about two seconds after it is kept.
//
// The write that keeps the answer is the one that ends the lease. After the work it may take
// as long as MaxHold, but at most until 100 ms before ctx's deadline, and after Shutdown at
// most 300 ms. It works also after the lease has ended, if nobody was
// granted the key since; then the lock counts as not lost. If it fails, DoOnce does not
// release the lease, because a second run could begin at once: the lease ends by its TTL.
// DoOnce returns what the work returned, and Report.CompleteErr says why nothing is kept.
//
// After an error of the work, a panic or runtime.Goexit, DoOnce releases the lease. With
// k.MarkStarted it does so only if the work returned Completion.NoEffect. This release may take as long as
// the write that keeps the answer, because without it the key would be in doubt.
func (g *Guard) DoOnce(ctx context.Context, key string, k OnceOptions, work func(context.Context, Lock) (Completion, error)) error {
	if err := g.usable(ctx); err != nil {
		return err
	}
	if work == nil {
		return errNoWork
	}
	keeper, err := g.keeper()
	if err != nil {
		return err
	}
	c := g.newCall(ctx)
	r := c.newRun(ctx, key)
	defer r.close()
	r.keeps = true
	if outcome, err := r.acquire(); err != nil {
		if busy, ok := err.(*LockBusy); ok && busy.Err != nil && k.Refused != nil {
			outcome, err = k.Refused(busy)
		}
		return r.end(outcome, err)
	}
	var ending Completion
	end := func(err error) {
		switch {
		case err == nil && ending.ResultTime != 0:
			r.keep(keeper, ending)
		case !k.MarkStarted && r.lost != nil && !r.expired: // nothing is left to release
		case r.begun && (ending.NoEffect || !c.working):
			r.releaseAfterWork(cooldown{}, g.opt.MaxHold)
		case !r.begun:
			r.releaseAfterWork(cooldown{}, releaseTime)
		default:
			r.report.CompleteErr = errInDoubt
		}
	}
	_, err = r.hold(cooldown{end: end}, func(ctx context.Context, lock Lock) (Outcome, error) {
		if k.MarkStarted {
			if outcome, err := r.begin(keeper); err != nil {
				return outcome, err
			}
		}
		return c.runWork(func() (err error) {
			ending, err = work(ctx, lock)
			return err
		})
	})
	return err
}

var errInDoubt = errors.New("the work began and did not say that it had no effect: unless it has kept its answer itself, nobody gets the key before somebody settles it")

// begin says to the store that the work begins. The work may run only if the store has
// confirmed this, and if there is still time for the work. Otherwise the caller releases
// the lease, which also takes back a begin whose answer was lost.
func (r *run) begin(keeper lockstore.Completer) (Outcome, error) {
	var said error
	outcome, err := r.ask(func(ctx context.Context) error {
		said = keeper.MarkStarted(ctx, r.lease)
		return said
	})
	r.begun = err == nil || outcome == OutcomeUnknown
	if outcome == OutcomeLost {
		r.lose(said)
	}
	left, cause := r.check(), r.callerGone()
	r.mu.Lock()
	lost := r.lost
	r.mu.Unlock()
	switch {
	case lost != nil:
		return OutcomeUnavailable, lost // hold makes the error of a lock that was lost before the work
	case err != nil:
		return outcome, err
	case cause != nil:
		return OutcomeDeadline, &LockDeadline{Key: r.report.Key, Err: cause}
	case left >= leastWork:
		return OutcomeOK, nil
	}
	if left := r.left - r.elapsed(); left < r.guard.opt.DeadlineMargin+leastWork {
		return r.tooLate(left)
	}
	return OutcomeUnavailable, &LockStoreUnavailable{r.report.Key, errLate}
}

// keep ends the lease and keeps the answer in its place. If that fails, the lease must run
// out: the answer is not kept, and a release would let a second run begin at once.
func (r *run) keep(keeper lockstore.Completer, e Completion) {
	why := e.Err
	err := r.withRetries(r.beginRelease(true, r.guard.opt.MaxHold), func(ctx context.Context) error {
		err := keeper.Complete(ctx, r.lease, e.Result, e.ResultTime)
		if outcomeOf(err) == OutcomeInvalid && e.Substitute != nil {
			why = fmt.Errorf("the store refused the answer, and only a mark is kept: %w", err)
			e.Result, e.Substitute = e.Substitute, nil
			r.report.Calls++
			err = keeper.Complete(ctx, r.lease, e.Result, e.ResultTime)
		}
		return err
	})
	switch {
	case err == nil:
		// Nobody was granted the key since this run, so the lease was not lost under the
		// work, even if it had ended.
		r.lost = nil
		r.report.CompleteErr = why
		return
	case errors.Is(err, lockstore.ErrLost) && r.lost == nil && r.elapsed() < r.trust:
		r.lost = err
		r.follow(PhaseLost, err)
	}
	r.report.CompleteErr = err
}
