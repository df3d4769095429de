// Package schedule guards functions that an EventBridge schedule or rule starts. Two runs
// of one schedule never overlap: the second run is skipped. With [Once] a tick that comes twice works
// once. The package fits everything
// that calls a function asynchronously and now and then calls it twice.
//
// The result of one event:
//
//	the work returned nil             Result with Skipped false
//	another run holds the lock        Result with Skipped true, a success: the other run does the work
//	another run covers the event      Result with Skipped true, see guard.Options.Coalesce
//	the work is done, and the lock    Result with Skipped true, also for the event whose work it was
//	is in its cooldown
//	an earlier try of this event      *guard.LockBusy
//	holds the lock
//	nobody holds the lock, and it is  *guard.LockBusy
//	reserved for runs that wait
//	the key is in doubt               *guard.LockBusy
//	key, deadline, store, lost lock   the guard's error
//	the work returned an error        this error, also if it is a *guard.LockBusy
//	the work panicked                 the panic, after the release
//	the event is a batch, of SQS, a   an error, and nothing runs: after a success the batch
//	stream or a pipe of EventBridge,  would be deleted, although its work may have been skipped
//	or an HTTP request
//
// The records of a pipe whose input template leaves out their eventSource are not noticed.
//
// # An event that comes again
//
// When a try fails or times out, Lambda delivers the event again with the same request
// id: one minute later, and two minutes after that. The failed try may have left its
// lease. A skip would then lose the event. So the answer is an error, and Lambda tries
// again. The package compares the ID of guard.Options.HolderInfo with the ID of the lock's
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
// time, the waiting run works. Runs that wait may have died: so if nobody holds the lock
// and it is reserved for them, the answer is an error, and Lambda tries again. So it is if an
// operator has revoked the lease: nobody does the work of a revoked lease. For each skip,
// guard.Options.Observe gets a report with the outcome busy. If the other run has had the lock for longer than
// guard.Options.MaxHold, it may hang: guard.LogReports then writes this report as a warning. A skip by Once has two reports:
// replayed and ok, or busy and error if another run works on the same call.
//
// # One run for many events
//
// With [guard.Options.Coalesce] no event is skipped because of the run that has the lock: it began before this event, so the answer is *guard.LockBusy, and
// Lambda tries again. If another run waits that has not begun, the event is skipped: that run does its work, and Lambda
// sends the other run's event again if it fails.
//
// # Duplicate triggers
//
// A lock stops overlap, not repetition. If a trigger comes twice, and the first run has
// ended before the second begins, both run. With [guard.Guard.WithCooldown] the second run is
// skipped: choose a cooldown that is longer than the gap between duplicate triggers, and shorter than the
// schedule's period; otherwise the next run is skipped, too. With Once a trigger that comes again within idempotency.Options.ResultTime is skipped.
package schedule

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/guard/internal/once"
	"github.com/lambdalock/lambdalock/internal/lib/eventsource"
	"github.com/lambdalock/lambdalock/lockstore"
)

// Result is what a guarded function returns.
type Result struct {
	Skipped bool                 `json:"skipped"`         // the work did not run, because another run does it or has done it
	Holder  lockstore.HolderInfo `json:"holder,omitzero"` // the other run
}

// Wrap returns a Lambda handler that starts work only when it has the lock of key, and
// skips the work when another run holds the lock. A mistake in the program is an error of
// every invocation, see package guard; here also a key that cannot be locked. All events of a key must ask
// for the same work: nobody does other work of a skipped event.
func Wrap[In any](g *guard.Guard, key string, work guard.Work[In]) guard.Wrapped[json.RawMessage, Result] {
	mistake := g.Validate()
	if mistake == nil && work == nil {
		mistake = errors.New("schedule: the work is nil")
	}
	if bad := lockstore.ValidateKey(key); mistake == nil && bad != nil {
		mistake = &guard.LockBadRequest{Key: key, Err: bad}
	}
	return guard.WrapUnlocked(func(ctx context.Context, event json.RawMessage) (Result, error) {
		if mistake != nil {
			return Result{}, mistake
		}
		if err := eventsource.CheckAsync("schedule", event); err != nil {
			return Result{}, err
		}
		var in In
		if err := json.Unmarshal(event, &in); err != nil {
			return Result{}, err // its type names the failure, as Lambda reports it
		}
		ran := false
		var skip once.Skip
		err := g.Do(ctx, key, func(ctx context.Context, lock guard.Lock) error {
			ran = true
			return work(skip.Watch(ctx, g), lock, in)
		})
		if done := skip.Done(); err == nil && done != nil {
			return Result{Skipped: true, Holder: *done}, nil
		}
		if covered, ok := err.(*guard.LockCovered); ok { // not of the work: Do wraps that
			return Result{Skipped: true, Holder: covered.Holder}, nil
		}
		busy, ok := err.(*guard.LockBusy)
		// If the guard coalesces, a run that began before this event does not do its work, and after a success nobody asks again.
		if !ok || g.Coalesces() || ran && !skip.IsBusy(err) || !otherDoes(busy, g.HolderInfo(ctx)) {
			return Result{}, err
		}
		return Result{Skipped: true, Holder: busy.Holder}, nil
	})
}

// otherDoes says whether another run does the work, or whether the work is done.
func otherDoes(busy *guard.LockBusy, own lockstore.HolderInfo) bool {
	if busy.State == lockstore.Held {
		return !sameRun(own, busy.Holder)
	}
	return busy.State.Done()
}

// sameRun says whether the stored holder may be an earlier try of this run's event: also if Options.HolderInfo has failed.
// A store has the text of a holder cleaned and cut, so both must be.
func sameRun(own, stored lockstore.HolderInfo) bool {
	own.Since = stored.Since // it takes room in the text, too
	id := lockstore.DecodeHolderInfo(own.Encode()).ID
	return stored.ID != "" && (id == "" || id == stored.ID)
}

// Once returns work that runs once for each call(event), for Wrap: a trigger
// that comes again is skipped, also long after the first. A good key has the schedule's name
// and the time in the event. The work runs under the lock of the schedule, and gets this
// lock. The key of the result is locked while the schedule's key is, so the two keys must
// differ. It costs two writes more, and three with idempotency.AtMostOnce.
//
// If another run works on the same call, the answer is as for the schedule's own lock. If an
// argument is nil, or idempotency.New has not made o, Once returns nil, which is a mistake in the program to
// Wrap.
func Once[In any](o *idempotency.Once, call func(context.Context, In) (idempotency.Call, error), work guard.Work[In]) guard.Work[In] {
	return once.Work(o, call, work)
}
