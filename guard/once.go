package guard

import (
	"context"
	"errors"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/doonce"
)

// DoOnce is for package idempotency; a program uses that package. It is Do for work that must not be repeated: the write that ends the
// lease stores the work's result in its place. A run that finds the key completed or in doubt does not wait: its work does not
// run, and k.OnRefused says how the run ends. While another run works, a run with Wait waits, and gets the result at most about two seconds
// after it is stored.
//
// The write can succeed after the end of the lease, unless the key was granted to another, or somebody has revoked the lease or resolved
// the key. Then the run ends as ok. If the write fails, DoOnce does not release the lease, because a second run could begin at once: the lease
// ends by its TTL. DoOnce returns what the work returned, or *LockLost if the lease is lost, too, and Report.CompleteErr says why.
//
// After an error of the work, a panic or runtime.Goexit, DoOnce releases the lease. With k.MarkStarted it does so only if the work
// returned Completion.NoEffect. This release has as much time as a result has: without it the key would be in doubt.
func (g *Guard) DoOnce(ctx context.Context, key string, k doonce.Options, work func(context.Context, Lock) (doonce.Completion, error)) error {
	if err := g.usable(ctx); err != nil {
		return err
	}
	if work == nil {
		return errNoWork
	}
	if err := g.plain("DoOnce"); err != nil {
		return err
	}
	var completion doonce.Completion
	worked := false
	return g.newCall(ctx, g.opt.Wait).do([]string{key}, job{
		wanted: wanted{long: true, once: true}, refused: k.OnRefused, markStarted: k.MarkStarted,
		work: func(ctx context.Context, locks map[string]Lock) (err error) {
			worked = true
			completion, err = work(ctx, locks[key])
			return err
		},
		endLease: func(r *run, err error) {
			switch {
			case err == nil && completion.ResultTime != 0:
				r.complete(completion)
			case r.started && worked && !completion.NoEffect:
				r.notes.CompleteErr = errInDoubt
			default:
				r.releaseAfterWork(err)
			}
		},
	})
}

var errInDoubt = errors.New("the work started and did not say that it had no effect: unless it has stored its result itself, nobody gets the key before somebody resolves it")

// markStarted sends MarkStarted: the work begins. The work may run only if the store has
// confirmed this, and if there is still time for the work. Otherwise DoOnce releases
// the lease; this also removes the mark if its answer was lost. It sets started, and may note a loss in the window. checkBegin makes OutcomeUnavailable of a
// loss, because no work has run. do calls it beside renew.
func (r *run) markStarted() (Outcome, error) {
	said := r.request(func(ctx context.Context) error {
		return r.guard.store.MarkStarted(ctx, r.lease()) // a renewal may change its note
	})
	outcome, err := r.failure(said)
	r.started = err == nil || outcome == OutcomeUnknown
	if outcome == OutcomeLost {
		r.window.loseBy(said)
	}
	return r.checkBegin(outcome, err)
}

// completeTime bounds a request without which the key would be in doubt, or its work would run again, with all repeats. complete and releaseAfterWork
// call it.
func (g *Guard) completeTime() time.Duration { return min(completeTime, g.opt.MaxHold) }

// complete sends Complete: it ends the lease and stores the result in its place. If that fails, the lease must run out: the result is not stored, and a
// release would let a second run begin at once. It sets CompleteErr, and what the window says of a loss. The endLease of DoOnce's job calls it, after
// the end of renew.
func (r *run) complete(c doonce.Completion) {
	lease := r.lease()
	err := r.sendRelease(r.guard.completeTime(), func(ctx context.Context) error {
		return r.guard.store.Complete(ctx, lease, c.Result, c.ResultTime)
	})
	if err != nil {
		r.notes.CompleteErr = err
		r.window.loseByRelease(err)
		return
	}
	// Nobody was granted the key since this run, so the lease was not lost under the
	// work, even if it had ended.
	r.window.forgive()
	r.notes.CompleteErr = c.Err
}
