package storetest

import (
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// The cases of lockstore.CooldownReleaser.
var closedCases = []testCase{
	{
		"closed/to everybody, then free",
		"ReleaseAfter ends the lease and keeps the key closed for a while, also to the one who released it.",
		func(c *check) {
			req, lease := c.take(long)
			before := c.elapsed()
			c.releaseAfter(lease, short)
			held := c.held(newRequest(req.Key, long))
			c.between("Remaining", held.Remaining, short-(c.elapsed()-before), short)
			same := newRequest(req.Key, long)
			same.Holder = req.Holder
			c.held(same)
			c.renewLost("Renew after ReleaseAfter", lease)
			c.notGranted("Acquire by the owner that has released", req)
			c.expire(short)
			next := c.acquire(same)
			c.grew(lease.Fence, next.Fence)
		},
	},
	{
		"closed/not for less, wherever in a second its end lies",
		"As for the end of a lease: a server that tells whole seconds must not open the key early.",
		func(c *check) {
			c.delayed()
			c.edges(10, func(int) span {
				req, lease := c.take(long)
				start := c.elapsed()
				c.releaseAfter(lease, edgeTTL)
				return span{req.Key, start + edgeTTL, c.elapsed() + edgeTTL}
			})
		},
	},
	{
		"closed/again is nil and does not close longer F25",
		"When the reply is lost, the same call again must not start the time anew.",
		func(c *check) {
			const d, pause = 30 * time.Second, time.Second
			req, lease := c.take(long)
			c.releaseAfter(lease, d)
			done := c.elapsed()
			c.sleep(pause)
			c.releaseAfter(lease, d)
			asked := c.elapsed()
			if r, most := c.remaining(req.Key), d-(asked-done)+c.TakeoverDelay+rounding; r > most {
				c.Errorf("%v after ReleaseAfter(%v), %v remain; want at most %v", asked-done, d, r, most)
			}
		},
	},
	{
		"closed/stays closed through other releases",
		"A plain release or an abandon that comes after ReleaseAfter must not open the key early.",
		func(c *check) {
			req, lease := c.take(long)
			c.releaseAfter(lease, long)
			c.wantNilOr("Release after ReleaseAfter", c.tryRelease(lease), lockstore.ErrLost)
			c.held(newRequest(req.Key, long))
			c.abandon(newRequest(req.Key, long))
			c.held(newRequest(req.Key, long))
			c.abandon(req)
			c.held(newRequest(req.Key, long))
		},
	},
	{
		"closed/shorter than the lease",
		"The lease ends at once; what was left of it does not count.",
		func(c *check) {
			req, lease := c.take(long)
			c.releaseAfter(lease, short)
			c.expire(short)
			next := c.acquire(newRequest(req.Key, long))
			c.grew(lease.Fence, next.Fence)
		},
	},
	{
		"closed/only by the lease that holds it F10",
		"It answers as Release does: whoever does not hold the key cannot close it.",
		func(c *check) {
			c.delayed()
			req, lease := c.take(30 * time.Second)
			granted := c.elapsed()
			strange := lease
			strange.Owner = lockstore.NewOwner()
			c.wantErr("ReleaseAfter by another owner", c.tryReleaseAfter(strange, long), lockstore.ErrLost)
			strange = lease
			strange.Fence++
			c.wantErr("ReleaseAfter with another fence", c.tryReleaseAfter(strange, long), lockstore.ErrLost)
			asked := c.elapsed()
			if r, most := c.remaining(req.Key), 30*time.Second-(asked-granted)+c.TakeoverDelay+rounding; r > most {
				c.Errorf("after refused calls %v remain; want at most %v", r, most)
			}
			c.renew(lease, long)
			c.release(lease)
			c.wantNilOr("ReleaseAfter after the release", c.tryReleaseAfter(lease, long), lockstore.ErrLost)
			c.acquire(newRequest(req.Key, long))
			c.wantNilOr("ReleaseAfter after another's grant", c.tryReleaseAfter(lease, long), lockstore.ErrLost)
		},
	},
	{
		"closed/inspect says so",
		"A waiter looks before it tries: a closed key is one that an acquire cannot win.",
		func(c *check) {
			c.inspector()
			req, lease := c.take(long)
			c.releaseAfter(lease, short)
			status := c.inspect(req.Key)
			if most := short + c.TakeoverDelay + rounding; !status.Held || status.Remaining <= 0 || status.Remaining > most {
				c.Errorf("Inspect of a closed key: held %v, remaining %v; want held, more than 0 and at most %v", status.Held, status.Remaining, most)
			}
			if status.Fence < lease.Fence {
				c.Errorf("Inspect of a closed key: fence %d; want the last grant's, %d", status.Fence, lease.Fence)
			}
			c.expire(short)
			if status = c.inspect(req.Key); status.Held {
				c.Errorf("Inspect says held after the key was to open")
			}
		},
	},
}
