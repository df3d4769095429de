package guard

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// window is the time for which work may run under a lease. It ends when the lease can no
// longer be trusted, or with the work's own time. It is the work's context: when the work asks
// it, it reads the clocks. So after a freeze the first question already finds the lease lost,
// before any timer has fired.
type window struct {
	ctx    context.Context // ends with the caller's context, or by cancel
	cancel context.CancelCauseFunc
	clock  *clock
	call   *call
	values func(key any) any // what the context carries
	onLoss func(error)       // is told why the lease is lost
	around *window           // of the run around this one; nil if there is none
	cleans bool              // the run around had lost its lease before this one began

	mu        sync.Mutex
	stopTimer func() bool   // nil until somebody waits for Done
	stop      time.Duration // end of the time for the work; never without a lease
	trust     time.Duration // end of the trust in the lease
	lost      error         // why the lease is lost
	closed    bool
	why       why
}

// why is what may have kept a run from renewing its lease in time.
type why struct {
	due     time.Duration // when the timer is to check the clocks; 0 without one
	late    time.Duration // the longest time after due that a check came
	missed  time.Duration // what the monotonic clock had missed when the lease was last extended
	renewal error         // why the last renewal failed
}

// Deadline, Done, Err and Value make the window a context. The work calls them, on any goroutine.

func (w *window) Deadline() (time.Time, bool) {
	if stop := w.stopsAt(); stop != never {
		return w.call.wall(stop), true
	}
	return w.ctx.Deadline()
}

func (w *window) Done() <-chan struct{} {
	w.watch(w.check())
	return w.ctx.Done()
}

func (w *window) Err() error {
	w.check()
	err := w.ctx.Err()
	if err != nil && context.Cause(w.ctx) == ErrDeadline {
		return context.DeadlineExceeded
	}
	return err
}

func (w *window) Value(key any) any { return w.values(key) }

// Format prints the type's name only: a printed context must neither show the run's owner nor read what other
// goroutines write.
func (w *window) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "guard.run") }

// open begins the time for work under a lease.
func (w *window) open(stop, trust time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stop = stop
	w.trustUntil(trust)
}

// extend makes the trust last longer after a renewal, and says whether it outlasts the work. A renewal never shortens the
// trust, though a store that rounds to whole seconds may return less.
func (w *window) extend(trust time.Duration) (until time.Duration, enough bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trustUntil(max(w.trust, trust))
	return w.trust, w.trust > w.stop
}

// trustUntil begins a new time of trust. It is called with the lock held.
func (w *window) trustUntil(trust time.Duration) {
	w.trust = trust
	w.why = why{due: w.why.due, missed: w.clock.missed()}
}

// close reads the clocks a last time and ends the work's context.
func (w *window) close() {
	w.check()
	w.mu.Lock()
	w.closed = true
	if w.stopTimer != nil {
		w.stopTimer()
	}
	w.mu.Unlock()
	w.cancel(nil)
}

func (w *window) isClosed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.closed
}

// check ends the work's context if its time is over; otherwise it returns how long the
// context lasts. The window around this one is checked, too. If the lease of that window is lost
// after this run began, this context ends, too, also if it was made with context.WithoutCancel.
func (w *window) check() time.Duration {
	if w.around != nil {
		w.around.check()
		if lost := w.around.lostUnderWork(); lost != nil && !w.cleans {
			w.cancel(lost)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return 0
	}
	now := w.clock.time()
	if w.why.due > 0 {
		w.why.late = max(w.why.late, now-w.why.due)
	}
	if now >= w.trust && w.lost == nil {
		w.markLost(w.expiry())
	}
	if now >= w.stop {
		w.cancel(ErrDeadline)
	}
	return min(w.stop, w.trust) - now
}

// markLost ends the work's context because the lease is lost. It is called with the lock held.
func (w *window) markLost(cause error) {
	w.lost = cause
	w.onLoss(cause) // before the work can return, so that Options.Observe comes later
	w.cancel(cause)
}

// lose ends the work's context after an answer that ends the trust in the lease.
func (w *window) lose(cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lost == nil {
		w.markLost(cause)
	}
}

// loseByRelease notes what a release after the work answered. If the store answered ErrLost while the
// guard still trusted the lease, the lease was lost under the work. Otherwise it may have been lost
// only after the work.
func (w *window) loseByRelease(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if outcomeOf(err) == OutcomeLost && w.lost == nil && w.clock.time() < w.trust {
		w.markLost(err)
	}
}

// forgiveLoss is for a lease that turned out to be nobody else's, although its time had ended.
func (w *window) forgiveLoss() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lost = nil
}

// loss says why the lease is lost.
func (w *window) loss() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lost
}

// lostUnderWork says why the lease is lost under work that still runs.
func (w *window) lostUnderWork() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil
	}
	return w.lost
}

// renewalFailed notes why a renewal failed.
func (w *window) renewalFailed(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.why.renewal = err
}

// stopsAt is the end of the time for the work.
func (w *window) stopsAt() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stop
}

// trusted is how long the lease can be trusted from now on.
func (w *window) trusted() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return max(0, w.trust-w.clock.time())
}

// mayNeedRenewal says whether the trust may end before the work's time, or with it: the work would end as lost then.
func (w *window) mayNeedRenewal() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.trust <= w.stop
}

// watch starts the timer for work that waits for Done. The timer checks the clocks at
// least once a second, for two reasons: the timer itself runs on the monotonic clock
// alone, and contexts derived from this one do not ask it. Work that never waits needs
// no timer.
func (w *window) watch(left time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopTimer == nil && w.stop != never && !w.closed {
		w.setTimer(left)
	}
}

// tick is called by the timer.
func (w *window) tick() {
	left := w.check()
	w.mu.Lock()
	defer w.mu.Unlock()
	if left > 0 && !w.closed {
		w.setTimer(left)
	} else {
		w.why.due = 0
	}
}

// setTimer is called with the lock held.
func (w *window) setTimer(left time.Duration) {
	d := min(left, time.Second)
	w.why.due = w.clock.time() + d
	w.stopTimer = w.clock.after(d, w.tick)
}

// expiry says why the trust in the lease has ended. It is called with the lock held.
func (w *window) expiry() error {
	var reasons []string
	if d := max(w.why.late, w.clock.missed()-w.why.missed); d >= time.Second {
		reasons = append(reasons, fmt.Sprintf("the process stood still for %v, or its clock was set forward", d.Round(100*time.Millisecond)))
	}
	if w.why.renewal != nil {
		reasons = append(reasons, fmt.Sprintf("the last renewal failed: %v", w.why.renewal))
	}
	if reasons == nil {
		reasons = append(reasons, "the work went on after its end")
	}
	return &lossError{"the lease can no longer be trusted: " + strings.Join(reasons, "; "), nil}
}
