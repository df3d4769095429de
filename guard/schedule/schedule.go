// Package schedule guards functions that an EventBridge schedule or rule starts. Two runs
// of one schedule never overlap: the second run is skipped. The package fits everything
// that calls a function asynchronously and now and then calls it twice.
//
// The result of one event:
//
//	the work returned nil             Result with Skipped false
//	another run holds the lock        Result with Skipped true, a success: the other run does the work
//	an earlier try of this event      *guard.LockBusy
//	holds the lock
//	key, deadline, store, lost lock   the guard's error
//	the work returned an error        this error, also if it is a *guard.LockBusy
//	the work panicked                 the panic, after the release
//
// # An event that comes again
//
// When a try fails or times out, Lambda delivers the event again with the same request
// id: one minute later, and two minutes after that. The failed try may have left its
// lease. A skip would then lose the event. So the answer is an error, and Lambda tries
// again. The package compares the ID of guard.Options.Holder with the ID of the lock's
// holder. The ID must therefore be the request id, as boot sets it. Two empty IDs are
// never the same.
//
// The lease of a run that died stays until its end, at most guard.Options.TTL later. A
// run of another event is skipped in this time. Lambda then delivers the dead run's event
// again, if this event has tries left.
//
// # Waiting and counting
//
// With guard.Options.Wait a run waits before it skips. If the other run ends in this
// time, the waiting run works. For each skip, guard.Options.Observe gets a report with
// the outcome busy.
//
// # Duplicate triggers
//
// A lock stops overlap, not repetition. If a trigger comes twice, and the first run has
// ended before the second begins, both run. With Options.AtLeastFor the second run is
// skipped.
package schedule

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
)

// Result is the answer of a guarded function.
type Result struct {
	Skipped bool             `json:"skipped"`         // the work did not run, because another run has the lock
	Holder  lockstore.Holder `json:"holder,omitzero"` // the other run
}

// Options are a schedule's settings; the zero value is good for most functions.
type Options struct {
	// AtLeastFor is the lock's cooldown after work that returned nil: a second trigger
	// of the same run is skipped, although the first run has ended. Choose a time that
	// is longer than the gap between duplicate triggers, and shorter than the
	// schedule's period; otherwise the next run is skipped, too. After an error there
	// is no cooldown.
	//
	// 0 is no cooldown. Otherwise the store must be a lockstore.CooldownReleaser, and
	// the bounds are lockstore.MinTTL to lockstore.MaxTTL.
	//
	// In its cooldown a key names the run that has ended. If Lambda delivers the event
	// of this run again, with its request id, the answer is *guard.LockBusy. Lambda's
	// later try may then run the work again.
	AtLeastFor time.Duration
}

// Wrap returns a Lambda handler that runs work only while the lock of key is held, and
// skips the work when another run holds the lock. A mistake in the program is an error of
// every invocation, see package guard; here also a key that cannot be locked.
func Wrap[In any](g *guard.Guard, key string, work guard.Work[In]) func(context.Context, In) (Result, error) {
	handler, err := WrapWith(g, key, work, Options{})
	if err != nil {
		return func(context.Context, In) (Result, error) { return Result{}, err }
	}
	return handler
}

// WrapWith is Wrap with options. It returns a mistake in the program at once, also an
// option that the guard's store cannot fulfil.
func WrapWith[In any](g *guard.Guard, key string, work guard.Work[In], opt Options) (func(context.Context, In) (Result, error), error) {
	if err := g.Validate(); err != nil {
		return nil, err
	}
	if work == nil {
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

// sameRun says whether the stored holder is an earlier try of this run's event. A store
// keeps the text of a holder cleaned and cut, so both must be.
func sameRun(own, stored lockstore.Holder) bool {
	id := lockstore.DecodeHolder(own.Encode()).ID
	return id != "" && id == stored.ID
}
