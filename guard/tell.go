package guard

import (
	"context"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/tell"
)

// tellGranted tells Options.Granted that the run has its lock, and sets values. beginHold calls it, beside renew if that runs.
func (r *run) tellGranted() {
	granted := r.guard.opt.Granted
	if granted == nil {
		return
	}
	report := r.report("", nil)
	r.tell("Granted", func() {
		if ctx := granted(r.window.ctx, report); ctx != nil {
			r.values.Store(&ctx)
		}
	})
}

// observe tells Options.Observe how the run ended. do and finish call it, at the end.
func (r *run) observe(outcome Outcome, err error) {
	f := r.guard.opt.Observe
	if f == nil {
		return
	}
	ctx, report := r.call.caller, r.report(outcome, err)
	if values := r.values.Load(); values != nil {
		ctx = valued{ctx, *values}
	}
	r.tell("Observe", func() { f(ctx, report) })
}

// tell calls a hook, and waits for it if it has not hung before in the same call: for those of a DoAll together no more time is lost than for one. It
// sets hung, of the call. tellGranted and observe call it.
func (r *run) tell(name string, hook func()) {
	call, d, hung := tell.Start("guard.Options."+name, hook), hookTime(r.left()), r.call.hung
	if hung[name] {
		go call.Wait(d, r.guard.runs.over.Done()) // it counts if it hangs, too
	} else {
		hung[name] = !call.Wait(d, r.guard.runs.over.Done())
	}
}

// hookTime is how long a run waits for a hook when so much time is left: the deadline leaves time for work and answer. Guard.HolderInfo and
// run.tell call it, and wait for less after Shutdown.
func hookTime(left time.Duration) time.Duration { return max(tell.Least, min(tell.Most, left/2)) }

// valued is the context for Options.Observe: the caller's, with the values of Options.Granted.
type valued struct {
	context.Context
	values context.Context
}

func (v valued) Value(key any) any { return v.values.Value(key) }
