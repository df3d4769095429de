package guard

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/lambdalock/lambdalock/internal/tell"
	"github.com/lambdalock/lambdalock/lockstore"
)

// Lock is what the work gets: the key that is held and its fencing token. Write the
// fence with the data, and let the resource refuse a smaller fence. Then a holder that
// stalled past its lease can overwrite nothing that a later holder has written.
type Lock struct {
	Key   string
	Fence lockstore.Fence

	// Seat is the lowest number, from 0, that no other holder of the key had at the grant. It is 0
	// unless the guard is one of WithMaxHolders.
	Seat int
}

// Do acquires the lock of key, runs work and releases the lock. It returns what work
// returned, with these exceptions. A mistake in the program is a plain error, and work does not
// run. If Do does not get the lock, work does not run, and the error is a *LockBusy, *LockDeadline,
// *LockInvalid, *LockCorrupt or *LockStoreUnavailable. If the lock is lost while work runs, the
// error is a *LockLost.
//
// The work's context ends in time: DeadlineMargin before ctx's deadline, at MaxHold, or when
// its lease, or one under which it began, can no longer be trusted. It is cancelled when work returns. If work panics
// or calls runtime.Goexit, Do releases the lease and lets the panic go on with its own
// stack. While work runs, Do never releases the lease. If work never returns, the lease
// ends by its TTL.
func (g *Guard) Do(ctx context.Context, key string, work func(context.Context, Lock) error) error {
	return g.do(ctx, key, 0, work)
}

func (g *Guard) do(ctx context.Context, key string, cooldown time.Duration, work func(context.Context, Lock) error) error {
	if err := g.usable(ctx); err != nil {
		return err
	}
	if work == nil {
		return errNoWork
	}
	c := g.newCall(ctx)
	_, err := c.newRun(ctx, key).do(cooldown, func(ctx context.Context, lock Lock) (Outcome, error) {
		return c.runWork(func() error { return work(ctx, lock) })
	})
	return err
}

// call is one call of the guard: its deadline and its time to wait, which the runs of a
// DoAll share. start is on the guard's clock. left and releaseEnd count from start.
type call struct {
	guard         *Guard
	caller        context.Context
	start         time.Duration
	began         time.Time     // the same moment on the wall clock
	left          time.Duration // until the caller's deadline
	wait          time.Duration // for a lock that another owner holds
	holderInfo    lockstore.HolderInfo
	request       LeaseRequest  // what Acquire asked for; zero in a Do
	more          bool          // a DoAll will ask for further keys
	working       bool          // the work has begun
	releaseEnd    time.Duration // the end of the time for all releases after the work; 0 before the first. The guard's mu guards it
	releaseLatest time.Duration // the same, if the store extends it, see extendRelease
	over          []*run        // the inner runs of a DoAll that have ended
}

func (g *Guard) newCall(ctx context.Context) *call {
	start, wall := g.clock.read()
	c := &call{guard: g, caller: ctx, start: start, began: time.Unix(0, int64(wall)), left: math.MaxInt64, wait: g.opt.Wait}
	if deadline, ok := ctx.Deadline(); ok {
		now := time.Now()
		c.left = max(0, min(deadline.Sub(now), deadline.Round(0).Sub(now.Round(0))))
	}
	c.holderInfo = g.HolderInfo(ctx)
	return c
}

// runWork runs the work when all locks are held.
func (c *call) runWork(work func() error) (Outcome, error) {
	c.working = true
	if err := work(); err != nil {
		return OutcomeError, err
	}
	return OutcomeOK, nil
}

// elapsed is the time since start on the guard's clock; see type clock for its errors.
func (c *call) elapsed() time.Duration {
	now, _ := c.guard.clock.read()
	return now - c.start
}

// run is the life cycle of one key's lease. It is also the work's context, see window.
type run struct {
	window
	*call
	outer    *run // the run whose work this run is a part of
	report   Report
	traces   traces
	releases releases
	wakes    wakes

	completes bool // the run stores a result or begins a cooldown. It does not wait for a key that is completed or in a cooldown
	started   bool // the store has the mark of the start, or the last answer leaves that open
	handed    bool // the lease is a hand-over that has to be extended
	lease     lockstore.Lease
	holdEnd   time.Duration // the grant + MaxHold
	joined    chan struct{} // closed when the renewing goroutine has returned; nil without one
}

type runKey struct{}

// newRun makes the call's next run. Its context is ctx: in a DoAll that is the run of the key before.
func (c *call) newRun(ctx context.Context, key string) *run {
	r := &run{call: c, holdEnd: math.MaxInt64}
	r.outer, _ = ctx.Value(runKey{}).(*run)
	r.window = window{of: c, tracer: r, stop: math.MaxInt64, trust: math.MaxInt64}
	r.Context, r.cancel = context.WithCancelCause(ctx)
	r.releases.left = 1
	if r.outer != nil {
		r.window.outer, r.window.cleans = &r.outer.window, r.outer.lostAround() != nil
		if r.inSameCall() {
			r.releases.left += r.outer.releases.left
		}
	}
	r.report.Key, r.report.HolderInfo, r.report.MaxHolders = key, c.holderInfo, c.guard.maxHolders
	c.guard.register(r)
	return r
}

// inSameCall says whether the run around this run belongs to the same DoAll.
func (r *run) inSameCall() bool { return r.outer != nil && r.outer.call == r.call }

// asked counts a call of the store. It locks, because a renewal and MarkStarted may run at the same
// time. A call that was cut off because the run ended does not count as failed.
func (r *run) asked(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Calls++
	if o := outcomeOf(err); (o == OutcomeUnavailable || o == OutcomeUnknown) && !errors.Is(err, context.Canceled) {
		r.report.FailedCalls++
	}
}

// do is the whole life cycle: acquire, work, release, report.
func (r *run) do(cooldown time.Duration, work func(context.Context, Lock) (Outcome, error)) (Outcome, error) {
	defer r.close()
	r.completes = cooldown > 0
	if outcome, err := r.acquire(); err != nil {
		return outcome, r.end(outcome, err)
	}
	return r.hold(work, func(err error) {
		if err != nil || r.lost != nil {
			cooldown = 0
		}
		r.releaseAfterWork(cooldown, releaseTime) // also if the lease is known to be lost: if it was revoked, the key opens now
	})
}

// hold runs the work under the lease. Then it calls endLease with the error that the work returned, or with
// errNotReturned after a panic.
func (r *run) hold(work func(context.Context, Lock) (Outcome, error), endLease func(err error)) (outcome Outcome, err error) {
	returned := false
	// No recover: a panic or Goexit passes through with its own stack.
	defer func() {
		r.report.HoldTime = r.elapsed() - r.report.WaitTime
		r.window.close()
		if r.joined != nil {
			<-r.joined
		}
		if !returned {
			outcome, err = OutcomePanic, errNotReturned
		}
		endLease(err)
		switch {
		case r.lost == nil || !returned:
		case r.working:
			outcome, err = OutcomeLost, &LockLost{r.report.Key, err, r.lost}
		case errors.Is(err, r.lost): // lost while a DoAll asked for the next lock
			outcome, err = OutcomeUnavailable, &LockStoreUnavailable{r.report.Key, fmt.Errorf("the lease was lost before the work began: %w", r.lost)}
		}
		err = r.end(outcome, err)
	}()
	r.trace(PhaseGranted, nil)
	lock := Lock{r.report.Key, r.lease.Fence, r.lease.Seat}
	// Renew also if trust and stop are the same moment: otherwise the work would end as lost.
	if r.trust <= r.stop {
		r.joined = make(chan struct{})
		go r.renew()
	}
	r.awaitTrace()
	if outcome, err = r.mayBegin(OutcomeOK, nil); err == nil {
		outcome, err = work(r, lock)
	}
	returned = true
	return outcome, err
}

// mayBegin looks a last time whether the work may begin: what came after the grant may have taken long. outcome and
// err say how that ended.
func (r *run) mayBegin(outcome Outcome, err error) (Outcome, error) {
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

var errNotReturned = errors.New("the work did not return: it panicked or called runtime.Goexit")

// end makes the report. In a DoAll the run of the first key ends last. The observer gets the reports of all
// keys then.
func (r *run) end(outcome Outcome, err error) error {
	if r.waking() { // an Acquire may hand over, too
		r.endWakes(r.elapsed() + r.beginRelease(false, releaseTime))
		r.setCut(nil)
	}
	if r.inSameCall() {
		r.over = append(r.over, r)
		return err
	}
	observe := func(r *run) {
		r.awaitTrace()
		r.report.Outcome, r.report.Err = outcome, err
		if f, ctx, report := r.guard.opt.Observe, r.observed(), r.report; f != nil {
			tell.Start("guard.Options.Observe", func() { f(ctx, report) }).Wait(r.tellTime())
		}
	}
	for _, inner := range r.over {
		observe(inner)
	}
	observe(r)
	return err
}

// close frees what the run has of its guard and its context.
func (r *run) close() {
	r.guard.unregister(r)
	r.cancel(nil)
}

// ttl is the lease to ask for at the time now: a little longer than the run can last, and
// at most Options.TTL. A LeaseRequest has its own.
func (r *run) ttl(now time.Duration) time.Duration {
	if r.request.TTL != 0 {
		return r.request.TTL
	}
	rest := min(r.left-now, r.holdEnd-now, r.guard.opt.MaxHold)
	return max(lockstore.MinTTL, min(rest+ttlSlack, r.guard.opt.TTL))
}
