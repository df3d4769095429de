package storetest

import (
	"context"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

var startedCases = []testCase{
	{
		"started/again is nil, and the lease goes on",
		"MarkStarted changes only what happens when the lease ends without a result.",
		func(c *check) {
			req, lease := c.take(long)
			c.markStarted(lease)
			c.markStarted(lease)
			c.held(req.Key)
			c.keeps(req, lease)
			c.next(lease)
		},
	},
	{
		"started/an expired one is refused to all",
		"The work may have had its effect. Nobody runs it again until somebody has found out.",
		func(c *check) {
			req := newRequest(newKey(), short)
			lease := c.acquire(req)
			c.markStarted(lease)
			c.renew(lease, short+time.Second)
			c.expire(short + time.Second)
			look := func() {
				c.inDoubt(req)
				c.notGranted("Acquire by the owner whose lease has ended", req)
				c.renewLost("Renew after the end", lease)
				c.wantErr("MarkStarted after the end", c.tryMarkStarted(lease), lockstore.ErrLost)
				c.abandon(newRequest(req.Key, long))
				other := lease
				other.Owner = lockstore.NewOwner()
				c.wantErr("Release by another owner", c.tryRelease(other), lockstore.ErrLost)
				c.wantErr("Complete by another owner", c.tryComplete(other, nil, long), lockstore.ErrLost)
				c.inDoubt(req)
			}
			look()
			if c.virtual {
				c.sleep(lockstore.StartedFor - time.Minute)
				look()
			}
		},
	},
	{
		"started/a release, an abandon and Complete end it",
		"Whoever knows how the work ended says so, also after the end of the lease. Then nothing of it is left.",
		func(c *check) {
			ends := []func(lockstore.Request, lockstore.Lease){
				func(_ lockstore.Request, lease lockstore.Lease) { c.release(lease) },
				func(req lockstore.Request, _ lockstore.Lease) { c.abandon(req) },
				func(_ lockstore.Request, lease lockstore.Lease) { c.complete(lease, []byte("result"), short) },
			}
			c.sideBySide(2*len(ends), func(i int) {
				n, late := i/2, i%2 == 1
				req, lease := c.take(short)
				c.markStarted(lease)
				if late {
					c.expire(short)
				}
				ends[n](req, lease)
				if n == 2 {
					c.completed(req.Key, []byte("result"))
					c.expire(short)
				}
				c.sleep(tick)
				next := c.acquire(newRequest(req.Key, short))
				c.grew(lease.Fence, next.Fence)
				c.expire(short)
				c.next(next)
			})
		},
	},
	{
		"started/only the lease that holds the key F10",
		"A run that has lost its lease must not start the work, and must not close the key for others.",
		func(c *check) {
			req, lease := c.take(short)
			for _, s := range strangers(lease) {
				c.wantErr("MarkStarted"+s.what, c.tryMarkStarted(s.lease), lockstore.ErrLost)
			}
			c.expire(short)
			c.wantErr("MarkStarted after the end", c.tryMarkStarted(lease), lockstore.ErrLost)
			next := c.acquire(newRequest(req.Key, short))
			c.wantErr("MarkStarted after another's grant", c.tryMarkStarted(lease), lockstore.ErrLost)
			c.expire(short)
			_, last := c.next(next)
			c.release(last)
			c.wantErr("MarkStarted after the release", c.tryMarkStarted(last), lockstore.ErrLost)
			unknown := lockstore.Lease{Key: newKey(), Owner: lockstore.NewOwner(), Fence: lease.Fence}
			c.wantErr("MarkStarted of a new key", c.tryMarkStarted(unknown), lockstore.ErrLost)
			c.acquire(newRequest(unknown.Key, long))
		},
	},
	{
		"started/Inspect shows a key in doubt",
		"A waiter that polls has to stop, and an operator has to see the fence.",
		func(c *check) {
			req, lease := c.take(short)
			c.markStarted(lease)
			if status := c.inspect(req.Key); status.State != lockstore.Held {
				c.Errorf("Inspect of a started lease: %+v; want it held", status)
			}
			c.expire(short)
			if status := c.inspect(req.Key); status.State != lockstore.InDoubt || status.Holder.Encode() != req.HolderInfo.Encode() || status.Fence != lease.Fence {
				c.Errorf("Inspect of a key in doubt: %+v; want it in doubt, by %v with fence %d", status, req.HolderInfo, lease.Fence)
			}
		},
	},
	{
		"resolve/a key in doubt is completed",
		"The operator has found the effect, and says what the result was.",
		func(c *check) {
			req, lease := c.doubtful()
			for range 2 {
				if err := c.resolveEffect(req.Key, lease.Fence, []byte("found"), long); err != nil {
					c.fatalf("ResolveEffect: %v; want nil", err)
				}
				c.completed(req.Key, []byte("found"))
			}
			c.wantErr("Complete after ResolveEffect", c.tryComplete(lease, []byte("late"), long), lockstore.ErrLost)
			c.wantNilOr("Release after ResolveEffect", c.tryRelease(lease), lockstore.ErrLost)
			c.notGranted("Acquire after ResolveEffect", req)
			c.completed(req.Key, []byte("found"))
			c.wantErr("ResolveNoEffect of a completed key", c.resolveNoEffect(req.Key, lease.Fence), lockstore.ErrLost)
			c.completed(req.Key, []byte("found"))
		},
	},
	{
		"resolve/a key in doubt is free",
		"The operator has found no effect: the work may run again.",
		func(c *check) {
			req, lease := c.doubtful()
			for range 2 {
				if err := c.resolveNoEffect(req.Key, lease.Fence); err != nil {
					c.fatalf("ResolveNoEffect: %v; want nil", err)
				}
			}
			c.wantErr("Complete after ResolveNoEffect", c.tryComplete(lease, []byte("late"), long), lockstore.ErrLost)
			c.wantErr("ResolveEffect after ResolveNoEffect", c.resolveEffect(req.Key, lease.Fence, nil, long), lockstore.ErrLost)
			c.acquireLost("Acquire by an owner that is over", req)
			next := c.acquire(newRequest(req.Key, short))
			c.grew(lease.Fence, next.Fence)
			c.expire(short)
			c.next(next)
		},
	},
	{
		"resolve/only what is in doubt F10",
		"An operator who is late, or who has the wrong key, changes nothing.",
		func(c *check) {
			both := func(what, key string, fence lockstore.Fence, want error) {
				c.wantErr("ResolveEffect of "+what, c.resolveEffect(key, fence, []byte("wrong"), long), want)
				c.wantErr("ResolveNoEffect of "+what, c.resolveNoEffect(key, fence), want)
			}
			req, lease := c.take(long)
			both("a live lease", req.Key, lease.Fence, lockstore.ErrRefused)
			c.markStarted(lease)
			both("a live lease that has started", req.Key, lease.Fence, lockstore.ErrRefused)
			c.keeps(req, lease)

			req, lease = c.doubtful()
			both("another fence", req.Key, lease.Fence+1, lockstore.ErrLost)
			both("another fence", req.Key, lease.Fence-1, lockstore.ErrLost)
			c.inDoubt(req)

			_, lease = c.take(short)
			c.expire(short)
			both("a lease that has not started", lease.Key, lease.Fence, lockstore.ErrLost)
			_, next := c.next(lease)
			c.complete(next, []byte("result"), long)
			both("an earlier fence", lease.Key, lease.Fence, lockstore.ErrLost)
			c.completed(lease.Key, []byte("result"))
			both("a new key", newKey(), lease.Fence, lockstore.ErrLost)

		},
	},
}

func (c *check) tryMarkStarted(lease lockstore.Lease) error {
	return c.call(method{"MarkStarted", func(ctx context.Context) error { return c.Store.MarkStarted(ctx, lease) }})
}

func (c *check) markStarted(lease lockstore.Lease) {
	c.Helper()
	if err := c.tryMarkStarted(lease); err != nil {
		c.fatalf("MarkStarted of %q with fence %d: %v; want nil", lease.Key, lease.Fence, err)
	}
}

// inDoubt wants the key refused to a new owner, after the end of req's lease.
func (c *check) inDoubt(req lockstore.Request) {
	c.Helper()
	_, err := c.tryAcquire(newRequest(req.Key, long))
	c.isInDoubt(err, req)
}

func (c *check) isInDoubt(err error, req lockstore.Request) {
	c.Helper()
	c.sameHolder(c.isRefused(err, lockstore.InDoubt).Holder, req.HolderInfo)
}

// doubtful is a key in doubt, and its started lease.
func (c *check) doubtful() (lockstore.Request, lockstore.Lease) {
	c.Helper()
	req, lease := c.take(short)
	c.markStarted(lease)
	c.expire(short)
	c.inDoubt(req)
	return req, lease
}

func (c *check) resolveEffect(key string, fence lockstore.Fence, result []byte, d time.Duration) error {
	return c.call(method{"ResolveEffect", func(ctx context.Context) error { return c.Store.ResolveEffect(ctx, key, fence, result, d) }})
}

func (c *check) resolveNoEffect(key string, fence lockstore.Fence) error {
	return c.call(method{"ResolveNoEffect", func(ctx context.Context) error { return c.Store.ResolveNoEffect(ctx, key, fence) }})
}
