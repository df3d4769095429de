package storetest

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

var takeoverCases = []testCase{
	{
		"takeover/not before the TTL and not long after it F01",
		"A dead holder blocks other owners for its TTL and not longer. The key of a live holder is not granted while it may trust its lease.",
		func(c *check) {
			const poll = 50 * time.Millisecond
			start := c.elapsed()
			req, lease := c.take(short)
			granted := c.elapsed()
			next := newRequest(req.Key, long)
			var end time.Duration // the latest end of the lease, by the first refusal
			for {
				sent := c.elapsed()
				got, err := c.tryAcquire(next)
				answered := c.elapsed()
				if err == nil {
					if answered < start+short {
						c.Errorf("granted %v after the first acquire; want it not before %v", answered-start, short)
					}
					if left := start + lease.TTL - answered; left > 0 {
						c.Errorf("granted while the first lease may be trusted for %v more", left)
					}
					c.grew(lease.Fence, got.Fence)
					break
				}
				var held *lockstore.Refused
				if !errors.As(err, &held) {
					c.fatalf("Acquire of a held key: %v; want a *lockstore.Refused", err)
				}
				if end == 0 {
					end = answered + held.Remaining
				}
				if late := sent - granted - short - c.TakeoverDelay - rounding; late > 0 {
					c.fatalf("still held %v after the lease's TTL of %v and the store's delay of %v", late, short, c.TakeoverDelay)
				}
				if late := sent - end - rounding; late > 0 {
					c.fatalf("still held %v after the first refusal's Remaining was over", late)
				}
				c.sleep(poll)
			}
		},
	},
	{
		"takeover/not before the lease's end, wherever in a second it lies F01",
		"A clock with whole seconds is wrong by up to a second. The store must wait for that second longer, and never for less. A store may cut a TTL or an end only if it cuts the time of trust too.",
		func(c *check) {
			c.ends(10, func(int) taken {
				start := c.elapsed()
				req, _ := c.take(edgeTTL)
				granted := c.elapsed()
				c.sleep(tick)
				sent := c.elapsed()
				until := start + edgeTTL
				if again, err := c.tryAcquire(req); err == nil {
					until = max(until, sent+again.TTL)
				}
				return taken{req.Key, until, granted + edgeTTL}
			})
		},
	},
	{
		"takeover/not before trust ends, when the clock falls back F15 F16",
		"A holder whose clock is behind writes an end that is too early. Still nobody else must get the key while that holder trusts its lease.",
		func(c *check) {
			c.need("ShiftClock", c.ShiftClock != nil)
			n := 150
			if !c.virtual {
				n = 30
			}
			var back time.Duration
			c.ends(n, func(i int) taken {
				back += time.Duration(1+i*7%30) * 100 * time.Millisecond
				c.ShiftClock(c.t, -back)
				req := newRequest(newKey(), 2*time.Second+edgeTTL)
				start := c.elapsed()
				lease, err := c.tryAcquire(req)
				if err != nil {
					c.fatalf("Acquire by a clock that fell back: %v; want a lease", err)
				}
				return taken{key: req.Key, until: start + lease.TTL}
			})
		},
	},
	{
		"takeover/the old owner is lost F07 F10 F11",
		"A holder that stood still past its lease gets ErrLost for everything, and never the new holder's lease. The new holder keeps its lease.",
		func(c *check) {
			old, oldLease := c.take(short)
			c.expire(short)
			req, lease := c.next(oldLease)
			c.renewLost("Renew after a takeover", oldLease)
			c.wantErr("Release after a takeover", c.tryRelease(oldLease), lockstore.ErrLost)
			c.wantErr("Release again after a takeover", c.tryRelease(oldLease), lockstore.ErrLost)
			c.notGranted("Acquire by the owner whose lease was taken over", old)
			c.abandon(old)
			c.keeps(req, lease)
		},
	},
	{
		"takeover/time after time F63",
		"A function that dies in each run blocks the key for one TTL at most, and each run has a larger fence.",
		func(c *check) {
			req, lease := c.take(short)
			for range 3 {
				c.expire(short)
				next := c.acquire(newRequest(req.Key, short))
				c.grew(lease.Fence, next.Fence)
				lease = next
			}
		},
	},
}

// edgeTTL is not a whole number of seconds or of milliseconds. A store that cuts it
// grants too early.
const edgeTTL = 1400*time.Millisecond + 600*time.Microsecond

// taken is for how long a key is taken, in the time of elapsed.
type taken struct {
	key   string
	until time.Duration // before this no other owner may be granted the key
	free  time.Duration // TakeoverDelay after this every owner may be granted it; 0 checks nothing
}

// ends takes n keys within a second, so that their ends lie all over a second of the
// server's clock. Then it tries to acquire each key just before its end, and when it must
// be free.
func (c *check) ends(n int, take func(i int) taken) {
	c.Helper()
	type attempt struct {
		taken
		at    time.Duration
		early bool
	}
	other, _ := c.take(long)
	sent := c.elapsed()
	c.held(other.Key)
	before := c.elapsed() - sent + time.Microsecond // the time of one request
	if !c.virtual {
		before += tick
	}
	var attempts []attempt
	start := c.elapsed()
	for i := range n {
		c.sleepUntil(start + time.Duration(i)*time.Second/time.Duration(n))
		k := take(i)
		attempts = append(attempts, attempt{k, k.until - before, true})
		if k.free > 0 {
			attempts = append(attempts, attempt{k, k.free + c.TakeoverDelay + rounding, false})
		}
	}
	slices.SortFunc(attempts, func(a, b attempt) int { return cmp.Compare(a.at, b.at) })
	granted := map[string]bool{}
	for _, a := range attempts {
		c.sleepUntil(a.at)
		if granted[a.key] {
			continue // by the first attempt, whose answer came after the end
		}
		_, err := c.tryAcquire(newRequest(a.key, long))
		left := a.until - c.elapsed()
		granted[a.key] = err == nil
		switch {
		case a.early && err == nil && left > 0:
			c.fatalf("granted to another %v before it may be, or earlier", left)
		case !a.early && err != nil:
			c.fatalf("%v after the end, with a TakeoverDelay of %v: %v; want it granted", -left, c.TakeoverDelay, err)
		}
	}
}
