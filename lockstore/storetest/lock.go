package storetest

import (
	"context"

	"github.com/lambdalock/lambdalock/lockstore"
)

// lockCases are the rules of the lock, one case for each.
var lockCases = []testCase{
	{
		"lock/one owner has a key until it releases it F01 F64",
		"Another owner is refused, and is told who has it. A repeat of a request by the same owner gets the same answer. An owner that has released gets no lease again: its Acquire is a late copy.",
		func(c *check) {
			req, lease := c.take(long)
			c.sameHolder(c.held(req.Key).Holder, req.HolderInfo)
			c.reacquire(req, lease)
			c.renew(lease, long)
			c.release(lease)
			c.release(lease)
			c.acquireLost("Acquire after the release", req)
			c.next(lease)
			c.renewLost("Renew after the release", lease)
		},
	},
	{
		"lock/a lease ends by its TTL",
		"Its owner may be dead. If it is not, it learns from each request that another has the key.",
		func(c *check) {
			_, dead := c.take(short)
			c.expire(short)
			_, lease := c.next(dead)
			c.renewLost("Renew after a takeover", dead)
			c.wantErr("Release after a takeover", c.tryRelease(dead), lockstore.ErrLost)
			c.wantErr("Complete after a takeover", c.tryComplete(dead, []byte("late"), long), lockstore.ErrLost)
			c.release(lease)
		},
	},
	{
		"lock/an abandon ends what its owner may have, also if the Acquire comes after it",
		"Who does not know whether it was granted the key gives up. No copy of its Acquire may take the key later, when nobody would release it.",
		func(c *check) {
			req, lease := c.take(long)
			c.abandon(req)
			c.acquireLost("Acquire after its abandon", req)
			late := newRequest(req.Key, long)
			c.abandon(late)
			c.acquireLost("Acquire that comes after its abandon", late)
			c.next(lease)
		},
	},
	{
		"lock/as many hold a key as each of them allows",
		"The smallest MaxHolders counts, of those who have it and of who asks. A newcomer gets the lowest seat that is free. Who may share the key cannot start work that has to be alone.",
		func(c *check) {
			key := newKey()
			_, first := c.seated(sharing(key, 3), 0)
			_, second := c.seated(sharing(key, 2), 1)
			c.refused(sharing(key, 3), lockstore.Held)
			c.wantErr("MarkStarted of a lease that may have others beside it", c.tryMarkStarted(second), lockstore.ErrInvalid)
			c.release(first)
			c.seated(sharing(key, 2), 0)
		},
	},
	{
		"lock/a release hands the key to the first in the queue",
		"For one turn nobody else gets it. Who has left is not waited for.",
		func(c *check) {
			_, lease := c.take(long)
			first, second, third := c.join(lease.Key, 1), c.join(lease.Key, 2), c.join(lease.Key, 3)
			c.leave(second)
			c.release(lease)
			c.refused(newRequest(lease.Key, long), lockstore.Reserved)
			lease = c.served(lease, first)
			c.release(lease)
			c.served(lease, third)
		},
	},
	{
		"lock/who does not come for the key delays the others by one turn F02",
		"An owner that died while it waited must not stop those behind it, and they must not take its turn.",
		func(c *check) {
			c.need("virtual time", c.virtual)
			_, lease := c.take(long)
			c.join(lease.Key, 1)
			second := c.join(lease.Key, 2)
			c.release(lease)
			c.turns(1, second)
		},
	},
	{
		"lock/work that has started and did not end is in doubt until somebody resolves it",
		"Nobody knows whether it had its effect, so nobody may begin it again. With effect the key is closed, without effect it is free.",
		func(c *check) {
			_, lease := c.doubtful()
			c.must("ResolveNoEffect", func(ctx context.Context) error { return c.Store.ResolveNoEffect(ctx, lease.Key, lease.Fence) })
			c.next(lease)
			_, lease = c.doubtful()
			c.must("ResolveEffect", func(ctx context.Context) error {
				return c.Store.ResolveEffect(ctx, lease.Key, lease.Fence, []byte("result"), long)
			})
			c.completed(lease.Key, []byte("result"))
		},
	},
	{
		"lock/a Complete closes the key for a time",
		"Whoever asks meanwhile gets the result, and so does who waited for the key: nobody waits for work that is done.",
		func(c *check) {
			_, lease := c.take(long)
			waits, d := c.join(lease.Key, 1), c.toJoin()
			c.complete(lease, []byte("result"), d)
			c.completed(lease.Key, []byte("result"))
			_, err := c.tryAcquire(waits)
			c.isCompleted(err, []byte("result"))
			c.complete(lease, []byte("result"), d) // a repeat
			c.expire(d)
			c.next(lease)
		},
	},
	{
		"lock/a revoked lease counts until its end, or until the key is opened",
		"Its owner can do nothing with it any more, and may be at work until it learns of that.",
		func(c *check) {
			req, lease := c.take(long)
			c.revoke(lease, false)
			c.renewLost("Renew of a revoked lease", lease)
			c.wantErr("Complete of a revoked lease", c.tryComplete(lease, nil, long), lockstore.ErrLost)
			c.sameHolder(c.refused(newRequest(req.Key, long), lockstore.Revoked).Holder, operator)
			c.revoke(lease, true)
			c.next(lease)
			c.acquireLost("Acquire by the owner whose lease was revoked", req)
		},
	},
}

func (c *check) tryMarkStarted(lease lockstore.Lease) error {
	return c.call(method{"MarkStarted", func(ctx context.Context) error { return c.Store.MarkStarted(ctx, lease) }})
}

func (c *check) markStarted(lease lockstore.Lease) {
	c.Helper()
	c.must("MarkStarted", func(ctx context.Context) error { return c.Store.MarkStarted(ctx, lease) })
}

// inDoubt wants the key refused to an owner, after the end of the lease of who has started.
func (c *check) inDoubt(started, asks lockstore.Request) {
	c.Helper()
	c.sameHolder(c.refused(asks, lockstore.InDoubt).Holder, started.HolderInfo)
}

// doubtful is a key in doubt, and its started lease.
func (c *check) doubtful() (lockstore.Request, lockstore.Lease) {
	c.Helper()
	req, lease := c.take(short)
	c.markStarted(lease)
	c.expire(short)
	c.inDoubt(req, newRequest(req.Key, long))
	return req, lease
}

// operator is who revokes leases.
var operator = lockstore.HolderInfo{Name: "the operator", ID: "1"}

// revoke wants the lease revoked.
func (c *check) revoke(lease lockstore.Lease, openAtOnce bool) {
	c.Helper()
	status, err := within(c, func(ctx context.Context) (lockstore.Status, error) {
		return c.Store.Revoke(ctx, lockstore.RevokeRequest{Key: lease.Key, Fence: lease.Fence, By: operator, OpenAtOnce: openAtOnce})
	})
	want := lockstore.Revoked
	if openAtOnce {
		want = lockstore.Free
	}
	if err != nil || status.Fence != lease.Fence || status.State != want {
		c.fatalf("Revoke of fence %d with OpenAtOnce %t: %+v, %v; want the key %v", lease.Fence, openAtOnce, status, err, want)
	}
}
