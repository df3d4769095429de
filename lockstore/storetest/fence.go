package storetest

import (
	"reflect"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

var fenceCases = []testCase{
	{
		"fence/counts in microseconds since 1970",
		"A fence is at least the time, so fences grow even if the previous fence is lost. A key that was never written has none.",
		func(c *check) {
			key := newKey()
			if got, want := c.inspect(key), (lockstore.Status{Key: key}); !reflect.DeepEqual(got, want) {
				c.Errorf("Inspect of a new key: %+v; want %+v", got, want)
			}
			lease := c.acquire(newRequest(key, long))
			// A clock before 2000 was never set.
			if least := lockstore.Fence(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()); lease.Fence < least {
				c.Errorf("the first fence is %d; want the time in microseconds, at least %d", lease.Fence, least)
			}
		},
	},
	{
		"fence/grows over an older entry that is put back F45",
		"A backup has an old fence and a dead owner. That owner's lease ends by its TTL, and the next fence is larger than all earlier fences.",
		func(c *check) {
			c.need("Snapshot", c.Snapshot != nil)
			req, lease := c.take(short)
			restoreHeld := c.Snapshot(c.t, req.Key)
			c.release(lease)
			restoreFree := c.Snapshot(c.t, req.Key)
			last := lease
			for range 3 {
				_, last = c.next(last)
				c.release(last)
			}
			c.sleep(tick)
			restoreFree()
			_, last = c.next(last)
			restoreHeld()
			c.expire(short)
			c.next(last)
			c.renewLost("Renew of the lease that was in the backup", lease)
		},
	},
	{
		"fence/grows when the clock is behind or ahead F15 F20",
		"If the clock steps back, the next fence is the previous fence + 1. After a grant by a clock that was ahead, grants by a right clock have larger fences.",
		func(c *check) {
			c.need("ShiftClock", c.ShiftClock != nil)
			req, lease := c.take(long)
			c.release(lease)
			for _, d := range []time.Duration{-time.Hour, time.Hour, -time.Hour, -10 * time.Minute, 10 * time.Minute} {
				c.ShiftClock(c.t, d)
				for range 3 {
					_, lease = c.next(lease)
					c.renew(lease, long)
					c.release(lease)
					abandoned := newRequest(req.Key, long)
					c.abandon(abandoned)
					c.acquireLost("Acquire after its abandon", abandoned)
				}
			}
		},
	},
}
