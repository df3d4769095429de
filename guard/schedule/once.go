package schedule

import (
	"context"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/lockstore"
)

// Once returns work that runs once for each call(event), for Wrap and WrapWith: a trigger
// that comes again is skipped, also long after the first. A good key has the schedule's name
// and the time in the event. The work runs under the lock of the schedule, and gets this
// lock. The key of the answer is locked while the schedule's key is, so the two keys must
// differ. It costs two writes more,
// and three with idempotency.AtMostOnce.
//
// If another run works on the same call, the answer is as for the schedule's own lock. If an
// argument is nil, Once returns nil, which is a mistake in the program to Wrap.
func Once[In any](o *idempotency.Once, call func(context.Context, In) (idempotency.Call, error), work guard.Work[In]) guard.Work[In] {
	if o == nil || call == nil || work == nil {
		return nil
	}
	return func(ctx context.Context, lock guard.Lock, in In) error {
		c, err := call(ctx, in)
		if err != nil {
			return &guard.LockInvalid{Key: c.Key, Err: err}
		}
		ran := false
		_, replay, err := idempotency.Do(ctx, o, c, func(ctx context.Context, _ guard.Lock) (struct{}, error) {
			ran = true
			return struct{}{}, work(ctx, lock, in)
		})
		if e, ok := ctx.Value(skipKey{}).(*skip); ok {
			if replay != nil {
				e.done = &replay.First
			}
			if busy, ok := err.(*guard.LockBusy); ok && !ran {
				e.busy = busy
			}
		}
		return err
	}
}

// skip is why the work of one event did not run, as Once says it.
type skip struct {
	done *lockstore.HolderInfo // who did the work before
	busy *guard.LockBusy       // of the run that does it now
}

type skipKey struct{}
