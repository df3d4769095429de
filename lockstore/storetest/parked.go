package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
)

var parkedCases = []testCase{
	{
		"parked/an address is kept for its owner until it is taken",
		"Whoever hands the key over to a parked owner wakes it at its address. Without the right address the owner loses its turn and its place.",
		func(c *check) {
			c.parks()
			prefix := newKey() + "/"
			names := []string{"k", "k1", "K", "{a}b", `*?[c]\^ :|#%2F"'` + "`é😀", strings.Repeat("x", lockstore.MaxKeyBytes-len(prefix))}
			owner := lockstore.NewOwner()
			var parks []lockstore.Request
			for n, name := range names {
				c.acquire(newRequest(prefix+name, long))
				for o, owner := range []lockstore.Owner{owner, "1" + owner} { // key k1 of the first is not key k of the second
					req := parked(prefix + name)
					req.Owner = owner
					c.heldPlace(req, o+1)
					req.Address = lockstore.TaskToken(fmt.Sprintf("%02d%s", 2*n+o, strings.Repeat("t", 2046))) // as long as allowed
					c.heldPlace(req, o+1)
					parks = append(parks, req)
				}
			}
			if _, lists := driver.As[driver.Lister](c.Store.Driver()); lists {
				if all := c.list(prefix); len(all) != len(names) {
					c.Errorf("the list of %d keys with addresses is %+v", len(names), all)
				}
			}
			for range 2 {
				for i, req := range parks {
					c.takes(req.Key, req.Owner, req.Address)
					parks[i].Address = "" // it is taken
				}
			}

			granted := parked(newKey())
			lease := c.acquire(granted)
			c.takes(granted.Key, granted.Owner, "")
			c.complete(lease, nil, long)
			refused := granted
			refused.Owner = lockstore.NewOwner()
			c.refused(refused, lockstore.Cooldown)
			c.takes(refused.Key, refused.Owner, "")
		},
	},
	{
		"parked/a copy of an address that arrives late does not replace a newer one",
		"The newer address is where the owner waits. Whoever is woken at the older one has gone.",
		func(c *check) {
			c.parks()
			c.need("Delay", c.Delay != nil)
			for _, asked := range []bool{false, true} { // the owner has asked before
				_, lease := c.take(long)
				req := parked(lease.Key)
				if asked {
					c.heldPlace(req, 1)
				}
				req.Address = lockstore.TaskToken("late")
				deliver := c.Delay(c.t)
				ctx, cancel := context.WithTimeout(c.t.Context(), lockstore.TurnTime/4)
				_, err := c.Store.Acquire(ctx, req)
				cancel()
				if err == nil || errors.Is(err, lockstore.ErrRefused) {
					c.fatalf("Acquire without a reply to the request that stores its address: %v; want another error", err)
				}
				req.Address = lockstore.TaskToken("newer")
				c.heldPlace(req, 1)
				deliver()
				c.takes(req.Key, req.Owner, req.Address)
				c.takes(req.Key, req.Owner, "")
			}
		},
	},
}

// parks skips the case if the store cannot park.
func (c *check) parks() {
	c.Helper()
	_, parks := driver.As[driver.Parker](c.Store.Driver())
	c.need("driver.Parker", parks)
}

func parked(key string) lockstore.Request {
	req := queued(key)
	req.Parked, req.Address = lockstore.TurnTime, lockstore.TaskToken("t")
	return req
}

// takes checks what TakeAddress returns in another process.
func (c *check) takes(key string, owner lockstore.Owner, want lockstore.WakeAddress) {
	c.Helper()
	got, err := within(c, func(ctx context.Context) (lockstore.WakeAddress, error) {
		return c.client(1).TakeAddress(ctx, key, owner)
	})
	if err != nil {
		c.fatalf("TakeAddress of %q: %v", key, err)
	}
	if got != want {
		c.fatalf("TakeAddress of %q: %.20q; want %.20q, the last one until it is taken", key, string(got), string(want))
	}
}
