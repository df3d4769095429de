package storetest

import (
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

var acquireCases = []testCase{
	{
		"acquire/a free key is granted",
		"A key that nobody holds must be granted, with a lease that names the key, the owner and a fence.",
		func(c *check) {
			req, lease := c.take(long)
			c.held(newRequest(req.Key, long))
			c.release(lease)
		},
	},
	{
		"acquire/again returns the same lease F23",
		"When the reply to an acquire is lost, the caller sends it again and must get its own lease back, not be told that it is busy (M15).",
		func(c *check) {
			req, first := c.take(long)
			c.reacquire(req, first)
			c.reacquire(req, first)
			c.renew(first, long)
			c.release(first)
		},
	},
	{
		"acquire/again returns the time that is left F23 F29",
		"A repeated acquire must not promise the whole TTL again: the store's lease has been running since the first one.",
		func(c *check) {
			const ttl, pause = 30 * time.Second, time.Second
			before := c.elapsed()
			req, first := c.take(ttl)
			granted := c.elapsed()
			c.sleep(pause)
			asked := c.elapsed()
			again := c.reacquire(req, first)
			if most := ttl - (asked - granted) + c.TakeoverDelay + rounding; again.TTL > most {
				c.Errorf("%v after the grant, the same lease may be trusted for %v; want at most %v", asked-granted, again.TTL, most)
			}
			if least := ttl - (c.elapsed() - before) - c.Margin - rounding; again.TTL < least {
				c.Errorf("%v after the grant, the same lease may be trusted for %v; want at least %v", asked-granted, again.TTL, least)
			}
		},
	},
	{
		"acquire/again does not make the lease last longer",
		"A repeated acquire is a lost reply, not a renewal: a retry loop of a dead caller must not hold the key for ever.",
		func(c *check) {
			const ttl, pause = 30 * time.Second, time.Second
			req, first := c.take(ttl)
			granted := c.elapsed()
			c.sleep(pause)
			c.reacquire(req, first)
			asked := c.elapsed()
			if r, most := c.remaining(req.Key), ttl-(asked-granted)+c.TakeoverDelay+rounding; r > most {
				c.Errorf("%v after the grant another may have to wait %v; want at most %v", asked-granted, r, most)
			}
		},
	},
	{
		"acquire/again with another holder text is the same request",
		"A holder is for people and is never compared.",
		func(c *check) {
			req, first := c.take(long)
			req.Holder = lockstore.Holder{Name: "another", ID: "text"}
			c.reacquire(req, first)
		},
	},
	{
		"acquire/again after a renewal keeps the renewal",
		"A duplicate of an acquire that arrives after a renewal must not bring the old expiry back.",
		func(c *check) {
			req, first := c.take(30 * time.Second)
			c.renew(first, long)
			c.reacquire(req, first)
			if r := c.remaining(req.Key); r < long-time.Minute {
				c.Errorf("after a renewal for %v and a repeated acquire, %v remain", long, r)
			}
		},
	},
	{
		"acquire/the own expired lease is lost F11",
		"An acquire that was frozen until its first copy's lease was over must not run on it: others may have had the key in between.",
		func(c *check) {
			req, first := c.take(short)
			c.expire(short)
			_, err := c.tryAcquire(req)
			c.wantErr("Acquire by the owner of an expired lease", err, lockstore.ErrLost)
			next := c.acquire(newRequest(req.Key, long))
			c.grew(first.Fence, next.Fence)
		},
	},
	{
		"acquire/a duplicate after another's takeover is refused F11",
		"The owner whose lease was taken over must never get the other's lease.",
		func(c *check) {
			req, _ := c.take(short)
			c.expire(short)
			other := c.acquire(newRequest(req.Key, long))
			c.notGranted("Acquire by the owner whose lease was taken over", req)
			c.renew(other, long)
		},
	},
	{
		"acquire/a held key is refused F64",
		"Two events for the same resource must not both get the lease (M01).",
		func(c *check) {
			req, lease := c.take(long)
			for range 3 {
				c.held(newRequest(req.Key, long))
			}
			c.renew(lease, long)
		},
	},
	{
		"acquire/a refused acquire changes nothing",
		"A waiter that knocks must neither move the fence (M12), which would lose the holder's lease, nor make it last longer.",
		func(c *check) {
			const ttl = 30 * time.Second
			req, lease := c.take(ttl)
			granted := c.elapsed()
			for range 3 {
				c.held(newRequest(req.Key, long))
			}
			asked := c.elapsed()
			if r, most := c.remaining(req.Key), ttl-(asked-granted)+c.TakeoverDelay+rounding; r > most {
				c.Errorf("after refused acquires %v remain; want at most %v", r, most)
			}
			c.reacquire(req, lease)
			c.renew(lease, ttl)
			c.release(lease)
		},
	},
	{
		"acquire/owners are compared whole",
		"An owner that is the beginning, the end or another spelling of the holder's is another owner.",
		func(c *check) {
			owners := []lockstore.Owner{
				"ABCDEFGHIJ", "ABCDEFGHI", "ABCDEFGHIJK", "A", "BCDEFGHIJ", "abcdefghij",
				"1", "01", "1.0", "1e0", "0x1", "+1",
				"nil", "null", "false", "-", "*", "%", "a:b", "a", "a|b", `a"b`, `a\b`, "{}", "[", "!#$&'()+,-./:;<=>?@[]^_`{|}~",
			}
			for _, holder := range owners {
				req := newRequest(newKey(), long)
				req.Owner = holder
				lease := c.acquire(req)
				for _, other := range owners {
					if other == holder {
						continue
					}
					its := req
					its.Owner = other
					if _, err := c.tryAcquire(its); err == nil {
						c.fatalf("the lease of owner %q was given to owner %q", string(holder), string(other))
					}
				}
				strange := lease
				for _, other := range []lockstore.Owner{holder + "X", "X" + holder} {
					strange.Owner = other
					c.renewLost("Renew by another owner", strange)
					c.wantErr("Release by another owner", c.tryRelease(strange), lockstore.ErrLost)
				}
				c.reacquire(req, lease)
				c.release(lease)
			}
		},
	},
	{
		"acquire/one owner on two keys has two leases",
		"Leases of different keys have nothing to do with one another.",
		func(c *check) {
			one := newRequest(newKey(), long)
			two := one
			two.Key = newKey()
			first, second := c.acquire(one), c.acquire(two)
			c.release(first)
			c.renew(second, long)
			c.held(newRequest(two.Key, long))
			c.acquire(newRequest(one.Key, long))
		},
	},
	{
		"acquire/the bounds themselves are accepted F48",
		"The bounds of a request are the same for every store, so a program that runs on one runs on another.",
		func(c *check) {
			for _, ttl := range []time.Duration{lockstore.MinTTL, lockstore.MaxTTL} {
				_, lease := c.take(ttl)
				c.release(lease)
			}
			for _, n := range []int{1, lockstore.MaxOwnerBytes} {
				req := newRequest(newKey(), long)
				req.Owner = lockstore.Owner(repeat("o", n))
				lease := c.acquire(req)
				c.reacquire(req, lease)
				c.renew(lease, long)
				c.release(lease)
			}
		},
	},
}
