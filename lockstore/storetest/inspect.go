package storetest

import (
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

var inspectCases = []testCase{
	{
		"inspect/a key that was never written",
		"It is free, and the store knows no fence of it.",
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
		"People ask it who holds a key, since when, and for how long at most.",
		func(c *check) {
			c.inspector()
			const ttl = 30 * time.Second
			before := c.elapsed()
			req, lease := c.take(ttl)
			status := c.inspect(req.Key)
			c.between("Remaining", status.Remaining, ttl-(c.elapsed()-before), ttl)
			if !status.Held || status.Fence != lease.Fence {
				c.Errorf("Inspect: held %v, fence %d; want held, %d", status.Held, status.Fence, lease.Fence)
			}
			c.sameHolder(status.Holder, req.Holder)
			c.renew(lease, long)
			if status = c.inspect(req.Key); status.Remaining < long-time.Minute {
				c.Errorf("after a renewal for %v, Remaining is %v", long, status.Remaining)
			}
		},
	},
	{
		"inspect/a released key",
		"It is free for everybody, names nobody, and its last fence is known.",
		func(c *check) {
			c.inspector()
			req, lease := c.take(long)
			c.release(lease)
			status := c.inspect(req.Key)
			if status.Held || status.Remaining > 0 || status.Holder != (lockstore.Holder{}) {
				c.Errorf("Inspect of a released key: %+v; want it free", status)
			}
			if status.Fence != lease.Fence {
				c.Errorf("Inspect of a released key: fence %d; want the last grant's, %d", status.Fence, lease.Fence)
			}
		},
	},
	{
		"inspect/a dead lease is not held F01",
		"A waiter tries to acquire only when it may win, so it must see that a dead holder's time is over.",
		func(c *check) {
			c.inspector()
			req, lease := c.take(short)
			c.expire(short)
			status := c.inspect(req.Key)
			if status.Held || status.Remaining > 0 {
				c.Errorf("Inspect of an expired lease: held %v, remaining %v; want it free", status.Held, status.Remaining)
			}
			if status.Fence != lease.Fence {
				c.Errorf("Inspect of an expired lease: fence %d; want %d", status.Fence, lease.Fence)
			}
			c.acquire(newRequest(req.Key, long))
		},
	},
	{
		"inspect/agrees with acquire",
		"When it says held, an acquire that is sent before would be refused; when it says free, an acquire wins.",
		func(c *check) {
			c.inspector()
			req, lease := c.take(short)
			granted := c.elapsed()
			for {
				asked := c.elapsed()
				if !c.inspect(req.Key).Held {
					break
				}
				if late := asked - granted - short - c.TakeoverDelay - rounding; late > 0 {
					c.fatalf("Inspect says held %v after the lease's end", late)
				}
				c.sleep(50 * time.Millisecond)
			}
			next := c.acquire(newRequest(req.Key, long))
			c.grew(lease.Fence, next.Fence)
		},
	},
	{
		"inspect/changes nothing",
		"Looking at a lock is no part in it.",
		func(c *check) {
			c.inspector()
			c.need("Dump", c.Dump != nil)
			key := newKey()
			look := func(when string) {
				c.Helper()
				before := c.Dump(c.t, key)
				c.inspect(key)
				if after := c.Dump(c.t, key); after != before {
					c.Errorf("%s: Inspect changed the entry from %s to %s", when, before, after)
				}
			}
			look("unknown key")
			lease := c.acquire(newRequest(key, long))
			look("held key")
			c.release(lease)
			look("released key")
			c.acquire(newRequest(key, short))
			c.expire(short)
			look("dead lease")
		},
	},
}
