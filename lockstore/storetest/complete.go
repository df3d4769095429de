package storetest

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"

	"github.com/lambdalock/lambdalock/lockstore"
)

var resultCases = []testCase{
	{
		"complete/the result comes back unchanged, and ends with the next grant",
		"A result is bytes of the user. Whoever asks again gets each of them, and knows whose result it is. The next holder's lease is a lease like any other, and the entry is as small as before.",
		func(c *check) {
			for _, result := range [][]byte{largest(), []byte("one two "), []byte("lambdalock1 H owner 1 2 3 released abandoned holder")} {
				req, lease := c.take(long)
				c.complete(lease, result, long)
				c.sameHolder(c.completed(req.Key, result).Holder, req.HolderInfo)
				if !c.virtual {
					continue
				}
				c.expire(long)
				c.next(lease)
				c.held(req.Key)
				if c.Dump != nil && len(c.Dump(c.t, req.Key)) > lockstore.MaxResultBytes/16 {
					c.Errorf("the entry has %d bytes after the next grant; want the result gone", len(c.Dump(c.t, req.Key)))
				}
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
				start, answered, done := c.elapsed(), ttl, make(chan error, 1)
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

// completed wants the key refused to a new owner, with this result.
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
