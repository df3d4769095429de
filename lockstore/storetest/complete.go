package storetest

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// Those of a Complete without a result are the cooldownCases.
var completeCases = []testCase{
	{
		"complete/the result comes back unchanged",
		"A result is bytes of the user. Whoever asks again gets each of them, and knows whose result it is.",
		func(c *check) {
			all := make([]byte, 256)
			for i := range all {
				all[i] = byte(i)
			}
			for _, result := range [][]byte{
				nil, {}, []byte("result"), []byte("a result\n"), []byte("\n"), []byte("first\nsecond "), []byte("one two "), {0}, []byte("a\x00b"), all, largest(),
				[]byte("lambdalock1 H owner 1 2 3 released abandoned holder"), []byte(`{"status":201,"body":"é"}`),
			} {
				req, lease := c.take(long)
				c.complete(lease, result, long)
				for range 2 {
					c.sameHolder(c.completed(req.Key, result).Holder, req.HolderInfo)
				}
			}
		},
	},
	{
		"complete/for its time, and for as long as a month",
		"Nobody gets the key before the time is over: an event that comes again on the last day still has one effect. Then the key is free.",
		func(c *check) {
			_, lease := c.take(long)
			start := c.elapsed()
			c.complete(lease, []byte("result"), lockstore.MaxResultTime)
			c.between("Remaining", c.completed(lease.Key, []byte("result")).Remaining, lockstore.MaxResultTime-(c.elapsed()-start), lockstore.MaxResultTime)
			if c.virtual {
				c.sleepUntil(start + lockstore.MaxResultTime - tick)
				c.completed(lease.Key, []byte("result"))
				c.expire(tick)
				c.next(lease)
			}
		},
	},
	{
		"complete/a MarkStarted that arrives after the end of its lease leaves no doubt",
		"No work begins then. A key in doubt would wait for an operator, who finds nothing to find out.",
		func(c *check) {
			c.need("Delay", c.Delay != nil)
			for _, waits := range []bool{true, false} { // the caller, for the answer
				ttl := c.toJoin()
				_, lease := c.take(ttl)
				first := c.join(lease.Key, 1)
				deliver := c.Delay(c.t)
				limit := callTimeout
				if !waits {
					limit = ttl / 4
				}
				ctx, cancel := context.WithTimeout(c.t.Context(), limit)
				start, answered := c.elapsed(), time.Duration(0)
				done := make(chan error, 1)
				go func() {
					err := c.Store.MarkStarted(ctx, lease)
					answered = c.elapsed() - start
					done <- err
				}()
				c.expire(ttl)
				deliver()
				err := <-done
				cancel()
				switch {
				case errors.Is(err, lockstore.ErrLost):
				case err == nil && answered < ttl: // the client has sent it twice, and the second copy came in time
					c.release(lease)
				default: // the client has given up: the caller asks again, and releases
					c.wantUnknown("MarkStarted that arrives too late", err)
					c.wantErr("MarkStarted after the end of its lease", c.tryMarkStarted(lease), lockstore.ErrLost)
					c.release(lease)
				}
				if s := c.inspect(lease.Key); s.State.Taken() || s.Started {
					c.fatalf("the key is %v, started %t; want nobody to have it", s.State, s.Started)
				}
				c.release(c.served(lease, first))
			}
		},
	},
	{
		"complete/nothing is stored after the next grant",
		"The next holder's lease is a lease like any other, and the entry is as small as before.",
		func(c *check) {
			req, lease := c.take(long)
			c.complete(lease, largest(), short)
			c.expire(short)
			req.Owner, req.TTL = lockstore.NewOwner(), short
			next := c.acquire(req)
			c.grew(lease.Fence, next.Fence)
			c.held(req.Key)
			if c.Dump != nil {
				if n := len(c.Dump(c.t, req.Key)); n > lockstore.MaxResultBytes/16 {
					c.Errorf("the entry has %d bytes after the next grant; want the result gone", n)
				}
			}
			c.expire(short)
			c.next(next)
		},
	},
}

// largest is a result of the largest size. It has no pattern that a store could use.
func largest() []byte {
	data := make([]byte, lockstore.MaxResultBytes)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range data {
		data[i] = byte(random.Uint32())
	}
	return data
}

func (c *check) tryComplete(lease lockstore.Lease, result []byte, d time.Duration) error {
	return c.call(method{"Complete", func(ctx context.Context) error { return c.Store.Complete(ctx, lease, result, d) }})
}

func (c *check) complete(lease lockstore.Lease, result []byte, d time.Duration) {
	c.Helper()
	if err := c.tryComplete(lease, result, d); err != nil {
		c.fatalf("Complete of %q with fence %d: %v; want nil", lease.Key, lease.Fence, err)
	}
}

// completed wants the key refused to a new owner, with this result. A Complete without a result
// is a cooldown.
func (c *check) completed(key string, result []byte) *lockstore.Refused {
	c.Helper()
	_, err := c.tryAcquire(newRequest(key, long))
	return c.isCompleted(err, result)
}

func (c *check) isCompleted(err error, result []byte) *lockstore.Refused {
	c.Helper()
	state := lockstore.Completed
	if len(result) == 0 {
		state = lockstore.Cooldown
	}
	e := c.isRefused(err, state)
	if !bytes.Equal(e.Result, result) {
		c.fatalf("the stored result has %d bytes: %.60q; want %d bytes: %.60q", len(e.Result), []byte(e.Result), len(result), result)
	}
	return e
}
