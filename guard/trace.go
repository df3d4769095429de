package guard

import (
	"context"
	"sync/atomic"
	"time"
)

// Phase is a moment in a run that Options.Trace is told about.
type Phase string

// The phases of Do, DoAll, DoOnce and WithCooldown. Acquire has PhaseAsking only; Renew, Release and
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

	Trusted time.Duration // how long the lease can be trusted from now on; 0 without one
	Err     error         // why a renewal failed, or why the lease is lost
}

// traces is what a run knows of Options.Trace.
type traces struct {
	told Report // at the last phase before the work

	// values is the context that Options.Trace returned; nil without one. A store may
	// still read values of the run's context when its call has ended.
	values atomic.Pointer[context.Context]
}

// trace is called without the run's mutex, because the hook may ask the work's context.
func (r *run) trace(phase Phase, err error) {
	f := r.guard.opt.Trace
	if f == nil {
		return
	}
	before := phase == PhaseAsking || phase == PhaseGranted // nobody traces this run on another goroutine yet
	if before {
		r.traces.told = r.report
	}
	e := TraceEvent{Phase: phase, Report: r.traces.told, Err: err}
	if phase != PhaseAsking && phase != PhaseLost {
		e.Trusted = r.trusted()
	}
	ctx := f(r.traced(), e)
	if before && ctx != nil {
		r.traces.values.Store(&ctx)
	}
}

// traced is the run's context with the values of Options.Trace. It is not the run itself,
// which asks this context for its values.
func (r *run) traced() context.Context {
	if ctx := r.traces.values.Load(); ctx != nil {
		return *ctx
	}
	return r.Context
}

// observed is the caller's context with the values of Options.Trace.
func (r *run) observed() context.Context {
	if ctx := r.traces.values.Load(); ctx != nil {
		return valued{r.caller, *ctx}
	}
	return r.caller
}

type valued struct {
	context.Context
	values context.Context
}

func (v valued) Value(key any) any { return v.values.Value(key) }
