package guard

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// call is one call of the guard: its times, which the runs of a DoAll share.
type call struct {
	guard    *Guard
	caller   context.Context
	start    time.Duration
	began    time.Time     // the same moment on the wall clock
	deadline time.Duration // the caller's
	wait     time.Duration // for locks that other owners hold, at most
	waitEnd  time.Duration // of this time; askHolder sets it
	holder   lockstore.HolderInfo
	asked    bool            // for the holder
	hung     map[string]bool // the hooks that have not returned in time
}

// newCall begins a call: it reads the clocks. Each method of Guard that sends something begins so.
func (g *Guard) newCall(ctx context.Context, wait time.Duration) *call {
	start, wall := g.clock.read()
	left := never
	if deadline, ok := ctx.Deadline(); ok {
		left = max(0, until(deadline))
	}
	return &call{
		guard: g, caller: ctx, start: start, began: time.Unix(0, int64(wall)),
		deadline: later(start, left), wait: wait, hung: map[string]bool{},
	}
}

// askHolder calls Options.HolderInfo once, and sets holder. Then the time to wait begins, and it sets waitEnd: a slow hook takes nothing from this time. do
// and acquireLease call it before their first request, which says who asks; finish calls it after the request of the others, which must not come late for
// a report.
func (c *call) askHolder() lockstore.HolderInfo {
	if !c.asked {
		c.holder, c.asked = c.guard.HolderInfo(c.caller), true
		now := c.guard.clock.moment()
		c.waitEnd = later(now, min(c.wait, (c.deadline-now)/2))
	}
	return c.holder
}

// wall is a moment on the wall clock. noteHolder, take, setSince and window.Deadline call it.
func (c *call) wall(t time.Duration) time.Time { return c.began.Add(t - c.start) }

// run is one call for one key, from asking for the lock to the report. The parts that several goroutines
// use (window, wakes) have a mutex each, held and values are atomic.
type run struct {
	guard  *Guard
	call   *call
	key    string
	wanted wanted
	around *run // the run whose work this run is a part of
	inside *run // the same, if it is of the same DoAll

	window window // the work's context
	held   atomic.Pointer[held]
	calls  storeCalls
	values atomic.Pointer[context.Context] // that Options.Granted returned; nil without one. A store may read them when its call has ended
	wakes  wakes

	// Of the goroutine of the call, and in a DoAll of endHold's while that runs. renew reads holder.
	holder   lockstore.HolderInfo // this run, as others see it
	notes    Report               // what the run itself notes for its report
	holdEnd  time.Duration        // MaxHold after the grant; never before it
	renewing chan struct{}        // closed when the renewing goroutine has returned; nil without one
	started  bool                 // the store has the mark of the start, or the last answer leaves that open
}

// held is the lease that a run has from the store. Renewals change it under the work.
type held struct {
	lease lockstore.Lease
	sent  time.Duration // when its first request was sent
	short bool          // it is the lease of a hand-over, and has to be extended
}

// lease is the run's lease; the zero Lease without one. It reads held, which renew may change meanwhile. Whatever needs the lease after the
// grant calls it, and so does report.
func (r *run) lease() lockstore.Lease {
	if h := r.held.Load(); h != nil {
		return h.lease
	}
	return lockstore.Lease{}
}

type runKey struct{}

// newRun makes the call's next run, for a key, inside the time of another run of the call, or nil. It enters the run in the guard's registry, also after
// Shutdown (mayStart refuses it then); its caller owes an endRun. It sends nothing. do calls it for each key; refuse, acquireLease, requestFor and
// Inspect call it once.
func (c *call) newRun(key string, inside *run) *run {
	parent := c.caller
	if inside != nil {
		parent = &inside.window
	}
	r := &run{guard: c.guard, call: c, key: key, inside: inside, holder: c.holder, holdEnd: never}
	r.around, _ = parent.Value(runKey{}).(*run)
	ctx, cancel := context.WithCancelCause(parent)
	r.window = window{
		run: r, ctx: ctx, cancel: cancel, bounds: bounds{stop: never, trust: never},
		cleans: r.around != nil && r.around.window.look().lost != nil,
	}
	c.guard.runs.add(r)
	return r
}

// now is the time on the guard's clock. It is used all over the package.
func (r *run) now() time.Duration { return r.guard.clock.moment() }

// left is the time until the caller's deadline. hasTime and tell call it.
func (r *run) left() time.Duration { return r.call.deadline - r.now() }

// sleep waits for d, or returns false when the run's context ends. It asks the window, and so it may note a loss (window.check).
// awaitTurn, pollKey and sleepUntil call it.
func (r *run) sleep(d time.Duration) bool { return sleep(&r.window, d) }

// setSince sets holder.Since: the run asked for its lease at this time. It returns what others see of the run. requestLease and take call it, before
// renew begins.
func (r *run) setSince(sent time.Duration) lockstore.HolderInfo {
	if r.call.holder.Since.IsZero() {
		r.holder.Since = time.UnixMilli(r.call.wall(sent).UnixMilli())
	}
	return r.holder
}

// ttl is the lease to ask for at the time now: a little longer than the run can last, and at most Options.TTL. A LeaseRequest has its own. It changes
// nothing; askAfresh calls it for a new request, and renew.
func (r *run) ttl(now time.Duration) time.Duration {
	if r.wanted.ttl != 0 {
		return r.wanted.ttl
	}
	rest := min(r.call.deadline-now, r.holdEnd-now, r.guard.opt.MaxHold)
	return max(lockstore.MinTTL, min(rest+ttlSlack, r.guard.opt.TTL))
}

// job is what a call does under its locks.
type job struct {
	wanted      wanted
	refused     func(error) (string, error)                  // how the call ends when the key is done or in doubt; may be nil
	markStarted bool                                         // before the work
	work        func(context.Context, map[string]Lock) error // has the locks by key
	endLease    func(r *run, err error)                      // ends a lease, after the work or without it
}

var errNotReturned = errors.New("the work did not return: it panicked or called runtime.Goexit")

// do is the whole life cycle: it takes the lock of each key, each run inside the time of the one before, runs the work,
// and ends the leases side by side. Then it reports. Guard.Do, DoAll and DoOnce call it.
func (c *call) do(keys []string, j job) (err error) {
	// No recover: a panic or Goexit passes through with its own stack.
	outcome, err, worked := OutcomePanic, errNotReturned, false
	fail := func(o Outcome, e error) error {
		outcome, err = o, e
		return e
	}
	var last, leased *run // leased is the last one that has its lease
	defer func() {
		for r := last; r != nil; r = r.inside {
			r.endRun()
			r.observe(outcome, err)
		}
	}()
	defer func() {
		endHolds(leased, j, err)
		for r := leased; r != nil; r = r.inside {
			outcome, err = r.judgeLoss(outcome, err, worked)
		}
	}()
	c.askHolder()
	locks := make(map[string]Lock, len(keys))
	for i, key := range keys {
		r := c.newRun(key, last)
		last = r
		r.wanted = j.wanted
		r.wanted.long = r.wanted.long || i+1 < len(keys)
		if o, e := r.acquire(); e != nil {
			if busy, ok := e.(*LockBusy); ok && (busy.State.Done() || busy.State == lockstore.InDoubt) && j.refused != nil {
				var how string
				how, e = j.refused(busy)
				o = Outcome(how)
			}
			r.finishWakeUps()
			return fail(o, e)
		}
		leased = r
		if o, e := r.beginHold(); e != nil {
			return fail(o, e)
		}
		locks[key] = Lock{key, r.lease().Fence, r.lease().Seat}
	}
	if j.markStarted {
		if o, e := last.markStarted(); e != nil {
			return fail(o, e)
		}
	}
	worked = true
	if e := j.work(&last.window, locks); e != nil {
		if _, covered := e.(*LockCovered); covered { // of another lock, inside the work: nobody does the rest of the work
			e = fmt.Errorf("the work: %w", e)
		}
		return fail(OutcomeError, e)
	}
	return fail(OutcomeOK, nil)
}

// beginHold begins the time under the lease, after acquire: it starts renew, and sets renewing, unless the trust lasts long enough (outlasts); it calls
// Options.Granted, waits for it for hookTime at most, and checks the window a last time (checkBegin), which may note that the lease is lost, and end this
// context and those of the runs around. Only do calls it.
func (r *run) beginHold() (Outcome, error) {
	if !r.outlasts(r.window.look()) {
		r.renewing = make(chan struct{})
		go r.renew()
	}
	r.tellGranted()
	return r.checkBegin(OutcomeOK, nil)
}

// outlasts says that the trust lasts until the deadline, or until shortly after the end of MaxHold: work that its context stops can then still return
// under the lease. It changes nothing. beginHold and renew call it.
func (r *run) outlasts(ends bounds) bool {
	return ends.trust > max(min(r.call.deadline, r.holdEnd), later(ends.stop, returnTime))
}

// checkBegin looks a last time whether the work may begin: what came after the grant may have taken long. outcome and
// err say how that ended. It changes only the window and those of the runs around (check). beginHold and markStarted call it.
func (r *run) checkBegin(outcome Outcome, err error) (Outcome, error) {
	left, gone := r.window.check(), r.whyEnded()
	lost := r.window.look().lost
	switch {
	case lost != nil:
		return OutcomeUnavailable, lost // judgeLoss makes the error of a lock that was lost before the work
	case err != nil:
		return outcome, err
	case gone != nil:
		return OutcomeDeadline, &LockNoTime{Key: r.key, Err: gone}
	case left >= leastWork:
		return OutcomeOK, nil
	}
	if outcome, tooLate := r.hasTime(); tooLate != nil {
		return outcome, tooLate
	}
	return OutcomeUnavailable, &LockStoreUnavailable{r.key, errLate}
}

// endHolds ends the time under the lease of a run and of those around it in a DoAll, after work that has returned err, or after the error that kept it from
// beginning. They end side by side, so that each has the time that one has. The outermost, or the only one, ends on this goroutine. A panic of the
// store goes on here, where the caller can recover. do defers it.
func endHolds(leased *run, j job, err error) {
	var others sync.WaitGroup
	var panicked atomic.Pointer[any]
	defer func() {
		if others.Wait(); panicked.Load() != nil {
			panic(*panicked.Load())
		}
	}()
	for r := leased; r != nil; r = r.inside {
		if r.inside == nil {
			r.endHold(j, err)
		} else {
			others.Go(func() {
				defer func() {
					if value := recover(); value != nil {
						panicked.Store(&value)
					}
				}()
				r.endHold(j, err)
			})
		}
	}
}

// endHold ends the time under the lease; only endHolds calls it. It sets HoldTime, which does not include the release. Then it checks and closes the
// window, waits for renew, lets the job end the lease in the store (endLease), and waits for the wake-ups that are left. endLease sends a Release or a
// Complete, and sets ReleaseErr or CompleteErr; it sends nothing if the key stays in doubt. It may also note a loss in the window, or take one back:
// judgeLoss comes after it.
func (r *run) endHold(j job, err error) {
	r.notes.HoldTime = r.now() - r.call.start - r.notes.WaitTime
	r.window.check()
	r.window.close()
	if r.renewing != nil {
		<-r.renewing
	}
	j.endLease(r, err)
	r.finishWakeUps()
}

// judgeLoss returns how the call ends, after endHold: a lease that was lost makes it lost after work, unless the work panicked, and unavailable before it.
// worked says that the work has begun, outcome and err how it or the way to it ended. do calls it for each lease, and it changes nothing.
func (r *run) judgeLoss(outcome Outcome, err error, worked bool) (Outcome, error) {
	switch lost := r.window.look().lost; {
	case lost == nil || outcome == OutcomePanic:
	case worked:
		return OutcomeLost, &LockLost{r.key, err, lost}
	case errors.Is(err, lost): // lost while a DoAll asked for the next lock
		return OutcomeUnavailable, &LockStoreUnavailable{r.key, fmt.Errorf("the lease was lost before the work began: %w", lost)}
	}
	return outcome, err
}

// endRun removes the run from the guard's registry and closes its window. Who calls newRun calls it in a defer.
func (r *run) endRun() {
	r.guard.runs.remove(r)
	r.window.close()
}
