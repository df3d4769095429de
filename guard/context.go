package guard

import (
	"context"
	"fmt"
	"io"
	"math"
	"strings"
	"sync"
	"time"
)

// window is the time for which work may run under a lease. It ends when the lease can no
// longer be trusted, or with the work's own time. It is the work's context: when the work asks
// it, it reads the clocks. So after a freeze the first question already finds the lease lost,
// before any timer has fired.
type window struct {
	context.Context
	cancel context.CancelCauseFunc
	of     *call
	outer  *window // of the run around this one; nil if there is none
	cleans bool    // the run around had lost its lease before this one began
	tracer interface{ trace(Phase, error) }

	mu    sync.Mutex    // guards the fields below, and of the run: lease, handed, wakes.under, Calls and FailedCalls of its report
	timer *time.Timer   // nil until somebody waits for Done
	stop  time.Duration // end of the time for the work; math.MaxInt64 without a lease
	trust time.Duration // end of the trust in the lease
	lost  error         // why the lease is lost
	done  bool
	why   why
}

// Deadline, Done and Err make the window a context.

func (w *window) Deadline() (time.Time, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stop == math.MaxInt64 {
		return w.Context.Deadline()
	}
	return w.of.began.Add(w.stop), true
}

func (w *window) Done() <-chan struct{} {
	w.watch(w.check())
	return w.Context.Done()
}

func (w *window) Err() error {
	w.check()
	err := w.Context.Err()
	if err != nil && context.Cause(w.Context) == ErrDeadline {
		return context.DeadlineExceeded
	}
	return err
}

// Value lets code that has the work's context find the run.
func (r *run) Value(key any) any {
	if key == (runKey{}) {
		return r
	}
	return r.traced().Value(key)
}

// Format prints the type's name only: the run is handed out as a context, and a printed
// context must neither show its owner nor read what other goroutines write.
func (r *run) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "guard.run") }

// close reads the clocks a last time and ends the work's context.
func (w *window) close() {
	w.check()
	w.mu.Lock()
	w.done = true
	if w.timer != nil {
		w.timer.Stop()
	}
	w.mu.Unlock()
	w.cancel(nil)
}

func (w *window) closed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.done
}

// check ends the work's context if its time is over; otherwise it returns how long the
// context lasts. The window around this one is checked, too. If the lease of that window is lost
// after this run began, this context ends, too, also if it was made with context.WithoutCancel.
func (w *window) check() time.Duration {
	if w.outer != nil {
		w.outer.check()
		if lost := w.outer.lostAround(); lost != nil && !w.cleans {
			w.cancel(lost)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done {
		return 0
	}
	now := w.of.elapsed()
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
	w.tracer.trace(PhaseLost, cause) // before the work can return, so that Options.Observe comes later
	w.cancel(cause)
}

// lostAround says why the lease is lost under work that still runs.
func (w *window) lostAround() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done {
		return nil
	}
	return w.lost
}

// lose ends the work's context after an answer that ends the trust in the lease.
func (w *window) lose(cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lost == nil {
		w.markLost(cause)
	}
}

// lostUnderWork notes what a release after the work answered. If the store answered ErrLost while the
// guard still trusted the lease, the lease was lost under the work. Otherwise it may have been lost
// only after the work.
func (w *window) lostUnderWork(err error) {
	if outcomeOf(err) == OutcomeLost && w.lost == nil && w.of.elapsed() < w.trust {
		w.lost = err
		w.tracer.trace(PhaseLost, err)
	}
}

// trusted is how long the lease can be trusted from now on.
func (w *window) trusted() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return max(0, w.trust-w.of.elapsed())
}

// watch starts the timer for work that waits for Done. The timer checks the clocks at
// least once a second, for two reasons: the timer itself runs on the monotonic clock
// alone, and contexts derived from this one do not ask it. Work that never waits needs
// no timer.
func (w *window) watch(left time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer == nil && w.stop != math.MaxInt64 && !w.done {
		w.timer = time.AfterFunc(w.untilTick(left), w.tick)
	}
}

func (w *window) tick() {
	left := w.check()
	w.mu.Lock()
	defer w.mu.Unlock()
	if left > 0 && !w.done {
		w.timer.Reset(w.untilTick(left))
	} else {
		w.why.due = 0
	}
}

// untilTick is called with the lock held.
func (w *window) untilTick(left time.Duration) time.Duration {
	d := min(left, time.Second)
	w.why.due = w.of.elapsed() + d
	return d
}

// why is what may have kept a run from renewing its lease in time.
type why struct {
	due     time.Duration // when the timer is to check the clocks; 0 without one
	late    time.Duration // the longest time after due that a check came
	missed  time.Duration // what the monotonic clock had missed when the lease was last extended
	renewal error         // why the last renewal failed
}

// extended begins a new time of trust. It is called with the lock held.
func (w *window) extended(trust time.Duration) {
	w.trust = trust
	w.why = why{due: w.why.due, missed: w.of.guard.clock.missed()}
}

// expiry says why the trust in the lease has ended. It is called with the lock held.
func (w *window) expiry() error {
	var reasons []string
	if d := max(w.why.late, w.of.guard.clock.missed()-w.why.missed); d >= time.Second {
		reasons = append(reasons, fmt.Sprintf("the process stood still for %v, or its clock was set forward", d.Round(100*time.Millisecond)))
	}
	if w.why.renewal != nil {
		reasons = append(reasons, fmt.Sprintf("the last renewal failed: %v", w.why.renewal))
	}
	if reasons == nil {
		reasons = append(reasons, "the work went on after its end")
	}
	return &loss{"the lease can no longer be trusted: " + strings.Join(reasons, "; "), nil}
}
