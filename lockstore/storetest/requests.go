package storetest

import (
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
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
			c.sends("Acquire of a new key", c.most(driver.Acquire), func() { req, lease = c.take(long) })
			c.sends("Acquire of a held key", c.most(driver.Acquire), func() { c.held(req.Key) })
			c.sends("Acquire again", c.most(driver.Acquire)+1, func() { c.reacquire(req, lease) })
			c.sends("Renew", c.most(driver.Renew), func() { c.renew(lease, long) })
			other := lockstore.Lease{Key: lease.Key, Owner: lease.Owner, Fence: lease.Fence + 1}
			c.sends("Renew of a lost lease", c.most(driver.Renew), func() { c.renewLost("Renew with another fence", other) })
			c.sends("Inspect", c.most(driver.Inspect), func() { c.inspect(req.Key) })
			c.sends("Release", c.most(driver.Release), func() { c.release(lease) })
			c.sends("Release again", c.most(driver.Release), func() { c.release(lease) })
			c.sleep(tick)
			c.sends("Acquire of a released key", c.most(driver.Acquire), func() { _, lease = c.next(lease) })
			c.sends("MarkStarted", c.most(driver.MarkStarted), func() { c.markStarted(lease) })
			c.sends("Complete", c.most(driver.Complete), func() { c.complete(lease, []byte("result"), long) })
			c.sends("Complete again", c.most(driver.Complete), func() { c.complete(lease, []byte("result"), long) })
			c.sends("Acquire of a completed key", c.most(driver.Acquire), func() { c.completed(req.Key, []byte("result")) })
			req, _ = c.doubtful()
			c.sends("Acquire of a key in doubt", c.most(driver.Acquire), func() { c.inDoubt(req) })
			_, dead := c.take(short)
			c.expire(short)
			c.sends("Acquire of an expired lease's key", c.most(driver.Acquire)+1, func() { c.next(dead) })
			req = newRequest(newKey(), long)
			c.sends("Abandon on a new key", c.most(driver.Abandon), func() { c.abandon(req) })
			held, _ := c.take(long)
			stranger := newRequest(held.Key, long)
			c.sends("Abandon while another holds", c.most(driver.Abandon), func() { c.abandon(stranger) })
			c.sends("Abandon of an applied acquire", c.most(driver.Abandon), func() { c.abandon(held) })
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

// sends runs f. If the harness counts requests, f must send 1 to most requests.
func (c *check) sends(what string, most int, f func()) {
	c.Helper()
	if c.Requests == nil {
		f()
		return
	}
	before := c.Requests()
	f()
	if n := c.Requests() - before; n < 1 || n > most {
		c.Errorf("%s: %d requests; want 1 to %d", what, n, most)
	}
}
