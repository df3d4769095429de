package histories

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lambdalock/lambdalock/internal/pause"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
	"github.com/lambdalock/lambdalock/verify/checker"
)

const (
	clients  = 8
	busyKeys = 5

	ttl     = lockstore.MinTTL
	longTTL = ttl + ttl/2

	callTime = 2 * time.Second // as the guard bounds each call

	resultTime = lockstore.MinTTL // of each result: keys have to open again during the history
)

// mix says how often a client that has a lock does something special with it.
type mix struct{ crash, freeze, complete, start, revoke float64 }

// run is one history while it is made.
type run struct {
	*checker.History
	name string
	seed uint64
	mix  mix
	keys []string         // the last key is quiet: a late request finds no other client there
	late time.Duration    // as in checker.Limits
	most map[string][]int // of a key that several may hold: what its clients ask for as MaxHolders
	calm bool             // no fault of this history hits a request

	crashes, freezes atomic.Int64
	injected         atomic.Int64 // faults that are about a single key

	places, served, died, left atomic.Int64 // in the queues

	mu      sync.Mutex
	leases  map[string][]lockstore.Lease // of each key, that a client was told to have
	kept    []string                     // leases that no release ended, with no fault in its way
	results int                          // so far: each call that stores a result has another
	atOnce  map[string]lockstore.Lease   // the results that were stored in a transaction, with an effect
	slow    []interval                   // faults that slow calls down
	stood   []interval                   // when the machine gave this process no time
	highest map[resource]int64           // what each resource has seen
	freed   map[string]chan struct{}     // closed at the next release of the key
}

// resource is what one seat of a key protects.
type resource struct {
	key  string
	seat int
}

type interval struct{ from, to time.Duration }

func newRun(name string, seed uint64, m mix, late time.Duration) *run {
	r := &run{
		History: checker.New(), name: name, seed: seed, mix: m, late: late,
		leases:  map[string][]lockstore.Lease{},
		atOnce:  map[string]lockstore.Lease{},
		highest: map[resource]int64{}, freed: map[string]chan struct{}{},
	}
	for i := range busyKeys + 1 {
		key := fmt.Sprintf("%s/%d/%d", name, seed, i)
		r.keys = append(r.keys, key)
		r.freed[key] = make(chan struct{})
	}
	return r
}

// watch notes when this process got no time from the machine. Then an answer is late, too.
func (r *run) watch(done context.Context) {
	const most = 200 * time.Millisecond
	for before := r.Now(); sleep(done, most/10); {
		now := r.Now()
		if now-before > most {
			r.mu.Lock()
			r.stood = append(r.stood, interval{before, now})
			r.mu.Unlock()
		}
		before = now
	}
}

// played are the operations of a history that is over.
func (r *run) played() []checker.Op {
	ops := r.Ops()
	for i := range ops {
		for _, s := range r.stood {
			ops[i].Stood += max(0, min(s.to, ops[i].Return)-max(s.from, ops[i].Call))
		}
	}
	return ops
}

// client is one run of a function. It has a store of its own, or shares one with the other
// runs of its process.
type client struct {
	*run
	id     int
	store  opened
	random *rand.Rand
	done   context.Context // ends with the history
	place  int             // in the queue, as the last acquire was told

	completed string        // the last key with a result, as far as this client knows
	until     time.Duration // for most of its time it asks for other keys
}

// work acquires and releases locks until the history ends.
func (c *client) work() {
	for c.done.Err() == nil {
		c.sleep(c.upTo(80 * time.Millisecond))
		key := c.keys[c.random.IntN(busyKeys)]
		if c.most != nil {
			key = c.keys[c.random.IntN(len(c.most)-1)]
		} else if c.chance(0.3) {
			key = c.keys[0] // where many wait at the same time
		}
		quiet := c.chance(0.04)
		if quiet {
			key = c.keys[busyKeys]
		}
		if key == c.completed && c.Now() < c.until && c.chance(0.8) {
			continue
		}
		if c.chance(0.06) {
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
		req := lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: ttl, HolderInfo: lockstore.HolderInfo{Name: c.name}, JoinQueue: c.queues(key), MaxHolders: c.asksFor(key)}
		ambiguous := false
		var outcome checker.Outcome
		for range 4 {
			lease, trust, outcome = c.acquire(req)
			ambiguous = ambiguous || outcome == checker.Unknown
			if outcome != checker.Unknown && (outcome != checker.NotApplied || !ambiguous) {
				break
			}
			c.sleep(c.upTo(40 * time.Millisecond))
		}
		if c.place > 0 {
			var died, asks bool
			lease, trust, outcome, died, asks = c.wait(req)
			if died {
				return lease, 0, false
			}
			ambiguous = ambiguous || asks
		}
		if outcome == checker.OK {
			return lease, trust, true
		}
		if ambiguous {
			c.releaseOrGiveUp(lockstore.Lease{Key: key, Owner: req.Owner})
		}
		switch {
		case outcome == checker.InDoubt && c.chance(0.5):
			c.resolve(key, c.chance(0.5))
		case outcome == checker.Busy && c.chance(c.mix.revoke):
			c.revoke(key)
		}
		if outcome != checker.Busy && outcome != checker.Reserved || c.chance(0.3) {
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

// queues says whether clients wait in the queue of a key. They do not wait for every key:
// dead waiters keep others from a key, and a history needs many grants.
func (c *client) queues(key string) bool { return key == c.keys[1] || key == c.keys[3] }

// severalHolders makes each key one that several may hold: 2, numbers that a deployment changes, or one writer or many
// readers.
func (r *run) severalHolders() {
	readWrite := []int{1, lockstore.MaxHolders, lockstore.MaxHolders}
	r.most = map[string][]int{r.keys[0]: {2}, r.keys[1]: {3, 4, 10}, r.keys[2]: readWrite, r.keys[3]: readWrite, r.keys[busyKeys]: {2}}
}

// asksFor is the MaxHolders of the next acquire of a key.
func (c *client) asksFor(key string) int {
	if c.most == nil {
		return 1
	}
	return c.most[key][c.random.IntN(len(c.most[key]))]
}

// wait waits for the turn of an owner that has a place. In the end it leaves, or dies
// without leaving (F02). ambiguous says that the store may still grant a request.
func (c *client) wait(req lockstore.Request) (lease lockstore.Lease, trust time.Duration, outcome checker.Outcome, died, ambiguous bool) {
	c.places.Add(1)
	outcome = checker.Busy
	for end := c.Now() + c.upTo(2*ttl); c.place > 0 && c.Now() < end && c.done.Err() == nil; {
		ctx, cancel := context.WithTimeout(c.done, 300*time.Millisecond)
		_ = storetest.AwaitTurn(ctx, c.store.Store, req.Key, req.Owner) // whatever it says, the next acquire decides
		cancel()
		if lease, trust, outcome = c.acquire(req); outcome == checker.OK {
			c.served.Add(1)
			return lease, trust, outcome, false, ambiguous
		}
		if outcome == checker.Unknown || outcome == checker.NotApplied {
			ambiguous = true
			c.place = 1 // it may have one still
			c.sleep(c.upTo(40 * time.Millisecond))
		}
	}
	switch {
	case c.place == 0 || ambiguous:
	case c.chance(0.05):
		c.died.Add(1)
		return lease, 0, outcome, true, ambiguous
	default:
		ctx, cancel := context.WithTimeout(context.Background(), callTime)
		defer cancel()
		ambiguous = c.store.Leave(ctx, req.Key, req.Owner) != nil
		c.left.Add(1)
	}
	return lease, 0, outcome, false, ambiguous
}

// hold does what holders do. trust is when it ends on the history's clock.
func (c *client) hold(lease lockstore.Lease, trust time.Duration, quiet bool) {
	if c.chance(0.5) {
		c.write(lease)
	}
	begun := c.chance(c.mix.start)
	if begun && c.markStarted(lease) != checker.OK {
		c.releaseOrGiveUp(lease) // nothing ran
		return
	}
	worked := c.effect(lease, trust)
	switch p := c.random.Float64(); {
	case quiet, p < c.mix.freeze:
		c.freeze(lease, trust)
		c.end(lease, begun, worked)
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
		c.acquire(lockstore.Request{Key: lease.Key, Owner: lease.Owner, TTL: ttl, MaxHolders: c.asksFor(lease.Key)})
	}
	if c.chance(0.06) { // a lease that was never granted
		other := lease
		other.Fence--
		c.release(other)
		c.renew(other, ttl)
		if c.most == nil {
			c.complete(other)
		}
	}
	if c.chance(0.5) && c.Now() < trust {
		c.write(lease)
	}
	c.end(lease, begun, worked)
	if c.chance(0.1) && !begun {
		c.release(lease)
	}
}

// end ends a lease: by a release, or with the result of work that had its effect. Work
// that has begun may fail, and then the key stays shut.
func (c *client) end(lease lockstore.Lease, begun, worked bool) {
	switch p := c.random.Float64(); {
	case worked && (p < c.mix.complete || begun && p < 0.3):
		c.completeOrGiveUp(lease)
		if c.chance(0.2) { // late duplicates of its own requests
			c.complete(lease)
			c.acquire(lockstore.Request{Key: lease.Key, Owner: lease.Owner, TTL: ttl})
		}
	case begun && p < 0.5:
	default:
		c.releaseOrGiveUp(lease)
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
}

// useStrangerLease does what no client may do: it renews, completes or releases the lease of
// another owner.
func (c *client) useStrangerLease(key string) {
	stranger, ok := c.leaseOf(key, 0)
	if !ok {
		return
	}
	stranger.Owner = lockstore.NewOwner()
	if c.chance(0.5) {
		c.renew(stranger, ttl)
	}
	if c.chance(0.5) && c.most == nil {
		c.complete(stranger)
	}
	c.release(stranger)
}

// releaseOrGiveUp releases or abandons until there is an answer, at most eight times. A store that says eight
// times that others were first keeps the lease of a finished run.
func (c *client) releaseOrGiveUp(lease lockstore.Lease) {
	const most = 8
	contended := 0
	for range most {
		switch outcome, others := c.release(lease); outcome {
		case checker.Unknown, checker.NotApplied:
			if others {
				contended++
			}
			c.sleep(c.upTo(150 * time.Millisecond))
		default:
			return
		}
	}
	if (c.calm || contended == most) && c.done.Err() == nil { // afterwards it does not pause between its tries
		c.mu.Lock()
		c.kept = append(c.kept, fmt.Sprintf("client %d could not release fence %d of %s in %d tries, of which others were first in %d", c.id, lease.Fence, lease.Key, most, contended))
		c.mu.Unlock()
	}
}

func (c *client) acquire(req lockstore.Request) (lease lockstore.Lease, trust time.Duration, outcome checker.Outcome) {
	op := c.do(checker.Op{Kind: checker.Acquire, Key: req.Key, Owner: string(req.Owner), TTL: req.TTL, Most: req.MaxHolders, Waits: req.JoinQueue}, func(ctx context.Context, op *checker.Op) (err error) {
		lease, err = c.store.Acquire(ctx, req)
		op.Fence, op.Seat, op.Trust = int64(lease.Fence), lease.Seat, lease.TTL
		c.place = 0
		if refused, ok := errors.AsType[*lockstore.Refused](err); ok {
			c.place = refused.QueuePosition
			if refused.State.Done() {
				op.Data = string(refused.Result)
				c.completed, c.until = req.Key, c.Now()+resultTime*3/4
			}
		}
		if err == nil {
			c.mu.Lock()
			c.leases[req.Key] = append(c.leases[req.Key], lease)
			c.mu.Unlock()
		}
		return err
	})
	return lease, op.Call + op.Trust, op.Outcome
}

func (c *client) renew(lease lockstore.Lease, length time.Duration) (trust time.Duration, outcome checker.Outcome) {
	op := c.do(checker.Op{Kind: checker.Renew, Key: lease.Key, Owner: string(lease.Owner), TTL: length, Fence: int64(lease.Fence)}, func(ctx context.Context, op *checker.Op) (err error) {
		renewed, err := c.store.Renew(ctx, lease, length)
		op.Trust = renewed.TTL
		return err
	})
	return op.Call + op.Trust, op.Outcome
}

func (c *client) release(lease lockstore.Lease) (outcome checker.Outcome, contended bool) {
	kind := checker.Release
	if lease.Fence == 0 {
		kind = checker.Abandon
	}
	op := c.do(checker.Op{Kind: kind, Key: lease.Key, Owner: string(lease.Owner), Fence: int64(lease.Fence)}, func(ctx context.Context, _ *checker.Op) error {
		err := c.store.Release(ctx, lease)
		contended = errors.Is(err, lockstore.ErrContended)
		return err
	})
	if op.Outcome == checker.OK {
		c.mu.Lock()
		close(c.freed[lease.Key])
		c.freed[lease.Key] = make(chan struct{})
		c.mu.Unlock()
	}
	return op.Outcome, contended
}

func (c *client) markStarted(lease lockstore.Lease) checker.Outcome {
	return c.ask(checker.MarkStarted, lease, func(ctx context.Context, _ *checker.Op) error {
		return c.store.MarkStarted(ctx, lease)
	})
}

// transact stores a result together with an effect. Where the transaction is refused, this
// may be because its first try, or an earlier transaction of the same run, was applied. So the outcome is unknown.
func (c *client) transact(lease lockstore.Lease) checker.Outcome {
	return c.ask(checker.Complete, lease, func(ctx context.Context, op *checker.Op) error {
		c.mu.Lock()
		c.atOnce[op.Data] = lease
		c.mu.Unlock()
		err := c.store.transact(ctx, lease, []byte(op.Data), op.TTL)
		if errors.Is(err, lockstore.ErrLost) {
			err = errors.New(err.Error())
		}
		return err
	})
}

func (c *client) complete(lease lockstore.Lease) checker.Outcome {
	return c.ask(checker.Complete, lease, func(ctx context.Context, op *checker.Op) error {
		return c.store.Complete(ctx, lease, []byte(op.Data), op.TTL)
	})
}

// completeOrGiveUp stores the result until there is an answer, at most eight times. It never
// releases: the work had its effect.
func (c *client) completeOrGiveUp(lease lockstore.Lease) {
	complete := c.complete
	if c.store.transact != nil && c.chance(0.5) {
		complete = c.transact
	}
	for range 8 {
		switch complete(lease) {
		case checker.Unknown, checker.NotApplied:
			c.sleep(c.upTo(150 * time.Millisecond))
		default:
			return
		}
	}
}

// resolve does what an operator does with a key in doubt.
func (c *client) resolve(key string, effect bool) {
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	defer cancel()
	status, err := c.store.Inspect(ctx, key)
	if err != nil || status.State != lockstore.InDoubt {
		return
	}
	lease, ok := c.leaseOf(key, status.Fence)
	if !ok {
		return
	}
	kind := checker.ResolveNoEffect
	if effect {
		kind = checker.ResolveEffect
	}
	c.ask(kind, lease, func(ctx context.Context, op *checker.Op) error {
		if effect {
			return c.store.ResolveEffect(ctx, key, lease.Fence, []byte(op.Data), op.TTL)
		}
		return c.store.ResolveNoEffect(ctx, key, lease.Fence)
	})
}

// revoke breaks the last lease of a key that a client was told to have.
func (c *client) revoke(key string) {
	lease, ok := c.leaseOf(key, 0)
	if !ok {
		return
	}
	c.ask(checker.Revoke, lease, func(ctx context.Context, _ *checker.Op) error {
		_, err := c.store.Revoke(ctx, lockstore.RevokeRequest{Key: key, Fence: lease.Fence, By: lockstore.HolderInfo{Name: "an operator"}})
		return err
	})
}

// leaseOf is the last lease with this fence, or with any by 0.
func (c *client) leaseOf(key string, fence lockstore.Fence) (lockstore.Lease, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, lease := range slices.Backward(c.leases[key]) {
		if fence == 0 || lease.Fence == fence {
			return lease, true
		}
	}
	return lockstore.Lease{}, false
}

// ask sends a request about a lease. No two requests store the same result.
func (c *client) ask(kind checker.Kind, lease lockstore.Lease, send func(context.Context, *checker.Op) error) checker.Outcome {
	op := checker.Op{Kind: kind, Key: lease.Key, Owner: string(lease.Owner), Fence: int64(lease.Fence)}
	if kind == checker.Complete || kind == checker.ResolveEffect {
		c.mu.Lock()
		c.results++
		op.TTL, op.Data = resultTime, fmt.Sprintf("result %d", c.results)
		c.mu.Unlock()
	}
	return c.do(op, send).Outcome
}

// effect is what the work is for. Its resource compares nothing, so a client has an effect
// only while it trusts its lease.
func (c *client) effect(lease lockstore.Lease, trust time.Duration) bool {
	now := c.Now()
	if now >= trust {
		return false
	}
	c.Add(checker.Op{Client: c.id, Kind: checker.Effect, Key: lease.Key, Owner: string(lease.Owner), Fence: int64(lease.Fence), Outcome: checker.OK, Call: now, Return: now})
	return true
}

// do sends a request and records it.
func (c *client) do(op checker.Op, send func(context.Context, *checker.Op) error) checker.Op {
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
	op := checker.Op{Client: c.id, Kind: checker.Write, Key: lease.Key, Owner: string(lease.Owner), Fence: int64(lease.Fence), Seat: lease.Seat, Call: c.Now(), Outcome: checker.Lost}
	c.mu.Lock()
	if own := (resource{lease.Key, lease.Seat}); op.Fence >= c.highest[own] {
		c.highest[own], op.Outcome = op.Fence, checker.OK
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

func (c *client) chance(p float64) bool { return c.random.Float64() < p }

func (c *client) upTo(d time.Duration) time.Duration { return time.Duration(c.random.Int64N(int64(d))) }

func (c *client) sleep(d time.Duration) { sleep(c.done, d) }

// sleep returns early, and false, when ctx ends.
func sleep(ctx context.Context, d time.Duration) bool {
	return pause.For(ctx, d) == nil
}

// counted checks the effects of the transactions: none happened twice, and each that was told
// to have been applied, or whose result was read, happened. n is how many happened.
func (r *run) counted(ops []checker.Op, effects func(lockstore.Lease) int) (n int, violations []string) {
	counts := map[lockstore.Lease]int{}
	for _, lease := range r.atOnce {
		if _, ok := counts[lease]; !ok {
			counts[lease] = effects(lease)
			n += counts[lease]
		}
		if counts[lease] > 1 {
			violations = append(violations, fmt.Sprintf("the run with fence %d of %s had its effect %d times", lease.Fence, lease.Key, counts[lease]))
		}
	}
	for _, op := range ops {
		lease, ok := r.atOnce[op.Data]
		if told := op.Outcome == checker.Completed || op.Outcome == checker.OK; ok && told && counts[lease] == 0 {
			violations = append(violations, fmt.Sprintf("a result without its effect:\n  %v", op))
		}
	}
	return n, violations
}

// lockAgain waits until every key is free and locks it once more, with a larger
// fence. It returns the keys that do not become free in time.
func (r *run) lockAgain(store opened, bound time.Duration) (stuck []string) {
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
				if outcome == checker.InDoubt {
					c.resolve(key, false)
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
