package storetest

import (
	"strings"

	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/lockstore"
)

// manyCases are about numbers of holders and of requests, and about entries as large as the bounds allow.
var manyCases = []testCase{
	{
		"many/as many hold a key as it allows, and no more",
		"A resource that takes ten at once breaks under twenty. A store that miscounts, from the ninth holder on or from the thirty-third, lets in more than every request allows, or fewer. Readers that wait are handed the key together, each with a seat of its own, when the writer before them is done.",
		func(c *check) {
			_, lease := c.take(long)
			most := c.many(12)
			var reqs []lockstore.Request
			for n := range most {
				reqs = append(reqs, sharing(lease.Key, most))
				reqs[n].JoinQueue = true
				c.heldPlace(reqs[n], n+1)
			}
			c.release(lease)
			leases := make([]lockstore.Lease, most)
			for n, req := range reqs {
				_, leases[n] = c.seated(req, n)
				if c.virtual && n == 0 && len(c.inspect(req.Key).Holders) != most {
					c.Errorf("a writer that releases hands the key over to %d of %d readers; want to all", len(c.inspect(req.Key).Holders), most)
				}
			}
			for _, seat := range []int{most - 1, 8} { // who comes gets the seat of who has gone
				c.refused(sharing(lease.Key, most), lockstore.Held)
				c.renew(leases[seat], long)
				c.release(leases[seat])
				reqs[seat], leases[seat] = c.seated(sharing(lease.Key, most), seat)
			}
			c.holders(reqs, leases)
		},
	},
	{
		"many/a lease is renewed and a key is granted any number of times",
		"A counter of one byte lasts for minutes of renewals.",
		func(c *check) {
			_, lease := c.take(long)
			times := 10 * c.many(3)
			for range times {
				c.renew(lease, long)
			}
			for range times {
				c.release(lease)
				_, lease = c.next(lease)
			}
		},
	},
	{
		"many/an entry as large as the bounds allow is one like any other",
		"The longest key, owners and texts, as many holders as a key may have, and a full queue may come together. Owners that differ in one byte, wherever it is, are different owners.",
		func(c *check) {
			key := newKey()
			key += strings.Repeat("k", lockstore.MaxKeyBytes-len(key))
			at := []int{0, lockstore.MaxOwnerBytes / 2, lockstore.MaxOwnerBytes - 1} // the byte in which an owner differs
			biggest := func(n int) lockstore.Request {
				req := sharing(key, lockstore.MaxHolders)
				owner := []byte(strings.Repeat("o", lockstore.MaxOwnerBytes))
				owner[at[n%3]] = byte('!' + n/3)
				req.Owner = lockstore.Owner(owner)
				req.HolderInfo.Name, req.HolderInfo.Caller = strings.Repeat("n", 2000), strings.Repeat("c", 2000)
				req.JoinQueue = true
				return req
			}
			n := c.many(9)
			reqs, leases := make([]lockstore.Request, n), make([]lockstore.Lease, n)
			for i := range n {
				reqs[i], leases[i] = c.seated(biggest(i), i)
			}
			writer := c.join(key, 1)
			for i := range n {
				if c.placed(biggest(n+i), i+2) == 0 {
					break
				}
			}
			c.holders(reqs, leases)
			c.reacquire(reqs[n-1], leases[n-1])
			c.renew(leases[n-1], long)
			c.release(leases[n-1])
			c.leave(writer)
			c.keeps(biggest(n), c.acquire(biggest(n)))
		},
	},
}

// many is as many as a key may have holders; fewer under the race detector, which needs long for large entries, and on
// the wall clock.
func (c *check) many(fewer int) int {
	if c.virtual && !verifyrecord.WithRaceDetector {
		return lockstore.MaxHolders
	}
	return fewer
}

// sharing is a request for a key that as many as most may hold.
func sharing(key string, most int) lockstore.Request {
	req := newRequest(key, long)
	req.MaxHolders = most
	return req
}

// seated wants a lease with this seat.
func (c *check) seated(req lockstore.Request, seat int) (lockstore.Request, lockstore.Lease) {
	c.Helper()
	lease := c.acquire(req)
	if lease.Seat != seat {
		c.fatalf("Acquire for %d holders: seat %d; want the lowest that nobody has, %d", req.MaxHolders, lease.Seat, seat)
	}
	return req, lease
}

// holders wants Inspect to name these holders, whose seats are in order.
func (c *check) holders(reqs []lockstore.Request, leases []lockstore.Lease) {
	c.Helper()
	status, most := c.inspect(reqs[0].Key), reqs[0].MaxHolders
	if len(status.Holders) != len(leases) || status.MaxHolders() != most {
		c.fatalf("Inspect names %d holders of %d; want %d of %d", len(status.Holders), status.MaxHolders(), len(leases), most)
	}
	for _, h := range status.Holders {
		if h.Seat >= len(leases) || h.Fence != leases[h.Seat].Fence || h.State != lockstore.Held || h.MaxHolders != most {
			c.fatalf("Inspect names the holder %+v; want each seat once, with its fence", h)
		}
		c.sameHolder(h.HolderInfo, lockstore.DecodeHolderInfo(reqs[h.Seat].HolderInfo.Encode()))
	}
}
