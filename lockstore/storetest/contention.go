package storetest

import (
	"errors"
	"sync"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

var contentionCases = []testCase{
	{
		"contention/one of many wins a free key F64",
		"Of many that ask at the same moment exactly one is granted and all others hear held.",
		func(c *check) {
			for range 3 {
				c.oneWinner(newKey(), 0)
			}
		},
	},
	{
		"contention/one of many wins a released key F64",
		"The moment after a release is when most ask at once.",
		func(c *check) {
			for range 3 {
				req, lease := c.take(long)
				c.release(lease)
				c.oneWinner(req.Key, lease.Fence)
			}
		},
	},
	{
		"contention/one of many takes an expired lease over F01 F64",
		"A dead holder's key goes to one, also when all see the same expiry.",
		func(c *check) {
			req, lease := c.take(short)
			c.expire(short)
			c.oneWinner(req.Key, lease.Fence)
		},
	},
	{
		"contention/copies of one acquire get one lease F13 F23",
		"An acquire that arrives several times at once is one acquisition.",
		func(c *check) {
			req := newRequest(newKey(), long)
			const n = 8
			var leases [n]lockstore.Lease
			var errs [n]error
			var wg sync.WaitGroup
			for i := range n {
				wg.Go(func() { leases[i], errs[i] = c.tryAcquire(req) })
			}
			wg.Wait()
			for i := range n {
				if errs[i] != nil {
					c.fatalf("one of %d copies of an acquire: %v; want the lease", n, errs[i])
				}
				if leases[i].Fence != leases[0].Fence {
					c.fatalf("copies of one acquire got the fences %d and %d", leases[0].Fence, leases[i].Fence)
				}
			}
			c.release(leases[0])
			c.acquire(newRequest(req.Key, long))
		},
	},
	{
		"contention/one at a time, with a growing fence F57",
		"Many that take turns are never two at once, and each has a larger fence than the one before.",
		func(c *check) {
			const workers, turns, patience = 4, 4, time.Minute
			key := newKey()
			var mu sync.Mutex
			var inside int
			var fences []lockstore.Fence
			work := func() error {
				for range turns {
					req := newRequest(key, long)
					lease, err := c.tryAcquire(req)
					for errors.Is(err, lockstore.ErrHeld) && c.elapsed() < patience {
						c.sleep(time.Millisecond)
						lease, err = c.tryAcquire(req)
					}
					if err != nil {
						return err
					}
					mu.Lock()
					inside++
					if inside > 1 {
						c.Errorf("%d hold the key at once", inside)
					}
					fences = append(fences, lease.Fence)
					mu.Unlock()
					c.sleep(time.Millisecond)
					mu.Lock()
					inside--
					mu.Unlock()
					if err := c.tryRelease(lease); err != nil {
						return err
					}
				}
				return nil
			}
			var errs [workers]error
			var wg sync.WaitGroup
			for i := range workers {
				wg.Go(func() { errs[i] = work() })
			}
			wg.Wait()
			for _, err := range errs {
				if err != nil {
					c.fatalf("a worker: %v", err)
				}
			}
			if len(fences) != workers*turns {
				c.fatalf("%d turns; want %d", len(fences), workers*turns)
			}
			for i := 1; i < len(fences); i++ {
				c.grew(fences[i-1], fences[i])
			}
		},
	},
}

// oneWinner lets many ask for the key at once.
func (c *check) oneWinner(key string, last lockstore.Fence) {
	c.Helper()
	const n = 16
	var leases [n]lockstore.Lease
	var errs [n]error
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		req := newRequest(key, long)
		wg.Go(func() {
			<-start
			leases[i], errs[i] = c.tryAcquire(req)
		})
	}
	close(start)
	wg.Wait()
	var winner lockstore.Lease
	winners := 0
	for i := range n {
		if errs[i] == nil {
			winner = leases[i]
			winners++
			continue
		}
		c.wantErr("Acquire by one of many", errs[i], lockstore.ErrHeld)
	}
	if winners != 1 {
		c.fatalf("%d of %d were granted the key; want 1", winners, n)
	}
	c.grew(last, winner.Fence)
	c.renew(winner, long)
	c.release(winner)
	c.acquire(newRequest(key, long))
}
