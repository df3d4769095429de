package storetest

import "github.com/lambdalock/lambdalock/lockstore"

var releaseCases = []testCase{
	{
		"release/frees the key at once, and again is nil F25 F62",
		"The next caller does not wait for the TTL. If the reply to a release is lost, the same release again is no failure.",
		func(c *check) {
			_, lease := c.take(long)
			for range 3 {
				c.release(lease)
			}
			c.next(lease)
		},
	},
	{
		"release/by two goroutines at once F62",
		"Two releases of one lease at the same time both succeed, and free the lease once.",
		func(c *check) {
			_, lease := c.take(long)
			var errs [2]error
			atOnce(2, func(i int) { errs[i] = c.tryRelease(lease) })
			for _, err := range errs {
				if err != nil {
					c.Errorf("Release by two at once: %v; want nil", err)
				}
			}
			c.next(lease)
		},
	},
	{
		"release/again does not free the next lease F10 F62",
		"A late duplicate of a release must not free the next holder's lease.",
		func(c *check) {
			_, lease := c.take(long)
			c.release(lease)
			next, others := c.next(lease)
			c.wantNilOr("Release again after a grant to another owner", c.tryRelease(lease), lockstore.ErrLost)
			c.keeps(next, others)
		},
	},
	{
		"release/another owner or another fence is refused F48",
		"Owner and fence together name a lease.",
		func(c *check) {
			req, lease := c.take(long)
			for _, s := range strangers(lease) {
				c.wantErr("Release"+s.what, c.tryRelease(s.lease), lockstore.ErrLost)
			}
			c.keeps(req, lease)
		},
	},
	{
		"release/a key that was never acquired is lost",
		"There is no lease to free, and the release must not hurt the next caller.",
		func(c *check) {
			req := newRequest(newKey(), long)
			err := c.tryRelease(lockstore.Lease{Key: req.Key, Owner: req.Owner, Fence: 7})
			c.wantErr("Release of an unknown key", err, lockstore.ErrLost)
			c.release(c.acquire(req))
		},
	},
	{
		"release/an expired lease leaves the key free",
		"The release of an expired lease may return nil or ErrLost, because nobody had the key since. The key is free after it.",
		func(c *check) {
			req, lease := c.take(short)
			c.expire(short)
			c.wantNilOr("Release of an expired lease", c.tryRelease(lease), lockstore.ErrLost)
			c.renewLost("Renew after the release of an expired lease", lease)
			c.acquireLost("Acquire by the owner of an expired lease", req)
			c.next(lease)
		},
	},
	{
		"release/a deleted entry F35",
		"A release without an entry may return nil or ErrLost. The key is free before and after.",
		func(c *check) {
			c.need("Delete", c.Delete != nil)
			req, lease := c.take(long)
			c.Delete(c.t, req.Key)
			c.wantNilOr("Release of a deleted entry", c.tryRelease(lease), lockstore.ErrLost)
			c.sleep(tick)
			c.next(lease)
		},
	},
	{
		"release/a late duplicate of the acquire takes no lock F26",
		"A duplicate of the acquire may arrive after the release. It would lock the key for nobody.",
		func(c *check) {
			req, lease := c.take(long)
			c.release(lease)
			for range 2 {
				c.acquireLost("Acquire by an owner that has released", req)
			}
			next, others := c.next(lease)
			c.notGranted("Acquire by an owner that has released, while another holds", req)
			c.keeps(next, others)
		},
	},
}
