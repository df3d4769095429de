package guard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// Lock is what the work gets: the key that is held and its fencing token. Write
// the fence with the data and refuse a smaller one, and a holder that woke up
// too late can do no harm.
type Lock struct {
	Key   string
	Fence lockstore.Fence
}

// Do acquires the lock of key, runs work and releases it. It returns what work
// returned, unless the lock was not had (*LockBusy, *LockDeadline,
// *LockInvalid, *LockCorrupt, *LockStoreUnavailable: work did not run) or was
// lost while work ran (*LockLost).
//
// The work's context ends in time: Reserve before ctx's deadline, at MaxHold,
// or when the lease can no longer be trusted. It is cancelled when work
// returns. If work panics or calls runtime.Goexit the lease is released and the
// panic goes on with its own stack. Work that does not return keeps its lease
// until that expires; it is never released under running work.
func (g *Guard) Do(ctx context.Context, key string, work func(context.Context, Lock) error) error {
	return g.do(ctx, key, cooldown{}, work)
}

func (g *Guard) do(ctx context.Context, key string, after cooldown, work func(context.Context, Lock) error) error {
	if err := g.usable(ctx); err != nil {
		return err
	}
	if work == nil {
		return errors.New("guard: the work is nil")
	}
	r := g.newRun(ctx, key)
	defer r.close()
	if outcome, err := r.acquire(); err != nil {
		return r.end(outcome, err)
	}
	return r.hold(after, work)
}

// run is one Do. It is also the work's context, so that the clocks are looked
// at whenever the work looks at its context: after a freeze the first look
// already finds the lease gone, before any timer has fired.
//
// All its durations are counted from start.
type run struct {
	context.Context
	cancel context.CancelCauseFunc

	guard   *Guard
	caller  context.Context
	outer   *run          // the run that this one is nested in
	start   time.Duration // on the guard's clock
	began   time.Time     // the same on the wall clock
	left    time.Duration // until the caller's deadline
	wait    time.Duration // for a lock that another holds
	request LeaseRequest  // what Acquire asked for; zero in a Do
	report  Report

	lease   lockstore.Lease
	sent    time.Duration // when the lease was first asked for
	holdEnd time.Duration // the grant + MaxHold
	joined  chan struct{} // closed when the renewing goroutine has returned; nil without one

	// Guarded by the guard's mu:
	cut   context.CancelFunc // ends the present step of a release; nil without one
	isCut bool               // the time for a release is over

	mu      sync.Mutex  // guards what follows
	timer   *time.Timer // nil until somebody waits for Done
	holding bool
	stop    time.Duration // end of the time for the work
	trust   time.Duration // end of the trust in the lease
	lost    error         // why the lease is lost
	expired bool          // because the trust in it has ended
	done    bool
	why     why
}

// why is what may have kept a run from renewing its lease since it last could.
type why struct {
	due     time.Duration // when the timer is to look at the clocks; 0 without one
	late    time.Duration // how long after that they were looked at, at most
	missed  time.Duration // what the monotonic clock had missed when the lease was last extended
	renewal error         // why the last renewal failed
}

type runKey struct{}

func (g *Guard) newRun(ctx context.Context, key string) *run {
	start, wall := g.clock.look()
	r := &run{guard: g, caller: ctx, start: start, began: time.Unix(0, int64(wall)), wait: g.opt.Wait,
		left: math.MaxInt64, holdEnd: math.MaxInt64, stop: math.MaxInt64, trust: math.MaxInt64}
	if deadline, ok := ctx.Deadline(); ok {
		now := time.Now()
		r.left = max(0, min(deadline.Sub(now), deadline.Round(0).Sub(now.Round(0))))
	}
	r.outer, _ = ctx.Value(runKey{}).(*run)
	r.report.Key = key
	r.report.Holder = g.opt.Holder(ctx)
	if r.report.Holder.Since.IsZero() {
		r.report.Holder.Since = time.UnixMilli(r.began.UnixMilli())
	}
	// After the option's function, which may panic: nothing is left open then.
	r.Context, r.cancel = context.WithCancelCause(ctx)
	g.register(r)
	return r
}

// elapsed is the time since start; it never understates it.
func (r *run) elapsed() time.Duration {
	now, _ := r.guard.clock.look()
	return now - r.start
}

// Deadline, Done, Err and Value make the run a context.

func (r *run) Deadline() (time.Time, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stop == math.MaxInt64 {
		return r.Context.Deadline()
	}
	return r.began.Add(r.stop), true
}

func (r *run) Done() <-chan struct{} {
	r.watch(r.check())
	return r.Context.Done()
}

func (r *run) Err() error {
	r.check()
	err := r.Context.Err()
	if err != nil && context.Cause(r.Context) == ErrDeadline {
		return context.DeadlineExceeded
	}
	return err
}

func (r *run) Value(key any) any {
	if key == (runKey{}) {
		return r
	}
	return r.Context.Value(key)
}

// Format names the type and nothing else: the run is handed out as a context,
// and printing one must neither show its owner nor read what others write.
func (r *run) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "guard.run") }

// check ends the work's context if its time is over, and says how long it lasts
// otherwise.
func (r *run) check() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done {
		return 0
	}
	now := r.elapsed()
	if r.why.due > 0 {
		r.why.late = max(r.why.late, now-r.why.due)
	}
	if now >= r.trust && r.lost == nil {
		r.expired = true
		r.lost = r.expiry()
		r.cancel(r.lost)
	}
	if now >= r.stop {
		r.cancel(ErrDeadline)
	}
	return min(r.stop, r.trust) - now
}

// watch starts the timer for those who wait for Done. It looks at the clocks at
// least once a second, because a timer runs on the monotonic clock alone, and
// contexts below this one do not ask it. Work that never waits needs no timer.
func (r *run) watch(left time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.timer == nil && r.holding && !r.done {
		r.timer = time.AfterFunc(r.untilTick(left), r.tick)
	}
}

func (r *run) tick() {
	left := r.check()
	r.mu.Lock()
	defer r.mu.Unlock()
	if left > 0 && !r.done {
		r.timer.Reset(r.untilTick(left))
	}
}

// untilTick is called with the lock held.
func (r *run) untilTick(left time.Duration) time.Duration {
	d := min(left, time.Second)
	r.why.due = r.elapsed() + d
	return d
}

// extended begins a new time of trust. It is called with the lock held.
func (r *run) extended(trust time.Duration) {
	r.trust = trust
	r.why = why{due: r.why.due, missed: r.guard.clock.missed()}
}

// expiry says why the trust in the lease has ended. It is called with the lock held.
func (r *run) expiry() error {
	var reasons []string
	if d := max(r.why.late, r.guard.clock.missed()-r.why.missed); d >= time.Second {
		reasons = append(reasons, fmt.Sprintf("the process stood still for %v, or its clock was set forward", d.Round(100*time.Millisecond)))
	}
	if r.why.renewal != nil {
		reasons = append(reasons, fmt.Sprintf("the last renewal failed: %v", r.why.renewal))
	}
	if reasons == nil {
		reasons = append(reasons, "the work went on after its end")
	}
	return &loss{"the lease can no longer be trusted: " + strings.Join(reasons, "; "), nil}
}

func (r *run) lose(cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lost == nil {
		r.lost = cause
		r.cancel(cause)
	}
}

// hold runs the work under the lease and gives the lease back.
func (r *run) hold(after cooldown, work func(context.Context, Lock) error) (err error) {
	// A trust that ends with the work's time would end it as lost.
	if r.trust <= r.stop {
		r.joined = make(chan struct{})
		go r.renew()
	}
	returned := false
	// No recover: a panic or Goexit passes through with its own stack.
	defer func() {
		r.report.Held = r.elapsed() - r.report.Waited
		r.finish()
		outcome := "ok"
		switch {
		case !returned:
			outcome, err = "panic", errNotReturned
		case err != nil:
			outcome = "error"
		}
		if err != nil || r.lost != nil {
			after = cooldown{}
		}
		if r.lost == nil || r.expired {
			r.releaseAfterWork(after)
		}
		if r.lost != nil && returned {
			outcome, err = "lost", &LockLost{r.report.Key, err, r.lost}
		}
		err = r.end(outcome, err)
	}()
	err = work(r, Lock{r.report.Key, r.lease.Fence})
	returned = true
	return err
}

var errNotReturned = errors.New("the work did not return: it panicked or called runtime.Goexit")

// finish looks at the clocks a last time, ends the work's context and joins the
// renewing goroutine.
func (r *run) finish() {
	r.check()
	r.mu.Lock()
	r.done = true
	if r.timer != nil {
		r.timer.Stop()
	}
	r.mu.Unlock()
	r.cancel(nil)
	if r.joined != nil {
		<-r.joined
	}
}

// releaseAfterWork releases the lease after the work. When the store answers that the
// lease is not there, while it could still be trusted, it vanished under the
// work. After the end of trust, or behind a lost reply, the same answer says
// nothing about the time of the work.
func (r *run) releaseAfterWork(after cooldown) {
	err := r.release(r.lease, after)
	r.report.ReleaseErr = err
	if errors.Is(err, lockstore.ErrLost) && r.elapsed() < r.trust {
		r.lost = err
	}
}

// close frees what the run has of its guard and its context.
func (r *run) close() {
	r.guard.unregister(r)
	r.cancel(nil)
}

// end tells the observer.
func (r *run) end(outcome string, err error) error {
	r.report.Outcome, r.report.Err = outcome, err
	r.guard.opt.Observe(r.caller, r.report)
	return err
}

// renew keeps the lease until the work ends or the trust reaches past it. The
// thirds are those of the time that the store lets us trust, which may be much
// less than what was asked for.
func (r *run) renew() {
	defer close(r.joined)
	next, pause := r.sent+r.lease.TTL/3, r.guard.pauses()
	for r.sleep(next - r.elapsed()) {
		sent := r.elapsed()
		ttl := r.ttl(sent)
		ctx, cancel := context.WithTimeout(r, min(callTime, r.check()/2))
		trusted, err := r.guard.store.Renew(ctx, r.lease, ttl)
		cancel()
		r.report.Requests++
		switch {
		case err == nil:
			r.mu.Lock()
			// A renewal takes nothing off, though the whole seconds of a store may look so.
			r.extended(max(r.trust, sent+trusted-margin))
			enough := r.trust > r.stop
			next, pause = sent+(r.trust+margin-sent)/3, r.guard.pauses()
			r.mu.Unlock()
			if enough {
				return
			}
		case errors.Is(err, lockstore.ErrLost):
			r.lose(err)
			return
		case errors.Is(err, lockstore.ErrCorrupt), errors.Is(err, lockstore.ErrInvalid):
			r.lose(&loss{err.Error(), err})
			return
		default:
			r.mu.Lock()
			r.why.renewal = err
			r.mu.Unlock()
			next = r.elapsed() + pause.next()
		}
	}
}

// ttl is the lease to ask for at the time now: a little longer than the run can
// last, within the option. A loan says itself how long it is.
func (r *run) ttl(now time.Duration) time.Duration {
	if r.request.TTL != 0 {
		return r.request.TTL
	}
	rest := min(r.left-now, r.holdEnd-now, r.guard.opt.MaxHold)
	return max(lockstore.MinTTL, min(rest+ttlSlack, r.guard.opt.TTL))
}

// sleep waits for d, or returns false when the run's context ends.
func (r *run) sleep(d time.Duration) bool { return sleep(r, d) }

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// pauses are the times between two looks at the store: random up to a bound
// that doubles ("full jitter", Brooker, AWS Architecture Blog 2015).
type pauses struct {
	random func(time.Duration) time.Duration
	bound  time.Duration
}

func (g *Guard) pauses() pauses { return pauses{random: g.random} }

func (p *pauses) next() time.Duration {
	p.bound = min(max(2*p.bound, firstPause), maxPause)
	return p.random(p.bound) + 1
}
