package storetest

import (
	"slices"
	"strings"

	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/lockstore"
)

// manyCases are about numbers of holders, and about entries as large as the bounds allow.
var manyCases = []testCase{
	{
		"many/as many hold a key as it allows, and no more",
		"A resource that takes ten at once breaks under twenty. A store that miscounts, from the ninth holder on or from the thirty-third, lets in more than every request allows, or fewer.",
		func(c *check) {
			const most = lockstore.MaxHolders
			key := newKey()
			var reqs []lockstore.Request
			var leases []lockstore.Lease
			for n := range most {
				if slices.Contains([]int{1, 2, 8, 9, 10, 16, 32, most - 1}, n) { // n hold it
					c.refused(sharing(key, n), lockstore.Held)
					_, lease := c.seated(sharing(key, n+1), n)
					c.refused(sharing(key, most), lockstore.Held)
					c.release(lease)
				}
				req, lease := c.seated(sharing(key, most), n)
				if n > 0 {
					c.grew(leases[n-1].Fence, lease.Fence)
				}
				reqs, leases = append(reqs, req), append(leases, lease)
			}
			c.holders(reqs, leases)
			c.refused(sharing(key, most), lockstore.Held)
			for _, seat := range []int{most - 1, 8} { // who comes gets the seat of who has gone
				if again := c.reacquire(reqs[seat], leases[seat]); again.Seat != seat {
					c.Errorf("Acquire again by the owner with seat %d: seat %d", seat, again.Seat)
				}
				c.renew(leases[seat], long)
				c.release(leases[seat])
				reqs[seat], leases[seat] = c.seated(sharing(key, most), seat)
				c.refused(sharing(key, most), lockstore.Held)
			}
			c.holders(reqs, leases)
			if writer := queued(key); c.virtual {
				c.heldPlace(writer, 1)
				c.expire(long)
				c.acquire(writer)
			}
		},
	},
	{
		"many/all who wait behind a writer hold the key after it",
		"Readers that wait are handed the key together, each with a seat of its own, when the writer before them is done.",
		func(c *check) {
			_, lease := c.take(long)
			var readers []lockstore.Request
			for range c.many(12) {
				req := sharing(lease.Key, lockstore.MaxHolders)
				req.JoinQueue = true
				if c.placed(req, len(readers)+1) == 0 {
					break // the queue is full
				}
				readers = append(readers, req)
			}
			c.waiting(lease.Key, len(readers))
			c.release(lease)
			if n := len(c.inspect(lease.Key).Holders); c.virtual && n != len(readers) {
				c.Errorf("a writer that releases hands the key over to %d of %d readers; want to all", n, len(readers))
			}
			leases := make([]lockstore.Lease, len(readers))
			for i, req := range readers {
				_, leases[i] = c.seated(req, i)
			}
			c.holders(readers, leases)
		},
	},
	{
		"many/each of a long queue has its turn, in the order of arrival",
		"Who has waited longest is next, however many wait behind it.",
		func(c *check) {
			_, last := c.take(long)
			var waiters []lockstore.Request
			for range c.many(12) {
				req := queued(last.Key)
				if c.placed(req, len(waiters)+1) == 0 {
					break
				}
				waiters = append(waiters, req)
			}
			for _, req := range waiters {
				c.release(last)
				last = c.served(last, req)
			}
		},
	},
	{
		"many/a lease is renewed and a key is granted any number of times",
		"A counter of one byte lasts for minutes of renewals.",
		func(c *check) {
			req, lease := c.take(long)
			times := 30
			if c.many(1) > 1 {
				times = 300
			}
			for range times {
				c.renew(lease, long)
			}
			c.keeps(req, lease)
			for range times {
				_, lease = c.next(lease)
				c.release(lease)
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
			var reqs, waiters []lockstore.Request
			var leases []lockstore.Lease
			n := c.many(9)
			for i := range n {
				req, lease := c.seated(biggest(i), i)
				reqs, leases = append(reqs, req), append(leases, lease)
			}
			writer := newRequest(key, long)
			writer.JoinQueue = true
			c.heldPlace(writer, 1)
			for i := range n {
				if c.placed(biggest(n+i), i+2) == 0 {
					break
				}
				waiters = append(waiters, biggest(n+i))
			}
			c.holders(reqs, leases)
			last := leases[n-1]
			c.reacquire(reqs[n-1], last)
			c.renew(last, long)
			c.release(last)
			c.leave(writer)
			c.keeps(waiters[0], c.acquire(waiters[0]))
		},
	},
}

// many is as many as a key may have holders; fewer under the race detector, which needs long for large entries, and on
// the wall clock.
func (c *check) many(fewer int) int {
	if c.virtual && !verifyrecord.WithRaceDetector {
		return lockstore.MaxHolders
	}
	return min(fewer, lockstore.MaxHolders)
}

// sharing is a request for a key that as many as most may hold.
func sharing(key string, most int) lockstore.Request {
	req := newRequest(key, long)
	req.MaxHolders = most
	return req
}

// placed is refused with this place, or without one because the queue is full: 0.
func (c *check) placed(req lockstore.Request, place int) int {
	c.Helper()
	got := c.refused(req, lockstore.Held).QueuePosition
	if got != place && (got != 0 || place == 1) { // one place is never too many
		c.fatalf("refused with place %d; want place %d", got, place)
	}
	return got
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
	status := c.inspect(reqs[0].Key)
	if len(status.Holders) != len(leases) || status.MaxHolders() != reqs[0].MaxHolders {
		c.fatalf("Inspect names %d holders of %d; want %d of %d", len(status.Holders), status.MaxHolders(), len(leases), reqs[0].MaxHolders)
	}
	for _, h := range status.Holders {
		if h.Seat >= len(leases) || h.Fence != leases[h.Seat].Fence || h.State != lockstore.Held || h.MaxHolders != reqs[0].MaxHolders {
			c.fatalf("Inspect names the holder %+v; want each seat once, with its fence", h)
		}
		c.sameHolder(h.HolderInfo, lockstore.DecodeHolderInfo(reqs[h.Seat].HolderInfo.Encode()))
	}
}
