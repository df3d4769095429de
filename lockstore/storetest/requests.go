package storetest

import "github.com/lambdalock/lambdalock/lockstore"

var requestCases = []testCase{
	{
		"requests/one for each call",
		"Requests are time and money: a free key takes one to acquire and one to release, and a refusal brings what it needs.",
		func(c *check) {
			c.need("Requests", c.Requests != nil)
			c.warm()
			count := c.requests()
			req, lease := c.take(long)
			c.wantRequests("Acquire of a new key", count, 1, 1)
			c.held(newRequest(req.Key, long))
			c.wantRequests("Acquire of a held key", count, 1, 1)
			c.reacquire(req, lease)
			c.wantRequests("Acquire again", count, 1, 2)
			c.renew(lease, long)
			c.wantRequests("Renew", count, 1, 1)
			c.renewLost("Renew with another fence", lockstore.Lease{Key: lease.Key, Owner: lease.Owner, Fence: lease.Fence + 1})
			c.wantRequests("Renew of a lost lease", count, 1, 1)
			c.release(lease)
			c.wantRequests("Release", count, 1, 1)
			c.release(lease)
			c.wantRequests("Release again", count, 1, 1)
			c.sleep(tick)
			c.acquire(newRequest(req.Key, long))
			c.wantRequests("Acquire of a released key", count, 1, 1)
		},
	},
	{
		"requests/at most two for a takeover F01",
		"A fresh process takes a dead holder's key over at once: it does not watch it first.",
		func(c *check) {
			c.need("Requests", c.Requests != nil)
			c.warm()
			req, _ := c.take(short)
			c.expire(short)
			count := c.requests()
			c.acquire(newRequest(req.Key, long))
			c.wantRequests("Acquire of an expired lease's key", count, 1, 2)
		},
	},
	{
		"requests/at most two to withdraw",
		"A withdrawal is part of a caller's last moments.",
		func(c *check) {
			c.need("Requests", c.Requests != nil)
			c.warm()
			req := newRequest(newKey(), long)
			count := c.requests()
			c.withdraw(req)
			c.wantRequests("Withdraw on a new key", count, 1, 2)
			held, _ := c.take(long)
			*count = c.Requests()
			c.withdraw(newRequest(held.Key, long))
			c.wantRequests("Withdraw while another holds", count, 1, 2)
			c.withdraw(held)
			c.wantRequests("Withdraw of an applied acquire", count, 1, 2)
		},
	},
	{
		"requests/one to inspect and one to close",
		"A waiter looks often.",
		func(c *check) {
			c.need("Requests", c.Requests != nil)
			c.inspector()
			c.delayed()
			c.warm()
			req, lease := c.take(long)
			count := c.requests()
			c.inspect(req.Key)
			c.wantRequests("Inspect", count, 1, 1)
			c.releaseAfter(lease, long)
			c.wantRequests("ReleaseAfter", count, 1, 1)
		},
	},
}

// warm uses each method once, for connections and scripts that a store loads
// on first use.
func (c *check) warm() {
	c.Helper()
	req, lease := c.take(long)
	c.held(newRequest(req.Key, long))
	c.renew(lease, long)
	if _, ok := lockstore.As[lockstore.Inspector](c.Store); ok {
		c.inspect(req.Key)
	}
	c.withdraw(req)
	_, lease = c.take(long)
	c.release(lease)
	if _, ok := lockstore.As[lockstore.DelayedReleaser](c.Store); ok {
		_, lease = c.take(long)
		c.releaseAfter(lease, long)
	}
}

// requests starts a count. It is nil when the harness does not count.
func (c *check) requests() *int {
	if c.Requests == nil {
		return nil
	}
	n := c.Requests()
	return &n
}

// wantRequests wants from least to most requests since the count was last
// looked at, and goes on from there.
func (c *check) wantRequests(what string, count *int, least, most int) {
	c.Helper()
	if count == nil {
		return
	}
	now := c.Requests()
	if n := now - *count; n < least || n > most {
		c.Errorf("%s: %d requests; want %d to %d", what, n, least, most)
	}
	*count = now
}
