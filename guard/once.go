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
	// If the work then does not end with a Completion that completes or frees the key, and has not stored its
	// result itself, the key is in doubt when its lease ends: nobody gets it before somebody resolves it, for
	// at least lockstore.StartMarkTime.
	MarkStarted bool

	// OnRefused says how DoOnce ends when the work does not run because the key is completed, in a
	// cooldown or in doubt; busy.State says which. nil returns the *LockBusy.
	OnRefused func(busy *LockBusy) (Outcome, error)
}

// Completion says what work leaves in the place of its lease. The zero value stores no result.
type Completion struct {
	// ResultTime is how long Result is stored. Nobody gets the key in this time. It is lockstore.MinTTL to
	// lockstore.MaxResultTime. 0 stores nothing: then the key is released, or with
	// OnceOptions.MarkStarted left in doubt. After work that returned an error nothing is stored.
	ResultTime time.Duration
	Result     lockstore.HiddenBytes

	// ResultIfTooLarge is stored in place of Result if the store refuses Result as invalid, because it
	// is too large for this store. nil stores nothing then.
	ResultIfTooLarge lockstore.HiddenBytes

	// Err is set if Result is only a note: it says why there is no result. It becomes Report.CompleteErr.
	Err error

	// NoEffect releases the key also after OnceOptions.MarkStarted, because the work had no effect.
	NoEffect bool
}

// DoOnce is Do for work that must not be repeated: it stores the result of the work in the key's
// entry. Package idempotency is built on it. A run that finds the key completed or in doubt does
// not wait: its work does not run, and k.Refused says how the run ends. While
// another run works, a run with Wait waits, and gets the result at most about two seconds after it is stored.
//
// The write that stores the result is the one that ends the lease. It can succeed after the end of the lease, unless
// the key was granted to another, or somebody has revoked the lease or resolved the key. If it succeeds, the run ends as ok.
// If it fails, DoOnce does not release the lease, because a second run could begin at once: the lease ends by its TTL.
// DoOnce returns what the work returned, or *LockLost if the lease is lost, too, and
// Report.CompleteErr says why nothing is stored.
//
// After an error of the work, a panic or runtime.Goexit, DoOnce releases the lease. With
// k.MarkStarted it does so only if the work returned Completion.NoEffect, and the release may take as long as
// the write that stores the result, because without it the key would be in doubt.
func (g *Guard) DoOnce(ctx context.Context, key string, k OnceOptions, work func(context.Context, Lock) (Completion, error)) error {
	if err := g.usable(ctx); err != nil {
		return err
	}
	if work == nil {
		return errNoWork
	}
	if err := g.plain("DoOnce"); err != nil {
		return err
	}
	var completion Completion
	worked := false
	j := job{
		wanted: wanted{long: true, once: true}, refused: k.OnRefused,
		work: func(ctx context.Context, locks map[string]Lock) (err error) {
			worked = true
			completion, err = work(ctx, locks[key])
			return err
		},
		endLease: func(r *run, err error) {
			switch {
			case err == nil && completion.ResultTime != 0:
				r.complete(completion)
			case r.started && (completion.NoEffect || !worked):
				r.releaseAfterWork(err, 0, g.completeTime())
			case !r.started:
				r.releaseAfterWork(err, 0, releaseTime)
			default:
				r.completeErr = errInDoubt
			}
		},
	}
	if k.MarkStarted {
		j.beforeWork = (*run).markStarted
	}
	return g.newCall(ctx, g.opt.Wait).do([]string{key}, j)
}

var errInDoubt = errors.New("the work started and did not say that it had no effect: unless it has stored its result itself, nobody gets the key before somebody resolves it")

// markStarted says to the store that the work begins. The work may run only if the store has
// confirmed this, and if there is still time for the work. Otherwise DoOnce releases
// the lease; this also removes the mark if its answer was lost.
func (r *run) markStarted() (Outcome, error) {
	var said error
	outcome, err := r.request(func(ctx context.Context) error {
		said = r.guard.store.MarkStarted(ctx, r.lease()) // a renewal may change its note
		return said
	})
	r.started = err == nil || outcome == OutcomeUnknown
	if outcome == OutcomeLost {
		r.window.loseBy(said)
	}
	return r.mayBegin(outcome, err)
}

// completeTime bounds a request without which the key would be in doubt, or its work would run again, with all repeats.
func (g *Guard) completeTime() time.Duration { return min(completeTime, g.opt.MaxHold) }

// complete ends the lease and stores the result in its place. If that fails, the lease must
// run out: the result is not stored, and a release would let a second run begin at once.
func (r *run) complete(c Completion) {
	lease, note := r.lease(), c.Err
	err := r.sendRelease(true, r.guard.completeTime(), func(ctx context.Context) error {
		err := r.guard.store.Complete(ctx, lease, c.Result, c.ResultTime)
		if outcomeOf(err) == OutcomeInvalid && c.ResultIfTooLarge != nil {
			note = fmt.Errorf("the store refused the result, and only a substitute is stored: %w", err)
			c.Result, c.ResultIfTooLarge = c.ResultIfTooLarge, nil
			r.calls.count(nil)
			err = r.guard.store.Complete(ctx, lease, c.Result, c.ResultTime)
		}
		return err
	})
	if err != nil {
		r.completeErr = err
		r.window.loseByRelease(err)
		return
	}
	// Nobody was granted the key since this run, so the lease was not lost under the
	// work, even if it had ended.
	r.window.forgive()
	r.completeErr = note
}
