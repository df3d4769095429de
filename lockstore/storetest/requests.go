package storetest

import "github.com/lambdalock/lambdalock/lockstore"

var requestCases = []testCase{
	{
		"requests/one for each call",
		"Requests are time and money: a free key takes one to acquire and one to release, and a refusal brings what it needs. A store that has to read first says so in Harness.RequestsPerCall.",
		func(c *check) {
			c.need("Requests", c.Requests != nil)
			c.warm()
			count := c.requests()
			req, lease := c.take(long)
			c.wantRequests("Acquire of a new key", count, c.most(OpAcquire))
			c.held(newRequest(req.Key, long))
			c.wantRequests("Acquire of a held key", count, c.most(OpAcquire))
			c.reacquire(req, lease)
			c.wantRequests("Acquire again", count, c.most(OpAcquire)+1)
			c.renew(lease, long)
			c.wantRequests("Renew", count, c.most(OpRenew))
			c.renewLost("Renew with another fence", lockstore.Lease{Key: lease.Key, Owner: lease.Owner, Fence: lease.Fence + 1})
			c.wantRequests("Renew of a lost lease", count, c.most(OpRenew))
			c.release(lease)
			c.wantRequests("Release", count, c.most(OpRelease))
			c.release(lease)
			c.wantRequests("Release again", count, c.most(OpRelease))
			c.sleep(tick)
			c.acquire(newRequest(req.Key, long))
			c.wantRequests("Acquire of a released key", count, c.most(OpAcquire))
		},
	},
	{
		"requests/one more for a takeover F01",
		"A fresh process takes a dead holder's key over at once: it does not watch it first.",
		func(c *check) {
			c.need("Requests", c.Requests != nil)
			c.warm()
			req, _ := c.take(short)
			c.expire(short)
			count := c.requests()
			c.acquire(newRequest(req.Key, long))
			c.wantRequests("Acquire of an expired lease's key", count, c.most(OpAcquire)+1)
		},
	},
	{
		"requests/few to abandon",
		"An abandon is part of a caller's last moments.",
		func(c *check) {
			c.need("Requests", c.Requests != nil)
			c.warm()
			req := newRequest(newKey(), long)
			count := c.requests()
			c.abandon(req)
			c.wantRequests("Abandon on a new key", count, c.most(OpAbandon))
			held, _ := c.take(long)
			*count = c.Requests()
			c.abandon(newRequest(held.Key, long))
			c.wantRequests("Abandon while another holds", count, c.most(OpAbandon))
			c.abandon(held)
			c.wantRequests("Abandon of an applied acquire", count, c.most(OpAbandon))
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
			c.wantRequests("Inspect", count, c.most(OpInspect))
			c.releaseAfter(lease, long)
			c.wantRequests("ReleaseAfter", count, c.most(OpReleaseAfter))
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
	c.abandon(req)
	_, lease = c.take(long)
	c.release(lease)
	if _, ok := lockstore.As[lockstore.CooldownReleaser](c.Store); ok {
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

// most is how many requests a call may take.
func (c *check) most(op Op) int {
	if n, ok := c.RequestsPerCall[op]; ok {
		return n
	}
	if op == OpAbandon {
		return 2
	}
	return 1
}

// wantRequests wants 1 to most requests since the count was last looked at, none if
// most is 0, and goes on from there.
func (c *check) wantRequests(what string, count *int, most int) {
	c.Helper()
	if count == nil {
		return
	}
	now := c.Requests()
	if n, least := now-*count, min(1, most); n < least || n > most {
		c.Errorf("%s: %d requests; want %d to %d", what, n, least, most)
	}
	*count = now
}
