package storetest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

var queueCases = []testCase{
	{
		"queue/in the order of arrival F57",
		"Whoever waits longest is served first, and nobody passes by.",
		func(c *check) {
			_, lease := c.take(long)
			first, second, third := c.join(lease.Key, 1), c.join(lease.Key, 2), c.join(lease.Key, 3)
			c.joined(second, 2)
			c.waiting(lease.Key, 3)
			c.release(lease)
			c.reserved(newRequest(lease.Key, long), 0)
			c.reserved(third, c.behind(3))
			c.reserved(second, c.behind(2))
			for _, next := range []lockstore.Request{first, second, third} {
				lease = c.served(lease, next)
				c.heldPlace(newRequest(lease.Key, long), 0)
				c.release(lease)
			}
			c.waiting(lease.Key, 0)
			c.acquire(newRequest(lease.Key, long))
		},
	},
	{
		"queue/only for who asks for a place",
		"A caller that does not wait must not hold up those who do.",
		func(c *check) {
			_, lease := c.take(long)
			c.heldPlace(newRequest(lease.Key, long), 0)
			c.waiting(lease.Key, 0)
			first := c.join(lease.Key, 1)
			stays := first
			stays.JoinQueue = false
			c.heldPlace(stays, 1)
			c.release(lease)
			c.served(lease, stays)
			c.waiting(lease.Key, 0)
		},
	},
	{
		"queue/a new key and a released one are free",
		"Asking for a place changes nothing about a key for which nobody waits.",
		func(c *check) {
			req := queued(newKey())
			lease := c.acquire(req)
			c.release(lease)
			c.sleep(tick)
			lease = c.served(lease, queued(req.Key))
			c.release(lease)
			c.sleep(tick)
			c.served(lease, newRequest(req.Key, long))
		},
	},
	{
		"queue/leave takes one place out",
		"Whoever stops waiting must not delay the others, and must not be served.",
		func(c *check) {
			_, lease := c.take(long)
			first, second, third := c.join(lease.Key, 1), c.join(lease.Key, 2), c.join(lease.Key, 3)
			c.leave(second)
			c.leave(second)
			c.leave(newRequest(lease.Key, long))
			c.leave(newRequest(newKey(), long))
			c.joined(third, 2)
			c.joined(first, 1)
			c.leave(first)
			c.release(lease)
			lease = c.served(lease, third)
			c.release(lease)
			// Leaving is no abandon: the owner may come again.
			c.sleep(tick)
			lease = c.served(lease, first)
			c.wantErr("Leave by the holder", c.tryLeave(first), lockstore.ErrGranted)
			c.renew(lease, long)
		},
	},
	{
		"queue/the first that leaves a free key gives the next a whole turn",
		"Or a healthy waiter would lose its turn to one that went away.",
		func(c *check) {
			_, lease := c.take(long)
			first, second, third := c.join(lease.Key, 1), c.join(lease.Key, 2), c.join(lease.Key, 3)
			c.release(lease)
			c.sleep(lockstore.Turn * 3 / 4)
			c.givesUp(first)
			c.sleep(lockstore.Turn / 2)
			c.reserved(third, c.behind(2))
			c.served(lease, second)
		},
	},
	{
		"queue/who leaves after its turn moves nobody else's turn",
		"Or two would have their turn at once, and the first of them could lose it.",
		func(c *check) {
			_, lease := c.take(long)
			c.join(lease.Key, 1)
			second, third, fourth := c.join(lease.Key, 2), c.join(lease.Key, 3), c.join(lease.Key, 4)
			c.release(lease)
			c.sleep(lockstore.Turn * 11 / 5)
			c.leave(second) // in the older mode the first still has its place
			if c.FreesOnRelease {
				c.reserved(fourth, 3)
			} else {
				c.reserved(fourth, 1)
			}
			c.turns(0, third)
			c.heldPlace(fourth, 1)
		},
	},
	{
		"queue/one that died delays by one turn F02",
		"A process that died while it waited must not stop those behind it.",
		func(c *check) {
			_, lease := c.take(long)
			c.join(lease.Key, 1)
			second := c.join(lease.Key, 2)
			c.release(lease)
			c.turns(1, second)
			c.waiting(lease.Key, 0)
		},
	},
	{
		"queue/many that died delay by five turns F02",
		"A queue of the dead must not keep the key for longer than lockstore.MaxTurns turns, and one more if the first of them was handed the key.",
		func(c *check) {
			_, lease := c.take(long)
			for i := range 7 {
				c.join(lease.Key, i+1)
			}
			living := c.join(lease.Key, 8)
			c.release(lease)
			c.turns(c.deadTurns(), living)
			c.waiting(lease.Key, 0)
		},
	},
	{
		"queue/many that died delay who does not wait by five turns F02",
		"Callers without a place get a key for which nobody living waits.",
		func(c *check) {
			_, lease := c.take(long)
			for i := range 7 {
				c.join(lease.Key, i+1)
			}
			c.release(lease)
			c.turns(c.deadTurns(), newRequest(lease.Key, long))
			c.waiting(lease.Key, 0)
		},
	},
	{
		"queue/a full one F02",
		"A queue has an end. Who finds it full is refused without a place, and nothing else changes.",
		func(c *check) {
			_, lease := c.take(long)
			const most = 1000
			places := 0
			for ; places < most; places++ {
				if c.refused(queued(lease.Key), lockstore.Held).QueuePosition == 0 {
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
			c.turns(c.deadTurns(), queued(lease.Key))
		},
	},
	{
		"queue/behind a holder that died F01",
		"When a lease ends the queue goes on, in its order.",
		func(c *check) {
			ttl := c.toJoin()
			_, lease := c.take(ttl)
			first, second := c.join(lease.Key, 1), c.join(lease.Key, 2)
			stranger := newRequest(lease.Key, long)
			for end := c.elapsed() + ttl + c.TakeoverDelay + rounding + c.slack(); ; c.sleep(50 * time.Millisecond) {
				late := c.elapsed() > end
				c.refused(second, lockstore.Held, lockstore.Reserved)
				c.refused(stranger, lockstore.Held, lockstore.Reserved)
				next, err := c.tryAcquire(first)
				if err == nil {
					c.grew(lease.Fence, next.Fence)
					break
				}
				c.wantErr("Acquire by the first in line", err, lockstore.ErrRefused)
				if late {
					c.fatalf("the first in line is refused long after the end of the lease: %v", err)
				}
			}
			c.heldPlace(second, 1)
		},
	},
	{
		"queue/a grant ends the places before it",
		"Those whose turn is over were given their time. When they come again they wait again.",
		func(c *check) {
			_, lease := c.take(long)
			first, second := c.join(lease.Key, 1), c.join(lease.Key, 2)
			third := c.join(lease.Key, 3)
			c.release(lease)
			lease = c.turns(1, second)
			c.heldPlace(third, 1)
			c.joined(first, 2)
			c.release(lease)
			c.served(lease, third)
		},
	},
	{
		"queue/the same request again keeps one place F23",
		"A repeat after a lost reply must not wait twice, or take a place from others.",
		func(c *check) {
			_, lease := c.take(long)
			first := c.join(lease.Key, 1)
			for range 3 {
				c.joined(first, 1)
			}
			second := c.join(lease.Key, 2)
			c.release(lease)
			lease = c.served(lease, first)
			c.reacquire(first, lease)
			c.waiting(lease.Key, 1)
			c.release(lease)
			c.notGranted("Acquire again after the release", first)
			c.waiting(lease.Key, c.behind(1))
			c.served(lease, second)
		},
	},
	{
		"queue/requests whose replies are lost F23 F25",
		"A lost reply hides what was done; the same request again finds out.",
		func(c *check) {
			_, lease := c.take(long)
			first := queued(lease.Key)
			c.loseReply("join", func() error { _, err := c.tryAcquire(first); return err })
			c.joined(first, 1)
			second := c.join(lease.Key, 2)
			third := c.join(lease.Key, 3)
			c.loseReply("leave", func() error { return c.tryLeave(second) })
			c.leave(second)
			c.joined(third, 2)
			c.release(lease)
			c.loseReply("the grant of a turn", func() error { _, err := c.tryAcquire(first); return err })
			granted, err := c.tryAcquire(first)
			if err != nil {
				c.fatalf("Acquire again after a lost reply: %v; want the lease", err)
			}
			c.grew(lease.Fence, granted.Fence)
			c.waiting(lease.Key, 1)
			c.release(granted)
			c.served(granted, third)
		},
	},
	{
		"queue/an abandon takes the place out M17",
		"Whoever gives up an acquire does not wait any more.",
		func(c *check) {
			_, lease := c.take(long)
			first, second := c.join(lease.Key, 1), c.join(lease.Key, 2)
			c.abandon(first)
			c.waiting(lease.Key, 1)
			c.release(lease)
			c.served(lease, second)
		},
	},
	{
		"queue/a cooldown ends it",
		"Nobody waits for the end of a cooldown: it is there so that others do not run.",
		func(c *check) {
			_, lease := c.take(long)
			first := c.join(lease.Key, 1)
			c.complete(lease, nil, 3*short)
			c.refused(first, lockstore.Cooldown)
			c.refused(queued(lease.Key), lockstore.Cooldown)
			c.waiting(lease.Key, 0)
			c.expire(3 * short)
			c.served(lease, newRequest(lease.Key, long))
		},
	},
	{
		"queue/a damaged one is none",
		"The queue only refuses. Without it the lock is a lock without a queue.",
		func(c *check) {
			c.need("DamageQueue", len(c.DamageQueue) > 0)
			for name, damage := range c.DamageQueue {
				_, lease := c.take(long)
				first := c.join(lease.Key, 1)
				damage(c.t, lease.Key)
				other := queued(lease.Key)
				_, err := c.tryAcquire(other)
				c.wantErr("Acquire of a held key, "+name, err, lockstore.ErrRefused)
				c.renew(lease, long)
				c.leave(first)
				c.leave(other)
				c.release(lease)
				c.sleep(tick)
				next := c.acquire(newRequest(lease.Key, long))
				c.grew(lease.Fence, next.Fence)
				c.release(next)
			}
		},
	},
	{
		"queue/AwaitTurn ends with the turn",
		"It returns soon after the release, to the first in line.",
		func(c *check) {
			_, lease := c.take(long)
			first := c.join(lease.Key, 1)
			done := make(chan error, 1)
			go func() { done <- c.await(first, long) }()
			c.sleep(300 * time.Millisecond)
			c.release(lease)
			released := c.elapsed()
			if err := <-done; err != nil {
				c.fatalf("AwaitTurn of the first in line: %v", err)
			}
			if late, most := c.elapsed()-released, lockstore.Turn+c.slack(); late > most {
				c.Errorf("AwaitTurn returned %v after the release; want at most %v", late, most)
			}
			c.served(lease, first)
		},
	},
	{
		"queue/AwaitTurn ends when the place is gone",
		"Whoever has lost its place, for example in a freeze, has to ask for another one.",
		func(c *check) {
			_, lease := c.take(long)
			c.join(lease.Key, 1)
			second := c.join(lease.Key, 2)
			done := make(chan error, 1)
			go func() { done <- c.await(second, long) }()
			c.sleep(300 * time.Millisecond)
			c.leave(second)
			left := c.elapsed()
			if err := <-done; err != nil {
				c.fatalf("AwaitTurn without a place: %v; want nil", err)
			}
			if late, most := c.elapsed()-left, lockstore.Turn+c.slack(); late > most {
				c.Errorf("AwaitTurn returned %v after the place was gone; want at most %v", late, most)
			}
		},
	},
	{
		"queue/an abandon by others moves nobody's turn",
		"Owners that give up must not keep a free key from those who wait.",
		func(c *check) {
			_, lease := c.take(long)
			c.join(lease.Key, 1)
			second := c.join(lease.Key, 2)
			c.release(lease)
			c.sleep(lockstore.Turn / 2)
			c.abandon(newRequest(lease.Key, long))
			c.sleep(lockstore.Turn/2 + c.turnDelay() + rounding)
			c.served(lease, second)
		},
	},
	{
		"queue/AwaitTurn ends with its context F28",
		"Whoever waits has a deadline.",
		func(c *check) {
			_, lease := c.take(long)
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
		},
	},
	{
		"queue/many that wait are served in their order F57",
		"Each is granted the key, and in the order of their places.",
		func(c *check) {
			const waiters = 8
			_, lease := c.take(long)
			var mu sync.Mutex
			var served []int
			var all sync.WaitGroup
			for i := range waiters {
				req := c.join(lease.Key, i+1)
				all.Go(func() {
					for c.elapsed() < time.Minute {
						if err := c.await(req, time.Minute); err != nil {
							c.Errorf("AwaitTurn of place %d: %v", i+1, err)
							return
						}
						got, err := c.tryAcquire(req)
						if errors.Is(err, lockstore.ErrRefused) {
							c.sleep(time.Millisecond)
							continue
						}
						if err != nil {
							c.Errorf("Acquire of place %d: %v", i+1, err)
							return
						}
						mu.Lock()
						served = append(served, i+1)
						mu.Unlock()
						c.sleep(5 * time.Millisecond)
						if err := c.tryRelease(got); err != nil {
							c.Errorf("Release of place %d: %v", i+1, err)
						}
						return
					}
					c.Errorf("place %d was not served in a minute", i+1)
				})
			}
			c.release(lease)
			all.Wait()
			for i, place := range served {
				if place != i+1 {
					c.Errorf("served in the order %v", served)
					break
				}
			}
		},
	},
}

// handOverCases are about hand-over. They do nothing for a store with the older rule.
var handOverCases = []testCase{
	{
		"hand-over/the release makes the first in the queue the holder",
		"Nobody else can come between, and the first in the queue works at once, for as long as it asked.",
		func(c *check) {
			if c.FreesOnRelease {
				return
			}
			_, lease := c.take(long)
			first, second := c.join(lease.Key, 1), c.join(lease.Key, 2)
			before := c.elapsed()
			c.release(lease)
			status := c.inspect(lease.Key)
			if status.State != lockstore.Reserved || status.Fence <= lease.Fence || status.Waiting != 1 || status.Holder != (lockstore.HolderInfo{}) {
				c.Errorf("Inspect after the release: %+v; want it reserved with a new fence, without a holder, and one that waits", status)
			}
			left := c.refused(second, lockstore.Reserved).Remaining
			c.between("what remains of the turn", left, lockstore.Turn-(c.elapsed()-before), lockstore.Turn)
			c.sleep(lockstore.Turn / 2)
			got := c.served(lease, first)
			if got.Fence != status.Fence {
				c.Errorf("the first in the queue was handed the key with fence %d, and got fence %d", status.Fence, got.Fence)
			}
			c.sameHolder(c.refused(second, lockstore.Held).Holder, first.HolderInfo)
			c.lasts("the Acquire of the first in the queue", lease.Key)
			c.sleep(lockstore.Turn)
			c.keeps(first, got)
		},
	},
	{
		"hand-over/a lapsed one goes to the next, and its owner is last F02",
		"A process that died costs one turn. One that was only slow has lost its place and no more.",
		func(c *check) {
			if c.FreesOnRelease {
				return
			}
			_, lease := c.take(long)
			slow, second, third := c.join(lease.Key, 1), c.join(lease.Key, 2), c.join(lease.Key, 3)
			c.release(lease)
			c.expire(lockstore.Turn)
			c.reserved(slow, 3)
			lease = c.served(lease, second)
			c.heldPlace(third, 1)
			c.heldPlace(slow, 2)
			c.release(lease)
			lease = c.served(lease, third)
			c.release(lease)
			lease = c.served(lease, slow)
			c.keeps(slow, lease)
			// Alone, it gets a new lease.
			c.sleep(tick)
			_, lease = c.next(lease)
			alone := c.join(lease.Key, 1)
			c.release(lease)
			handed := c.inspect(lease.Key).Fence
			c.expire(lockstore.Turn)
			lease = c.acquire(alone)
			c.grew(handed, lease.Fence)
			c.keeps(alone, lease)
		},
	},
	{
		"hand-over/of a revoked lease, by its release",
		"Its owner has ended its work, so nobody has to wait. It learns that its lease was lost.",
		func(c *check) {
			if c.FreesOnRelease {
				return
			}
			req, lease := c.take(long)
			first := c.join(lease.Key, 1)
			c.revoke(lease, false)
			c.refused(first, lockstore.Revoked)
			for range 2 {
				c.releaseRevoked(lease)
				c.reserved(newRequest(lease.Key, long), 0)
			}
			c.notGranted("Acquire by the owner of the revoked lease", req)
			got := c.served(lease, first)
			c.releaseRevoked(lease)
			c.keeps(first, got)
			c.acquireLost("Acquire of a free key by the owner of the revoked lease", req)
		},
	},
	{
		"hand-over/by an operator, and again F25",
		"Who waits gets the key at once. An operator who asks again, because no reply came, must not hear that nothing was done.",
		func(c *check) {
			if c.FreesOnRelease {
				return
			}
			_, lease := c.take(long)
			first, second := c.join(lease.Key, 1), c.join(lease.Key, 2)
			for range 2 {
				status, err := c.tryRevoke(lockstore.RevokeRequest{Key: lease.Key, Fence: lease.Fence, By: operator, OpenAtOnce: true})
				if err != nil || status.State != lockstore.Reserved {
					c.fatalf("Revoke with OpenAtOnce, while somebody waits: %+v, %v; want it reserved", status, err)
				}
			}
			c.reserved(second, 1)
			c.keeps(first, c.served(lease, first))

			ttl := c.toJoin()
			_, lease = c.take(ttl)
			c.markStarted(lease)
			first, second = c.join(lease.Key, 1), c.join(lease.Key, 2)
			c.expire(ttl)
			c.refused(first, lockstore.InDoubt)
			for range 2 {
				if err := c.resolveNoEffect(lease.Key, lease.Fence); err != nil {
					c.fatalf("ResolveNoEffect, while somebody waits: %v; want nil", err)
				}
			}
			c.reserved(second, 1)
			c.keeps(first, c.served(lease, first))
		},
	},
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

// reserved is refused because the key is reserved for others who wait.
func (c *check) reserved(req lockstore.Request, place int) {
	c.Helper()
	e := c.refused(req, lockstore.Reserved)
	if e.QueuePosition != place {
		c.fatalf("refused with place %d; want place %d", e.QueuePosition, place)
	}
	if most := lockstore.MaxTurns*lockstore.Turn + c.TurnDelay + rounding; e.Remaining > most {
		c.Errorf("%v remain until the turn; want at most %v", e.Remaining, most)
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

// joined says that the owner has this place behind a holder, or takes it.
func (c *check) joined(req lockstore.Request, place int) {
	c.Helper()
	req.JoinQueue = true
	c.heldPlace(req, place)
}

// waiting is the number of places that Inspect has to see.
func (c *check) waiting(key string, want int) {
	c.Helper()
	if got := c.inspect(key).Waiting; got != want {
		c.fatalf("Inspect says that %d wait; want %d", got, want)
	}
}

func (c *check) tryLeave(req lockstore.Request) error {
	return c.call(method{"Leave", func(ctx context.Context) error { return c.Store.Leave(ctx, req.Key, req.Owner) }})
}

func (c *check) leave(req lockstore.Request) {
	c.Helper()
	if err := c.tryLeave(req); err != nil {
		c.fatalf("Leave: %v", err)
	}
}

// behind is the place of an owner that had this place before a release. Who was handed the key has
// no place any more.
func (c *check) behind(place int) int {
	if c.FreesOnRelease {
		return place
	}
	return place - 1
}

// deadTurns is how many turns a queue of dead owners keeps the key.
func (c *check) deadTurns() int {
	if c.FreesOnRelease {
		return lockstore.MaxTurns
	}
	return lockstore.MaxTurns + 1
}

// turnDelay is by how much the turns of a queue may be longer. The turn of who was handed the key ends
// as a lease does.
func (c *check) turnDelay() time.Duration {
	if c.FreesOnRelease {
		return c.TurnDelay
	}
	return c.TurnDelay + c.TakeoverDelay
}

// givesUp ends the turn of the first in the queue.
func (c *check) givesUp(req lockstore.Request) {
	c.Helper()
	if c.FreesOnRelease {
		c.leave(req)
		return
	}
	c.wantErr("Leave by an owner that was handed the key", c.tryLeave(req), lockstore.ErrGranted)
	c.abandon(req)
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
	most := least + c.turnDelay() + rounding
	early := c.TurnDelay + rounding
	if !c.virtual {
		early += busy / 4 // the reply to the release was late
	}
	for {
		sent := c.elapsed()
		lease, err := c.tryAcquire(req)
		switch {
		case err == nil && c.elapsed()-start < least-early:
			c.fatalf("granted %v after the release; want %d turns, %v", c.elapsed()-start, n, least)
		case err == nil:
			return lease
		case !errors.Is(err, lockstore.ErrRefused):
			c.fatalf("Acquire: %v; want it held or granted", err)
		case sent-start > most+c.slack():
			c.fatalf("refused %v after the release: %v; want it granted after %d turns, %v", sent-start, err, n, least)
		}
		c.sleep(100 * time.Millisecond)
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
