package storetest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

var queueCases = []testCase{
	{
		"queue/a full one F02",
		"A queue has an end. Who finds it full is refused without a place, and nothing else changes.",
		func(c *check) {
			_, lease := c.take(long)
			const most = 1000
			places := 0
			for ; places < most; places++ {
				if c.placed(queued(lease.Key), places+1) == 0 {
					break
				}
			}
			if places < 16 || places == most {
				c.fatalf("a queue has %d places; want 16 to %d", places, most-1)
			}
			c.waiting(lease.Key, places)
			c.heldPlace(queued(lease.Key), 0)
			c.renew(lease, long)
			c.release(lease)
			if c.virtual { // six turns
				c.turns(lockstore.MaxTurns+1, queued(lease.Key))
			}
		},
	},
	{
		"queue/a damaged one is none",
		"A lock without its queue is a lock without a queue: it is granted, renewed and released.",
		func(c *check) {
			c.need("DamageQueue", len(c.DamageQueue) > 0)
			for _, name := range slices.Sorted(maps.Keys(c.DamageQueue)) {
				damage := c.DamageQueue[name]
				c.Logf("the damage: %s", name)
				_, lease := c.take(long)
				first := c.join(lease.Key, 1)
				damage(c.t, lease.Key)
				other := queued(lease.Key)
				c.refused(other, lockstore.Held)
				c.inspect(lease.Key)
				c.renew(lease, long)
				c.leave(first)
				c.leave(other)
				c.release(lease)
				c.sleep(tick)
				next := c.acquire(newRequest(lease.Key, long))
				c.grew(lease.Fence, next.Fence)
				c.release(next)

				for _, joins := range []bool{false, true} { // a free key
					c.sleep(tick)
					damage(c.t, lease.Key)
					c.noQueue(lease.Key, lockstore.Free)
					req := newRequest(lease.Key, long)
					req.JoinQueue = joins
					next = c.served(next, req)
					waits := c.join(lease.Key, 1)
					c.release(next)
					next = c.served(next, waits)
					c.release(next)
				}
				for _, ends := range []func(){
					func() { c.abandon(newRequest(lease.Key, long)) },
					func() { c.leave(queued(lease.Key)) },
				} {
					damage(c.t, lease.Key)
					ends()
					c.noQueue(lease.Key, lockstore.Free)
				}

				for _, result := range [][]byte{nil, []byte("result")} { // a closed key
					ttl := c.toJoin()
					_, lease := c.take(ttl)
					c.complete(lease, result, ttl)
					damage(c.t, lease.Key)
					_, err := c.tryAcquire(queued(lease.Key))
					c.isCompleted(err, result)
					c.complete(lease, result, ttl)
					if !c.virtual { // to wait for each damage takes minutes
						continue
					}
					c.expire(ttl)
					c.noQueue(lease.Key, lockstore.Free)
					c.release(c.served(lease, queued(lease.Key)))
				}

				if !c.virtual {
					continue
				}
				_, lease = c.take(short)
				c.markStarted(lease)
				c.renew(lease, short) // the damage may be a write, which must not pass for that of MarkStarted
				damage(c.t, lease.Key)
				c.expire(short)
				c.refused(queued(lease.Key), lockstore.InDoubt)
				c.noQueue(lease.Key, lockstore.InDoubt)
				if _, err := within(c, func(ctx context.Context) (struct{}, error) {
					return struct{}{}, c.Store.ResolveNoEffect(ctx, lease.Key, lease.Fence)
				}); err != nil {
					c.fatalf("ResolveNoEffect: %v", err)
				}
				c.release(c.served(lease, queued(lease.Key)))
			}
		},
	},
	{
		"queue/AwaitTurn ends with the turn, with the place, or with its context F28 F57",
		"It returns soon after the release, to the first in line. Whoever has lost its place, for example in a freeze, has to ask for another one, and whoever waits has a deadline.",
		func(c *check) {
			_, lease := c.take(long)
			first := c.join(lease.Key, 1)
			c.newsAfter("the release", first, func() { c.release(lease) })
			lease = c.served(lease, first)
			first = c.join(lease.Key, 1)
			c.release(lease)
			c.newsAfter("the release, which it has begun too late to see", first, func() {})
			lease = c.served(lease, first)

			c.join(lease.Key, 1)
			second := c.join(lease.Key, 2)
			start := c.elapsed()
			err := c.await(second, 300*time.Millisecond)
			// It may return early, so that a caller asks for itself.
			if err != nil && !errors.Is(err, context.DeadlineExceeded) {
				c.Errorf("AwaitTurn: %v; want nil or the context's error", err)
			}
			if took, most := c.elapsed()-start, 300*time.Millisecond+endsWithin+c.slack(); took > most {
				c.Errorf("AwaitTurn took %v; want at most %v", took, most)
			}
			c.newsAfter("the end of its place", second, func() { c.leave(second) })
		},
	},
	{
		"queue/who waits learns at once that the key has a result or is in doubt",
		"The result is for all who wait. A key in doubt stays so until somebody has found out. Nobody gets a turn, so nobody must wait for one.",
		func(c *check) {
			_, lease := c.take(long)
			first, second := c.join(lease.Key, 1), c.join(lease.Key, 2)
			c.newsAfter("the Complete", second, func() { c.complete(lease, []byte("result"), long) })
			for _, req := range []lockstore.Request{first, second} {
				_, err := c.tryAcquire(req)
				c.isCompleted(err, []byte("result"))
			}
			c.waiting(lease.Key, 0)

			ttl := c.toJoin()
			req, lease := c.take(ttl)
			first, second = c.join(lease.Key, 1), c.join(lease.Key, 2)
			c.markStarted(lease)
			c.newsAfter("the end of the started lease", second, func() { c.expire(ttl) })
			for _, waits := range []lockstore.Request{first, second} {
				_, err := c.tryAcquire(waits)
				c.isInDoubt(err, req)
			}
			if c.virtual { // nobody forgets it
				c.sleep(719 * time.Hour)
				c.inDoubt(req)
			}
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
			c.sleep(lockstore.Turn + c.TakeoverDelay)
			for _, req := range []lockstore.Request{first, last} {
				_, err := c.tryAcquire(req)
				c.wantErr("Acquire before the turn", err, lockstore.ErrRefused)
			}
			c.ShiftClock(c.t, -lockstore.Turn/2-c.TakeoverDelay)
			c.leave(third)
			c.leave(second) // hands over to the first and the last
			c.acquire(first)
			c.acquire(last)
		},
	},
}

// noQueue wants a key in this state, for which nobody waits.
func (c *check) noQueue(key string, state lockstore.State) {
	c.Helper()
	if s := c.inspect(key); s.State != state || s.Waiting != 0 {
		c.fatalf("the key is %v, and %d wait; want it %v, and nobody", s.State, s.Waiting, state)
	}
}

// queued is a request that asks for a place.
func queued(key string) lockstore.Request {
	req := newRequest(key, long)
	req.JoinQueue = true
	return req
}

// heldPlace is refused because another holds the key, and has this place then.
func (c *check) heldPlace(req lockstore.Request, place int) {
	c.Helper()
	if e := c.refused(req, lockstore.Held); e.QueuePosition != place {
		c.fatalf("refused with place %d; want place %d", e.QueuePosition, place)
	}
}

// join takes a place behind a holder.
func (c *check) join(key string, place int) lockstore.Request {
	c.Helper()
	req := queued(key)
	c.heldPlace(req, place)
	return req
}

// toJoin is a TTL that a case waits for, and in whose first half others take places. In the second
// half a store need not give a place: a renewal goes first.
func (c *check) toJoin() time.Duration { return short + 2*c.TurnDelay + c.slack() }

// waiting is the number of places that Inspect has to see.
func (c *check) waiting(key string, want int) {
	c.Helper()
	if got := c.inspect(key).Waiting; got != want {
		c.fatalf("Inspect says that %d wait; want %d", got, want)
	}
}

func (c *check) leave(req lockstore.Request) {
	c.Helper()
	if err := c.call(method{"Leave", func(ctx context.Context) error { return c.Store.Leave(ctx, req.Key, req.Owner) }}); err != nil {
		c.fatalf("Leave: %v", err)
	}
}

// served is granted the key, behind the grant of last.
func (c *check) served(last lockstore.Lease, req lockstore.Request) lockstore.Lease {
	c.Helper()
	lease := c.acquire(req)
	c.grew(last.Fence, lease.Fence)
	return lease
}

// turns is refused until n turns are over, and granted the free key then.
func (c *check) turns(n int, req lockstore.Request) lockstore.Lease {
	c.Helper()
	start := c.elapsed()
	least := time.Duration(n) * lockstore.Turn
	most := least + c.TurnDelay + c.TakeoverDelay + rounding // the turn of who was handed the key ends as a lease does
	for {
		sent := c.elapsed()
		lease, err := c.tryAcquire(req)
		switch {
		case err == nil && c.elapsed()-start < least-c.TurnDelay-rounding:
			c.fatalf("granted %v after the release; want %d turns, %v", c.elapsed()-start, n, least)
		case err == nil:
			return lease
		case !errors.Is(err, lockstore.ErrRefused):
			c.fatalf("Acquire: %v; want it held or granted", err)
		case sent-start > most:
			c.fatalf("refused %v after the release: %v; want it granted after %d turns, %v", sent-start, err, n, least)
		}
		c.sleep(100 * time.Millisecond)
	}
}

// newsAfter wants AwaitTurn to return soon after something has happened. It may return before.
func (c *check) newsAfter(what string, req lockstore.Request, happens func()) {
	c.Helper()
	done := make(chan error, 1)
	go func() { done <- c.await(req, long) }()
	c.sleep(300 * time.Millisecond)
	happens()
	happened := c.elapsed()
	if err := <-done; err != nil {
		c.fatalf("AwaitTurn: %v; want it to end after %s", err, what)
	}
	if late, most := c.elapsed()-happened, lockstore.Turn+c.TakeoverDelay+c.slack(); late > most {
		c.Errorf("AwaitTurn returned %v after %s; want at most %v", late, what, most)
	}
}

// await calls AwaitTurn with a time limit on the clock of the case.
func (c *check) await(req lockstore.Request, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(c.t.Context(), limit)
	defer cancel()
	if c.moved {
		done := make(chan error, 1)
		go func() { done <- AwaitTurn(ctx, c.Store, req.Key, req.Owner) }()
		for start := c.elapsed(); ; {
			select {
			case err := <-done:
				return err
			case <-time.After(time.Millisecond):
				if c.elapsed()-start > limit {
					cancel()
				}
				c.sleep(time.Millisecond)
			}
		}
	}
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
	place := lockstore.Place{Key: key, Owner: owner}
	for {
		news, err := s.AwaitTurn(ctx, place)
		if err != nil || news.Ask || news.Lease.Fence != 0 {
			return err
		}
		place.Note = news.Note
	}
}
