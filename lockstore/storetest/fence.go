package storetest

import (
	"errors"
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
			// A clock before 2000 was never set.
			c.grew(lockstore.Fence(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()-1), c.acquire(newRequest(key, long)).Fence)
		},
	},
	{
		"fence/grows when its entry is deleted F35 F43",
		"If the entry of a live lease is deleted, other owners may have the key already. So the lease is lost, and the key is free. Without the previous fence, the time makes the next fence larger.",
		func(c *check) {
			c.need("Delete", c.Delete != nil)
			_, lease := c.take(long)
			for n := range 3 {
				if c.Delete(c.t, lease.Key); n == 0 {
					c.wantNilOr("Release of a deleted entry", c.tryRelease(lease), lockstore.ErrLost)
				} else {
					c.renewLost("Renew of a deleted entry", lease)
				}
				c.Sleep(tick)
				_, lease = c.next(lease)
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
			_, last := c.next(lease)
			c.release(last)
			c.Sleep(tick)
			restoreFree()
			_, last = c.next(last)
			restoreHeld()
			c.expire(short)
			c.next(last)
			c.renewLost("Renew of the lease that was in the backup", lease)
		},
	},
	{
		"fence/grows whatever the clock shows F15 F20",
		"If the clock steps back, the next fence is the previous fence + 1. A fence that a clock far ahead has made is larger than the numbers that some languages count exactly. The next ones are larger still, and each names its own lease.",
		func(c *check) {
			c.need("ShiftClock", c.ShiftClock != nil)
			_, lease := c.take(long)
			c.release(lease)
			now := time.Now()
			for _, at := range []time.Time{
				now.Add(-time.Hour), now.Add(time.Hour), now.Add(-10 * time.Minute), time.Unix(1<<31, 0), now, time.Unix(1<<32, 0), time.UnixMicro(1 << 53), now,
			} {
				c.setClock(time.Until(at) - short/2)
				for range 3 {
					req, sent := newRequest(lease.Key, short), c.elapsed()
					next, err := c.tryAcquire(req)
					if errors.Is(err, lockstore.ErrCorrupt) && lease.Fence >= 1<<52 {
						return // a store may have no more fences
					}
					if err != nil {
						c.fatalf("Acquire by a clock that shows %v: %v; want a lease", at.UTC(), err)
					}
					c.grew(lease.Fence, next.Fence)
					lease = next
					c.reacquire(req, lease)
					for _, f := range []lockstore.Fence{lease.Fence - 1, lease.Fence + 1} {
						c.renewLost("Renew with a fence near that of the lease", lockstore.Lease{Key: req.Key, Owner: req.Owner, Fence: f})
					}
					if c.virtual {
						c.sleepUntil(sent + lease.TTL - tick)
						c.held(req.Key)
					}
					c.release(lease)
				}
			}
		},
	},
}
