// Package once is the code that schedule.Once, sqsbatch.Once and stream.Once share; package idempotency does
// the work.
package once

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/lockstore"
)

// Work returns work that runs once for each call(in), under the lock that it is called
// with. If an argument is nil, or idempotency.New has not made o, it returns nil.
func Work[In any](o *idempotency.Once, call func(context.Context, In) (idempotency.Call, error), work guard.Work[In]) guard.Work[In] {
	if o.Validate() != nil || call == nil || work == nil {
		return nil
	}
	return func(ctx context.Context, lock guard.Lock, in In) error {
		skip, watched := ctx.Value(skipKey{}).(*Skip)
		if watched && skip.coalesces {
			return errCoalesces
		}
		c, err := call(ctx, in)
		if err != nil {
			return &guard.LockBadRequest{Key: c.Key, Err: err}
		}
		ran := false
		_, replay, err := idempotency.Do(ctx, o, c, func(ctx context.Context, _ guard.Lock) (struct{}, error) {
			ran = true
			return struct{}{}, work(ctx, lock, in)
		})
		if watched {
			if replay != nil {
				skip.done.Store(&replay.First)
			}
			if busy, ok := err.(*guard.LockBusy); ok && !ran {
				skip.busy.Store(busy)
			}
		}
		return err
	}
}

var errCoalesces = errors.New("the guard has guard.Options.Coalesce (boot: LOCK_COALESCE), so one run does the work of many events, and Once has a result for each event; want only one of them")

// Skip is why the work of one event did not run.
type Skip struct {
	coalesces bool
	done      atomic.Pointer[lockstore.HolderInfo]
	busy      atomic.Pointer[guard.LockBusy]
}

type skipKey struct{}

// Watch returns the context to call the work with, under a lock of the guard.
func (s *Skip) Watch(ctx context.Context, g *guard.Guard) context.Context {
	s.coalesces = g.Coalesces()
	return context.WithValue(ctx, skipKey{}, s)
}

// Done is the run that did the work before; nil if there was none.
func (s *Skip) Done() *lockstore.HolderInfo { return s.done.Load() }

// IsBusy says whether err, which the work returned, is that of the Once: another run does the
// same work now. The work itself may return the error of another lock.
func (s *Skip) IsBusy(err error) bool {
	busy, ok := err.(*guard.LockBusy)
	return ok && busy != nil && busy == s.busy.Load()
}
