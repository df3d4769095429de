package storetest

import (
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

var renewCases = []testCase{
	{
		"renew/the trusted time",
		"The time that a renewal returns is for how long its caller runs on: not more than the store keeps the key, and not nothing.",
		func(c *check) {
			_, lease := c.take(30 * time.Second)
			before := c.elapsed()
			trusted := c.renew(lease, long)
			took := c.elapsed() - before
			if trusted > long+rounding {
				c.Errorf("a renewal for %v may be trusted for %v", long, trusted)
			}
			c.atLeast("a renewal", trusted, long-c.Margin-took)
		},
	},
	{
		"renew/again after a lost reply F24",
		"When the reply to a renewal is lost, the same renewal again must say held: a holder that is told lost stops good work.",
		func(c *check) {
			_, lease := c.take(30 * time.Second)
			for range 3 {
				c.renew(lease, long)
			}
			c.release(lease)
		},
	},
	{
		"renew/with the same TTL, wherever in a second it ends",
		"A renewal that writes what is there already may change nothing in some databases; it has to last from now on.",
		func(c *check) {
			var reqs []lockstore.Request
			var leases []lockstore.Lease
			for range 10 {
				req, lease := c.take(2 * edgeTTL)
				c.renew(lease, 2*edgeTTL)
				reqs, leases = append(reqs, req), append(leases, lease)
			}
			c.sleep(700 * time.Millisecond)
			c.edges(len(reqs), func(i int) span {
				start := c.elapsed()
				trusted := c.renew(leases[i], 2*edgeTTL)
				c.atLeast("a renewal with the same TTL", trusted, 2*edgeTTL-c.Margin-(c.elapsed()-start))
				return span{reqs[i].Key, start + max(trusted, 2*edgeTTL), c.elapsed() + 2*edgeTTL}
			})
		},
	},
	{
		"renew/never shortens F27",
		"A renewal that is shorter than what is left leaves the end where it was, and the time of trust too: two renewals may change places on the way (M09).",
		func(c *check) {
			req, lease := c.take(30 * time.Second)
			before := c.elapsed()
			end := before + c.renew(lease, long)
			for _, ttl := range []time.Duration{time.Minute, 10 * time.Second, short} {
				c.sleep(tick)
				asked := c.elapsed()
				trusted := c.renew(lease, ttl)
				c.atLeast("a renewal for "+ttl.String(), trusted, end-c.elapsed()-c.Margin)
				remaining := c.remaining(req.Key)
				if early := asked + trusted - c.elapsed() - remaining; early > 0 {
					c.Errorf("a renewal for %v may be trusted for %v; others have to wait for %v less", ttl, trusted, early)
				}
			}
		},
	},
	{
		"renew/never shortens what acquire gave F27",
		"A renewal says at least until then, also when it is shorter than the first TTL.",
		func(c *check) {
			req, lease := c.take(long)
			c.renew(lease, short)
			if r := c.remaining(req.Key); r < long-time.Minute {
				c.Errorf("after an acquire for %v and a renewal for %v, %v remain", long, short, r)
			}
		},
	},
	{
		"renew/an expired lease is lost F09",
		"A renewal that was frozen past the expiry must not revive the lease, even if nobody has taken the key yet (M08).",
		func(c *check) {
			req, lease := c.take(short)
			c.expire(short)
			c.renewLost("Renew of an expired lease", lease)
			c.renewLost("Renew again of an expired lease", lease)
			next := c.acquire(newRequest(req.Key, long))
			c.grew(lease.Fence, next.Fence)
		},
	},
	{
		"renew/a released lease is lost F09",
		"A renewal that arrives after the release must not take the key again (M07).",
		func(c *check) {
			req, lease := c.take(long)
			c.release(lease)
			c.renewLost("Renew after the release", lease)
			c.acquire(newRequest(req.Key, long))
			c.renewLost("Renew after the release and another's grant", lease)
		},
	},
	{
		"renew/an abandoned lease is lost",
		"An abandoned acquisition is over for each of its requests.",
		func(c *check) {
			req, lease := c.take(long)
			c.abandon(req)
			c.renewLost("Renew after the abandon", lease)
			c.acquire(newRequest(req.Key, long))
		},
	},
	{
		"renew/a key that was never acquired is lost",
		"Renew never makes a lease (M07).",
		func(c *check) {
			req := newRequest(newKey(), long)
			c.renewLost("Renew of an unknown key", lockstore.Lease{Key: req.Key, Owner: req.Owner, Fence: 7})
			c.acquire(newRequest(req.Key, long))
		},
	},
	{
		"renew/a deleted entry is not made again F35 F43",
		"When the entry is deleted under a holder, others may have the key already: the holder has lost (M07).",
		func(c *check) {
			c.need("Delete", c.Delete != nil)
			req, lease := c.take(long)
			c.Delete(c.t, req.Key)
			c.renewLost("Renew of a deleted entry", lease)
			c.sleep(tick)
			next := c.acquire(newRequest(req.Key, long))
			c.grew(lease.Fence, next.Fence)
			c.renewLost("Renew of a deleted entry after another's grant", lease)
			c.renew(next, long)
		},
	},
	{
		"renew/another owner or another fence is refused",
		"Only owner and fence together name a lease (M06).",
		func(c *check) {
			const ttl = 30 * time.Second
			req, lease := c.take(ttl)
			granted := c.elapsed()
			strange := lease
			strange.Owner = lockstore.NewOwner()
			c.renewLost("Renew by another owner with the right fence", strange)
			for _, f := range []lockstore.Fence{lease.Fence - 1, lease.Fence + 1, 1} {
				strange = lease
				strange.Fence = f
				c.renewLost("Renew with another fence", strange)
			}
			strange.Fence = 0
			if _, err := c.tryRenew(strange, long); err == nil {
				c.Errorf("Renew with fence 0: no error; want it refused")
			}
			asked := c.elapsed()
			if r, most := c.remaining(req.Key), ttl-(asked-granted)+c.TakeoverDelay+rounding; r > most {
				c.Errorf("after refused renewals %v remain; want at most %v", r, most)
			}
			c.renew(lease, ttl)
		},
	},
	{
		"renew/leaves the fence and the holder",
		"A renewal is the same lease: its fence stays, so a resource goes on to accept it.",
		func(c *check) {
			req, lease := c.take(30 * time.Second)
			for range 3 {
				c.renew(lease, long)
			}
			c.reacquire(req, lease)
			c.sameHolder(c.held(newRequest(req.Key, long)).Holder, req.Holder)
		},
	},
}

// atLeast wants a time of trust, give or take what the store may round.
func (c *check) atLeast(what string, trusted, least time.Duration) {
	c.Helper()
	if trusted < least-rounding {
		c.Errorf("%s may be trusted for %v; want at least %v", what, trusted, least)
	}
}
