package storetest

import "github.com/lambdalock/lambdalock/lockstore"

var requestCases = []testCase{
	{
		"requests/one for each call",
		"Requests cost time and money. A refusal brings everything that Acquire, Renew and Release need. A store that reads before it writes sets Harness.RequestsPerCall.",
		func(c *check) {
			c.need("Requests", c.Requests != nil)
			c.warm()
			var req lockstore.Request
			var lease lockstore.Lease
			c.sends("Acquire of a new key", c.most(OpAcquire), func() { req, lease = c.take(long) })
			c.sends("Acquire of a held key", c.most(OpAcquire), func() { c.held(req.Key) })
			c.sends("Acquire again", c.most(OpAcquire)+1, func() { c.reacquire(req, lease) })
			c.sends("Renew", c.most(OpRenew), func() { c.renew(lease, long) })
			other := lockstore.Lease{Key: lease.Key, Owner: lease.Owner, Fence: lease.Fence + 1}
			c.sends("Renew of a lost lease", c.most(OpRenew), func() { c.renewLost("Renew with another fence", other) })
			if _, ok := lockstore.As[lockstore.Inspector](c.Store); ok {
				c.sends("Inspect", c.most(OpInspect), func() { c.inspect(req.Key) })
			}
			c.sends("Release", c.most(OpRelease), func() { c.release(lease) })
			c.sends("Release again", c.most(OpRelease), func() { c.release(lease) })
			c.sleep(tick)
			c.sends("Acquire of a released key", c.most(OpAcquire), func() { _, lease = c.next(lease) })
			if _, ok := lockstore.As[lockstore.Completer](c.Store); !ok {
				return
			}
			c.sends("MarkStarted", c.most(OpBegin), func() { c.begin(lease) })
			c.sends("Complete", c.most(OpKeep), func() { c.keep(lease, []byte("answer"), long) })
			c.sends("Complete again", c.most(OpKeep), func() { c.keep(lease, []byte("answer"), long) })
			c.sends("Acquire of a kept key", c.most(OpAcquire), func() { c.kept(req.Key, []byte("answer")) })
			req, _ = c.doubtful()
			c.sends("Acquire of a key in doubt", c.most(OpAcquire), func() { c.inDoubt(req) })
		},
	},
	{
		"requests/few for a takeover and for an abandon F01",
		"A new process takes a dead holder's key over at once and does not have to watch the key first. An abandon is often the last thing that a caller has time for.",
		func(c *check) {
			c.need("Requests", c.Requests != nil)
			c.warm()
			_, dead := c.take(short)
			c.expire(short)
			c.sends("Acquire of an expired lease's key", c.most(OpAcquire)+1, func() { c.next(dead) })
			req := newRequest(newKey(), long)
			c.sends("Abandon on a new key", c.most(OpAbandon), func() { c.abandon(req) })
			held, _ := c.take(long)
			other := newRequest(held.Key, long)
			c.sends("Abandon while another holds", c.most(OpAbandon), func() { c.abandon(other) })
			c.sends("Abandon of an applied acquire", c.most(OpAbandon), func() { c.abandon(held) })
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
func (c *check) most(op Op) int {
	if n, ok := c.RequestsPerCall[op]; ok {
		return n
	}
	if op == OpAbandon {
		return 2
	}
	return 1
}

// sends runs f. If the harness counts requests, f must send 1 to most requests, or none if
// most is 0.
func (c *check) sends(what string, most int, f func()) {
	c.Helper()
	if c.Requests == nil {
		f()
		return
	}
	before := c.Requests()
	f()
	if n, least := c.Requests()-before, min(1, most); n < least || n > most {
		c.Errorf("%s: %d requests; want %d to %d", what, n, least, most)
	}
}
