package storetest

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/lambdalock/lambdalock/lockstore"
)

var entryCases = []testCase{
	{
		"corrupt/an entry that is damaged, or another program's, is refused and left alone F53 F54",
		"A damaged entry may belong to a live lease, so it never counts as free, also if the last lease was released. A key of another program must not be overwritten.",
		func(c *check) {
			c.need("Foreign and no Corrupt", len(c.Foreign)+len(c.Corrupt) > 0)
			c.need("Dump", c.Dump != nil)
			for _, name := range slices.Sorted(maps.Keys(c.Foreign)) {
				key := newKey()
				c.Foreign[name](c.t, key)
				c.refusesEntry("foreign entry: "+name, lockstore.Lease{Key: key, Owner: lockstore.NewOwner(), Fence: 1})
			}
			for _, name := range slices.Sorted(maps.Keys(c.Corrupt)) {
				for _, released := range []bool{false, true} {
					req, lease := c.take(long)
					if released {
						c.release(lease)
					} else {
						c.join(req.Key, 1) // a release that meets one that waits may have a way of its own
					}
					c.Corrupt[name](c.t, req.Key)
					c.refusesEntry("corrupt entry: "+name, lease)
				}
			}
		},
	},
}

// refusesEntry wants each method, by this owner and by another one, to refuse the entry,
// to name its key, and not to change the entry.
func (c *check) refusesEntry(name string, lease lockstore.Lease) {
	c.Helper()
	before := c.Dump(c.t, lease.Key)
	other := lease
	other.Owner = lockstore.NewOwner()
	waits := method{"Acquire with a place", func(ctx context.Context) error {
		_, err := c.Store.Acquire(ctx, queued(lease.Key))
		return err
	}}
	calls := slices.Concat([]method{waits}, c.methods(lease), c.methods(other))
	if !c.virtual { // a server takes its time, and the entry is read before owners are compared
		calls = calls[:len(calls)/2+1]
	}
	for _, m := range calls {
		what := m.name + " (" + name + ")"
		err := c.call(m)
		c.wantErr(what, err, lockstore.ErrCorrupt)
		if _, says, ok := strings.Cut(name, "says: "); ok && !strings.Contains(err.Error(), says) {
			c.Errorf("%s: %v; want the error to say %q", what, err, says)
		}
		if !strings.Contains(err.Error(), lease.Key) {
			c.Errorf("%s: %v; want the error to name the key %q", what, err, lease.Key)
		}
		if after := c.Dump(c.t, lease.Key); after != before {
			c.fatalf("%s changed the entry from %s to %s", what, before, after)
		}
	}
}
