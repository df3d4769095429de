package guard

import (
	"context"
	"fmt"
	"io"
	"math"
	"strings"
	"time"
)

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
	return r.traced().Value(key)
}

// Format prints the type's name only: the run is handed out as a context, and a printed
// context must neither show its owner nor read what other goroutines write.
func (r *run) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "guard.run") }

// check ends the work's context if its time is over; otherwise it returns how long the
// context lasts. The context of the run around this run is checked, too.
func (r *run) check() time.Duration {
	if r.outer != nil {
		r.outer.check()
	}
	left, lost := r.checkClocks()
	if lost != nil {
		r.trace(PhaseLost, lost)
	}
	return left
}

// checkClocks returns how long the context lasts, and once why the trust has ended.
func (r *run) checkClocks() (left time.Duration, lost error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done {
		return 0, nil
	}
	now := r.elapsed()
	if r.why.due > 0 {
		r.why.late = max(r.why.late, now-r.why.due)
	}
	if now >= r.trust && r.lost == nil {
		r.expired = true
		r.lost = r.expiry()
		r.cancel(r.lost)
		lost = r.lost
	}
	if now >= r.stop {
		r.cancel(ErrDeadline)
	}
	return min(r.stop, r.trust) - now, lost
}

// lose ends the work's context because the store has answered that the lease is lost.
func (r *run) lose(cause error) {
	r.mu.Lock()
	first := r.lost == nil
	if first {
		r.lost = cause
		r.cancel(cause)
	}
	r.mu.Unlock()
	if first {
		r.trace(PhaseLost, cause)
	}
}

// watch starts the timer for work that waits for Done. The timer checks the clocks at
// least once a second, for two reasons: the timer itself runs on the monotonic clock
// alone, and contexts derived from this one do not ask it. Work that never waits needs
// no timer.
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

// why is what may have kept a run from renewing its lease in time.
type why struct {
	due     time.Duration // when the timer is to check the clocks; 0 without one
	late    time.Duration // how long after due a check came, at most
	missed  time.Duration // what the monotonic clock had missed when the lease was last extended
	renewal error         // why the last renewal failed
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
