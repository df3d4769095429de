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
		"list/what is held is listed once",
		"An operator who sees no holder takes the key for free. The prefix is no pattern.",
		func(c *check) {
			prefix := newKey() + `/*?[a]\^-{x}/`
			near := strings.Replace(prefix, "*", "y", 1) + "held"
			c.acquire(newRequest(near, long))
			names := []string{"held", "a/b", "ü", "*"}
			for _, name := range names {
				c.acquire(newRequest(prefix+name, long))
				c.join(prefix+name, 1) // a store may keep more than one entry for a key
			}
			_, lease := c.next(lockstore.Lease{Key: prefix + "free"})
			c.release(lease)
			seen := map[string]bool{}
			for _, got := range c.list(prefix) {
				name, below := strings.CutPrefix(got.Key, prefix)
				if !below || seen[name] || !alike(got, c.inspect(got.Key)) {
					c.Errorf("%q is listed as %+v; want it as an Inspect says, once", got.Key, got)
				}
				seen[name] = true
			}
			everything := c.list("")
			for _, key := range append([]string{near}, names...) {
				if !seen[key] && !slices.ContainsFunc(everything, func(s lockstore.Status) bool { return s.Key == key }) {
					c.Errorf("%q is not listed", key)
				}
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
			if found := c.list(prefix); len(found) != 1 || found[0].Key != lease.Key {
				c.Errorf("the list is %+v; want one key, %q", found, lease.Key)
			}
		},
	},
}

// alike reports whether a listing and an Inspect that comes soon after it say the same of a key. A listing knows nothing of a queue.
func alike(listed, inspected lockstore.Status) bool {
	near := func(a, b time.Duration) bool { return (a - b).Abs() < time.Minute }
	l, i := listed, inspected
	same := l.Key == i.Key && l.State == i.State && l.Holder.Encode() == i.Holder.Encode() && l.Fence == i.Fence && near(l.Remaining, i.Remaining) && len(l.Holders) == len(i.Holders)
	for n := 0; same && n < len(l.Holders); n++ {
		one, other := l.Holders[n], i.Holders[n]
		same = near(one.Remaining, other.Remaining)
		one.Remaining = other.Remaining
		same = same && one.HolderInfo.Encode() == other.HolderInfo.Encode()
		one.HolderInfo = other.HolderInfo
		same = same && one == other
	}
	return same
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
