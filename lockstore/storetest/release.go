package storetest

import (
	"sync"

	"github.com/lambdalock/lambdalock/lockstore"
)

var releaseCases = []testCase{
	{
		"release/frees the key at once",
		"The next caller must not wait for the TTL of work that is done.",
		func(c *check) {
			req, lease := c.take(long)
			c.release(lease)
			next := c.acquire(newRequest(req.Key, long))
			c.grew(lease.Fence, next.Fence)
		},
	},
	{
		"release/again is nil F25 F62",
		"When the reply to a release is lost, the same release again is no failure.",
		func(c *check) {
			req, lease := c.take(long)
			for range 3 {
				c.release(lease)
			}
			c.acquire(newRequest(req.Key, long))
		},
	},
	{
		"release/by two goroutines at once F62",
		"Two releases of one lease at the same time both succeed, and free one lease once.",
		func(c *check) {
			req, lease := c.take(long)
			var errs [2]error
			var wg sync.WaitGroup
			for i := range errs {
				wg.Go(func() { errs[i] = c.tryRelease(lease) })
			}
			wg.Wait()
			for _, err := range errs {
				if err != nil {
					c.Errorf("Release by two at once: %v; want nil", err)
				}
			}
			c.acquire(newRequest(req.Key, long))
		},
	},
	{
		"release/again after another's grant leaves the other untouched F10 F62",
		"A late duplicate of a release must not free the next holder's lease (M04).",
		func(c *check) {
			req, lease := c.take(long)
			c.release(lease)
			next := newRequest(req.Key, long)
			others := c.acquire(next)
			c.wantNilOr("Release again after another's grant", c.tryRelease(lease), lockstore.ErrLost)
			c.held(newRequest(req.Key, long))
			c.reacquire(next, others)
			c.renew(others, long)
			c.release(others)
		},
	},
	{
		"release/another owner or another fence is refused",
		"Only owner and fence together name a lease (M04, M05).",
		func(c *check) {
			req, lease := c.take(long)
			strange := lease
			strange.Owner = lockstore.NewOwner()
			c.wantErr("Release by another owner with the right fence", c.tryRelease(strange), lockstore.ErrLost)
			for _, f := range []lockstore.Fence{lease.Fence - 1, lease.Fence + 1, 1} {
				strange = lease
				strange.Fence = f
				c.wantErr("Release with another fence", c.tryRelease(strange), lockstore.ErrLost)
			}
			c.held(newRequest(req.Key, long))
			c.reacquire(req, lease)
			c.renew(lease, long)
			c.release(lease)
		},
	},
	{
		"release/a key that was never acquired is lost",
		"There is no lease to free, and nothing may be left that hurts the next caller.",
		func(c *check) {
			req := newRequest(newKey(), long)
			err := c.tryRelease(lockstore.Lease{Key: req.Key, Owner: req.Owner, Fence: 7})
			c.wantErr("Release of an unknown key", err, lockstore.ErrLost)
			lease := c.acquire(req)
			c.release(lease)
		},
	},
	{
		"release/an expired lease leaves the key free",
		"A release that comes too late may say nil or lost, as nobody had the key in between, but the key is free after it.",
		func(c *check) {
			req, lease := c.take(short)
			c.expire(short)
			c.wantNilOr("Release of an expired lease", c.tryRelease(lease), lockstore.ErrLost)
			c.renewLost("Renew after the release of an expired lease", lease)
			_, err := c.tryAcquire(req)
			c.wantErr("Acquire by the owner of an expired lease", err, lockstore.ErrLost)
			next := c.acquire(newRequest(req.Key, long))
			c.grew(lease.Fence, next.Fence)
		},
	},
	{
		"release/a deleted entry F35",
		"A release that finds nothing may say nil or lost; the key is free before and after.",
		func(c *check) {
			c.need("Delete", c.Delete != nil)
			req, lease := c.take(long)
			c.Delete(c.t, req.Key)
			c.wantNilOr("Release of a deleted entry", c.tryRelease(lease), lockstore.ErrLost)
			c.sleep(tick)
			next := c.acquire(newRequest(req.Key, long))
			c.grew(lease.Fence, next.Fence)
		},
	},
	{
		"release/a late duplicate of the acquire takes no lock F26",
		"A duplicate of an acquire that arrives after the release would lock the key for nobody (M18).",
		func(c *check) {
			req, lease := c.take(long)
			c.release(lease)
			for range 2 {
				_, err := c.tryAcquire(req)
				c.wantErr("Acquire by an owner that has released", err, lockstore.ErrLost)
			}
			next := newRequest(req.Key, long)
			others := c.acquire(next)
			c.notGranted("Acquire by an owner that has released, while another holds", req)
			c.reacquire(next, others)
			c.renew(others, long)
		},
	},
}
