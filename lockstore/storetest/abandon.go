package storetest

import "github.com/lambdalock/lambdalock/lockstore"

var abandonCases = []testCase{
	{
		"abandon/before a late acquire on a new key F26",
		"A caller that gave up abandons its acquire; when that acquire arrives after all, it must not lock the key for nobody (M18).",
		func(c *check) {
			req := newRequest(newKey(), long)
			c.abandon(req)
			for range 2 {
				_, err := c.tryAcquire(req)
				c.wantErr("Acquire after its abandon", err, lockstore.ErrLost)
			}
			lease := c.acquire(newRequest(req.Key, long))
			c.release(lease)
		},
	},
	{
		"abandon/before a late acquire on a used key F26",
		"As on a new key, and the fence goes on from where it was.",
		func(c *check) {
			used, lease := c.take(long)
			c.release(lease)
			req := newRequest(used.Key, long)
			c.abandon(req)
			_, err := c.tryAcquire(req)
			c.wantErr("Acquire after its abandon", err, lockstore.ErrLost)
			next := c.acquire(newRequest(used.Key, long))
			c.grew(lease.Fence, next.Fence)
		},
	},
	{
		"abandon/after the acquire was applied frees it F23",
		"When the lost reply was a yes, the abandon gives the key back at once.",
		func(c *check) {
			req, lease := c.take(long)
			c.abandon(req)
			c.renewLost("Renew after the abandon", lease)
			_, err := c.tryAcquire(req)
			c.wantErr("Acquire after its abandon", err, lockstore.ErrLost)
			next := c.acquire(newRequest(req.Key, long))
			c.grew(lease.Fence, next.Fence)
		},
	},
	{
		"abandon/while another holds leaves the other untouched",
		"Nothing of the caller is there, so there is nothing to do and that is no failure.",
		func(c *check) {
			req, lease := c.take(long)
			mine := newRequest(req.Key, long)
			c.abandon(mine)
			c.held(newRequest(req.Key, long))
			c.reacquire(req, lease)
			c.renew(lease, long)
			c.notGranted("Acquire after its abandon, while another holds", mine)
			c.release(lease)
		},
	},
	{
		"abandon/again is nil",
		"An abandon's own reply may be lost too.",
		func(c *check) {
			req, lease := c.take(long)
			for range 3 {
				c.abandon(req)
			}
			next := newRequest(req.Key, long)
			others := c.acquire(next)
			c.grew(lease.Fence, others.Fence)
			c.abandon(req)
			c.reacquire(next, others)
			c.renew(others, long)
		},
	},
	{
		"abandon/after the release is nil",
		"A caller that does not know whether its release arrived may abandon as well.",
		func(c *check) {
			req, lease := c.take(long)
			c.release(lease)
			c.abandon(req)
			c.wantNilOr("Release after the abandon", c.tryRelease(lease), lockstore.ErrLost)
			c.acquire(newRequest(req.Key, long))
		},
	},
	{
		"abandon/of an expired lease is nil",
		"What is abandoned is over already.",
		func(c *check) {
			req, lease := c.take(short)
			c.expire(short)
			c.abandon(req)
			_, err := c.tryAcquire(req)
			c.wantErr("Acquire after its abandon", err, lockstore.ErrLost)
			next := c.acquire(newRequest(req.Key, long))
			c.grew(lease.Fence, next.Fence)
		},
	},
	{
		"abandon/matches by the whole owner",
		"An abandon has no fence, so its owner alone must not match another's lease (M04).",
		func(c *check) {
			req := newRequest(newKey(), long)
			req.Owner = "ABCDEFGHIJ"
			lease := c.acquire(req)
			for _, o := range []lockstore.Owner{"ABCDEFGHI", "ABCDEFGHIJK", "A", "abcdefghij"} {
				other := req
				other.Owner = o
				c.abandon(other)
			}
			c.reacquire(req, lease)
			c.held(newRequest(req.Key, long))
			c.renew(lease, long)
		},
	},
}
