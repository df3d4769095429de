package storetest

import (
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// The cases of a Complete without data: a release with a cooldown.
var cooldownCases = []testCase{
	{
		"cooldown/for everybody, then the key is free",
		"Complete ends the lease at once. Nobody gets the key during the cooldown, not even the owner that released.",
		func(c *check) {
			req, lease := c.take(long)
			before := c.elapsed()
			c.complete(lease, nil, short)
			c.between("Remaining", c.cools(req.Key).Remaining, short-(c.elapsed()-before), short)
			same := newRequest(req.Key, long)
			same.HolderInfo = req.HolderInfo
			c.refused(same, lockstore.Cooldown)
			c.renewLost("Renew after Complete", lease)
			c.notGranted("Acquire by the owner that has released", req)
			c.expire(short)
			c.grew(lease.Fence, c.acquire(same).Fence)
		},
	},
	{
		"cooldown/not shorter, wherever in a second it ends",
		"As for the end of a lease: a clock with whole seconds must not end the cooldown early.",
		func(c *check) {
			c.ends(10, func(int) taken {
				req, lease := c.take(long)
				start := c.elapsed()
				c.complete(lease, nil, edgeTTL)
				return taken{req.Key, start + edgeTTL, c.elapsed() + edgeTTL}
			})
		},
	},
	{
		"cooldown/again is nil and does not make it longer F25",
		"If the reply is lost, the same call again must not start the cooldown again.",
		func(c *check) {
			const d, pause = 30 * time.Second, time.Second
			req, lease := c.take(long)
			c.complete(lease, nil, d)
			done := c.elapsed()
			c.sleep(pause)
			c.complete(lease, nil, d)
			c.endsBy("a second Complete", req.Key, done+d)
		},
	},
	{
		"cooldown/stays through other releases",
		"A Release or an abandon after Complete must not end the cooldown.",
		func(c *check) {
			req, lease := c.take(long)
			c.complete(lease, nil, long)
			c.wantNilOr("Release after Complete", c.tryRelease(lease), lockstore.ErrLost)
			c.cools(req.Key)
			c.abandon(newRequest(req.Key, long))
			c.cools(req.Key)
			c.abandon(req)
			c.cools(req.Key)
		},
	},
	{
		"cooldown/only by the lease that holds the key F10",
		"Complete answers as Release does. An owner that does not hold the key cannot start a cooldown.",
		func(c *check) {
			const ttl = 30 * time.Second
			req, lease := c.take(ttl)
			granted := c.elapsed()
			for _, s := range strangers(lease) {
				c.wantErr("Complete"+s.what, c.tryComplete(s.lease, nil, long), lockstore.ErrLost)
			}
			c.endsBy("refused calls", req.Key, granted+ttl)
			c.keeps(req, lease)
			c.wantNilOr("Complete after the release", c.tryComplete(lease, nil, long), lockstore.ErrLost)
			c.next(lease)
			c.wantNilOr("Complete after a grant to another owner", c.tryComplete(lease, nil, long), lockstore.ErrLost)
		},
	},
	{
		"cooldown/Inspect shows it",
		"A waiter calls Inspect before Acquire. During a cooldown no acquire can win.",
		func(c *check) {
			req, lease := c.take(long)
			c.complete(lease, nil, short)
			status := c.inspect(req.Key)
			if most := short + c.TakeoverDelay + rounding; status.State != lockstore.Cooldown || status.Remaining <= 0 || status.Remaining > most {
				c.Errorf("Inspect during a cooldown: %v, remaining %v; want cooldown, more than 0 and at most %v", status.State, status.Remaining, most)
			}
			if status.Fence < lease.Fence {
				c.Errorf("Inspect during a cooldown: fence %d; want the last grant's, %d", status.Fence, lease.Fence)
			}
			c.expire(short)
			if status = c.inspect(req.Key); status.State != lockstore.Free {
				c.Errorf("Inspect after the cooldown: %v; want free", status.State)
			}
		},
	},
}

// cools wants the key refused to a new owner because of a cooldown.
func (c *check) cools(key string) *lockstore.Refused {
	c.Helper()
	return c.refused(newRequest(key, long), lockstore.Cooldown)
}
