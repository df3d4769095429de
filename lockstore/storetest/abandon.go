package storetest

import "github.com/lambdalock/lambdalock/lockstore"

var abandonCases = []testCase{
	{
		"abandon/before a late acquire, on a new key and on a used one F26",
		"A caller that stops trying abandons its acquire. If the acquire arrives later, it must not lock the key for nobody. The fence still grows.",
		func(c *check) {
			_, lease := c.take(long)
			c.release(lease)
			for _, last := range []lockstore.Lease{{Key: newKey()}, lease} {
				req := newRequest(last.Key, long)
				c.abandon(req)
				c.sleep(tick) // the late one comes with a later fence
				for range 2 {
					c.acquireLost("Acquire after its abandon", req)
				}
				_, next := c.next(last)
				c.release(next)
			}
		},
	},
	{
		"abandon/after the acquire was applied frees it F23",
		"If the lost reply was a grant, the abandon ends the lease at once, for each of its requests.",
		func(c *check) {
			req, lease := c.take(long)
			c.abandon(req)
			c.renewLost("Renew after the abandon", lease)
			c.acquireLost("Acquire after its abandon", req)
			c.next(lease)
		},
	},
	{
		"abandon/does not change the lease of another owner",
		"While another owner holds the key there is nothing to abandon, and that is no failure.",
		func(c *check) {
			req, lease := c.take(long)
			mine := newRequest(req.Key, long)
			c.abandon(mine)
			c.notGranted("Acquire after its abandon, while another holds", mine)
			c.keeps(req, lease)
		},
	},
	{
		"abandon/again, and after the release, is nil",
		"The reply to an abandon may be lost too. A caller may also abandon if it does not know whether its release arrived.",
		func(c *check) {
			for _, released := range []bool{false, true} {
				req, lease := c.take(long)
				if released {
					c.release(lease)
				}
				for range 3 {
					c.abandon(req)
				}
				c.wantNilOr("Release after the abandon", c.tryRelease(lease), lockstore.ErrLost)
				next, others := c.next(lease)
				c.abandon(req)
				c.keeps(next, others)
			}
		},
	},
	{
		"abandon/of an expired lease is nil",
		"The acquisition is over already.",
		func(c *check) {
			req, lease := c.take(short)
			c.expire(short)
			c.abandon(req)
			c.acquireLost("Acquire after its abandon", req)
			c.next(lease)
		},
	},
}
