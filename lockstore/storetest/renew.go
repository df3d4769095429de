package storetest

import (
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

var renewCases = []testCase{
	{
		"renew/the trusted time",
		"The caller works for the time that a renewal returns. The store must keep the key for at least that time, and the time must not be too short.",
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
		"renew/again is the same lease F24",
		"If the reply to a renewal is lost, the same renewal again must succeed, or the holder stops good work. A renewal keeps the fence, so a resource still accepts it.",
		func(c *check) {
			req, lease := c.take(30 * time.Second)
			for range 3 {
				c.renew(lease, long)
			}
			c.reacquire(req, lease)
			c.sameHolder(c.held(req.Key).Holder, req.HolderInfo)
			c.release(lease)
		},
	},
	{
		"renew/with the same TTL, wherever in a second it ends",
		"In some databases a write of the same value changes nothing. The renewed lease must still last from now on.",
		func(c *check) {
			var reqs []lockstore.Request
			var leases []lockstore.Lease
			for range 10 {
				req, lease := c.take(2 * edgeTTL)
				c.renew(lease, 2*edgeTTL)
				reqs, leases = append(reqs, req), append(leases, lease)
			}
			c.sleep(700 * time.Millisecond)
			c.ends(len(reqs), func(i int) taken {
				start := c.elapsed()
				trusted := c.renew(leases[i], 2*edgeTTL)
				c.atLeast("a renewal with the same TTL", trusted, 2*edgeTTL-c.Margin-(c.elapsed()-start))
				return taken{reqs[i].Key, start + max(trusted, 2*edgeTTL), c.elapsed() + 2*edgeTTL}
			})
		},
	},
	{
		"renew/never shortens F27",
		"A renewal for less than what is left changes neither the end nor the time of trust, of an acquire and of a renewal: two renewals may arrive in the wrong order.",
		func(c *check) {
			for _, first := range []time.Duration{long, 30 * time.Second} {
				before := c.elapsed()
				req, lease := c.take(first)
				end := before + lease.TTL
				if first < long {
					before = c.elapsed()
					end = before + c.renew(lease, long)
				}
				for _, ttl := range []time.Duration{time.Minute, 10 * time.Second, short} {
					c.sleep(tick)
					sent := c.elapsed()
					trusted := c.renew(lease, ttl)
					c.atLeast("a renewal for "+ttl.String(), trusted, end-c.elapsed()-c.Margin)
					remaining := c.held(req.Key).Remaining
					if early := sent + trusted - c.elapsed() - remaining; early > 0 {
						c.Errorf("a renewal for %v may be trusted for %v; others have to wait for %v less", ttl, trusted, early)
					}
					c.lasts("a shorter renewal", req.Key)
				}
			}
		},
	},
	{
		"renew/an expired lease is lost F09",
		"A renewal may arrive after the end of the lease. It must not revive the lease, even if nobody has taken the key.",
		func(c *check) {
			_, lease := c.take(short)
			c.expire(short)
			c.renewLost("Renew of an expired lease", lease)
			c.renewLost("Renew again of an expired lease", lease)
			c.next(lease)
		},
	},
	{
		"renew/a released lease is lost F09",
		"A renewal may arrive after the release. It must not take the key again.",
		func(c *check) {
			_, lease := c.take(long)
			c.release(lease)
			c.renewLost("Renew after the release", lease)
			c.next(lease)
			c.renewLost("Renew after a grant to another owner", lease)
		},
	},
	{
		"renew/a key that was never acquired is lost",
		"Renew never makes a lease.",
		func(c *check) {
			req := newRequest(newKey(), long)
			c.renewLost("Renew of an unknown key", lockstore.Lease{Key: req.Key, Owner: req.Owner, Fence: 7})
			c.acquire(newRequest(req.Key, long))
		},
	},
	{
		"renew/a deleted entry is not made again F35 F43",
		"If the entry of a live lease is deleted, other owners may have the key already. So the lease is lost.",
		func(c *check) {
			c.need("Delete", c.Delete != nil)
			req, lease := c.take(long)
			c.Delete(c.t, req.Key)
			c.renewLost("Renew of a deleted entry", lease)
			c.sleep(tick)
			_, next := c.next(lease)
			c.renewLost("Renew of a deleted entry after a grant to another owner", lease)
			c.renew(next, long)
		},
	},
	{
		"renew/another owner or another fence is refused F48 M14",
		"Owner and fence together name a lease. A fence has 63 bits: a fence that was never granted must not overflow into one that was.",
		func(c *check) {
			const ttl = 30 * time.Second
			req, lease := c.take(ttl)
			granted := c.elapsed()
			for _, s := range strangers(lease) {
				c.renewLost("Renew"+s.what, s.lease)
			}
			if _, err := c.tryRenew(lockstore.Lease{Key: req.Key, Owner: req.Owner}, long); err == nil {
				c.Errorf("Renew with fence 0: no error; want it refused")
			}
			c.endsBy("refused renewals", req.Key, granted+ttl)
			c.keeps(req, lease)
		},
	},
}
