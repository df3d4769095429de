package storetest

import (
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

var inspectCases = []testCase{
	{
		"inspect/a key that was never written",
		"The key is free, and the store knows no fence.",
		func(c *check) {
			key := newKey()
			if got, want := c.inspect(key), (lockstore.Status{Key: key}); got != want {
				c.Errorf("Inspect: %+v; want %+v", got, want)
			}
			c.acquire(newRequest(key, long))
		},
	},
	{
		"inspect/a held key",
		"People want to know who holds a key, since when, and for how long at most.",
		func(c *check) {
			const ttl = 30 * time.Second
			before := c.elapsed()
			req, lease := c.take(ttl)
			status := c.inspect(req.Key)
			c.between("Remaining", status.Remaining, ttl-(c.elapsed()-before), ttl)
			if status.State != lockstore.Held || status.Fence != lease.Fence {
				c.Errorf("Inspect: %v, fence %d; want held, %d", status.State, status.Fence, lease.Fence)
			}
			c.sameHolder(status.Holder, req.HolderInfo)
			c.renew(lease, long)
			if status = c.inspect(req.Key); status.Remaining < long-time.Minute {
				c.Errorf("after a renewal for %v, Remaining is %v", long, status.Remaining)
			}
		},
	},
	{
		"inspect/a released key",
		"The key is free, and the last fence is known.",
		func(c *check) {
			req, lease := c.take(long)
			c.release(lease)
			c.isFree("a released key", c.inspect(req.Key), lease.Fence)
		},
	},
	{
		"inspect/an expired lease is not held, and Inspect agrees with Acquire F01",
		"A waiter tries to acquire when Inspect says free. Then an acquire must win, and a dead holder's key must become free.",
		func(c *check) {
			req, lease := c.take(short)
			granted := c.elapsed()
			for {
				sent := c.elapsed()
				status := c.inspect(req.Key)
				if status.State == lockstore.Free {
					c.isFree("an expired lease", status, lease.Fence)
					break
				}
				if late := sent - granted - short - c.TakeoverDelay - rounding; late > 0 {
					c.fatalf("Inspect says held %v after the lease's end", late)
				}
				c.sleep(50 * time.Millisecond)
			}
			c.next(lease)
		},
	},
	{
		"inspect/changes nothing",
		"Inspect only reads.",
		func(c *check) {
			c.need("Dump", c.Dump != nil)
			key := newKey()
			inspect := func(what string) {
				c.Helper()
				before := c.Dump(c.t, key)
				c.inspect(key)
				if after := c.Dump(c.t, key); after != before {
					c.Errorf("%s: Inspect changed the entry from %s to %s", what, before, after)
				}
			}
			inspect("unknown key")
			lease := c.acquire(newRequest(key, long))
			inspect("held key")
			c.release(lease)
			inspect("released key")
			c.acquire(newRequest(key, short))
			c.expire(short)
			inspect("expired lease")
		},
	},
}

// isFree wants the status of a free key whose last grant had this fence.
func (c *check) isFree(what string, status lockstore.Status, fence lockstore.Fence) {
	c.Helper()
	if status.State != lockstore.Free || status.Fence != fence {
		c.Errorf("Inspect of %s: %+v; want it free, with the last grant's fence, %d", what, status, fence)
	}
}
