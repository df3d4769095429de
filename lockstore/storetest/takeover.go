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
		"A holder that died blocks others for its TTL and no longer, and one that lives is not overtaken while it may trust its lease (M02).",
		func(c *check) {
			const poll = 50 * time.Millisecond
			start := c.elapsed()
			req, lease := c.take(short)
			granted := c.elapsed()
			next := newRequest(req.Key, long)
			var end time.Duration // by the first refusal, when the key is free at the latest
			for {
				asked := c.elapsed()
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
				var held *lockstore.HeldError
				if !errors.As(err, &held) {
					c.fatalf("Acquire of a held key: %v; want a *lockstore.HeldError", err)
				}
				if end == 0 {
					end = answered + held.Remaining
				}
				if late := asked - granted - short - c.TakeoverDelay - rounding; late > 0 {
					c.fatalf("still held %v after the lease's TTL of %v and the store's delay of %v", late, short, c.TakeoverDelay)
				}
				if late := asked - end - rounding; late > 0 {
					c.fatalf("still held %v after the first refusal's Remaining was over", late)
				}
				c.sleep(poll)
			}
		},
	},
	{
		"takeover/not before the lease's end, wherever in a second it lies F01",
		"A server that tells whole seconds is up to a second wrong: a store must add that second to what it waits for, never take it off. Neither must it cut a TTL or an end to what it can keep, unless it cuts the time of trust too.",
		func(c *check) {
			c.edges(10, func(int) span {
				start := c.elapsed()
				req, _ := c.take(edgeTTL)
				granted := c.elapsed()
				c.sleep(tick)
				asked := c.elapsed()
				until := start + edgeTTL
				if again, err := c.tryAcquire(req); err == nil {
					until = max(until, asked+again.TTL)
				}
				return span{req.Key, until, granted + edgeTTL}
			})
		},
	},
	{
		"takeover/not before trust ends, when the clock falls back F15 F16",
		"A holder whose clock is behind writes an end that comes too early. Whatever the store does about it, another must not get the key while that holder trusts its lease.",
		func(c *check) {
			c.need("ShiftClock", c.ShiftClock != nil)
			n := 150
			if !c.virtual {
				n = 30
			}
			var back time.Duration
			c.edges(n, func(i int) span {
				back += time.Duration(1+i*7%30) * 100 * time.Millisecond
				c.ShiftClock(c.t, -back)
				req := newRequest(newKey(), 2*time.Second+edgeTTL)
				start := c.elapsed()
				lease, err := c.tryAcquire(req)
				if err != nil {
					c.fatalf("Acquire by a clock that fell back: %v; want a lease", err)
				}
				c.fits(lease, req)
				return span{key: req.Key, until: start + lease.TTL}
			})
		},
	},
	{
		"takeover/the old owner is lost F07 F10",
		"Whoever slept past its lease must hear ErrLost on everything, and the new holder must not notice.",
		func(c *check) {
			req, old := c.take(short)
			c.expire(short)
			next := newRequest(req.Key, long)
			lease := c.acquire(next)
			c.renewLost("Renew after another's takeover", old)
			c.wantErr("Release after another's takeover", c.tryRelease(old), lockstore.ErrLost)
			c.wantErr("Release again after another's takeover", c.tryRelease(old), lockstore.ErrLost)
			c.abandon(req)
			c.reacquire(next, lease)
			c.held(newRequest(req.Key, long))
			c.renew(lease, long)
			c.release(lease)
		},
	},
	{
		"takeover/a renewed lease is not taken",
		"The expiry that counts is the renewed one.",
		func(c *check) {
			req, lease := c.take(2 * short)
			c.renew(lease, long)
			c.expire(2 * short)
			c.held(newRequest(req.Key, long))
			c.renew(lease, long)
		},
	},
	{
		"takeover/time after time F63",
		"A function that dies each time it runs must not block the key for more than one TTL, and each run has a larger fence.",
		func(c *check) {
			req, lease := c.take(short)
			fence := lease.Fence
			for range 3 {
				c.expire(short)
				lease := c.acquire(newRequest(req.Key, short))
				c.grew(fence, lease.Fence)
				fence = lease.Fence
			}
		},
	},
}

// edgeTTL is no whole number of seconds or of milliseconds, so that a store that
// cuts it is too early.
const edgeTTL = 1400*time.Millisecond + 600*time.Microsecond

// span is for how long a key is closed to others, on the clock of elapsed.
type span struct {
	key   string
	until time.Duration // nobody else may have it before
	free  time.Duration // TakeoverDelay after it anybody may have it; 0 is not asked
}

// edges shuts n keys within a second, so that their ends lie all over the second of a
// server whose clock tells whole seconds. Then it asks for each just before its end,
// and when it has to be free.
func (c *check) edges(n int, shut func(i int) span) {
	c.Helper()
	type question struct {
		span
		at    time.Duration
		early bool
	}
	other, _ := c.take(long)
	asked := c.elapsed()
	c.held(newRequest(other.Key, long))
	before := c.elapsed() - asked + time.Microsecond
	if !c.virtual {
		before += tick // the wall clock runs on
	}
	var questions []question
	start := c.elapsed()
	for i := range n {
		c.sleepUntil(start + time.Duration(i)*time.Second/time.Duration(n))
		s := shut(i)
		questions = append(questions, question{s, s.until - before, true})
		if s.free > 0 {
			questions = append(questions, question{s, s.free + c.TakeoverDelay + rounding, false})
		}
	}
	slices.SortFunc(questions, func(a, b question) int { return cmp.Compare(a.at, b.at) })
	taken := map[string]bool{}
	for _, q := range questions {
		c.sleepUntil(q.at)
		if taken[q.key] {
			continue // by the first question, when the answer took too long
		}
		_, err := c.tryAcquire(newRequest(q.key, long))
		left := q.until - c.elapsed()
		taken[q.key] = err == nil
		switch {
		case q.early && err == nil && left > 0:
			c.fatalf("granted to another %v before it may be, or earlier", left)
		case !q.early && err != nil:
			c.fatalf("%v after the end, with a TakeoverDelay of %v: %v; want it granted", -left, c.TakeoverDelay, err)
		}
	}
}
