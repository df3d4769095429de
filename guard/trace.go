package guard

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lambdalock/lambdalock/internal/tell"
)

// Phase is a moment in a run that Options.Trace is told about.
type Phase string

// The phases of Do, DoAll and DoOnce. Acquire has PhaseAsking only; Renew, Release and
// Inspect have none. The end of a run is told to Options.Observe.
const (
	PhaseAsking      Phase = "asking"       // before the first request for the lock
	PhaseGranted     Phase = "granted"      // the run has the lock, and the work has not begun
	PhaseRenewed     Phase = "renewed"      // the lease is renewed
	PhaseRenewFailed Phase = "renew failed" // a renewal failed; while the lease can be trusted, the guard tries again
	PhaseLost        Phase = "lost"         // the lease was lost under the work, perhaps at its end
)

// TraceEvent is what Options.Trace is told.
type TraceEvent struct {
	Phase Phase

	// Report is what is known so far: the key and the holder info, and from PhaseGranted on what
	// was known at the grant.
	Report Report

	Err error // why a renewal failed, or why the lease is lost
}

// traces are the events of a run that Options.Trace is told, one after the other on a goroutine of its own. Renewals and losses come from other
// goroutines than the call's.
type traces struct {
	plain  context.Context                 // the run's, without the values of Options.Trace
	values atomic.Pointer[context.Context] // that Options.Trace returned; nil without one. A store may read them when its call has ended

	mu      sync.Mutex
	told    Report       // at the last phase before the work
	events  []TraceEvent // that Options.Trace has not been told; the first one is being told
	telling *tell.Call   // the last one; nil if it hangs
}

// mostEvents is how many events a run keeps while Options.Trace hangs.
const mostEvents = 100

// trace tells Options.Trace of a phase, after the phases before. It does not wait for that: a lease may
// have to be renewed. After a panic of Options.Trace the first event stays, so this run traces no more.
func (r *run) trace(phase Phase, err error) {
	if r.guard.opt.Trace == nil {
		return
	}
	t := &r.traces
	t.mu.Lock()
	defer t.mu.Unlock()
	if phase == PhaseAsking || phase == PhaseGranted { // these come from the goroutine of the call
		t.told = r.report("", nil)
	}
	if len(t.events) == mostEvents {
		return
	}
	if t.events = append(t.events, TraceEvent{phase, t.told, err}); len(t.events) == 1 {
		t.telling = tell.Start("guard.Options.Trace", func() { t.tellAll(r.guard.opt.Trace) })
	}
}

// tellAll tells all events.
func (t *traces) tellAll(hook func(context.Context, TraceEvent) context.Context) {
	for more := true; more; {
		t.mu.Lock()
		e := t.events[0]
		t.mu.Unlock()
		ctx := hook(t.context(), e)
		if ctx != nil && (e.Phase == PhaseAsking || e.Phase == PhaseGranted) {
			t.values.Store(&ctx)
		}
		t.mu.Lock()
		t.events = t.events[1:]
		more = len(t.events) > 0
		t.mu.Unlock()
	}
}

// awaitTrace waits until Options.Trace has been told all events. If that takes too long, the run does not wait for it again.
func (r *run) awaitTrace() {
	t := &r.traces
	t.mu.Lock()
	telling := t.telling
	t.mu.Unlock()
	if telling == nil || r.guard.clock.awaitHook(telling, r.tellTime()) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.telling == telling {
		t.telling = nil
	}
}

// tellTime is how long the run may wait for a hook now: the caller's deadline leaves time for work and answer.
func (r *run) tellTime() time.Duration {
	if _, shutDown := r.guard.runs.shutdownAt(); shutDown {
		return noticeTime
	}
	return hookTime(r.left())
}

// hookTime is how long a hook may take when so much time is left.
func hookTime(left time.Duration) time.Duration { return max(noticeTime, min(tell.Most, left/2)) }

// context is the run's context with the values of Options.Trace. It is not the window,
// which asks this context for its values.
func (t *traces) context() context.Context {
	if ctx := t.values.Load(); ctx != nil {
		return *ctx
	}
	return t.plain
}

// observed is the caller's context with the values of Options.Trace.
func (t *traces) observed(caller context.Context) context.Context {
	if ctx := t.values.Load(); ctx != nil {
		return valued{caller, *ctx}
	}
	return caller
}

type valued struct {
	context.Context
	values context.Context
}

func (v valued) Value(key any) any { return v.values.Value(key) }
