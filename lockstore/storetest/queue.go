package storetest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
)

var queueCases = []testCase{
	{
		"queue/a full one F02",
		"A queue has an end. Who finds it full is refused without a place, and nothing else changes. Half of the places are for those who wait: executions that sleep come in thousands. If all who wait are dead, the key is free after six turns.",
		func(c *check) {
			_, lease := c.take(long)
			const most = 1000
			places, asleep := 0, 0
			if _, parks := driver.As[driver.Parker](c.Store.Driver()); parks {
				for ; places < most && c.placed(parked(lease.Key), places+1) > 0; places++ {
				}
				asleep = places
			}
			for ; places < most && c.placed(queued(lease.Key), places+1) > 0; places++ {
			}
			if s := c.inspect(lease.Key); places < 16 || places == most || asleep > places/2 || s.Waiting != places || s.Parked != asleep {
				c.fatalf("a queue has %d places, %d of them parked, and Inspect says that %d wait and %d are parked; want 16 to %d places, at most half of them parked", places, asleep, s.Waiting, s.Parked, most-1)
			}
			c.renew(lease, long)
			c.release(lease)
			if c.virtual {
				c.turns(driver.MaxTurnsBefore+1, queued(lease.Key))
			}
		},
	},
	{
		"queue/each place says how long it has waited",
		"Operators look for who waits for too long, also where nobody is awake to say so.",
		func(c *check) {
			_, lease := c.take(long)
			began := c.elapsed()
			c.join(lease.Key, 1)
			c.Sleep(5 * time.Second)
			second := queued(lease.Key)
			_, parks := driver.As[driver.Parker](c.Store.Driver())
			if parks {
				second = parked(lease.Key)
			}
			waited := func(what string, got, least time.Duration) {
				const off = 2 * time.Second // clocks with whole seconds
				if most := c.elapsed() - began; got < least-off || got > most+off {
					c.Errorf("%s has waited for %v; want about %v to %v", what, got, least, most)
				}
			}
			waited("in a refusal, the first", c.refused(second, lockstore.Held).OldestWait, 5*time.Second)
			c.Sleep(3 * time.Second)
			s := c.inspect(lease.Key)
			if len(s.Queue) != 2 || s.Queue[0].Parked || s.Queue[1].Parked != parks {
				c.fatalf("the queue is %+v; want two places, and the second parked: %t", s.Queue, parks)
			}
			waited("by Inspect, the first", s.Queue[0].Waited, 8*time.Second)
			waited("the oldest", s.OldestWait, 8*time.Second)
			if d := s.Queue[0].Waited - s.Queue[1].Waited; d < 3*time.Second {
				c.Errorf("the first has waited for %v longer than the second; want about 5 s", d)
			}
			c.renew(lease, long)
			if again := c.inspect(lease.Key); again.OldestWait < s.OldestWait {
				c.Errorf("the first has waited for %v, and after a renewal for %v", s.OldestWait, again.OldestWait)
			}
		},
	},
	{
		"queue/a damaged one is none",
		"A lock without its queue is a lock without a queue: it is granted, renewed and released.",
		func(c *check) {
			c.need("DamageQueue", len(c.DamageQueue) > 0)
			for _, name := range slices.Sorted(maps.Keys(c.DamageQueue)) {
				c.Logf("the damage: %s", name)
				req, lease := c.take(long)
				damage := func(state lockstore.State) {
					c.DamageQueue[name](c.t, req.Key)
					if s := c.inspect(req.Key); s.State != state || s.Waiting != 0 && state != lockstore.Held {
						c.fatalf("the key is %v, and %d wait; want it %v, and nobody", s.State, s.Waiting, state)
					}
				}
				first := c.join(req.Key, 1)
				damage(lockstore.Held)
				other := queued(req.Key)
				c.refused(other, lockstore.Held)
				c.renew(lease, long)
				c.leave(first)
				c.leave(other)
				c.release(lease)
				c.Sleep(tick)
				_, lease = c.next(lease)
				c.release(lease)
				for _, free := range []func(){
					func() { c.abandon(newRequest(req.Key, long)) },
					func() { c.leave(queued(req.Key)) },
					func() { lease = c.served(lease, queued(req.Key)); c.release(lease) },
					func() { _, lease = c.next(lease) },
				} {
					damage(lockstore.Free)
					free()
				}
				waits := c.join(req.Key, 1)
				c.release(lease)
				lease = c.served(lease, waits)

				c.complete(lease, []byte("result"), long)
				damage(lockstore.Completed)
				_, err := c.tryAcquire(queued(req.Key))
				c.isCompleted(err, []byte("result"))
				c.complete(lease, []byte("result"), long)
				if !c.virtual { // to wait for each damage takes minutes
					continue
				}
				c.expire(long)
				req.Owner, req.TTL = lockstore.NewOwner(), short
				lease = c.acquire(req)
				c.markStarted(lease)
				c.renew(lease, short) // the damage may be a write, which must not pass for that of MarkStarted
				damage(lockstore.Held)
				c.expire(short)
				c.inDoubt(req, queued(req.Key))
				damage(lockstore.InDoubt)
				c.must("ResolveNoEffect", func(ctx context.Context) error { return c.Store.ResolveNoEffect(ctx, req.Key, lease.Fence) })
				c.served(lease, queued(req.Key))
			}
		},
	},
	{
		"queue/AwaitTurn ends with the turn, with the place, or with its context F28 F57",
		"It returns soon after the release, to the first in line, also if it has waited for longer than a connection or a read lasts. Whoever has lost its place, for example in a freeze, has to ask for another one, and whoever waits has a deadline.",
		func(c *check) {
			_, lease := c.take(lockstore.MaxTTL)
			first := c.join(lease.Key, 1)
			c.newsAfter("the release", first, func() {
				if c.virtual {
					c.Sleep(11 * time.Minute)
				}
				c.release(lease)
			})
			lease = c.served(lease, first)
			first = c.join(lease.Key, 1)
			c.newsAfter("the release", first, func() { c.release(lease) })
			lease = c.served(lease, first)
			first = c.join(lease.Key, 1)
			c.release(lease)
			c.newsAfter("the release, which it has begun too late to see", first, func() {})
			lease = c.served(lease, first)

			c.join(lease.Key, 1)
			second := c.join(lease.Key, 2)
			start, limit := c.elapsed(), 300*time.Millisecond
			// It may return early, so that a caller asks for itself.
			if err := c.await(second, limit); err != nil && !errors.Is(err, context.DeadlineExceeded) {
				c.Errorf("AwaitTurn: %v; want nil or the context's error", err)
			}
			if took := c.elapsed() - start; took > limit+endsWithin+c.slack() {
				c.Errorf("AwaitTurn took %v; want at most %v", took, limit+endsWithin)
			}
			c.newsAfter("the end of its place", second, func() { c.leave(second) })

			_, lease = c.take(long)
			first = c.join(lease.Key, 1)
			c.release(lease)
			c.Sleep(driver.TurnTime - driver.LeastTrust + 100*time.Millisecond)
			news, err := c.Store.AwaitTurn(c.t.Context(), first, 0)
			if err != nil || news.Lease.Fence != 0 && news.Lease.TTL < driver.LeastTrust {
				c.Errorf("AwaitTurn, late in the turn: %+v, %v; want a lease that may be trusted for %v, or to be told to ask", news, err, driver.LeastTrust)
			}
		},
	},
	{
		"queue/who waits learns at once that the key has a result or is in doubt",
		"The result is for all who wait. A key in doubt stays so until somebody has found out. Nobody gets a turn, so nobody must wait for one.",
		func(c *check) {
			_, lease := c.take(long)
			c.join(lease.Key, 1)
			second := c.join(lease.Key, 2)
			c.newsAfter("the Complete", second, func() { c.complete(lease, []byte("result"), long) })
			ttl := c.toJoin()
			req, lease := c.take(ttl)
			c.join(lease.Key, 1)
			second = c.join(lease.Key, 2)
			c.markStarted(lease)
			c.newsAfter("the end of the started lease", second, func() { c.expire(ttl) })
			c.inDoubt(req, second)
		},
	},
	{
		"queue/a holder is not handed the key again, when the clock falls back",
		"Its turn had lapsed, and it has asked again. By the clock that fell back it is the holder still: a second lease would keep out another owner.",
		func(c *check) {
			c.need("virtual time", c.virtual) // a turn ends soon after another one
			c.need("ShiftClock", c.ShiftClock != nil)
			_, lease := c.take(long)
			first, last := queued(lease.Key), queued(lease.Key)
			first.MaxHolders, last.MaxHolders = 2, 2
			c.heldPlace(first, 1)
			second, third := c.join(lease.Key, 2), c.join(lease.Key, 3)
			c.release(lease)
			c.Sleep(lockstore.TurnTime + c.TakeoverDelay)
			for _, req := range []lockstore.Request{first, last} {
				_, err := c.tryAcquire(req)
				c.wantErr("Acquire before the turn", err, lockstore.ErrRefused)
			}
			c.setClock(-lockstore.TurnTime/2 - c.TakeoverDelay)
			c.leave(third)
			c.leave(second) // hands over to the first and the last
			c.acquire(first)
			c.acquire(last)
		},
	},
}

// queued is a request that asks for a place.
func queued(key string) lockstore.Request {
	req := newRequest(key, long)
	req.JoinQueue = true
	return req
}

// placed is refused because another holds the key. It has this place then, or none because the queue is full: 0.
func (c *check) placed(req lockstore.Request, place int) int {
	c.Helper()
	got := c.refused(req, lockstore.Held).QueuePosition
	if got != place && (got != 0 || place == 1) { // one place is never too many
		c.fatalf("refused with place %d; want place %d", got, place)
	}
	return got
}

// heldPlace is refused because another holds the key, and has this place then.
func (c *check) heldPlace(req lockstore.Request, place int) {
	c.Helper()
	if got := c.placed(req, place); got != place {
		c.fatalf("refused with place %d; want place %d", got, place)
	}
}

// join takes a place behind a holder.
func (c *check) join(key string, place int) lockstore.Request {
	c.Helper()
	req := queued(key)
	c.heldPlace(req, place)
	return req
}

// toJoin is the TTL of a lease behind which places are taken. In the second
// half a store need not give a place: a renewal goes first.
func (c *check) toJoin() time.Duration { return short + 2*c.TurnDelay + c.slack() }

func (c *check) leave(req lockstore.Request) {
	c.Helper()
	c.must("Leave", func(ctx context.Context) error { return c.Store.Leave(ctx, req.Key, req.Owner) })
}

// served is granted the key, behind the grant of last.
func (c *check) served(last lockstore.Lease, req lockstore.Request) lockstore.Lease {
	c.Helper()
	lease := c.acquire(req)
	c.grew(last.Fence, lease.Fence)
	return lease
}

// turns is refused until n turns are over, and granted the free key then.
func (c *check) turns(n int, req lockstore.Request) {
	c.Helper()
	start := c.elapsed()
	least := time.Duration(n) * lockstore.TurnTime
	most := least + c.TurnDelay + c.TakeoverDelay + rounding // the turn of who was handed the key ends as a lease does
	for {
		sent := c.elapsed() - start
		_, err := c.tryAcquire(req)
		switch {
		case err == nil && c.elapsed()-start < least-c.TurnDelay-rounding:
			c.fatalf("granted %v after the release; want %d turns, %v", c.elapsed()-start, n, least)
		case err == nil:
			return
		case !errors.Is(err, lockstore.ErrRefused) || sent > most:
			c.fatalf("%v after the release: %v; want it granted after %d turns, %v", sent, err, n, least)
		}
		c.Sleep(100 * time.Millisecond)
	}
}

// newsAfter wants AwaitTurn to return soon after something has happened. It may return before.
func (c *check) newsAfter(what string, req lockstore.Request, happens func()) {
	c.Helper()
	done := make(chan error, 1)
	go func() { done <- c.await(req, 2*long) }()
	c.Sleep(300 * time.Millisecond)
	happens()
	happened := c.elapsed()
	if err := <-done; err != nil {
		c.fatalf("AwaitTurn: %v; want it to end after %s", err, what)
	}
	if late, most := c.elapsed()-happened, lockstore.TurnTime+c.TakeoverDelay+c.slack(); late > most {
		c.Errorf("AwaitTurn returned %v after %s; want at most %v", late, what, most)
	}
}

// await calls AwaitTurn with a time limit.
func (c *check) await(req lockstore.Request, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(c.t.Context(), limit)
	defer cancel()
	return AwaitTurn(ctx, c.Store, req.Key, req.Owner)
}

// slack is what a busy machine may add on the wall clock.
func (c *check) slack() time.Duration {
	if c.virtual {
		return 0
	}
	return busy
}

// AwaitTurn asks the store until there are news for an owner in a queue.
func AwaitTurn(ctx context.Context, s *lockstore.Store, key string, owner lockstore.Owner) error {
	req := lockstore.Request{Key: key, Owner: owner}
	for {
		news, err := s.AwaitTurn(ctx, req, 0)
		if err != nil || news.Ask || news.Lease.Fence != 0 {
			return err
		}
		req.Hint = news.Hint
	}
}
