package storetest

import (
	"errors"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

var takeoverCases = []testCase{
	{
		"takeover/not before the TTL and not long after it F01",
		"A holder that died blocks others for its TTL and no longer, and one that lives is not overtaken while it may trust its lease (M02).",
		func(c *check) {
			const poll = 50 * time.Millisecond
			start := c.elapsed()
			req, lease := c.take(short)
			granted := c.elapsed()
			next := newRequest(req.Key, long)
			var end time.Duration // by the first refusal, when the key is free at the latest
			for {
				asked := c.elapsed()
				got, err := c.tryAcquire(next)
				answered := c.elapsed()
				if err == nil {
					if answered < start+short-early {
						c.Errorf("granted %v after the first acquire; want it not before %v", answered-start, short)
					}
					if answered < start+lease.TTL-early {
						c.Errorf("granted while the first lease may be trusted for %v more", start+lease.TTL-answered)
					}
					c.grew(lease.Fence, got.Fence)
					break
				}
				var held *lockstore.HeldError
				if !errors.As(err, &held) {
					c.fatalf("Acquire of a held key: %v; want a *lockstore.HeldError", err)
				}
				if end == 0 {
					end = answered + held.Remaining
				}
				if late := asked - granted - short - c.TakeoverDelay - rounding; late > 0 {
					c.fatalf("still held %v after the lease's TTL of %v and the store's delay of %v", late, short, c.TakeoverDelay)
				}
				if late := asked - end - rounding; late > 0 {
					c.fatalf("still held %v after the first refusal's Remaining was over", late)
				}
				c.sleep(poll)
			}
		},
	},
	{
		"takeover/the old owner is lost F07 F10",
		"Whoever slept past its lease must hear ErrLost on everything, and the new holder must not notice.",
		func(c *check) {
			req, old := c.take(short)
			c.expire(short)
			next := newRequest(req.Key, long)
			lease := c.acquire(next)
			c.renewLost("Renew after another's takeover", old)
			c.wantErr("Release after another's takeover", c.tryRelease(old), lockstore.ErrLost)
			c.wantErr("Release again after another's takeover", c.tryRelease(old), lockstore.ErrLost)
			c.withdraw(req)
			c.reacquire(next, lease)
			c.held(newRequest(req.Key, long))
			c.renew(lease, long)
			c.release(lease)
		},
	},
	{
		"takeover/a renewed lease is not taken",
		"The expiry that counts is the renewed one.",
		func(c *check) {
			req, lease := c.take(2 * short)
			c.renew(lease, long)
			c.expire(2 * short)
			c.held(newRequest(req.Key, long))
			c.renew(lease, long)
		},
	},
	{
		"takeover/time after time F63",
		"A function that dies each time it runs must not block the key for more than one TTL, and each run has a larger fence.",
		func(c *check) {
			req, lease := c.take(short)
			fence := lease.Fence
			for range 3 {
				c.expire(short)
				lease := c.acquire(newRequest(req.Key, short))
				c.grew(fence, lease.Fence)
				fence = lease.Fence
			}
		},
	},
}
