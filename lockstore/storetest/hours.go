package storetest

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// hoursCases are about times that are long: leases of hours, and waits of minutes and days. On the wall clock
// nothing waits, and they check what a store says of such times.
var hoursCases = []testCase{
	{
		"hours/a lease lasts as long as it says, up to a day",
		"A number that is too large for its field ends the lease of an hour after minutes, under a holder that trusts it.",
		func(c *check) {
			c.lasting(leaseTimes, 3, func(way int, ttl time.Duration) string {
				switch way {
				case 0:
					req, lease := c.take(ttl)
					c.between("the trust of a lease of "+ttl.String(), lease.TTL, ttl-c.Margin-c.slack(), ttl)
					return req.Key
				case 1:
					req, lease := c.take(30 * time.Second)
					c.between("the trust of a renewal for "+ttl.String(), c.renew(lease, ttl), ttl-c.Margin-c.slack(), ttl)
					return req.Key
				}
				_, lease := c.take(long)
				next := c.join(lease.Key, 1)
				c.release(lease)
				next.TTL = ttl
				c.between("the trust of a lease that was handed over, and extended for "+ttl.String(), c.acquire(next).TTL, ttl-c.Margin-c.slack(), ttl)
				return next.Key
			})
		},
	},
	{
		"hours/a result or a cooldown lasts as long as it says, up to a month",
		"An event that comes again has no second effect before the time is over, and then it has one.",
		func(c *check) {
			c.lasting(resultTimes, 1, func(_ int, d time.Duration) string {
				_, lease := c.take(long)
				c.complete(lease, []byte("result")[:int(d/time.Second)%2*6], d)
				return lease.Key
			})
		},
	},
	{
		"hours/a parked place has its whole turn",
		"Its owner starts only when it is woken. With a turn cut to whole seconds, or to what another place has, it comes too late.",
		func(c *check) {
			c.parks()
			for i, d := range parkedTurns {
				if !c.virtual && d < 10*time.Second {
					continue // a busy machine may take longer
				}
				_, lease := c.take(long)
				req := parked(lease.Key)
				req.Parked = d
				c.heldPlace(req, 1)
				handed := c.elapsed()
				c.release(lease)
				left := c.refused(newRequest(lease.Key, long), lockstore.Reserved).Remaining
				c.between("the turn of a place that is parked for "+d.String(), left, d-c.TurnDelay-(c.elapsed()-handed), d+c.TurnDelay)
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
			waits := []time.Duration{0}
			if c.virtual {
				waits = []time.Duration{0, 11 * time.Minute, 75 * time.Minute, 29 * 24 * time.Hour}
			}
			lines := make([]line, len(waits))
			for i := range lines {
				lines[i] = c.line()
			}
			start := c.elapsed()
			for i, wait := range waits {
				for c.elapsed()-start < wait {
					c.sleepUntil(min(start+wait, c.elapsed()+23*time.Hour))
					for _, l := range lines[i:] {
						c.renew(l.lease, lockstore.MaxTTL)
					}
				}
				c.ofLine(lines[i], i)
			}
		},
	},
	{
		"hours/who waits for minutes learns of its turn",
		"It returns soon after the release, also if it has waited for longer than a connection or a read lasts.",
		func(c *check) {
			c.need("virtual time", c.virtual && !c.moved)
			req, lease := c.take(lockstore.MaxTTL)
			waiter := c.join(req.Key, 1)
			done := make(chan error, 1)
			go func() { done <- c.await(waiter, time.Hour) }()
			c.sleep(11 * time.Minute)
			c.release(lease)
			released := c.elapsed()
			if err := <-done; err != nil {
				c.fatalf("AwaitTurn: %v; want it to end after the release", err)
			}
			if late, most := c.elapsed()-released, lockstore.Turn+c.TakeoverDelay; late > most {
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
				c.sleep(23 * time.Hour)
				c.held(req.Key)
				c.renew(lease, lockstore.MaxTTL)
			}
			c.expire(lockstore.MaxTTL)
			c.inDoubt(req)
			c.sleep(lockstore.StartedFor - time.Hour)
			c.inDoubt(req)
			c.renewLost("Renew in doubt", lease)
			for _, s := range strangers(lease) {
				if s.lease.Fence > 0 && s.lease.Fence != lease.Fence {
					for _, m := range c.methods(s.lease) {
						if strings.HasPrefix(m.name, "Resolve") {
							c.wantErr(m.name+s.what, c.call(m), lockstore.ErrLost)
						}
					}
				}
			}
			c.release(lease)
			c.next(lease)
		},
	},
	{
		"hours/fences grow by whatever number they have",
		"A fence that a clock far ahead has made is larger than the numbers that some languages count exactly. The next ones are larger still, and each names its own lease.",
		func(c *check) {
			c.need("ShiftClock", c.ShiftClock != nil)
			ttl := short
			if !c.virtual {
				ttl = long // nobody waits for its end
			}
			_, lease := c.take(long)
			next := func() (lockstore.Request, error) {
				req := newRequest(lease.Key, ttl)
				got, err := c.tryAcquire(req)
				if err == nil {
					c.grew(lease.Fence, got.Fence)
					lease = got
				}
				return req, err
			}
			c.release(lease)
			for _, edge := range []time.Time{time.Unix(1<<31, 0), time.Unix(1<<32, 0), time.UnixMicro(1 << 53)} {
				c.ShiftClock(c.t, time.Until(edge)-short/2)
				for range 3 {
					req, err := next()
					if edge.UnixMicro() == 1<<53 && errors.Is(err, lockstore.ErrCorrupt) {
						return // a store may have no more fences
					}
					if err != nil {
						c.fatalf("Acquire near %v: %v; want a lease", edge.UTC(), err)
					}
					c.held(req.Key)
					c.reacquire(req, lease)
					for _, f := range []lockstore.Fence{lease.Fence - 1, lease.Fence + 1} {
						c.renewLost("Renew with a fence near that of the lease", lockstore.Lease{Key: req.Key, Owner: req.Owner, Fence: f})
					}
					if !c.virtual {
						c.release(lease)
						continue
					}
					c.sleep(ttl - c.Margin - tick)
					c.held(req.Key) // over the edge
					c.sleep(tick + c.Margin + c.TakeoverDelay + tick)
				}
				c.ShiftClock(c.t, 0)
				c.wantNilOr("Release", c.tryRelease(lease), lockstore.ErrLost)
				if _, err := next(); err != nil {
					c.fatalf("Acquire by a clock that was set back: %v; want a lease", err)
				}
				c.release(lease)
			}
		},
	},
}

// Times that are longer than some numbers can say: 2^31 and 2^32 microseconds, 2^15 and 2^16 seconds, 2^24 and 2^31
// milliseconds. None is a whole number of seconds or of milliseconds, but for the longest.
var (
	leaseTimes  = append(edges(time.Minute, 36*time.Minute, 72*time.Minute, 5*time.Hour, 10*time.Hour, 19*time.Hour, lockstore.MaxTTL-time.Second, lockstore.MaxTTL), time.Hour)
	resultTimes = edges(36*time.Minute, 72*time.Minute, 19*time.Hour, 25*24*time.Hour, 25*24*time.Hour+time.Hour, lockstore.MaxResultTime-time.Second)
	parkedTurns = []time.Duration{lockstore.Turn, edgeTTL + time.Second, 16*time.Second + edgeTTL, lockstore.MaxParked - edgeTTL, lockstore.MaxParked}
)

// edges are the times, each with a part of a second.
func edges(times ...time.Duration) []time.Duration {
	for i, d := range times {
		if d%(24*time.Hour) != 0 {
			times[i] += edgeTTL - time.Second
		}
	}
	return times
}

// lasting takes a key for each of the times, in each of the ways or, under the race detector, in one of them. It checks what
// others are told. If waiting takes no time, nobody gets the key before the end, and everybody may after it.
func (c *check) lasting(times []time.Duration, ways int, take func(way int, d time.Duration) (key string)) {
	c.Helper()
	var takes []func() taken
	for i, d := range times {
		for way := range ways {
			if (!c.virtual || verifyrecord.WithRaceDetector) && way != i%ways {
				continue
			}
			takes = append(takes, func() taken {
				start := c.elapsed()
				key := take(way, d)
				granted := c.elapsed()
				left := c.taken(key).Remaining
				c.between("Remaining, of "+d.String(), left, start+d-c.elapsed(), granted+d-c.elapsed()+c.slack())
				return taken{key, start + d, granted + d}
			})
		}
	}
	if c.virtual {
		c.ends(len(takes), func(i int) taken { return takes[i]() })
		return
	}
	for _, take := range takes {
		take()
	}
}

// line is a key with a queue: a reader, a writer, a reader and a writer, and the third is parked if the store parks.
type line struct {
	lease   lockstore.Lease
	waiters []lockstore.Request
}

func (c *check) line() (l line) {
	_, l.lease = c.take(lockstore.MaxTTL)
	_, parks := driver.As[driver.Parker](c.Store.Driver())
	for i, most := range []int{lockstore.MaxHolders, 1, lockstore.MaxHolders, 1} {
		req := queued(l.lease.Key)
		if i == 2 && parks {
			req = parked(l.lease.Key)
			req.Address = lockstore.TaskToken(strings.Repeat("t", 1+i))
		}
		req.MaxHolders = most
		c.heldPlace(req, i+1)
		l.waiters = append(l.waiters, req)
	}
	return l
}

// ofLine wants each place kept. Then somebody goes, another one for each number, and the others keep theirs.
func (c *check) ofLine(l line, n int) {
	c.Helper()
	c.waiting(l.lease.Key, len(l.waiters))
	newcomer := queued(l.lease.Key)
	c.heldPlace(newcomer, len(l.waiters)+1)
	for i, req := range l.waiters {
		if req.Address != "" {
			c.takes(req.Key, req.Owner, req.Address)
		}
		c.heldPlace(req, i+1) // and leaves its address again
	}
	gone := n % 2 // the first reader, or the writer behind it
	if n%4 < 2 {
		c.leave(l.waiters[gone])
	} else {
		c.abandon(l.waiters[gone])
	}
	rest := append(slices.Delete(slices.Clone(l.waiters), gone, gone+1), newcomer)
	for i, req := range rest {
		if req.Address == "" {
			c.heldPlace(req, i+1)
		}
	}
	last := l.lease
	switch n % 4 {
	case 0, 1:
		c.release(last)
	case 2:
		if _, err := c.tryRevoke(lockstore.RevokeRequest{Key: last.Key, Fence: last.Fence, By: operator, OpenAtOnce: true}); err != nil {
			c.fatalf("Revoke at once: %v", err)
		}
	case 3:
		c.complete(last, []byte("result"), long)
		for _, req := range rest {
			if req.Address != "" {
				c.takes(req.Key, req.Owner, req.Address)
			}
			_, err := c.tryAcquire(req)
			c.isCompleted(err, []byte("result"))
		}
		return
	}
	for _, req := range rest {
		if req.Address != "" {
			c.takes(req.Key, req.Owner, req.Address)
		}
		last = c.served(last, req)
		c.release(last)
	}
}
