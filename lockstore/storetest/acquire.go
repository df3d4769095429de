package storetest

import (
	"strings"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

var acquireCases = []testCase{
	{
		"acquire/a held key is refused F64",
		"A free key is granted. Then a second event for the same resource does not get the lease.",
		func(c *check) {
			req, lease := c.take(long)
			for range 3 {
				c.held(req.Key)
			}
			c.keeps(req, lease)
		},
	},
	{
		"acquire/again returns the same lease F23",
		"If the reply to an acquire is lost, the caller sends the acquire again. It must get its own lease, and not be told that the key is held. The holder text is for people and is never compared. A duplicate that arrives after a renewal must not bring the old end back.",
		func(c *check) {
			req, first := c.take(30 * time.Second)
			c.reacquire(req, first)
			c.reacquire(req, first)
			other := req
			other.HolderInfo = lockstore.HolderInfo{Name: "another", ID: "text"}
			c.reacquire(other, first)
			c.renew(first, long)
			c.reacquire(req, first)
			c.lasts("a renewal and a repeated acquire", req.Key)
			c.keeps(req, first)
		},
	},
	{
		"acquire/again returns the time that is left F23 F29",
		"A repeated acquire is no renewal: it must not promise the whole TTL again, and it must not make the lease longer. Otherwise the retries of a dead caller would hold the key for ever.",
		func(c *check) {
			const ttl, pause = 30 * time.Second, time.Second
			before := c.elapsed()
			req, first := c.take(ttl)
			granted := c.elapsed()
			c.sleep(pause)
			sent := c.elapsed()
			again := c.reacquire(req, first)
			if most := ttl - (sent - granted) + c.TakeoverDelay + rounding; again.TTL > most {
				c.Errorf("%v after the grant, the same lease may be trusted for %v; want at most %v", sent-granted, again.TTL, most)
			}
			c.atLeast("the same lease", again.TTL, ttl-(c.elapsed()-before)-c.Margin)
			c.endsBy("a repeated acquire", req.Key, granted+ttl)
		},
	},
	{
		"acquire/the own expired lease is lost F11",
		"A caller may stand still until its lease is over. It must not use that lease, because other owners may have had the key meanwhile.",
		func(c *check) {
			req, first := c.take(short)
			c.expire(short)
			c.acquireLost("Acquire by the owner of an expired lease", req)
			c.next(first)
		},
	},
	{
		"acquire/a refused acquire changes nothing",
		"A waiter must neither change the fence, or the holder loses its lease, nor make the lease longer.",
		func(c *check) {
			const ttl = 30 * time.Second
			req, lease := c.take(ttl)
			granted := c.elapsed()
			for range 3 {
				c.held(req.Key)
			}
			c.endsBy("refused acquires", req.Key, granted+ttl)
			c.reacquire(req, lease)
			c.renew(lease, ttl)
			c.release(lease)
		},
	},
	{
		"acquire/owners are compared whole",
		"The beginning, the end or another spelling of the holder's owner is another owner. An abandon has no fence, so there the owner alone decides.",
		func(c *check) {
			for _, alike := range [][]lockstore.Owner{
				{"ABCDEFGHIJ", "ABCDEFGHI", "ABCDEFGHIJK", "A", "BCDEFGHIJ", "abcdefghij"},
				{"1", "01", "1.0", "1e0", "0x1", "+1"},
				{"nil", "null", "false", "-", "{}", "*"},
				{"a", "a:b", "a|b", `a"b`, `a\b`, "*", "%", "[", "!#$&'()+,-./:;<=>?@[]^_`{|}~"},
			} {
				for _, holder := range alike {
					req := newRequest(newKey(), long)
					req.Owner = holder
					lease := c.acquire(req)
					for _, other := range alike {
						if other == holder {
							continue
						}
						its := req
						its.Owner = other
						if _, err := c.tryAcquire(its); err == nil {
							c.fatalf("the lease of owner %q was given to owner %q", string(holder), string(other))
						}
						c.abandon(its)
					}
					strange := lease
					for _, other := range []lockstore.Owner{holder + "X", "X" + holder} {
						strange.Owner = other
						c.renewLost("Renew by another owner", strange)
						c.wantErr("Release by another owner", c.tryRelease(strange), lockstore.ErrLost)
					}
					c.keeps(req, lease)
				}
			}
		},
	},
	{
		"acquire/one owner on two keys has two leases",
		"Leases of different keys are independent.",
		func(c *check) {
			one := newRequest(newKey(), long)
			two := one
			two.Key = newKey()
			first, second := c.acquire(one), c.acquire(two)
			c.release(first)
			c.renew(second, long)
			c.held(two.Key)
			c.next(first)
		},
	},
	{
		"acquire/the bounds themselves are accepted F48",
		"All stores have the same bounds, so a program that runs with one store runs with all.",
		func(c *check) {
			for _, ttl := range []time.Duration{lockstore.MinTTL, lockstore.MaxTTL} {
				_, lease := c.take(ttl)
				c.release(lease)
			}
			for _, n := range []int{1, lockstore.MaxOwnerBytes} {
				req := newRequest(newKey(), long)
				req.Owner = lockstore.Owner(strings.Repeat("o", n))
				c.keeps(req, c.acquire(req))
			}
		},
	},
}
