package storetest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

func (c *check) breaker() lockstore.Revoker {
	c.Helper()
	b, ok := lockstore.As[lockstore.Revoker](c.Store)
	c.need("Revoker", ok)
	return b
}

// operator is who breaks leases.
var operator = lockstore.HolderInfo{Name: "broken by the operator", ID: "1", Since: time.UnixMilli(1_790_000_000_000).UTC()}

func (c *check) tryBreak(req lockstore.RevokeRequest) (lockstore.Status, error) {
	b := c.breaker()
	return within(c, func(ctx context.Context) (lockstore.Status, error) { return b.Revoke(ctx, req) })
}

// breaks wants the lease broken.
func (c *check) breaks(lease lockstore.Lease, now bool) lockstore.Status {
	c.Helper()
	status, err := c.tryBreak(lockstore.RevokeRequest{Key: lease.Key, Fence: lease.Fence, By: operator, OpenAtOnce: now})
	if err != nil {
		c.fatalf("Revoke of fence %d: %v; want the lease broken", lease.Fence, err)
	}
	if status.Key != lease.Key || status.Fence != lease.Fence || status.Held == now || status.Broken == now {
		c.fatalf("Revoke of fence %d with OpenAtOnce %v: %+v; want the state after it", lease.Fence, now, status)
	}
	return status
}

// isOver wants that the broken lease is of no use to its owner.
func (c *check) isOver(req lockstore.Request, lease lockstore.Lease) {
	c.Helper()
	c.renewLost("Renew of a broken lease", lease)
	c.notGranted("Acquire again by the owner of a broken lease", req)
	c.release(lease)
	c.notGranted("Acquire after the release of a broken lease", req)
}

// breakCases are the cases of lockstore.Revoker.
var breakCases = []testCase{
	{
		"break/the holder is over, and the key opens at the end of its lease",
		"The old holder still trusts its lease. If the key opened earlier, two would be at work.",
		func(c *check) {
			c.breaker()
			const ttl = 3 * time.Second
			req := newRequest(newKey(), ttl)
			before := c.elapsed()
			lease := c.acquire(req)
			granted := c.elapsed()
			status := c.breaks(lease, false)
			c.between("Remaining", status.Remaining, ttl-(c.elapsed()-before), ttl)
			c.sameHolder(status.Holder, operator)
			c.isOver(req, lease)
			trusted := before + ttl - rounding
			for c.elapsed() < trusted {
				other := newRequest(req.Key, long)
				got, err := c.tryAcquire(other)
				if err == nil && c.elapsed() < trusted {
					c.fatalf("the key was granted again, with fence %d, %v before the end of the broken lease", got.Fence, trusted-c.elapsed())
				}
				if err == nil {
					c.release(got)
					break
				}
				c.wantErr("Acquire of a broken lease's key", err, lockstore.ErrHeld)
				c.sleep(50 * time.Millisecond)
			}
			c.sleepUntil(granted + ttl + c.TakeoverDelay + tick)
			c.next(lease)
			c.renewLost("Renew of a broken lease after the next grant", lease)
			c.notGranted("Acquire by the broken lease's owner after the next grant", req)
		},
	},
	{
		"break/a renewed lease, wherever it is in its time",
		"A holder that hangs renews for ever: this is what Revoke is for.",
		func(c *check) {
			c.breaker()
			req, lease := c.take(short)
			c.renew(lease, long)
			if left := c.breaks(lease, false).Remaining; left < long-time.Minute {
				c.Errorf("the broken lease ends in %v; want the end of the renewal, %v", left, long)
			}
			c.lasts("Revoke", req.Key)
			c.isOver(req, lease)
		},
	},
	{
		"break/the second one changes nothing and learns of the first",
		"Two operators, or one whose first answer was lost.",
		func(c *check) {
			req, lease := c.take(long)
			c.breaks(lease, false)
			c.sameHolder(c.breaks(lease, false).Holder, operator)
			second := lockstore.RevokeRequest{Key: req.Key, Fence: lease.Fence, By: lockstore.HolderInfo{Name: "another"}}
			status, err := c.tryBreak(second)
			if err != nil || !status.Broken {
				c.fatalf("a second Revoke: %+v, %v; want the state after the first one", status, err)
			}
			c.sameHolder(status.Holder, operator)
			c.isOver(req, lease)
			c.lasts("a second Revoke", req.Key)
		},
	},
	{
		"break/only the lease with this fence",
		"Between the look and the break another may have got the key.",
		func(c *check) {
			c.breaker()
			refused := func(what, key string, fence lockstore.Fence) {
				c.Helper()
				for _, now := range []bool{false, true} {
					_, err := c.tryBreak(lockstore.RevokeRequest{Key: key, Fence: fence, By: operator, OpenAtOnce: now})
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
		"break/a cooldown is no lease",
		"Nobody holds the key in its cooldown, and it ends by itself.",
		func(c *check) {
			c.breaker()
			req, lease := c.take(long)
			c.keep(lease, nil, long)
			for _, now := range []bool{false, true} {
				_, err := c.tryBreak(lockstore.RevokeRequest{Key: req.Key, Fence: lease.Fence, By: operator, OpenAtOnce: now})
				c.wantErr("Revoke of a cooldown", err, lockstore.ErrLost)
			}
			c.held(req.Key)
		},
	},
	{
		"break/a kept key is no lease",
		"The work is done. Whoever ends what is kept makes it run again.",
		func(c *check) {
			c.breaker()
			c.keeper()
			req, lease := c.take(long)
			c.keep(lease, []byte("answer"), long)
			for _, now := range []bool{false, true} {
				_, err := c.tryBreak(lockstore.RevokeRequest{Key: req.Key, Fence: lease.Fence, By: operator, OpenAtOnce: now})
				c.wantErr("Revoke of a kept key", err, lockstore.ErrLost)
			}
			if kept := c.kept(req.Key, []byte("answer")); kept.Holder.Encode() != req.HolderInfo.Encode() {
				c.Errorf("after the Revoke the answer is that of %v; want %v", kept.Holder, req.HolderInfo)
			}
		},
	},
	{
		"break/a begun lease is in doubt at its end",
		"The work may have had its effect before the break. The key is no more free than after a holder that died.",
		func(c *check) {
			c.breaker()
			s := c.settler()
			for _, keeps := range []bool{false, true} {
				req, lease := c.take(short)
				c.begin(lease)
				c.breaks(lease, false)
				c.isOver(req, lease)
				c.wantErr("MarkStarted of a broken lease", c.tryBegin(lease), lockstore.ErrLost)
				c.wantErr("Complete of a broken lease", c.tryKeep(lease, []byte("late"), long), lockstore.ErrLost)
				c.plain(req.Key)
				c.wantErr("ResolveNoEffect before the end", c.settleFree(s, req.Key, lease.Fence), lockstore.ErrHeld)
				c.expire(short)
				broken := lockstore.Request{Key: req.Key, HolderInfo: operator}
				c.inDoubt(broken)
				c.release(lease)
				c.notGranted("Acquire by the owner of the broken lease", req)
				c.wantErr("Complete of a broken lease, after its end", c.tryKeep(lease, []byte("late"), long), lockstore.ErrLost)
				_, err := c.tryBreak(lockstore.RevokeRequest{Key: req.Key, Fence: lease.Fence, By: operator})
				c.wantErr("Revoke of a key in doubt", err, lockstore.ErrLost)
				c.inDoubt(broken)
				if keeps {
					if err := c.settleKept(s, req.Key, lease.Fence, []byte("found"), long); err != nil {
						c.fatalf("ResolveEffect of a broken lease: %v; want nil", err)
					}
					c.wantErr("Complete of a broken lease, after ResolveEffect", c.tryKeep(lease, []byte("late"), long), lockstore.ErrLost)
					c.kept(req.Key, []byte("found"))
					continue
				}
				if err := c.settleFree(s, req.Key, lease.Fence); err != nil {
					c.fatalf("ResolveNoEffect of a broken lease: %v; want nil", err)
				}
				c.acquireLost("Acquire by the owner of the broken lease, after it was settled", req)
				other, _ := c.next(lease)
				c.wantErr("Complete of a broken lease, after another's grant", c.tryKeep(lease, []byte("late"), long), lockstore.ErrLost)
				c.plain(other.Key)
			}
		},
	},
	{
		"break/now is refused when the work has begun",
		"Only who settles the key says whether the work may run again.",
		func(c *check) {
			c.breaker()
			c.keeper()
			refused := func(lease lockstore.Lease, by lockstore.HolderInfo) {
				c.Helper()
				_, err := c.tryBreak(lockstore.RevokeRequest{Key: lease.Key, Fence: lease.Fence, By: operator, OpenAtOnce: true})
				c.wantErr("Revoke at once of a begun lease", err, lockstore.ErrHeld)
				begun, ok := errors.AsType[*lockstore.BegunError](err)
				if !ok {
					c.fatalf("Revoke at once of a begun lease: %v (%T); want a *lockstore.BegunError", err, err)
				}
				if begun.Key != lease.Key {
					c.Errorf("the error is about key %q; want %q", begun.Key, lease.Key)
				}
				c.sameHolder(begun.Holder, by)
				c.between("Remaining", begun.Remaining, long-time.Minute, long)
				c.plain(lease.Key)
			}
			req, lease := c.take(long)
			c.begin(lease)
			refused(lease, req.HolderInfo)
			c.renew(lease, long)
			c.breaks(lease, false)
			refused(lease, operator)
			c.isOver(req, lease)
		},
	},
	{
		"break/now frees the key at once",
		"For a holder that certainly is dead, and a lease that lasts for hours.",
		func(c *check) {
			c.breaker()
			for _, first := range []bool{false, true} { // broken before, too
				req, lease := c.take(long)
				if first {
					c.breaks(lease, false)
				}
				status := c.breaks(lease, true)
				if status.Remaining < long-time.Minute || status.Remaining > long+c.TakeoverDelay+rounding {
					c.Errorf("Revoke at once: the old holder may be at work for %v; want what is left of its lease of %v", status.Remaining, long)
				}
				c.renewLost("Renew of a lease that was broken now", lease)
				c.acquireLost("Acquire of a free key by the owner of the broken lease", req)
				other, held := c.next(lease)
				c.renewLost("Renew after the next grant", lease)
				c.notGranted("Acquire by the broken lease's owner", req)
				c.wantNilOr("Release of the broken lease", c.tryRelease(lease), lockstore.ErrLost)
				c.keeps(other, held)
			}
		},
	},
	{
		"break/Inspect shows it, until the next grant",
		"The next operator sees who did it.",
		func(c *check) {
			c.inspector()
			c.breaker()
			req, lease := c.take(short)
			c.breaks(lease, false)
			status := c.inspect(req.Key)
			if !status.Held || !status.Broken || status.Fence != lease.Fence {
				c.Errorf("Inspect of a broken lease: %+v; want it held, broken, with fence %d", status, lease.Fence)
			}
			c.sameHolder(status.Holder, operator)
			c.sameHolder(c.held(req.Key).Holder, operator)
			c.expire(short)
			c.isFree("a broken lease that has ended", c.inspect(req.Key), lease.Fence)
			next, _ := c.next(lease)
			if status = c.inspect(req.Key); status.Broken {
				c.Errorf("Inspect says broken after the next grant")
			}
			c.sameHolder(status.Holder, next.HolderInfo)
		},
	},
	{
		"break/the queue stays as it is",
		"Who waits gets the key in its order, at the end of the broken lease.",
		func(c *check) {
			c.breaker()
			c.queuer()
			const ttl = 3 * time.Second // a store may give a slow joiner no place late in a lease
			_, lease := c.take(ttl)
			first := c.join(lease.Key, 1)
			c.breaks(lease, false)
			second := c.join(lease.Key, 2)
			c.expire(ttl)
			c.grew(lease.Fence, c.acquire(first).Fence)
			if place := c.refused(second).QueuePosition; place != 1 {
				c.Errorf("after a grant to the first, the place of the second is %d; want 1", place)
			}
		},
	},
	{
		"break/bad arguments are refused",
		"A fence of 0 must not break whatever lease is there.",
		func(c *check) {
			req, lease := c.take(long)
			for _, fence := range []lockstore.Fence{0, -1} {
				_, err := c.tryBreak(lockstore.RevokeRequest{Key: req.Key, Fence: fence, By: operator, OpenAtOnce: true})
				c.wantErr("Revoke with a bad fence", err, lockstore.ErrInvalid)
			}
			_, err := c.tryBreak(lockstore.RevokeRequest{Fence: lease.Fence, By: operator})
			c.wantErr("Revoke without a key", err, lockstore.ErrInvalid)
			c.keeps(req, lease)
		},
	},
}

// listCases are the cases of lockstore.Lister.
var listCases = []testCase{
	{
		"list/what is held is listed once, with its state",
		"An operator who sees no holder takes the key for free.",
		func(c *check) {
			c.lister()
			prefix := newKey() + `/*?[a]\^-{x}/`
			near := strings.Replace(prefix, "*", "y", 1)
			var all []lockstore.Request
			var leases []lockstore.Lease
			for _, name := range []string{"held", "released", "expired", "a/b", "ü", "*"} {
				ttl := long
				if name == "expired" {
					ttl = short
				}
				req := newRequest(prefix+name, ttl)
				all, leases = append(all, req), append(leases, c.acquire(req))
			}
			c.acquire(newRequest(near+"held", long))
			waits := newRequest(prefix+"held", long)
			waits.JoinQueue = true
			c.refused(waits) // a store may keep more than one entry for a key
			c.release(leases[1])
			c.expire(short)
			found := c.list(prefix)
			for i, req := range all {
				n := 0
				for _, status := range found {
					if status.Key == req.Key {
						n++
						if held := i != 1 && i != 2; status.Held != held || status.Fence != leases[i].Fence {
							c.Errorf("%q is listed as %+v; want held %v, fence %d", req.Key, status, held, leases[i].Fence)
						} else if held {
							c.sameHolder(status.Holder, req.HolderInfo)
							c.between("Remaining", status.Remaining, long-time.Minute, long)
						}
					}
				}
				if n > 1 || n == 0 && i != 1 && i != 2 {
					c.Errorf("%q is listed %d times", req.Key, n)
				}
			}
			for _, status := range found {
				if !strings.HasPrefix(status.Key, prefix) {
					c.Errorf("%q is listed; want keys that begin with %q", status.Key, prefix)
				}
			}
			if everything := c.list(""); !slices.ContainsFunc(everything, func(s lockstore.Status) bool { return s.Key == near+"held" }) {
				c.Errorf("the list of everything has %d keys, and not %q", len(everything), near+"held")
			}
		},
	},
	{
		"list/kept, in doubt and broken",
		"An operator looks for keys to settle. Nobody holds these, and they are not free.",
		func(c *check) {
			c.lister()
			c.keeper()
			prefix := newKey() + "/"
			take := func(name string) lockstore.Lease { return c.acquire(newRequest(prefix+name, short)) }
			c.keep(take("kept"), []byte("answer"), long)
			c.keep(take("cooldown"), nil, long)
			c.begin(take("doubt"))
			over := take("over")
			c.begin(over)
			if b, ok := lockstore.As[lockstore.Revoker](c.Store); ok {
				lease := c.acquire(newRequest(prefix+"broken", long))
				if _, err := b.Revoke(c.t.Context(), lockstore.RevokeRequest{Key: lease.Key, Fence: lease.Fence, By: operator}); err != nil {
					c.fatalf("Revoke: %v", err)
				}
			}
			c.expire(short)
			c.release(over)
			missing := map[string]bool{"kept": true, "cooldown": true, "doubt": true}
			for _, s := range c.list(prefix) {
				name := strings.TrimPrefix(s.Key, prefix)
				delete(missing, name)
				kept, inDoubt, broken := name == "kept" || name == "cooldown", name == "doubt", name == "broken"
				if s.Held != (name != "over") || s.Kept != kept || s.InDoubt != inDoubt || s.Broken != broken || s.Held != (s.Holder.Name != "") {
					c.Errorf("%q is listed as %+v; want it held %v, kept %v, in doubt %v, broken %v", name, s, name != "over", kept, inDoubt, broken)
				}
			}
			if len(missing) > 0 {
				c.Errorf("not listed: %v", missing)
			}
		},
	},
	{
		"list/an entry of another program is counted, and stops nothing F53 F54",
		"A listing that ends at the first foreign entry shows nothing in a table that is shared.",
		func(c *check) {
			c.lister()
			c.need("Foreign", len(c.Foreign) > 0)
			prefix := newKey() + "/"
			for name, put := range c.Foreign {
				put(c.t, prefix+"0 "+name)
			}
			lease := c.acquire(newRequest(prefix+"held", long))
			found := c.list(prefix)
			if len(found) != 1 || found[0].Key != lease.Key {
				c.Errorf("the list is %+v; want one key, %q", found, lease.Key)
			}
		},
	},
}

func (c *check) lister() lockstore.Lister {
	c.Helper()
	l, ok := lockstore.As[lockstore.Lister](c.Store)
	c.need("Lister", ok)
	return l
}

func (c *check) list(prefix string) (all []lockstore.Status) {
	c.Helper()
	l := c.lister()
	_, err := within(c, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, l.List(ctx, prefix, func(p lockstore.Page) error {
			all = append(all, p.Keys...)
			return nil
		})
	})
	if err != nil {
		c.fatalf("List: %v", err)
	}
	return all
}
