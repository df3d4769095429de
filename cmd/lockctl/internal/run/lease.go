package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/stores"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/pause"
	"github.com/lambdalock/lambdalock/lockstore"
)

// watched is the driver of a store. It sees the requests for the lease, and knows of them what guard.LeaseRequest and
// its lease do not have.
type watched struct {
	driver.Driver
	// once refuses at once what package guard waits for: a key whose work is done.
	once bool
	// sent is when the last request for the lease was sent. What the guard says of the trust counts from a moment
	// that may be over when lockctl reads its clocks, because a process can be stopped at any time.
	sent moment
}

func (w *watched) watch(store *lockstore.Store) *lockstore.Store {
	return store.WrapDriver(func(d driver.Driver) driver.Driver {
		w.Driver = d
		return w
	})
}

// Unwrap is for driver.As.
func (w *watched) Unwrap() driver.Driver { return w.Driver }

func (w *watched) Do(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	if r.Kind == driver.Acquire {
		w.sent = now()
	}
	a, err := w.Driver.Do(ctx, key, r)
	if r.Kind == driver.Acquire && w.once && a.Outcome == driver.Refused && a.Status.State.Done() {
		return a, doneBefore{a.Status}
	}
	return a, err
}

// doneBefore is the answer of a key whose work is done. The guard repeats nothing that matches lockstore.ErrCorrupt.
type doneBefore struct{ driver.Status }

func (doneBefore) Error() string { return "the work is done" }

func (doneBefore) Is(target error) bool { return target == lockstore.ErrCorrupt }

// request asks for the lease. The first request does not wait: whoever waits for long wants to know soon that the
// address is wrong, or that the user may not write.
func (s *settings) request(ctx context.Context, g *guard.Guard, stderr io.Writer) (lockstore.Lease, error) {
	req := guard.LeaseRequest{Key: s.key, TTL: s.ttl, HolderInfo: s.holder}
	lease, err := g.Acquire(ctx, req)
	if busy, ok := errors.AsType[*guard.LockBusy](err); ok && s.wait > 0 {
		fmt.Fprintln(stderr, "lockctl: waiting:", s.stateText(busy.State, busy.Holder, busy.StateEndsIn))
		telling, stop := context.WithCancel(ctx)
		defer stop()
		go s.tell(telling, g, stderr)
		req.Wait = s.wait
		lease, err = g.Acquire(ctx, req)
	}
	return lease, err
}

// tellAgain is how long lockctl waits until it says again who has the key. Each time is twice as long as the one before.
const tellAgain = 30 * time.Second

// tell says again and again who has the key that lockctl waits for, or that the store does not answer.
func (s *settings) tell(ctx context.Context, g *guard.Guard, stderr io.Writer) {
	began := time.Now()
	for d := tellAgain; pause.For(ctx, d) == nil; d *= 2 {
		status, err := g.Inspect(ctx, s.key)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			fmt.Fprintf(stderr, "lockctl: warning: the store does not answer; lockctl goes on waiting: %v\n", stores.Failed(err))
		case status.State != lockstore.Free:
			fmt.Fprintf(stderr, "lockctl: waiting for %v: %s; %d wait\n",
				time.Since(began).Round(time.Second), s.stateText(status.State, status.Holder, status.Remaining), status.Waiting)
		}
	}
}
