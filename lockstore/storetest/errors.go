package storetest

import (
	"context"
	"errors"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

var errorCases = []testCase{
	{
		"errors/a context that is done leaves nothing behind F22",
		"A call whose context is over was certainly not applied, says so, and still shows the context's error.",
		func(c *check) {
			cancelled, cancel := context.WithCancel(c.t.Context())
			cancel()
			late, cancel := context.WithDeadline(c.t.Context(), time.Now().Add(-time.Second))
			defer cancel()
			for _, ctx := range []context.Context{cancelled, late} {
				held, lease := c.take(long)
				req := newRequest(newKey(), long)
				count := c.requests()
				for _, l := range []lockstore.Lease{
					lease,
					{Key: held.Key, Owner: req.Owner, Fence: 1},
					{Key: req.Key, Owner: req.Owner, Fence: 1},
				} {
					for _, m := range c.methods(l) {
						c.wantDone(m.name, m.call(ctx), ctx)
					}
				}
				c.wantRequests("calls with a context that is done", count, 0)
				c.acquire(newRequest(req.Key, long))
				c.reacquire(held, lease)
				c.renew(lease, long)
				c.release(lease)
			}
		},
	},
	{
		"errors/a call ends with its context F28 F75",
		"A server that takes requests and never answers must not hold a caller longer than the caller allows: Lambda's deadline comes soon after. What was sent may be applied, so the outcome is unknown.",
		func(c *check) {
			c.need("Hang", c.Hang != nil)
			for i, m := range c.methods(lockstore.Lease{}) {
				for _, cancels := range []bool{true, false} {
					req, lease := c.take(long)
					if m.name == "Acquire" {
						req = newRequest(newKey(), long)
						lease = lockstore.Lease{Key: req.Key, Owner: req.Owner}
					}
					c.hangs(c.methods(lease)[i], req, lease, cancels)
				}
			}
		},
	},
	{
		"errors/a server that cannot be reached is unavailable F21",
		"Nothing was applied and nobody holds the lock: it is neither held nor unknown, and the call does not hang.",
		func(c *check) {
			c.need("Unreachable", c.Unreachable != nil)
			c.Store = c.Unreachable(c.t)
			for _, m := range c.methods(lockstore.Lease{Key: newKey(), Owner: lockstore.NewOwner(), Fence: 1}) {
				_, err := c.answer(m, callTimeout, func(func()) {}, refusedWithin, "though the server refuses connections")
				c.wantErr(m.name+" (unreachable)", err, lockstore.ErrUnavailable)
			}
		},
	},
	{
		"errors/a lost reply to an acquire is unknown F23 M15 M16 M17",
		"The lease may be granted: to call it held or busy would leave it behind. The same request again finds out.",
		func(c *check) {
			c.need("LoseReplies", c.LoseReplies != nil)
			req := newRequest(newKey(), long)
			restore := c.LoseReplies(c.t)
			_, err := c.tryAcquire(req)
			restore()
			c.wantUnknown("Acquire whose reply was lost", err)
			c.held(newRequest(req.Key, long))
			lease, err := c.tryAcquire(req)
			if err != nil {
				c.fatalf("Acquire again after a lost reply: %v; want the lease", err)
			}
			c.fits(lease, req)
			c.renew(lease, long)
			c.release(lease)
		},
	},
	{
		"errors/a lost reply to an acquire can be abandoned F23 F26",
		"A caller that gives up on an unknown acquire leaves nothing behind.",
		func(c *check) {
			c.need("LoseReplies", c.LoseReplies != nil)
			req := newRequest(newKey(), long)
			restore := c.LoseReplies(c.t)
			_, err := c.tryAcquire(req)
			restore()
			c.wantUnknown("Acquire whose reply was lost", err)
			c.abandon(req)
			c.acquire(newRequest(req.Key, long))
		},
	},
	{
		"errors/a lost reply to a renewal is unknown F24",
		"The renewal was applied; again, it is held.",
		func(c *check) {
			c.need("LoseReplies", c.LoseReplies != nil)
			req, lease := c.take(30 * time.Second)
			restore := c.LoseReplies(c.t)
			_, err := c.tryRenew(lease, long)
			restore()
			c.wantUnknown("Renew whose reply was lost", err)
			if r := c.remaining(req.Key); r < long-time.Minute {
				c.Errorf("after a renewal for %v whose reply was lost, %v remain", long, r)
			}
			c.renew(lease, long)
			c.release(lease)
		},
	},
	{
		"errors/a lost reply to a release is unknown F25",
		"The key is free; again, the release is nil.",
		func(c *check) {
			c.need("LoseReplies", c.LoseReplies != nil)
			req, lease := c.take(long)
			restore := c.LoseReplies(c.t)
			err := c.tryRelease(lease)
			restore()
			c.wantUnknown("Release whose reply was lost", err)
			c.release(lease)
			c.acquire(newRequest(req.Key, long))
		},
	},
}

// wantDone wants an error that says both: not applied, and why.
func (c *check) wantDone(what string, err error, ctx context.Context) {
	c.Helper()
	what += " with a context that is done"
	c.wantErr(what, err, lockstore.ErrUnavailable)
	if !errors.Is(err, ctx.Err()) {
		c.Errorf("%s: %v; want it to match %q too", what, err, ctx.Err())
	}
}

// hangs makes a call whose request gets no answer, and wants it to end with its
// context. An answer that says "not applied" has to be true.
func (c *check) hangs(m method, req lockstore.Request, lease lockstore.Lease, cancels bool) {
	c.Helper()
	const wait = 100 * time.Millisecond // for the request to arrive
	limit, end := wait, "after the deadline of its context"
	if cancels {
		limit, end = callTimeout, "after its context was cancelled"
	}
	restore := c.Hang(c.t)
	ctx, err := c.answer(m, limit, func(cancel func()) {
		time.Sleep(wait)
		if cancels {
			cancel()
		}
	}, endsWithin, end)
	restore()
	what := m.name + " whose reply does not come"
	if err == nil {
		c.fatalf("%s: no error; want one", what)
	}
	if !errors.Is(err, ctx.Err()) {
		c.Errorf("%s: %v; want it to match %q", what, err, ctx.Err())
	}
	switch {
	case !errors.Is(err, lockstore.ErrUnavailable):
		c.wantUnknown(what, err)
	case m.name == "Acquire":
		c.acquire(newRequest(req.Key, long))
	default:
		c.reacquire(req, lease)
	}
}
