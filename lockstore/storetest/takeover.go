package storetest

import (
	"cmp"
	"slices"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

var takeoverCases = []testCase{
	{
		"takeover/not before the end of a lease or of a result, wherever in a second it lies, and however late F01",
		"A clock with whole seconds is wrong by up to a second, and a number that is too large for its field ends a lease of an hour after minutes. The store must wait for longer, and never for less. An event that comes again in the last moment has one effect.",
		func(c *check) {
			times := slices.Repeat([]time.Duration{edgeTTL}, 20)
			if c.virtual {
				// Longer than some numbers can say: 2^31 and 2^32 microseconds, 2^15 and 2^16 seconds, 2^24 and 2^31 milliseconds.
				for _, d := range []time.Duration{time.Minute, 36 * time.Minute, 72 * time.Minute, 5 * time.Hour, 10 * time.Hour, 19 * time.Hour, lockstore.MaxTTL - time.Second} {
					times = append(times, d+edgeTTL-time.Second, d+edgeTTL-time.Second) // a lease and a result
				}
				times = append(times, time.Hour, 25*24*time.Hour+edgeTTL, lockstore.MaxTTL, lockstore.MaxResultTime)
			}
			c.ends(len(times), func(i int) taken {
				d, start := times[i], c.elapsed()
				if i%2 > 0 {
					_, lease := c.take(long)
					start = c.elapsed()
					c.complete(lease, []byte("result")[:i%4/2], d) // without a result it is a cooldown
					return taken{lease.Key, start + d, c.elapsed() + d}
				}
				req, lease := c.take(d)
				granted := c.elapsed()
				c.Sleep(tick)
				sent := c.elapsed()
				until := start + lease.TTL
				if again, err := c.tryAcquire(req); err == nil {
					until = max(until, start+d, sent+again.TTL)
				}
				return taken{req.Key, until, granted + d}
			})
		},
	},
	{
		"takeover/not before the end, when the clock falls back or is an hour off F15 F16",
		"A clock that is wrong writes a wrong end. Still nobody else must get the key while the holder trusts its lease, and a result must end neither early nor late.",
		func(c *check) {
			c.need("ShiftClock", c.ShiftClock != nil)
			n := 150
			if !c.virtual {
				n = 30
			}
			var back time.Duration
			c.ends(n, func(i int) taken {
				back += time.Duration(1+i*7%30) * 100 * time.Millisecond
				c.setClock(-back)
				req, start := newRequest(newKey(), 2*time.Second+edgeTTL), c.elapsed()
				lease, err := c.tryAcquire(req)
				if err != nil {
					c.fatalf("Acquire by a clock that fell back: %v; want a lease", err)
				}
				return taken{key: req.Key, until: start + lease.TTL}
			})
			c.setClock(0)
			for _, shift := range []time.Duration{-time.Hour, time.Hour, -time.Hour} {
				c.ends(1, func(int) taken {
					_, lease := c.take(long)
					c.setClock(shift) // the first request of the wrong clock is the Complete
					start := c.elapsed()
					c.complete(lease, []byte("result"), edgeTTL)
					return taken{lease.Key, start + edgeTTL, c.elapsed() + edgeTTL}
				})
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
