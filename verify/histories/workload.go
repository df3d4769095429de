package histories

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/verify/checker"
)

const (
	clients = 8
	// The checker decides about 500 operations of 8 clients on one key in
	// milliseconds, and about twice as many often not at all.
	busyKeys  = 5
	maxPerKey = 470

	ttl     = lockstore.MinTTL
	longTTL = ttl + ttl/2

	callTime = 2 * time.Second // as the guard bounds each call
)

// mix says how often a client that has a lock does something special with it.
type mix struct{ crash, freeze float64 }

// run is one history while it is made.
type run struct {
	*checker.History
	name string
	seed uint64
	mix  mix
	keys []string      // the last key is quiet: a late request finds no other client there
	late time.Duration // as in checker.Limits

	crashes, freezes atomic.Int64
	injected         atomic.Int64 // faults that are about a single key

	mu      sync.Mutex
	slow    []interval               // faults that slow calls down
	asked   map[string]int           // operations on each key
	highest map[string]int64         // what the resource has seen
	freed   map[string]chan struct{} // closed at the next release of the key
}

type interval struct{ from, to time.Duration }

func newRun(name string, seed uint64, m mix, late time.Duration) *run {
	r := &run{
		History: checker.New(), name: name, seed: seed, mix: m, late: late,
		asked: map[string]int{}, highest: map[string]int64{}, freed: map[string]chan struct{}{},
	}
	for i := range busyKeys + 1 {
		key := fmt.Sprintf("%s/%d/%d", name, seed, i)
		r.keys = append(r.keys, key)
		r.freed[key] = make(chan struct{})
	}
	return r
}

// client is one process: it has a store of its own.
type client struct {
	*run
	id     int
	store  lockstore.Store
	random *rand.Rand
	done   context.Context // ends with the history
}

// work acquires and releases locks until the history ends.
func (c *client) work() {
	for c.done.Err() == nil {
		c.sleep(c.upTo(80 * time.Millisecond))
		key := c.keys[c.random.IntN(busyKeys)]
		if c.chance(0.3) {
			key = c.keys[0] // where many wait at the same time
		}
		quiet := c.chance(0.04)
		if quiet {
			key = c.keys[busyKeys]
		}
		if c.full(key) {
			continue
		}
		if c.chance(0.04) {
			c.useStrangerLease(key)
			continue
		}
		lease, trust, ok := c.lock(key)
		if ok {
			c.hold(lease, trust, quiet)
		}
	}
}

// lock asks as the guard does: it repeats a request that may have been applied, and in
// the end abandons it.
func (c *client) lock(key string) (lease lockstore.Lease, trust time.Duration, ok bool) {
	for range 3 { // owners
		freed := c.nextRelease(key)
		req := lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: ttl, Holder: lockstore.Holder{Name: c.name}}
		ambiguous := false
		var outcome checker.Outcome
		for range 4 {
			lease, trust, outcome = c.acquire(req)
			ambiguous = ambiguous || outcome == checker.Unknown
			if outcome != checker.Unknown && (outcome != checker.Refused || !ambiguous) {
				break
			}
			c.sleep(c.upTo(40 * time.Millisecond))
		}
		if outcome == checker.OK {
			return lease, trust, true
		}
		if ambiguous {
			c.releaseOrGiveUp(lockstore.Lease{Key: key, Owner: req.Owner})
		}
		if outcome != checker.Busy || c.chance(0.3) {
			return lease, 0, false
		}
		// All clients that wait here ask at the same time.
		select {
		case <-freed:
		case <-time.After(200 * time.Millisecond):
			return lease, 0, false
		}
	}
	return lease, 0, false
}

// hold does what holders do. trust is when it ends on the history's clock.
func (c *client) hold(lease lockstore.Lease, trust time.Duration, quiet bool) {
	if c.chance(0.5) {
		c.write(lease)
	}
	switch p := c.random.Float64(); {
	case quiet, p < c.mix.freeze:
		c.freeze(lease, trust)
		return
	case p < c.mix.freeze+c.mix.crash:
		c.crashes.Add(1)
		return
	case p < c.mix.freeze+c.mix.crash+0.1:
		c.holdLong(lease, trust)
	default:
		c.sleep(c.upTo(40 * time.Millisecond))
	}
	if c.chance(0.05) { // a late duplicate of its own request
		c.acquire(lockstore.Request{Key: lease.Key, Owner: lease.Owner, TTL: ttl})
	}
	if c.chance(0.04) { // a lease that was never granted
		other := lease
		other.Fence--
		c.release(other)
		c.renew(other, ttl)
	}
	if c.chance(0.5) && c.Now() < trust {
		c.write(lease)
	}
	c.releaseOrGiveUp(lease)
	if c.chance(0.1) {
		c.release(lease)
	}
}

// holdLong holds for longer than a TTL, with renewals. It stops when the trust ends.
func (c *client) holdLong(lease lockstore.Lease, trust time.Duration) {
	until := c.Now() + c.upTo(3*ttl/2)
	for c.Now() < min(until, trust) && c.done.Err() == nil {
		c.sleep((trust - c.Now()) / 3)
		length := ttl
		if c.chance(0.3) {
			length = longTTL
		}
		end, outcome := c.renew(lease, length)
		switch outcome {
		case checker.OK:
			trust = max(trust, end)
		case checker.Lost:
			return
		}
	}
}

// freeze stands still until the trust has ended, and often until another client may
// take the key over. Then it goes on as if nothing had happened.
func (c *client) freeze(lease lockstore.Lease, trust time.Duration) {
	c.freezes.Add(1)
	c.sleep(trust - c.Now() + c.upTo(ttl/2+c.late))
	c.renew(lease, ttl)
	c.write(lease)
	c.releaseOrGiveUp(lease)
}

// useStrangerLease does what no client may do: it renews or releases the lease of
// another owner.
func (c *client) useStrangerLease(key string) {
	c.mu.Lock()
	fence := c.highest[key]
	c.mu.Unlock()
	if fence == 0 {
		return
	}
	stranger := lockstore.Lease{Key: key, Owner: lockstore.NewOwner(), Fence: lockstore.Fence(fence)}
	if c.chance(0.5) {
		c.renew(stranger, ttl)
	}
	c.release(stranger)
}

// releaseOrGiveUp releases or abandons until there is an answer, at most eight times.
func (c *client) releaseOrGiveUp(lease lockstore.Lease) {
	for range 8 {
		switch c.release(lease) {
		case checker.Unknown, checker.Refused:
			c.sleep(c.upTo(150 * time.Millisecond))
		default:
			return
		}
	}
}

func (c *client) acquire(req lockstore.Request) (lease lockstore.Lease, trust time.Duration, outcome checker.Outcome) {
	op := c.do(checker.Op{Kind: checker.Acquire, Key: req.Key, Owner: string(req.Owner), TTL: req.TTL}, func(ctx context.Context, op *checker.Op) (err error) {
		lease, err = c.store.Acquire(ctx, req)
		op.Fence, op.Trust = int64(lease.Fence), lease.TTL
		return err
	})
	return lease, op.Call + op.Trust, op.Outcome
}

func (c *client) renew(lease lockstore.Lease, length time.Duration) (trust time.Duration, outcome checker.Outcome) {
	op := c.do(checker.Op{Kind: checker.Renew, Key: lease.Key, Owner: string(lease.Owner), TTL: length, Fence: int64(lease.Fence)}, func(ctx context.Context, op *checker.Op) (err error) {
		op.Trust, err = c.store.Renew(ctx, lease, length)
		return err
	})
	return op.Call + op.Trust, op.Outcome
}

func (c *client) release(lease lockstore.Lease) checker.Outcome {
	kind := checker.Release
	if lease.Fence == 0 {
		kind = checker.Abandon
	}
	op := c.do(checker.Op{Kind: kind, Key: lease.Key, Owner: string(lease.Owner), Fence: int64(lease.Fence)}, func(ctx context.Context, _ *checker.Op) error {
		return c.store.Release(ctx, lease)
	})
	if op.Outcome == checker.OK {
		c.mu.Lock()
		close(c.freed[lease.Key])
		c.freed[lease.Key] = make(chan struct{})
		c.mu.Unlock()
	}
	return op.Outcome
}

// do sends a request and records it.
func (c *client) do(op checker.Op, send func(context.Context, *checker.Op) error) checker.Op {
	c.mu.Lock()
	c.asked[op.Key]++
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	defer cancel()
	op.Client, op.Call = c.id, c.Now()
	err := send(ctx, &op)
	op.Return, op.Outcome = c.Now(), checker.OutcomeOf(err)
	if err != nil {
		op.Cause = err.Error()
	}
	c.Add(op)
	return op
}

// write is a write to the resource, which compares fences.
func (c *client) write(lease lockstore.Lease) {
	op := checker.Op{Client: c.id, Kind: checker.Write, Key: lease.Key, Owner: string(lease.Owner), Fence: int64(lease.Fence), Call: c.Now(), Outcome: checker.Lost}
	c.mu.Lock()
	if op.Fence >= c.highest[lease.Key] {
		c.highest[lease.Key], op.Outcome = op.Fence, checker.OK
	}
	c.mu.Unlock()
	op.Return = c.Now()
	c.Add(op)
}

// nextRelease is closed at the next release of the key.
func (c *client) nextRelease(key string) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.freed[key]
}

func (c *client) full(key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked[key] >= maxPerKey
}

func (c *client) chance(p float64) bool { return c.random.Float64() < p }

func (c *client) upTo(d time.Duration) time.Duration { return time.Duration(c.random.Int64N(int64(d))) }

func (c *client) sleep(d time.Duration) { sleep(c.done, d) }

// sleep returns early, and false, when ctx ends.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(max(0, d))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// lockAgain waits until every key is free and locks it once more, with a larger
// fence. It returns the keys that do not become free in time.
func (r *run) lockAgain(store lockstore.Store, bound time.Duration) (stuck []string) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	for i, key := range r.keys {
		wg.Go(func() {
			c := &client{run: r, id: clients, store: store, random: rand.New(rand.NewPCG(r.seed, uint64(i))), done: context.Background()}
			end := c.Now() + bound
			for {
				last := c.Now() > end
				req := lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: ttl}
				lease, _, outcome := c.acquire(req)
				if outcome == checker.OK {
					c.releaseOrGiveUp(lease)
					return
				}
				if outcome == checker.Unknown {
					c.releaseOrGiveUp(lockstore.Lease{Key: key, Owner: req.Owner})
				}
				if last {
					mu.Lock()
					stuck = append(stuck, fmt.Sprintf("%s is not free %v after the end: %s", key, bound, outcome))
					mu.Unlock()
					return
				}
				c.sleep(250 * time.Millisecond)
			}
		})
	}
	wg.Wait()
	return stuck
}
