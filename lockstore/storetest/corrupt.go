package storetest

import (
	"maps"
	"slices"
	"strings"

	"github.com/lambdalock/lambdalock/lockstore"
)

var corruptCases = []testCase{
	{
		"corrupt/what is not this store's is refused and left alone F54",
		"A key that another program uses must not be overwritten, and not be taken for free.",
		func(c *check) {
			c.need("Foreign", len(c.Foreign) > 0)
			c.need("Dump", c.Dump != nil)
			for _, name := range slices.Sorted(maps.Keys(c.Foreign)) {
				key := newKey()
				c.Foreign[name](c.t, key)
				c.refusesEntry("foreign entry: "+name, lockstore.Lease{Key: key, Owner: lockstore.NewOwner(), Fence: 1})
			}
		},
	},
	{
		"corrupt/a damaged entry of a live lease is refused and left alone F53",
		"A damaged entry may belong to a holder that is at work: it is never treated as free.",
		func(c *check) {
			c.refusesDamage(func(lockstore.Lease) {})
		},
	},
	{
		"corrupt/a damaged entry of a released lease is refused and left alone F53",
		"What is free cannot be told from a damaged entry.",
		func(c *check) {
			c.refusesDamage(c.release)
		},
	},
}

func (c *check) refusesDamage(before func(lockstore.Lease)) {
	c.Helper()
	c.need("Corrupt", len(c.Corrupt) > 0)
	c.need("Dump", c.Dump != nil)
	for _, name := range slices.Sorted(maps.Keys(c.Corrupt)) {
		req, lease := c.take(long)
		before(lease)
		c.Corrupt[name](c.t, req.Key)
		c.refusesEntry("corrupt entry: "+name, lease)
	}
}

// refusesEntry wants each method to refuse the entry, to name its key, and to
// leave it as it is.
func (c *check) refusesEntry(name string, lease lockstore.Lease) {
	c.Helper()
	before := c.Dump(c.t, lease.Key)
	refuse := func(what string, err error) {
		c.Helper()
		c.wantErr(what, err, lockstore.ErrCorrupt)
		if !strings.Contains(err.Error(), lease.Key) {
			c.Errorf("%s: %v; want the error to name the key %q", what, err, lease.Key)
		}
		if after := c.Dump(c.t, lease.Key); after != before {
			c.fatalf("%s changed the entry from %s to %s", what, before, after)
		}
	}
	c.everyMethod(name, lease, refuse)
	other := lease
	other.Owner = lockstore.NewOwner()
	c.everyMethod(name+", another owner", other, refuse)
}
