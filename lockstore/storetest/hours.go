package storetest

import (
	"strings"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
)

// hoursCases are about times that are long: leases of hours, and waits of minutes and days. On the wall clock
// nothing waits, and they check what a store says of such times.
var hoursCases = []testCase{
	{
		"hours/a place and an address are kept for days",
		"A key may be held, by one renewal after the other, for longer than anybody expects. Who waits keeps its place, whether it asks again or not, and whoever comes and goes meanwhile.",
		func(c *check) {
			_, parks := driver.As[driver.Parker](c.Store.Driver())
			_, lease := c.take(lockstore.MaxTTL)
			var waiters []lockstore.Request
			for i, most := range []int{lockstore.MaxHolders, 1, lockstore.MaxHolders, 1} {
				req := queued(lease.Key)
				if i > 1 && parks {
					req = parked(lease.Key)
					req.Address = lockstore.TaskToken(strings.Repeat("t", 1+i))
				}
				req.MaxHolders = most
				c.heldPlace(req, i+1)
				waiters = append(waiters, req)
			}
			for range 29 {
				c.renew(lease, lockstore.MaxTTL)
				if c.virtual {
					c.Sleep(23 * time.Hour)
				}
			}
			c.leave(waiters[0])
			for i, req := range waiters[1:] {
				if parks && i == 1 {
					c.takes(req.Key, req.Owner, req.Address)
				}
				c.heldPlace(req, i+1) // and leaves its address again
			}
			c.complete(lease, []byte("result"), long)
			for i, req := range waiters[1:] {
				if parks && i > 0 {
					c.takes(req.Key, req.Owner, req.Address)
				}
				_, err := c.tryAcquire(req)
				c.isCompleted(err, []byte("result"))
			}
		},
	},
	{
		"hours/work that has started is renewed for weeks, and then in doubt for weeks",
		"The mark of its start is as old as the work. A store that forgets it after a month lets the next one in beside it, or after it.",
		func(c *check) {
			c.need("virtual time", c.virtual)
			req := newRequest(newKey(), lockstore.MaxTTL)
			lease := c.acquire(req)
			c.markStarted(lease)
			for range 40 {
				c.Sleep(23 * time.Hour)
				c.renew(lease, lockstore.MaxTTL)
			}
			c.expire(lockstore.MaxTTL)
			for range 2 {
				c.inDoubt(req, newRequest(req.Key, long))
				c.Sleep(lockstore.StartMarkTime/2 - time.Hour)
			}
			c.release(lease)
			c.next(lease)
		},
	},
}
