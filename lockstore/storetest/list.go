package storetest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

var listCases = []testCase{
	{
		"list/what is held is listed once, with its state",
		"An operator who sees no holder takes the key for free.",
		func(c *check) {
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
			c.refused(waits, lockstore.Held) // a store may keep more than one entry for a key
			c.release(leases[1])
			c.expire(short)
			found := c.list(prefix)
			for i, req := range all {
				n := 0
				for _, status := range found {
					if status.Key == req.Key {
						n++
						if held := i != 1 && i != 2; (status.State == lockstore.Held) != held || status.Fence != leases[i].Fence {
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
		"list/completed, in doubt and revoked",
		"An operator looks for keys to resolve. Nobody holds these, and they are not free.",
		func(c *check) {
			prefix := newKey() + "/"
			take := func(name string) lockstore.Lease { return c.acquire(newRequest(prefix+name, short)) }
			c.complete(take("completed"), []byte("result"), long)
			c.complete(take("cooldown"), nil, long)
			c.markStarted(take("doubt"))
			over := take("over")
			c.markStarted(over)
			c.revoke(c.acquire(newRequest(prefix+"revoked", long)), false)
			c.expire(short)
			c.release(over)
			states := map[string]lockstore.State{
				"completed": lockstore.Completed, "cooldown": lockstore.Cooldown, "doubt": lockstore.InDoubt, "revoked": lockstore.Revoked,
			}
			missing := maps.Clone(states)
			for _, s := range c.list(prefix) {
				name := strings.TrimPrefix(s.Key, prefix)
				delete(missing, name)
				if s.State != states[name] || s.State.Taken() != (s.Holder.Name != "") {
					c.Errorf("%q is listed as %+v; want it %v", name, s, states[name])
				}
			}
			if len(missing) > 0 {
				c.Errorf("not listed: %v", missing)
			}
		},
	},
	{
		"list/every holder of a key",
		"A key that several hold is one key in the list, with all of them.",
		func(c *check) {
			prefix := newKey() + "/"
			reqs, leases := c.holders(prefix + "k")
			found := c.list(prefix)
			if len(found) != 1 {
				c.fatalf("the list is %+v; want one key", found)
			}
			c.shows("List", found[0], 3, reqs, leases, lockstore.Held, lockstore.Held, lockstore.Held)
		},
	},
	{
		"list/an entry of another program is counted, and stops nothing F53 F54",
		"A listing that ends at the first foreign entry shows nothing in a table that is shared.",
		func(c *check) {
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

// list skips the case if the store cannot list.
func (c *check) list(prefix string) (all []lockstore.Status) {
	c.Helper()
	_, err := within(c, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, c.Store.List(ctx, prefix, func(p lockstore.Page) error {
			all = append(all, p.Keys...)
			return nil
		})
	})
	c.need("driver.Lister", !errors.Is(err, errors.ErrUnsupported))
	if err != nil {
		c.fatalf("List: %v", err)
	}
	return all
}
