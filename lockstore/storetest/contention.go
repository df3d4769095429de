package storetest

import (
	"errors"
	"sync"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

var contentionCases = []testCase{
	{
		"contention/one of many wins F01 F64",
		"Many owners acquire at the same time: a free key, a key that was just released, and a dead holder's key. Exactly one is granted the key, and all others are refused as held.",
		func(c *check) {
			for range 3 {
				c.oneWinner(lockstore.Lease{Key: newKey()})
				_, lease := c.take(long)
				c.release(lease)
				c.oneWinner(lease)
			}
			_, dead := c.take(short)
			c.expire(short)
			c.oneWinner(dead)
		},
	},
	{
		"contention/one at a time, with a growing fence F57",
		"Many owners take turns. Two never hold the key at once, and each has a larger fence than the owner before.",
		func(c *check) {
			const workers, turns = 4, 4
			patience := time.Minute
			if c.virtual {
				patience = 10 * time.Second // a planted bug makes it wait so long, a millisecond at a time
			}
			key := newKey()
			var holder sync.Mutex
			var fences []lockstore.Fence
			turn := func(worker int) error {
				req := newRequest(key, long)
				lease, err := c.tryAcquireBy(worker, req)
				for errors.Is(err, lockstore.ErrRefused) && c.elapsed() < patience {
					c.sleep(time.Millisecond)
					lease, err = c.tryAcquireBy(worker, req)
				}
				if err != nil {
					return err
				}
				if !holder.TryLock() {
					return errors.New("two hold the key at once")
				}
				fences = append(fences, lease.Fence)
				c.sleep(time.Millisecond)
				holder.Unlock()
				return c.tryRelease(lease)
			}
			var errs [workers]error
			atOnce(workers, func(i int) {
				for range turns {
					errs[i] = errors.Join(errs[i], turn(i))
				}
			})
			if err := errors.Join(errs[:]...); err != nil {
				c.fatalf("a worker: %v", err)
			}
			for i := 1; i < len(fences); i++ {
				c.grew(fences[i-1], fences[i])
			}
		},
	},
}

// oneWinner lets many owners acquire the key of the last lease at the same time.
func (c *check) oneWinner(last lockstore.Lease) {
	c.Helper()
	const n = 16
	var leases [n]lockstore.Lease
	var errs [n]error
	atOnce(n, func(i int) { leases[i], errs[i] = c.tryAcquireBy(i, newRequest(last.Key, long)) })
	var winner lockstore.Lease
	winners := 0
	for i := range n {
		if errs[i] == nil {
			winner = leases[i]
			winners++
			continue
		}
		c.wantErr("Acquire by one of many", errs[i], lockstore.ErrRefused)
	}
	if winners != 1 {
		c.fatalf("%d of %d were granted the key; want 1", winners, n)
	}
	c.grew(last.Fence, winner.Fence)
	c.renew(winner, long)
	c.release(winner)
	c.next(winner)
}
