package storetest

import (
	"github.com/lambdalock/lambdalock/lockstore"
)

var contentionCases = []testCase{
	{
		"contention/one of many wins F01 F64",
		"Many owners acquire at the same time: a free key, a key that was just released, and a dead holder's key. Exactly one is granted the key, and all others are refused as held.",
		func(c *check) {
			for range 3 {
				_, lease := c.next(c.oneWinner(lockstore.Lease{Key: newKey()}))
				c.release(lease)
				c.oneWinner(lease)
			}
			_, dead := c.take(short)
			c.expire(short)
			c.oneWinner(dead)
		},
	},
}

// oneWinner lets many owners acquire the key of the last lease at the same time. The winner releases it.
func (c *check) oneWinner(last lockstore.Lease) (winner lockstore.Lease) {
	c.Helper()
	const n = 16
	var leases [n]lockstore.Lease
	var errs [n]error
	atOnce(n, func(i int) { leases[i], errs[i] = c.tryAcquireBy(i, newRequest(last.Key, long)) })
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
	return winner
}
