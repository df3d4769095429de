package storetest

import (
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

var fenceCases = []testCase{
	{
		"fence/grows with each grant",
		"A resource that remembers the largest fence refuses late writes; that works only if each grant has a larger one (M10, M11).",
		func(c *check) {
			key := newKey()
			var last lockstore.Fence
			for range 20 {
				lease := c.acquire(newRequest(key, long))
				c.grew(last, lease.Fence)
				last = lease.Fence
				c.release(lease)
			}
		},
	},
	{
		"fence/counts in microseconds since 1970",
		"The fence must survive the loss of its previous value, so it is at least the time (M13, M14).",
		func(c *check) {
			_, lease := c.take(long)
			// No clock that is set is before 2000.
			if least := lockstore.Fence(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()); lease.Fence < least {
				c.Errorf("the first fence is %d; want the time in microseconds, at least %d", lease.Fence, least)
			}
		},
	},
	{
		"fence/grows over an expiry",
		"The writes to be fenced off are those of the holder that slept past its lease.",
		func(c *check) {
			req, lease := c.take(short)
			c.expire(short)
			next := c.acquire(newRequest(req.Key, long))
			c.grew(lease.Fence, next.Fence)
		},
	},
	{
		"fence/grows over abandons",
		"An abandon leaves the fence or raises it.",
		func(c *check) {
			req, lease := c.take(long)
			last := lease.Fence
			c.abandon(req)
			for range 5 {
				req := newRequest(req.Key, long)
				lease := c.acquire(req)
				c.grew(last, lease.Fence)
				last = lease.Fence
				c.abandon(req)
				c.abandon(newRequest(req.Key, long))
			}
		},
	},
	{
		"fence/grows over a deleted entry F35 F43",
		"When the previous value is gone, the time makes the next fence larger.",
		func(c *check) {
			c.need("Delete", c.Delete != nil)
			req, lease := c.take(long)
			last := lease.Fence
			for range 3 {
				c.Delete(c.t, req.Key)
				c.sleep(tick)
				lease := c.acquire(newRequest(req.Key, long))
				c.grew(last, lease.Fence)
				last = lease.Fence
			}
		},
	},
	{
		"fence/grows over an older entry that is put back F45",
		"A backup holds an old fence and a dead owner: the owner ends by its expiry, and the next fence is above all earlier ones.",
		func(c *check) {
			c.need("Snapshot", c.Snapshot != nil)
			req, lease := c.take(short)
			restoreHeld := c.Snapshot(c.t, req.Key)
			c.release(lease)
			restoreFree := c.Snapshot(c.t, req.Key)
			var last lockstore.Fence
			for range 3 {
				next := c.acquire(newRequest(req.Key, long))
				last = next.Fence
				c.release(next)
			}
			c.sleep(tick)
			restoreFree()
			next := c.acquire(newRequest(req.Key, long))
			c.grew(last, next.Fence)
			last = next.Fence

			restoreHeld()
			c.expire(short)
			after := c.acquire(newRequest(req.Key, long))
			c.grew(last, after.Fence)
			c.renewLost("Renew of the lease that was in the backup", lease)
		},
	},
	{
		"fence/grows when the clock is behind F20",
		"The previous fence counts when the clock has stepped back: one more than it (M11).",
		func(c *check) {
			c.need("ShiftClock", c.ShiftClock != nil)
			req, lease := c.take(long)
			last := lease.Fence
			c.release(lease)
			c.ShiftClock(c.t, -time.Hour)
			for range 5 {
				lease := c.acquire(newRequest(req.Key, long))
				c.grew(last, lease.Fence)
				last = lease.Fence
				c.renew(lease, long)
				c.release(lease)
				abandoned := newRequest(req.Key, long)
				c.abandon(abandoned)
				_, err := c.tryAcquire(abandoned)
				c.wantErr("Acquire after its abandon", err, lockstore.ErrLost)
			}
		},
	},
	{
		"fence/grows when the clock was ahead F15 F20",
		"A grant by a clock that was ahead must not make later grants, by a right clock, smaller.",
		func(c *check) {
			c.need("ShiftClock", c.ShiftClock != nil)
			req, lease := c.take(long)
			last := lease.Fence
			c.release(lease)
			for _, d := range []time.Duration{time.Hour, -time.Hour, -10 * time.Minute, 10 * time.Minute} {
				c.ShiftClock(c.t, d)
				for range 2 {
					lease := c.acquire(newRequest(req.Key, long))
					c.grew(last, lease.Fence)
					last = lease.Fence
					c.release(lease)
				}
			}
		},
	},
	{
		"fence/a clock that is off grants, renews and releases F15 F16",
		"A clock that is off must not stop a free key from being used.",
		func(c *check) {
			c.need("ShiftClock", c.ShiftClock != nil)
			for _, d := range []time.Duration{10 * time.Minute, -20 * time.Minute} {
				c.ShiftClock(c.t, d)
				req, lease := c.take(long)
				c.held(newRequest(req.Key, long))
				c.reacquire(req, lease)
				c.renew(lease, long)
				c.release(lease)
				c.acquire(newRequest(req.Key, long))
			}
		},
	},
}

func (c *check) grew(before, after lockstore.Fence) {
	c.Helper()
	if after <= before {
		c.fatalf("the fence went from %d to %d; want it larger", before, after)
	}
}
