package guard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/doonce"
	"github.com/lambdalock/lambdalock/lockstore"
)

// Report says what one run did. It holds no secret. A DoAll has a report for each key that
// it has tried; the Outcome and the Err of all of them are those of the DoAll.
type Report struct {
	Key        string
	HolderInfo lockstore.HolderInfo // this run, as others see it in the lock

	Outcome  Outcome
	Err      error           // what Do returned
	KeyState lockstore.State // of the key in the last refusal or later read; Free if there was none

	// HeldFor is how long the holder had had the key that was refused last, by the clocks of the holder and of this process. It is 0 if that
	// is unknown or KeyState is not Held.
	HeldFor  time.Duration
	heldLong bool // it is more than the guard's MaxHold: longer than a run of this guard works

	Fence         lockstore.Fence // of the lease that the run got, or that a Renew or Release is for; 0 if there is none
	seat          int             // of the lease, see Lock.Seat
	maxHolders    int             // of the guard
	AcquiredAt    time.Time       // when the run got the lock, by the local clock; zero when it got none
	WaitTime      time.Duration   // from the call until the run got the lock or gave up
	QueuePosition int             // the run's place in the key's queue when it joined: 1 is the front, 0 is none
	NoPlace       bool            // the run wanted a place in the key's queue and had none when its wait ended
	OldestWait    time.Duration   // the longest wait of the queue's first, also of a parked one, in this run's refusals; 0 if nobody waited or it is not known
	MissedTurns   int             // how many turns the run missed, because it or the store stood still; each time it lost its place in the queue
	OwnersWoken   int             // parked owners that this run has woken
	HoldTime      time.Duration   // from the grant until the work returned
	Calls         int             // of the store's methods, except TakeAddress. Most send one request; a wait for a turn takes many calls, or one that sends many requests
	FailedCalls   int             // those that failed: the store or the client's pool was overloaded, down or silent; also if a repeat succeeded

	// ReleaseErr says why the store may still have something of this run. A release or an abandon
	// failed: the lease then ends by its TTL, and if the work was marked as started
	// (as package idempotency does with AtMostOnce), the key is in doubt after that. Or the run could not leave the key's
	// queue: its place may delay others by one turn. Or the owner of a LeaseRequest may
	// have a lease, which the guard keeps because the caller asks again; a kept place does not count.
	ReleaseErr error

	// CompleteErr says why the result of a run of package idempotency is not stored. If nothing is stored, the lease ends
	// by its TTL; then the work may run again, or the key is in doubt. If a note is stored in the place of the result, the work of a
	// repeat does not run, and it gets no result.
	CompleteErr error

	// WakeErr says why parked owners were not woken. Each asks again after a time of its own. A key that was
	// handed over to it stays reserved until then, or until its turn is over.
	WakeErr error
}

// report says what the parts of the run know of it, at its end, and for Options.Granted before the work. observe and tellGranted call it.
func (r *run) report(outcome Outcome, err error) Report {
	report, lease := r.notes, r.lease()
	report.Key, report.HolderInfo, report.Outcome, report.Err = shortKey(r.key), r.holder, outcome, err
	report.Fence, report.seat, report.maxHolders = lease.Fence, lease.Seat, r.guard.maxHolders
	report.Calls, report.FailedCalls = int(r.calls.all.Load()), int(r.calls.failed.Load())
	if w := &r.wakes; w.failed > 0 {
		report.WakeErr = fmt.Errorf("%d of %d parked owners that have to ask again were not woken: %w", w.failed, w.failed+report.OwnersWoken, w.err)
	}
	return report
}

// LogReports returns an observer that writes one line for each report. The level is Warn for a failed release, completion or wake-up, for a key that is
// held for longer than the guard's MaxHold, and for the outcomes lost, corrupt, unavailable, unknown, panic, doubt and noresult. Otherwise it is Info. A
// nil logger is slog.Default() at the time of each line.
func LogReports(logger *slog.Logger) func(context.Context, Report) {
	return func(ctx context.Context, r Report) {
		logger := cmp.Or(logger, slog.Default())
		level := slog.LevelInfo
		warns := slices.Contains([]Outcome{OutcomeLost, OutcomeCorrupt, OutcomeUnavailable, OutcomeUnknown, OutcomePanic, doonce.InDoubt, doonce.NoResult}, r.Outcome)
		if warns || r.Fence == 0 && r.heldLong || r.ReleaseErr != nil || r.CompleteErr != nil || r.WakeErr != nil {
			level = slog.LevelWarn
		}
		attrs := []slog.Attr{
			slog.String("requestId", r.HolderInfo.ID),
			slog.String("key", r.Key),
			slog.String("outcome", string(r.Outcome)),
			slog.Float64("wait_ms", milliseconds(r.WaitTime)),
			slog.Float64("hold_ms", milliseconds(r.HoldTime)),
			slog.Int64("fence", int64(r.Fence)),
			slog.Int("calls", r.Calls),
		}
		add := func(tells bool, attr slog.Attr) {
			if tells {
				attrs = append(attrs, attr)
			}
		}
		refused := r.Fence == 0 && r.KeyState != lockstore.Free
		add(r.FailedCalls > 0, slog.Int("failed_calls", r.FailedCalls))
		add(refused, slog.String("state", r.KeyState.String()))
		add(refused && r.HeldFor > 0, slog.Float64("held_ms", milliseconds(r.HeldFor)))
		add(r.QueuePosition > 0, slog.Int("queue_position", r.QueuePosition))
		add(r.OldestWait > 0, slog.Float64("oldest_wait_ms", milliseconds(r.OldestWait)))
		add(r.NoPlace, slog.Bool("no_place", true))
		add(r.MissedTurns > 0, slog.Int("lapsed", r.MissedTurns))
		add(r.OwnersWoken > 0, slog.Int("woken", r.OwnersWoken))
		add(r.maxHolders > 1, slog.Int("max_holders", r.maxHolders))
		add(r.maxHolders > 1 && r.Fence != 0, slog.Int("seat", r.seat))
		add(!r.AcquiredAt.IsZero(), slog.Time("acquired_at", r.AcquiredAt))
		lost, ok := errors.AsType[*LockLost](r.Err)
		add(ok && lost.WorkErr == nil && r.Outcome == OutcomeLost && !r.AcquiredAt.IsZero(), slog.Bool("work_ok", true))
		add(r.HolderInfo.Caller != "", slog.String("caller", r.HolderInfo.Caller))
		for i, err := range [...]error{r.Err, r.ReleaseErr, r.CompleteErr, r.WakeErr} {
			if err != nil {
				attrs = append(attrs, slog.String([...]string{"error", "releaseError", "completeError", "wakeError"}[i], err.Error()))
			}
		}
		logger.LogAttrs(ctx, level, "lock", attrs...)
	}
}

// milliseconds is a duration as LogReports writes it.
func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
