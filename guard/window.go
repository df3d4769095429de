package guard

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// window is the time for which work may run under a lease. It ends when the lease can no
// longer be trusted, or with the work's own time. It is the work's context: when the work asks
// for its Err or Done, it reads the clocks. So after a freeze the first question already finds the lease lost,
// before any timer has fired.
//
// Any goroutine may use it: the call's, that of renew, a timer, the work's own. The mutex guards what stands below it. No method sends a request.
type window struct {
	run    *run
	ctx    context.Context // ends with the caller's context, or by cancel
	cancel context.CancelCauseFunc
	cleans bool // the run around had lost its lease before this one began

	mu        sync.Mutex
	bounds    bounds
	why       why
	stopTimer func() bool // nil without a lease
}

// bounds are the ends of a window.
type bounds struct {
	stop   time.Duration // of the time for the work; never without a lease
	trust  time.Duration // of the trust in the lease
	lost   error         // why the lease is lost
	closed bool          // the work has returned
}

// why is what may have kept a run from renewing its lease in time.
type why struct {
	due     time.Duration // when the timer is to check the clocks; 0 without one
	late    time.Duration // the longest time after due that a check came
	missed  time.Duration // what the monotonic clock had missed when the lease was last extended
	renewal error         // why the last renewal failed
}

// Deadline is the end of the time for the work, not of the trust. It reads no clock. Deadline, Done, Err and Value make the window a
// context; the work calls them, on any goroutine.
func (w *window) Deadline() (time.Time, bool) {
	if stop := w.look().stop; stop != never {
		return w.run.call.wall(stop), true
	}
	return w.ctx.Deadline()
}

func (w *window) Done() <-chan struct{} {
	w.check()
	return w.ctx.Done()
}

func (w *window) Err() error {
	w.check()
	err := w.ctx.Err() // before the cause: a context that ends in between says later how
	if err != nil && context.Cause(w.ctx) == ErrDeadline {
		return context.DeadlineExceeded
	}
	return err
}

// Value lets code that has the work's context find the run. The other values are those of the context that Options.Granted has returned,
// which is made of window.ctx, and until then those of window.ctx. The work may ask before a late Granted returns.
func (w *window) Value(key any) any {
	if key == (runKey{}) {
		return w.run
	}
	if ctx := w.run.values.Load(); ctx != nil {
		return (*ctx).Value(key)
	}
	return w.ctx.Value(key)
}

// Format prints the type's name only: a printed context must neither show the run's owner nor read what other
// goroutines write.
func (w *window) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "guard.run") }

// open begins the time for work under a lease. From now on a timer checks the clocks at
// least once a second, for two reasons: the timer itself runs on the monotonic clock
// alone, and contexts derived from this one do not ask it. take calls it, once.
func (w *window) open(stop, trust time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.bounds.stop = stop
	w.trustUntil(trust)
	w.setTimer()
}

// extend makes the trust last longer, and returns the ends by which renew plans the next renewal; renew calls it after a renewal. A renewal never shortens the
// trust, though a store that rounds to whole seconds may return less. It sets no timer: the old one fires, and tick sets the next. A loss stays,
// and what kept the run from renewing before (why) is forgotten.
func (w *window) extend(trust time.Duration) bounds {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trustUntil(max(w.bounds.trust, trust))
	return w.bounds
}

// trustUntil sets the end of the trust, and forgets what has kept the run from renewing before (why, but for due). It sets no timer. open and extend call it
// with the lock held.
func (w *window) trustUntil(trust time.Duration) {
	w.bounds.trust = trust
	w.why = why{due: w.why.due, missed: w.run.guard.clock.missed()}
}

// close ends the work's context, and what the window knows of its lease stays as it is. endHold and endRun call it.
func (w *window) close() {
	w.mu.Lock()
	w.bounds.closed = true
	if w.stopTimer != nil {
		w.stopTimer()
	}
	w.mu.Unlock()
	w.cancel(nil)
}

// look returns the window's ends as they are known now. It reads no clock, and is used all over the package.
func (w *window) look() bounds {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.bounds
}

// trusted is how long the lease can be trusted from now on. acquireLease, renew and loseByRelease call it.
func (w *window) trusted() time.Duration { return max(0, w.look().trust-w.run.now()) }

// check ends the work's context if its time is over or the lease cannot be trusted any more. It returns what is left of the time and of the trust: 0 or
// less if one of them is over or the window is closed. It notes how late the timer was, and does not set it. tick, the work's questions, take,
// checkBegin, renew and endHold call it. The window around this one is checked, too. If the lease of that window is lost after this run began, this
// context ends, too, also if it was made with context.WithoutCancel; what is left may be more than 0 then.
func (w *window) check() time.Duration {
	if around := w.run.around; around != nil {
		around.window.check()
		if ends := around.window.look(); ends.lost != nil && !ends.closed && !w.cleans {
			w.cancel(ends.lost)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.bounds.closed {
		return 0
	}
	now := w.run.now()
	if w.why.due > 0 {
		w.why.late = max(w.why.late, now-w.why.due)
	}
	if now >= w.bounds.trust {
		w.lose(w.expiry())
	}
	if now >= w.bounds.stop {
		w.cancel(ErrDeadline)
	}
	return min(w.bounds.stop, w.bounds.trust) - now
}

// lose notes that the lease is lost, and ends the work's context, unless a loss was known before. check and loseBy call it with the lock held. The timer
// goes on.
func (w *window) lose(cause error) {
	if w.bounds.lost == nil {
		w.bounds.lost = cause
		w.cancel(cause)
	}
}

// loseBy ends the work's context after an answer to renew, markStarted or a release (loseByRelease) that ends the trust in the lease.
func (w *window) loseBy(cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lose(cause)
}

// loseByRelease notes what a release or a completion after the work answered. If the store answered ErrLost while the
// guard still trusted the lease, the lease was lost under the work. Otherwise it may have been lost
// only after the work. complete and releaseAfterWork call it.
func (w *window) loseByRelease(err error) {
	if outcomeOf(err) == OutcomeLost && w.trusted() > 0 {
		w.loseBy(err)
	}
}

// forgive forgets that the lease is lost, and the context stays cancelled: the store has accepted a Complete although the lease's time had
// ended, so the key was nobody else's. complete calls it.
func (w *window) forgive() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.bounds.lost = nil
}

// renewalFailed notes why a renewal failed. It sets why.renewal; renew calls it.
func (w *window) renewalFailed(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.why.renewal = err
}

// setTimer sets the timer of the next check: why.due and stopTimer. open and tick call it with the lock held.
func (w *window) setTimer() {
	now := w.run.now()
	d := min(min(w.bounds.stop, w.bounds.trust)-now, time.Second)
	w.why.due = now + d
	w.stopTimer = time.AfterFunc(d, w.tick).Stop
}

// tick checks, and sets the next timer unless the window is over. The timer calls it. Only open and tick set one, so there is one at most.
func (w *window) tick() {
	left := w.check()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.why.due = 0; left > 0 && !w.bounds.closed {
		w.setTimer()
	}
}

// expiry says why the trust in the lease has ended. check calls it with the lock held.
func (w *window) expiry() error {
	var reasons []string
	if d := max(w.why.late, w.run.guard.clock.missed()-w.why.missed); d >= time.Second {
		reasons = append(reasons, fmt.Sprintf("the process stood still for %v, or its clock was set forward", d.Round(100*time.Millisecond)))
	}
	if w.why.renewal != nil {
		reasons = append(reasons, fmt.Sprintf("the last renewal failed: %v", w.why.renewal))
	}
	if reasons == nil {
		reasons = append(reasons, "the work went on after its end")
	}
	return fmt.Errorf("the lease can no longer be trusted: %s: %w", strings.Join(reasons, "; "), lockstore.ErrLost)
}
