// Package schedule guards functions that an EventBridge schedule or rule starts,
// or anything else that calls them asynchronously and now and then twice, so
// that two runs of one schedule never overlap.
//
// What comes of one event:
//
//	the work returned nil              its Result with Skipped false
//	another run holds the lock         Result{Skipped: true}, a success: the work is being done
//	a run of this same event holds it  *guard.LockBusy
//	key, deadline, store, lost lock    the guard's error
//	the work returned an error         that error, a *guard.LockBusy of its own included
//	the work panicked                  the panic, after the release
//
// Lambda delivers an event again, with the same request id, when its first try
// failed or timed out. Such a try may have left its lease behind; to skip then
// would lose the event, so the answer is an error and Lambda tries once more, a
// minute later and two minutes after that. The ids that are compared are the ID
// of guard.Options.Holder, which must therefore be the request id, as boot makes
// it. Empty ids are never the same.
//
// A run that died looks alive until its lease ends, at most guard.Options.TTL
// later. A run of another event in that time is skipped: what Lambda then
// delivers again is the dead one's event, if it has tries left.
//
// A skip is counted where the guard's runs are: Options.Observe gets a report
// with the outcome busy. A guard that waits (Options.Wait) waits first, and
// skips if the other run is still at it then; one that ends in that time is
// followed by this run.
//
// A lock stops overlap, not repetition: a trigger that comes twice runs twice
// when the first run has ended before the second begins. Options.AtLeastFor
// makes it skip the second one.
package schedule

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
)

// Result is what a guarded function answers.
type Result struct {
	Skipped bool             `json:"skipped"`         // the work did not run, because another run has the lock
	Holder  lockstore.Holder `json:"holder,omitzero"` // that other run
}

// Options are what a schedule may want besides a lock; the zero value wants
// nothing.
type Options struct {
	// AtLeastFor keeps the key closed for so long after work that returned nil,
	// so that a second trigger of the same run is skipped although the first has
	// ended. Choose more than triggers lie apart that belong together, and less
	// than the schedule's period, or the next run is skipped too. After an error
	// the key is free at once. 0 does not close it; otherwise the store must be a
	// lockstore.CooldownReleaser, and the bounds are lockstore.MinTTL to
	// lockstore.MaxTTL.
	//
	// Its limit: a closed key still names the run that closed it. If Lambda
	// delivers that run's own event once more, with its request id, the answer is
	// *guard.LockBusy, and Lambda's later try may run the work again.
	AtLeastFor time.Duration
}

// Wrap returns a Lambda handler that runs work only while the lock of key is
// held, and skips it when another run holds that lock. Mistakes in the program
// (nil arguments, a key that cannot be locked) are errors of every invocation.
func Wrap[In any](g *guard.Guard, key string, work func(context.Context, guard.Lock, In) error) func(context.Context, In) (Result, error) {
	handler, err := WrapWith(g, key, work, Options{})
	if err != nil {
		return func(context.Context, In) (Result, error) { return Result{}, err }
	}
	return handler
}

// WrapWith is Wrap with options. It returns mistakes in the program, and options
// that the guard's store cannot fulfil, at once.
func WrapWith[In any](g *guard.Guard, key string, work func(context.Context, guard.Lock, In) error, opt Options) (func(context.Context, In) (Result, error), error) {
	switch {
	case g == nil:
		return nil, errors.New("schedule: the guard is nil")
	case work == nil:
		return nil, errors.New("schedule: the work is nil")
	}
	if err := lockstore.ValidateKey(key); err != nil {
		return nil, &guard.LockInvalid{Key: key, Err: err}
	}
	do := g.Do
	if opt.AtLeastFor != 0 {
		var err error
		if do, err = g.WithCooldown(opt.AtLeastFor); err != nil {
			return nil, fmt.Errorf("schedule: AtLeastFor: %w", err)
		}
	}
	return func(ctx context.Context, in In) (Result, error) {
		ran := false
		err := do(ctx, key, func(ctx context.Context, lock guard.Lock) error {
			ran = true
			return work(ctx, lock, in)
		})
		busy, ok := err.(*guard.LockBusy)
		if !ok || ran || sameRun(g.Holder(ctx), busy.Holder) {
			return Result{}, err
		}
		return Result{Skipped: true, Holder: busy.Holder}, nil
	}, nil
}

// sameRun says whether the stored holder is an earlier try of this run's event.
// A store keeps a holder's text cleaned and cut.
func sameRun(own, stored lockstore.Holder) bool {
	id := lockstore.DecodeHolder(own.Encode()).ID
	return id != "" && id == stored.ID
}
