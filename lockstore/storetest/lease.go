package storetest

import (
	"context"
	"strings"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// leaseCases are what no sequence of requests shows: texts, bounds, other fences, an entry that is gone.
var leaseCases = []testCase{
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
		"acquire/an owner may be any text F48",
		"Whoever makes owners of ids of their own must not meet one that a store cannot take, or that makes it misread an answer.",
		func(c *check) {
			for _, owner := range []lockstore.Owner{
				"S", "NO", "NOSCRIPT", "ERR", "MOVED", "OOM", "TRYAGAIN", "ConditionalCheckFailedException", "23505",
				"0", "-1", "9007199254740993", "%s", "$1", "NaN", "undefined",
				lockstore.Owner(strings.Repeat("~", lockstore.MaxOwnerBytes)),
			} {
				req, waiting := newRequest(newKey(), long), newRequest("", long)
				req.Owner, waiting.Owner = owner, owner+"2"
				waiting.Owner = waiting.Owner[:min(len(waiting.Owner), lockstore.MaxOwnerBytes-1)]
				waiting.Key, waiting.JoinQueue = req.Key, true
				lease := c.acquire(req)
				c.refused(waiting, lockstore.Held)
				c.reacquire(req, lease)
				c.renew(lease, long)
				c.release(lease)
				c.release(lease)
				its := c.acquire(waiting) // it was handed the key
				c.markStarted(its)
				c.complete(its, []byte("result"), long)
				c.completed(req.Key, []byte("result"))

				again := newRequest(newKey(), long)
				again.Owner = owner
				c.abandon(again)
				c.acquireLost("Acquire after an abandon", again)
				if c.LoseReplies != nil {
					again.Key = newKey()
					c.loseReply("Acquire", func() error { _, err := c.tryAcquire(again); return err })
					lease, err := c.tryAcquire(again)
					if err != nil {
						c.fatalf("Acquire again by %q after a lost reply: %v; want the lease", string(owner), err)
					}
					c.keeps(again, lease)
				}
			}
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
	{
		"holder/the text comes back unchanged",
		"It may be long, in any language, or empty: an unknown holder stays unknown.",
		func(c *check) {
			for _, h := range []lockstore.HolderInfo{
				{},
				{Name: strings.Repeat("n", 2000), ID: "id"},
				{Name: "name", ID: strings.Repeat("i", 2000)},
				{Name: strings.Repeat("é", 1000), ID: strings.Repeat("漢", 60), Since: time.Now()},
				{Name: "a\nb\tc\x00d\x7fe\u2028f", ID: "\r\n\t"},
				{Name: "\xff\xfe", ID: "\xc3"},
				{Name: "a\tb", ID: "c\td"},
				{Name: strings.Repeat("n", 2000), ID: strings.Repeat("i", 2000), Caller: "arn:aws:sts::1:assumed-role/cron"},
				{Name: "a\tb", Caller: strings.Repeat("c", 2000) + "\td"},
			} {
				req := newRequest(newKey(), long)
				req.HolderInfo = h
				lease := c.acquire(req)
				got := c.held(req.Key).Holder
				c.sameHolder(got, lockstore.DecodeHolderInfo(h.Encode()))
				c.sameHolder(c.inspect(req.Key).Holder, got)
				c.release(lease)
			}
		},
	},
	{
		"strangers/another owner or another fence is refused F10 F48 M14",
		"Owner and fence together name a lease. A fence has 63 bits: a fence that was never granted must not overflow into one that was.",
		func(c *check) {
			const ttl = 30 * time.Second
			req, lease := c.take(ttl)
			granted := c.elapsed()
			for _, s := range strangers(lease) {
				c.renewLost("Renew"+s.what, s.lease)
				c.wantErr("Release"+s.what, c.tryRelease(s.lease), lockstore.ErrLost)
				c.wantErr("Complete"+s.what, c.tryComplete(s.lease, nil, long), lockstore.ErrLost)
				c.wantErr("Complete with a result"+s.what, c.tryComplete(s.lease, []byte("strange"), long), lockstore.ErrLost)
				if s.lease.Fence <= 0 || s.lease.Fence == lease.Fence {
					continue
				}
				for _, now := range []bool{false, true} {
					_, err := c.tryRevoke(lockstore.RevokeRequest{Key: req.Key, Fence: s.lease.Fence, By: operator, OpenAtOnce: now})
					c.wantErr("Revoke"+s.what, err, lockstore.ErrLost)
				}
			}
			if _, err := c.tryRenew(lockstore.Lease{Key: req.Key, Owner: req.Owner}, long); err == nil {
				c.Errorf("Renew with fence 0: no error; want it refused")
			}
			c.endsBy("refused requests", req.Key, granted+ttl)
			c.keeps(req, lease)

			_, lease = c.take(short)
			for _, s := range strangers(lease) {
				c.wantErr("MarkStarted"+s.what, c.tryMarkStarted(s.lease), lockstore.ErrLost)
			}
			c.expire(short)
			c.next(lease)
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
		"renew/a deleted entry is not made again F35 F43",
		"If the entry of a live lease is deleted, other owners may have the key already. So the lease is lost, and the key is free. Without the previous fence, the time makes the next fence larger.",
		func(c *check) {
			c.need("Delete", c.Delete != nil)
			req, lease := c.take(long)
			c.Delete(c.t, req.Key)
			c.renewLost("Renew of a deleted entry", lease)
			c.sleep(tick)
			_, next := c.next(lease)
			c.renewLost("Renew of a deleted entry after a grant to another owner", lease)
			for range 3 {
				c.renew(next, long)
				c.Delete(c.t, req.Key)
				c.wantNilOr("Release of a deleted entry", c.tryRelease(next), lockstore.ErrLost)
				c.sleep(tick)
				_, next = c.next(next)
			}
		},
	},
}

func (c *check) sameHolder(got, want lockstore.HolderInfo) {
	c.Helper()
	if got.Name != want.Name || got.ID != want.ID || !got.Since.Equal(want.Since) || got.Caller != want.Caller {
		c.Errorf("the holder is %.60q %.60q since %v, caller %.60q; want %.60q %.60q since %v, caller %.60q",
			got.Name, got.ID, got.Since.UTC(), got.Caller, want.Name, want.ID, want.Since.UTC(), want.Caller)
	}
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
