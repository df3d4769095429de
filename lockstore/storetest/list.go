package storetest

import (
	"context"
	"errors"
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
			c.acquire(newRequest(near+"held", long))
			states := map[string]lockstore.State{
				"held": lockstore.Held, "a/b": lockstore.Held, "ü": lockstore.Held, "*": lockstore.Held, "revoked": lockstore.Revoked, "completed": lockstore.Completed,
				"cooldown": lockstore.Cooldown, "doubt": lockstore.InDoubt, "released": lockstore.Free, "expired": lockstore.Free,
			}
			results := map[lockstore.State][]byte{lockstore.Completed: []byte("result")}
			for name, state := range states {
				ttl := long
				if name == "doubt" || name == "expired" {
					ttl = short
				}
				lease := c.acquire(newRequest(prefix+name, ttl))
				switch state {
				case lockstore.Revoked:
					c.revoke(lease, false)
				case lockstore.Completed, lockstore.Cooldown:
					c.complete(lease, results[state], long)
				case lockstore.InDoubt:
					c.markStarted(lease)
				}
				if name == "released" {
					c.release(lease)
				}
			}
			c.refused(queued(prefix+"held"), lockstore.Held) // a store may keep more than one entry for a key
			for _, most := range []int{3, 5, 4} {
				req := newRequest(prefix+"several", long)
				req.MaxHolders = most
				c.acquire(req)
			}
			states["several"] = lockstore.Held
			c.expire(short)
			seen := map[string]bool{}
			for _, status := range c.list(prefix) {
				name, below := strings.CutPrefix(status.Key, prefix)
				if state, known := states[name]; !below || !known || seen[name] || status.State != state {
					c.Errorf("%q is listed as %+v; want %v, once", status.Key, status, state)
				}
				seen[name] = true
				look := c.inspect(status.Key)
				c.sameHolder(status.Holder, look.Holder)
				if (status.Remaining > 0) != (look.Remaining > 0) || (status.Remaining-look.Remaining).Abs() > time.Minute {
					c.Errorf("%q is listed for %v; Inspect says %v", name, status.Remaining, look.Remaining)
				}
				if status.Fence != look.Fence || len(status.Holders) != len(look.Holders) || status.MaxHolders() != look.MaxHolders() {
					c.Errorf("%q is listed with fence %d and %d holders of %d; Inspect says fence %d and %d holders of %d",
						name, status.Fence, len(status.Holders), status.MaxHolders(), look.Fence, len(look.Holders), look.MaxHolders())
				}
				for i, h := range status.Holders[:min(len(status.Holders), len(look.Holders))] {
					l := look.Holders[i]
					c.sameHolder(h.HolderInfo, l.HolderInfo)
					if h.State != l.State || h.Fence != l.Fence || h.Seat != l.Seat || h.MaxHolders != l.MaxHolders || (h.Remaining-l.Remaining).Abs() > time.Minute {
						c.Errorf("%q is listed with the holder %+v; Inspect says %+v", name, h, l)
					}
				}
				if name == "several" && len(status.Holders) != 3 {
					c.Errorf("%q is listed with %d holders; want 3", name, len(status.Holders))
				}
			}
			for name, state := range states {
				if state != lockstore.Free && !seen[name] {
					c.Errorf("%q is not listed", name)
				}
			}
			if everything := c.list(""); !slices.ContainsFunc(everything, func(s lockstore.Status) bool { return s.Key == near+"held" }) {
				c.Errorf("the list of everything has %d keys, and not %q", len(everything), near+"held")
			}
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
