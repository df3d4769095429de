package storetest

import (
	"context"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// operator is who revokes leases.
var operator = lockstore.HolderInfo{Name: "the operator", ID: "1", Since: time.UnixMilli(1_790_000_000_000).UTC()}

func (c *check) tryRevoke(req lockstore.RevokeRequest) (lockstore.Status, error) {
	return within(c, func(ctx context.Context) (lockstore.Status, error) { return c.Store.Revoke(ctx, req) })
}

// revoke wants the lease revoked.
func (c *check) revoke(lease lockstore.Lease, openAtOnce bool) lockstore.Status {
	c.Helper()
	status, err := c.tryRevoke(lockstore.RevokeRequest{Key: lease.Key, Fence: lease.Fence, By: operator, OpenAtOnce: openAtOnce})
	state := lockstore.Revoked
	if openAtOnce {
		state = lockstore.Free
	}
	if err != nil {
		c.fatalf("Revoke of fence %d: %v; want the lease revoked", lease.Fence, err)
	}
	if status.Fence != lease.Fence || status.State != state {
		c.fatalf("Revoke of fence %d with OpenAtOnce %v: %+v; want the state after it", lease.Fence, openAtOnce, status)
	}
	return status
}

// isOver wants that the revoked lease is of no use to its owner.
func (c *check) isOver(req lockstore.Request, lease lockstore.Lease) {
	c.Helper()
	c.renewLost("Renew of a revoked lease", lease)
	c.notGranted("Acquire again by the owner of a revoked lease", req)
	if c.FreesOnRelease {
		c.releaseRevoked(lease)
		c.notGranted("Acquire after the release of a revoked lease", req)
	}
}

// releaseRevoked releases a lease that was revoked. In the older mode its owner counts as
// released.
func (c *check) releaseRevoked(lease lockstore.Lease) {
	c.Helper()
	if c.FreesOnRelease {
		c.release(lease)
		return
	}
	c.wantErr("Release of a revoked lease", c.tryRelease(lease), lockstore.ErrLost)
}

var revokeCases = []testCase{
	{
		"revoke/the holder is over, and the key opens at the end of its lease",
		"The old holder still trusts its lease. If the key opened earlier, two would be at work.",
		func(c *check) {
			const ttl = 3 * time.Second
			req := newRequest(newKey(), ttl)
			before := c.elapsed()
			lease := c.acquire(req)
			granted := c.elapsed()
			status := c.revoke(lease, false)
			c.between("Remaining", status.Remaining, ttl-(c.elapsed()-before), ttl)
			c.sameHolder(status.Holder, operator)
			c.isOver(req, lease)
			trusted := before + ttl - rounding
			for c.elapsed() < trusted {
				other := newRequest(req.Key, long)
				got, err := c.tryAcquire(other)
				if err == nil && c.elapsed() < trusted {
					c.fatalf("the key was granted again, with fence %d, %v before the end of the revoked lease", got.Fence, trusted-c.elapsed())
				}
				if err == nil {
					c.release(got)
					break
				}
				c.wantErr("Acquire of a revoked lease's key", err, lockstore.ErrRefused)
				c.sleep(50 * time.Millisecond)
			}
			c.sleepUntil(granted + ttl + c.TakeoverDelay + tick)
			c.next(lease)
			c.renewLost("Renew of a revoked lease after the next grant", lease)
			c.notGranted("Acquire by the revoked lease's owner after the next grant", req)
		},
	},
	{
		"revoke/a renewed lease, wherever it is in its time",
		"A holder that hangs renews for ever: this is what Revoke is for.",
		func(c *check) {
			req, lease := c.take(short)
			c.renew(lease, long)
			if left := c.revoke(lease, false).Remaining; left < long-time.Minute {
				c.Errorf("the revoked lease ends in %v; want the end of the renewal, %v", left, long)
			}
			c.lasts("Revoke", req.Key)
			c.isOver(req, lease)
		},
	},
	{
		"revoke/the second one changes nothing and learns of the first",
		"Two operators, or one whose first answer was lost.",
		func(c *check) {
			req, lease := c.take(long)
			c.revoke(lease, false)
			c.sameHolder(c.revoke(lease, false).Holder, operator)
			second := lockstore.RevokeRequest{Key: req.Key, Fence: lease.Fence, By: lockstore.HolderInfo{Name: "another"}}
			status, err := c.tryRevoke(second)
			if err != nil || status.State != lockstore.Revoked {
				c.fatalf("a second Revoke: %+v, %v; want the state after the first one", status, err)
			}
			c.sameHolder(status.Holder, operator)
			c.isOver(req, lease)
			c.lasts("a second Revoke", req.Key)
		},
	},
	{
		"revoke/only the lease with this fence",
		"Between the look and the revocation another may have got the key.",
		func(c *check) {
			refused := func(what, key string, fence lockstore.Fence) {
				c.Helper()
				for _, now := range []bool{false, true} {
					_, err := c.tryRevoke(lockstore.RevokeRequest{Key: key, Fence: fence, By: operator, OpenAtOnce: now})
					c.wantErr("Revoke of "+what, err, lockstore.ErrLost)
				}
			}
			refused("a key that was never acquired", newKey(), 1)
			req, lease := c.take(long)
			for _, s := range strangers(lease) {
				if s.lease.Fence > 0 && s.lease.Fence != lease.Fence {
					refused("a lease"+s.what, req.Key, s.lease.Fence)
				}
			}
			c.reacquire(req, lease)
			c.renew(lease, long)
			c.release(lease)
			refused("a released lease", req.Key, lease.Fence)
			req, lease = c.take(short)
			c.expire(short)
			refused("an expired lease", req.Key, lease.Fence)
			other, held := c.next(lease)
			refused("an overtaken lease", req.Key, lease.Fence)
			c.keeps(other, held)
		},
	},
	{
		"revoke/a cooldown is no lease",
		"Nobody holds the key in its cooldown, and it ends by itself.",
		func(c *check) {
			req, lease := c.take(long)
			c.complete(lease, nil, long)
			for _, now := range []bool{false, true} {
				_, err := c.tryRevoke(lockstore.RevokeRequest{Key: req.Key, Fence: lease.Fence, By: operator, OpenAtOnce: now})
				c.wantErr("Revoke of a cooldown", err, lockstore.ErrLost)
			}
			c.cools(req.Key)
		},
	},
	{
		"revoke/a completed key is no lease",
		"The work is done. Whoever ends it makes the work run again.",
		func(c *check) {
			req, lease := c.take(long)
			c.complete(lease, []byte("result"), long)
			for _, now := range []bool{false, true} {
				_, err := c.tryRevoke(lockstore.RevokeRequest{Key: req.Key, Fence: lease.Fence, By: operator, OpenAtOnce: now})
				c.wantErr("Revoke of a completed key", err, lockstore.ErrLost)
			}
			c.sameHolder(c.completed(req.Key, []byte("result")).Holder, req.HolderInfo)
		},
	},
	{
		"revoke/a started lease is in doubt at its end",
		"The work may have had its effect before the revocation. The key is no more free than after a holder that died.",
		func(c *check) {
			for _, effect := range []bool{false, true} {
				req, lease := c.take(short)
				c.markStarted(lease)
				c.revoke(lease, false)
				c.isOver(req, lease)
				c.releaseRevoked(lease)
				c.wantErr("MarkStarted of a revoked lease", c.tryMarkStarted(lease), lockstore.ErrLost)
				c.wantErr("Complete of a revoked lease", c.tryComplete(lease, []byte("late"), long), lockstore.ErrLost)
				c.refused(newRequest(req.Key, long), lockstore.Revoked)
				c.wantErr("ResolveNoEffect before the end", c.resolveNoEffect(req.Key, lease.Fence), lockstore.ErrRefused)
				c.expire(short)
				revoked := lockstore.Request{Key: req.Key, HolderInfo: operator}
				c.inDoubt(revoked)
				c.releaseRevoked(lease)
				c.notGranted("Acquire by the owner of the revoked lease", req)
				c.wantErr("Complete of a revoked lease, after its end", c.tryComplete(lease, []byte("late"), long), lockstore.ErrLost)
				_, err := c.tryRevoke(lockstore.RevokeRequest{Key: req.Key, Fence: lease.Fence, By: operator})
				c.wantErr("Revoke of a key in doubt", err, lockstore.ErrLost)
				c.inDoubt(revoked)
				if effect {
					if err := c.resolveEffect(req.Key, lease.Fence, []byte("found"), long); err != nil {
						c.fatalf("ResolveEffect of a revoked lease: %v; want nil", err)
					}
					c.wantErr("Complete of a revoked lease, after ResolveEffect", c.tryComplete(lease, []byte("late"), long), lockstore.ErrLost)
					c.completed(req.Key, []byte("found"))
					continue
				}
				if err := c.resolveNoEffect(req.Key, lease.Fence); err != nil {
					c.fatalf("ResolveNoEffect of a revoked lease: %v; want nil", err)
				}
				c.acquireLost("Acquire by the owner of the revoked lease, after ResolveNoEffect", req)
				other, _ := c.next(lease)
				c.wantErr("Complete of a revoked lease, after another's grant", c.tryComplete(lease, []byte("late"), long), lockstore.ErrLost)
				c.held(other.Key)
			}
		},
	},
	{
		"revoke/at once is refused when the work has started",
		"Only who resolves the key says whether the work may run again.",
		func(c *check) {
			refused := func(lease lockstore.Lease, by lockstore.HolderInfo) {
				c.Helper()
				_, err := c.tryRevoke(lockstore.RevokeRequest{Key: lease.Key, Fence: lease.Fence, By: operator, OpenAtOnce: true})
				e := c.isRefused(err, lockstore.Held, lockstore.Revoked)
				c.sameHolder(e.Holder, by)
				c.between("Remaining", e.Remaining, long-time.Minute, long)
				c.taken(lease.Key)
			}
			req, lease := c.take(long)
			c.markStarted(lease)
			refused(lease, req.HolderInfo)
			c.renew(lease, long)
			c.revoke(lease, false)
			refused(lease, operator)
			c.isOver(req, lease)
			c.releaseRevoked(lease)
			refused(lease, operator)
		},
	},
	{
		"revoke/at once frees the key at once",
		"For a holder that certainly is dead, and a lease that lasts for hours.",
		func(c *check) {
			for _, first := range []bool{false, true} { // revoked before, too
				req, lease := c.take(long)
				if first {
					c.revoke(lease, false)
				}
				status := c.revoke(lease, true)
				if status.Remaining < long-time.Minute || status.Remaining > long+c.TakeoverDelay+rounding {
					c.Errorf("Revoke at once: the old holder may be at work for %v; want what is left of its lease of %v", status.Remaining, long)
				}
				c.renewLost("Renew of a lease that was revoked at once", lease)
				c.acquireLost("Acquire of a free key by the owner of the revoked lease", req)
				other, held := c.next(lease)
				c.renewLost("Renew after the next grant", lease)
				c.notGranted("Acquire by the revoked lease's owner", req)
				c.wantNilOr("Release of the revoked lease", c.tryRelease(lease), lockstore.ErrLost)
				c.keeps(other, held)
			}
		},
	},
	{
		"revoke/Inspect shows it, until the next grant",
		"The next operator sees who did it.",
		func(c *check) {
			req, lease := c.take(short)
			c.revoke(lease, false)
			status := c.inspect(req.Key)
			if status.State != lockstore.Revoked || status.Fence != lease.Fence {
				c.Errorf("Inspect of a revoked lease: %+v; want it revoked, with fence %d", status, lease.Fence)
			}
			c.sameHolder(status.Holder, operator)
			c.sameHolder(c.refused(newRequest(req.Key, long), lockstore.Revoked).Holder, operator)
			c.expire(short)
			c.isFree("a revoked lease that has ended", c.inspect(req.Key), lease.Fence)
			next, _ := c.next(lease)
			if status = c.inspect(req.Key); status.State != lockstore.Held {
				c.Errorf("Inspect after the next grant: %v; want held", status.State)
			}
			c.sameHolder(status.Holder, next.HolderInfo)
		},
	},
	{
		"revoke/the queue stays as it is",
		"Who waits gets the key in its order, at the end of the revoked lease.",
		func(c *check) {
			const ttl = 3 * time.Second // a store may give a slow joiner no place late in a lease
			_, lease := c.take(ttl)
			first := c.join(lease.Key, 1)
			c.revoke(lease, false)
			second := queued(lease.Key)
			if place := c.refused(second, lockstore.Revoked).QueuePosition; place != 2 {
				c.Errorf("after the Revoke, the place of the second is %d; want 2", place)
			}
			c.expire(ttl)
			c.grew(lease.Fence, c.acquire(first).Fence)
			if place := c.refused(second, lockstore.Held).QueuePosition; place != 1 {
				c.Errorf("after a grant to the first, the place of the second is %d; want 1", place)
			}
		},
	},
}
