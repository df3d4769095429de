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
		"hours/a parked place has its whole turn",
		"Its owner starts only when it is woken. With a turn cut to whole seconds, or to what another place has, it comes too late.",
		func(c *check) {
			c.parks()
			for i, d := range []time.Duration{lockstore.TurnTime, edgeTTL + time.Second, 16*time.Second + edgeTTL, lockstore.MaxParkedTurn - edgeTTL, lockstore.MaxParkedTurn} {
				if !c.virtual && d < 10*time.Second {
					continue // a busy machine may take longer
				}
				_, lease := c.take(long)
				req := parked(lease.Key)
				req.Parked = d
				c.heldPlace(req, 1)
				handed := c.elapsed()
				c.release(lease)
				left := c.refused(newRequest(lease.Key, long), lockstore.Reserved).StateEndsIn
				if least := handed + d - c.elapsed() - c.TurnDelay - rounding; left < least || left > d+c.TurnDelay+c.TakeoverDelay+rounding {
					c.Errorf("the turn of a place that is parked for %v lasts %v more; want at least %v", d, left, least)
				}
				if c.virtual {
					c.sleepUntil(handed + d - c.TurnDelay - c.Margin - tick)
					if i%2 == 0 {
						c.acquire(req)
						continue
					}
					c.refused(newRequest(lease.Key, long), lockstore.Reserved)
					c.sleepUntil(handed + d + c.TurnDelay + c.TakeoverDelay + tick)
					c.acquire(newRequest(lease.Key, long))
				}
			}
		},
	},
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
		"hours/who waits for minutes learns of its turn",
		"It returns soon after the release, also if it has waited for longer than a connection or a read lasts.",
		func(c *check) {
			c.need("virtual time", c.virtual)
			req, lease := c.take(lockstore.MaxTTL)
			waiter := c.join(req.Key, 1)
			done := make(chan error, 1)
			go func() { done <- c.await(waiter, time.Hour) }()
			c.Sleep(11 * time.Minute)
			c.release(lease)
			released := c.elapsed()
			if err := <-done; err != nil {
				c.fatalf("AwaitTurn: %v; want it to end after the release", err)
			}
			if late, most := c.elapsed()-released, lockstore.TurnTime+c.TakeoverDelay; late > most {
				c.Errorf("AwaitTurn returned %v after the release; want at most %v", late, most)
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
