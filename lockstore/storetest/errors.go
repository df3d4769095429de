package storetest

import (
	"context"
	"errors"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
)

var errorCases = []testCase{
	{
		"errors/a call ends with its context F28 F75",
		"A server that never answers must not hold a caller for longer than the caller allows, because Lambda's deadline comes soon after. The request may have been applied, so the outcome is unknown. What is sent after the end of the call would change the entry when nobody counts on it any more: a lease that nobody ends, or the release of a lease that somebody works under.",
		func(c *check) {
			c.need("Hang", c.Hang != nil)
			for i, m := range c.methods(lockstore.Lease{}) {
				for _, cancels := range []bool{true, false} {
					if !c.virtual && cancels != (i%2 == 0) {
						continue // all methods have the same connections
					}
					req, lease := c.take(long)
					if m.name == driver.Acquire.String() {
						req = newRequest(newKey(), long)
						lease = lockstore.Lease{Key: req.Key, Owner: req.Owner}
					}
					// The second call needs a connection of its own, which is not there yet.
					beside := c.methods(lockstore.Lease{Key: newKey(), Owner: lockstore.NewOwner(), Fence: 1})[i]
					c.hangs(c.methods(lease)[i], beside, req, lease, cancels)
				}
			}
		},
	},
	{
		"errors/a server that cannot be reached is unavailable F21",
		"Nothing was applied, and nobody is known to hold the lock. So the outcome is neither refused nor unknown, and the call ends soon.",
		func(c *check) {
			c.need("Unreachable", c.Unreachable != nil)
			c.Store = c.Unreachable(c.t)
			for _, m := range c.methods(lockstore.Lease{Key: newKey(), Owner: lockstore.NewOwner(), Fence: 1}) {
				err := c.answer(m, callTimeout, func(func()) {}, refusedWithin, "though the server refuses connections")
				c.wantErr(m.name+" (unreachable)", err, lockstore.ErrUnavailable)
			}
		},
	},
	{
		"errors/a lost reply is unknown F23 F24 F25 F26 M15 M16 M17",
		"The request was applied, but the caller cannot know that. The same request again gets the outcome. An abandon ends a lease whose grant is not known.",
		func(c *check) {
			req := newRequest(newKey(), long)
			c.loseReply("Acquire", func() error { _, err := c.tryAcquire(req); return err })
			c.abandon(req)
			c.acquire(newRequest(req.Key, long))

			req = newRequest(newKey(), 30*time.Second)
			c.loseReply("Acquire", func() error { _, err := c.tryAcquire(req); return err })
			c.held(req.Key)
			lease, err := c.tryAcquire(req)
			if err != nil {
				c.fatalf("Acquire again after a lost reply: %v; want the lease", err)
			}
			c.loseReply("Renew", func() error { _, err := c.tryRenew(lease, long); return err })
			if left := c.held(req.Key).StateEndsIn; left < long-time.Minute {
				c.Errorf("after a renewal whose reply was lost others have to wait %v; want %v", left, long)
			}
			c.renew(lease, long)
			c.loseReply("Release", func() error { return c.tryRelease(lease) })
			c.release(lease)
			c.next(lease)
		},
	},
}

// loseReply makes a call whose request is applied and whose reply is lost.
func (c *check) loseReply(method string, call func() error) {
	c.Helper()
	c.need("LoseReplies", c.LoseReplies != nil)
	restore := c.LoseReplies(c.t)
	err := call()
	restore()
	c.wantUnknown(method+" whose reply was lost", err)
}

// hangs makes two calls without a reply, and wants them to end with their contexts. If the error
// of the first one says that nothing was applied, that must be true.
func (c *check) hangs(m, beside method, req lockstore.Request, lease lockstore.Lease, cancels bool) {
	c.Helper()
	const wait = 100 * time.Millisecond // for the request to arrive
	limit, end, cause := wait, "after the deadline of its context", context.DeadlineExceeded
	if cancels {
		limit, end, cause = callTimeout, "after its context was cancelled", context.Canceled
	}
	restore := c.Hang(c.t)
	err := c.answer(m, limit, func(cancel func()) {
		_ = c.answer(beside, limit, func(cancelBeside func()) {
			time.Sleep(wait)
			if cancels {
				cancel()
				cancelBeside()
			}
		}, endsWithin, end)
	}, endsWithin, end)
	what := m.name + " whose reply does not come"
	c.sendsNothing(what, restore)
	if err == nil {
		c.fatalf("%s: no error; want one", what)
	}
	if !errors.Is(err, cause) {
		c.Errorf("%s: %v; want it to match %q", what, err, cause)
	}
	switch {
	case !errors.Is(err, lockstore.ErrUnavailable):
		c.wantUnknown(what, err)
	case m.name == driver.Acquire.String():
		c.acquire(newRequest(req.Key, long))
	default:
		c.reacquire(req, lease)
	}
}

// sendsNothing wants the store to send nothing more, also when the server answers again after restore.
func (c *check) sendsNothing(what string, restore func()) {
	c.Helper()
	if c.Requests == nil {
		restore()
		return
	}
	pause := 200 * time.Millisecond
	if c.virtual {
		pause = 10 * time.Second
	}
	sent := c.Requests()
	c.Sleep(pause)
	restore()
	c.Sleep(pause)
	if late := c.Requests() - sent; late > 0 {
		c.Errorf("%s: %d requests after the call had ended; want none", what, late)
	}
}
