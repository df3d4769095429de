package storetest

import (
	"context"
	"errors"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

var beginCases = []testCase{
	{
		"begin/again is nil, and the lease goes on",
		"MarkStarted changes only what happens when the lease ends without an answer.",
		func(c *check) {
			c.keeper()
			req, lease := c.take(long)
			c.begin(lease)
			c.begin(lease)
			c.plain(req.Key)
			c.keeps(req, lease)
			c.next(lease)
		},
	},
	{
		"begin/an expired one is refused to all",
		"The work may have had its effect. Nobody runs it again until somebody has found out.",
		func(c *check) {
			c.keeper()
			req := newRequest(newKey(), short)
			lease := c.acquire(req)
			c.begin(lease)
			c.renew(lease, short+time.Second)
			c.expire(short + time.Second)
			look := func() {
				c.inDoubt(req)
				c.notGranted("Acquire by the owner whose lease has ended", req)
				c.renewLost("Renew after the end", lease)
				c.wantErr("MarkStarted after the end", c.tryBegin(lease), lockstore.ErrLost)
				c.abandon(newRequest(req.Key, long))
				other := lease
				other.Owner = lockstore.NewOwner()
				c.wantErr("Release by another owner", c.tryRelease(other), lockstore.ErrLost)
				c.wantErr("Complete by another owner", c.tryKeep(other, nil, long), lockstore.ErrLost)
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
		"begin/a release, an abandon and Complete end it",
		"Whoever knows how the work ended says so, also after the end of the lease. Then nothing of it is left.",
		func(c *check) {
			c.keeper()
			ends := []func(lockstore.Request, lockstore.Lease){
				func(_ lockstore.Request, lease lockstore.Lease) { c.release(lease) },
				func(req lockstore.Request, _ lockstore.Lease) { c.abandon(req) },
				func(_ lockstore.Request, lease lockstore.Lease) { c.keep(lease, []byte("answer"), short) },
			}
			c.sideBySide(2*len(ends), func(i int) {
				n, late := i/2, i%2 == 1
				req, lease := c.take(short)
				c.begin(lease)
				if late {
					c.expire(short)
				}
				ends[n](req, lease)
				if n == 2 {
					c.kept(req.Key, []byte("answer"))
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
		"begin/only the lease that holds the key F10",
		"A run that has lost its lease must not begin, and must not close the key for others.",
		func(c *check) {
			c.keeper()
			req, lease := c.take(short)
			for _, s := range strangers(lease) {
				c.wantErr("MarkStarted"+s.what, c.tryBegin(s.lease), lockstore.ErrLost)
			}
			c.expire(short)
			c.wantErr("MarkStarted after the end", c.tryBegin(lease), lockstore.ErrLost)
			next := c.acquire(newRequest(req.Key, short))
			c.wantErr("MarkStarted after another's grant", c.tryBegin(lease), lockstore.ErrLost)
			c.expire(short)
			_, last := c.next(next)
			c.release(last)
			c.wantErr("MarkStarted after the release", c.tryBegin(last), lockstore.ErrLost)
			unknown := lockstore.Lease{Key: newKey(), Owner: lockstore.NewOwner(), Fence: lease.Fence}
			c.wantErr("MarkStarted of a new key", c.tryBegin(unknown), lockstore.ErrLost)
			c.acquire(newRequest(unknown.Key, long))
		},
	},
	{
		"begin/Inspect shows a key in doubt",
		"A waiter that polls has to stop, and an operator has to see the fence.",
		func(c *check) {
			c.keeper()
			c.inspector()
			req, lease := c.take(short)
			c.begin(lease)
			if status := c.inspect(req.Key); !status.Held || status.InDoubt {
				c.Errorf("Inspect of a begun lease: %+v; want it held and not in doubt", status)
			}
			c.expire(short)
			if status := c.inspect(req.Key); !status.Held || !status.InDoubt || status.Kept || status.Holder.Encode() != req.HolderInfo.Encode() || status.Fence != lease.Fence {
				c.Errorf("Inspect of a key in doubt: %+v; want it held and in doubt, by %v with fence %d", status, req.HolderInfo, lease.Fence)
			}
		},
	},
	{
		"settle/a key in doubt is kept",
		"The operator has found the effect, and says what the answer was.",
		func(c *check) {
			s := c.settler()
			req, lease := c.doubtful()
			for range 2 {
				if err := c.settleKept(s, req.Key, lease.Fence, []byte("found"), long); err != nil {
					c.fatalf("ResolveEffect: %v; want nil", err)
				}
				c.kept(req.Key, []byte("found"))
			}
			c.wantErr("Complete after ResolveEffect", c.tryKeep(lease, []byte("late"), long), lockstore.ErrLost)
			c.wantNilOr("Release after ResolveEffect", c.tryRelease(lease), lockstore.ErrLost)
			c.notGranted("Acquire after ResolveEffect", req)
			c.kept(req.Key, []byte("found"))
			c.wantErr("ResolveNoEffect of a kept key", c.settleFree(s, req.Key, lease.Fence), lockstore.ErrLost)
			c.kept(req.Key, []byte("found"))
		},
	},
	{
		"settle/a key in doubt is free",
		"The operator has found no effect: the work may run again.",
		func(c *check) {
			s := c.settler()
			req, lease := c.doubtful()
			for range 2 {
				if err := c.settleFree(s, req.Key, lease.Fence); err != nil {
					c.fatalf("ResolveNoEffect: %v; want nil", err)
				}
			}
			c.wantErr("Complete after ResolveNoEffect", c.tryKeep(lease, []byte("late"), long), lockstore.ErrLost)
			c.wantErr("ResolveEffect after ResolveNoEffect", c.settleKept(s, req.Key, lease.Fence, nil, long), lockstore.ErrLost)
			c.acquireLost("Acquire by an owner that is over", req)
			next := c.acquire(newRequest(req.Key, short))
			c.grew(lease.Fence, next.Fence)
			c.expire(short)
			c.next(next)
		},
	},
	{
		"settle/only what is in doubt F10",
		"An operator who is late, or who has the wrong key, changes nothing.",
		func(c *check) {
			s := c.settler()
			both := func(what, key string, fence lockstore.Fence, want error) {
				c.wantErr("ResolveEffect of "+what, c.settleKept(s, key, fence, []byte("wrong"), long), want)
				c.wantErr("ResolveNoEffect of "+what, c.settleFree(s, key, fence), want)
			}
			req, lease := c.take(long)
			both("a live lease", req.Key, lease.Fence, lockstore.ErrHeld)
			c.begin(lease)
			both("a live lease that has begun", req.Key, lease.Fence, lockstore.ErrHeld)
			c.keeps(req, lease)

			req, lease = c.doubtful()
			both("another fence", req.Key, lease.Fence+1, lockstore.ErrLost)
			both("another fence", req.Key, lease.Fence-1, lockstore.ErrLost)
			c.inDoubt(req)

			_, lease = c.take(short)
			c.expire(short)
			both("a lease that has not begun", lease.Key, lease.Fence, lockstore.ErrLost)
			_, next := c.next(lease)
			c.keep(next, []byte("answer"), long)
			both("an earlier fence", lease.Key, lease.Fence, lockstore.ErrLost)
			c.kept(lease.Key, []byte("answer"))
			both("a new key", newKey(), lease.Fence, lockstore.ErrLost)

			c.sends("calls with bad arguments", 0, func() {
				c.wantInvalid("ResolveEffect", c.settleKept(s, req.Key, 0, nil, long), "Fence")
				c.wantInvalid("ResolveNoEffect", c.settleFree(s, req.Key, -1), "Fence")
				c.wantInvalid("ResolveEffect", c.settleKept(s, req.Key, 1, nil, 0), "Complete")
				c.wantInvalid("ResolveEffect", c.settleKept(s, req.Key, 1, append(largest(), 1), long), "Data")
			})
		},
	},
}

func (c *check) tryBegin(lease lockstore.Lease) error {
	k := c.keeper()
	return c.call(method{"MarkStarted", func(ctx context.Context) error { return k.MarkStarted(ctx, lease) }})
}

func (c *check) begin(lease lockstore.Lease) {
	c.Helper()
	if err := c.tryBegin(lease); err != nil {
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
	e, ok := errors.AsType[*lockstore.DoubtError](err)
	if !ok {
		c.fatalf("Acquire of a key in doubt: %v (%T); want a *lockstore.DoubtError", err, err)
	}
	c.wantErr("Acquire of a key in doubt", err, lockstore.ErrHeld)
	if e.Key != req.Key || e.Holder.Encode() != req.HolderInfo.Encode() || e.QueuePosition != 0 || e.Reserved {
		c.Errorf("the error is about key %q and holder %v; want %q and %v", e.Key, e.Holder, req.Key, req.HolderInfo)
	}
}

// doubtful is a key in doubt, and its begun lease.
func (c *check) doubtful() (lockstore.Request, lockstore.Lease) {
	c.Helper()
	req, lease := c.take(short)
	c.begin(lease)
	c.expire(short)
	c.inDoubt(req)
	return req, lease
}

// settler skips the case if the store is no Resolver.
func (c *check) settler() lockstore.Resolver {
	c.Helper()
	s, ok := lockstore.As[lockstore.Resolver](c.Store)
	c.need("Resolver", ok)
	return s
}

func (c *check) settleKept(s lockstore.Resolver, key string, fence lockstore.Fence, data []byte, d time.Duration) error {
	return c.call(method{"ResolveEffect", func(ctx context.Context) error { return s.ResolveEffect(ctx, key, fence, data, d) }})
}

func (c *check) settleFree(s lockstore.Resolver, key string, fence lockstore.Fence) error {
	return c.call(method{"ResolveNoEffect", func(ctx context.Context) error { return s.ResolveNoEffect(ctx, key, fence) }})
}
