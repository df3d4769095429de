package storetest

import (
	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
)

var requestCases = []testCase{
	{
		"requests/one for each call, and few for a takeover and for an abandon F01",
		"Requests cost time and money. A refusal brings everything that Acquire, Renew and Release need. A new process takes a dead holder's key over at once and does not have to watch the key first. A store that reads before it writes sets Harness.RequestsPerCall.",
		func(c *check) {
			c.need("Requests", c.Requests != nil)
			c.warm()
			var req lockstore.Request
			var lease lockstore.Lease
			sends := func(kind driver.Kind, more int, what string, call func()) {
				before, most := c.Requests(), c.most(kind)+more
				call()
				if n := c.Requests() - before; n < 1 || n > most {
					c.Errorf("%s %s: %d requests; want 1 to %d", kind, what, n, most)
				}
			}
			sends(driver.Acquire, 0, "of a new key", func() { req, lease = c.take(long) })
			sends(driver.Acquire, 0, "of a held key", func() { c.held(req.Key) })
			sends(driver.Acquire, 1, "again", func() { c.reacquire(req, lease) })
			sends(driver.Renew, 0, "", func() { c.renew(lease, long) })
			other := lockstore.Lease{Key: lease.Key, Owner: lease.Owner, Fence: lease.Fence + 1}
			sends(driver.Renew, 0, "of a lost lease", func() { c.renewLost("Renew with another fence", other) })
			sends(driver.Inspect, 0, "", func() { c.inspect(req.Key) })
			sends(driver.Release, 0, "", func() { c.release(lease) })
			sends(driver.Release, 0, "again", func() { c.release(lease) })
			c.Sleep(tick)
			sends(driver.Acquire, 0, "of a released key", func() { _, lease = c.next(lease) })
			sends(driver.MarkStarted, 0, "", func() { c.markStarted(lease) })
			sends(driver.Complete, 0, "", func() { c.complete(lease, []byte("result"), long) })
			sends(driver.Complete, 0, "again", func() { c.complete(lease, []byte("result"), long) })
			sends(driver.Acquire, 0, "of a completed key", func() { c.completed(req.Key, []byte("result")) })
			req, _ = c.doubtful()
			sends(driver.Acquire, 0, "of a key in doubt", func() { c.inDoubt(req, newRequest(req.Key, long)) })
			_, dead := c.take(short)
			c.expire(short)
			sends(driver.Acquire, 1, "of an expired lease's key", func() { c.next(dead) })
			held, _ := c.take(long)
			sends(driver.Abandon, 0, "of nothing", func() { c.abandon(newRequest(held.Key, long)) })
			sends(driver.Abandon, 0, "of an applied acquire", func() { c.abandon(held) })
		},
	},
}

// warm calls each method once, so that later calls need no new connection and no script.
func (c *check) warm() {
	_, lease := c.take(long)
	for _, m := range c.methods(lease) {
		_ = c.call(m)
	}
}

// most is how many requests a call may take.
func (c *check) most(kind driver.Kind) int {
	if n, ok := c.RequestsPerCall[kind]; ok {
		return n
	}
	if kind == driver.Abandon {
		return 2
	}
	return 1
}
