package schedule

import (
	"context"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/guard/internal/once"
)

// Once returns work that runs once for each call(event), for Wrap: a trigger
// that comes again is skipped, also long after the first. A good key has the schedule's name
// and the time in the event. The work runs under the lock of the schedule, and gets this
// lock. The key of the result is locked while the schedule's key is, so the two keys must
// differ. It costs two writes more, and three with idempotency.AtMostOnce.
//
// If another run works on the same call, the answer is as for the schedule's own lock. If an
// argument is nil, or idempotency.New has not made o, Once returns nil, which is a mistake in the program to
// Wrap.
func Once[In any](o *idempotency.Once, call func(context.Context, In) (idempotency.Call, error), work guard.Work[In]) guard.Work[In] {
	return once.Work(o, call, work)
}
