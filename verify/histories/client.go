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

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/lib/doonce"
	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/pause"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/verify/checker"
)

const (
	ttl        = lockstore.MinTTL
	callTime   = 2 * time.Second  // the guard's, for a call
	resultTime = lockstore.MinTTL // of each result: keys have to open again during the history
)

// mix says how often a client that has a lock crashes, or stands still for longer than its lease.
type mix struct{ crash, freeze float64 }

// key is one of a history.
type key struct {
	name  string
	waits bool  // its clients wait in the queue
	once  bool  // their work has results
	most  []int // what they ask for as MaxHolders
}

// run is one history while it is made.
type run struct {
	*checker.History
	name string
	seed uint64
	mix  mix
	late time.Duration // as in checker.Limits
	keys []key

	crashes, freezes, struck atomic.Int64 // struck are faults that are about a single key
}

func newRun(name string, seed uint64, m mix, late time.Duration, several bool) *run {
	r := &run{
		History: checker.New(), name: name, seed: seed, mix: m, late: late,
	}
	one, readWrite := []int{1}, []int{1, lockstore.MaxHolders, lockstore.MaxHolders}
	r.keys = []key{{most: one}, {most: one, waits: true}, {most: one}, {most: one, waits: true, once: true}, {most: one, once: true}}
	if several { // two, numbers that a deployment changes, or one writer or many readers
		r.keys = []key{{most: []int{2}}, {most: []int{3, 4, 10}, waits: true}, {most: readWrite}, {most: readWrite, waits: true}}
	}
	for i := range r.keys {
		r.keys[i].name = fmt.Sprintf("%s/%d/%d", name, seed, i)
	}
	return r
}

// process is what lies between the shipped guard of one client and its store. It records what is asked and told. A
// process that stands still or is dead sends nothing.
type process struct {
	driver.Driver
	*run
	id int

	dead   atomic.Bool
	frozen atomic.Int64 // until when, on the history's clock
}

// Do implements driver.Driver.
func (p *process) Do(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	return p.send(ctx, key, r, p.Driver.Do)
}

// Await implements driver.Driver. The grant that it may tell is recorded as an Acquire.
func (p *process) Await(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	return p.send(ctx, key, r, p.Driver.Await)
}

func (p *process) send(ctx context.Context, key string, r driver.Request, send func(context.Context, string, driver.Request) (driver.Answer, error)) (driver.Answer, error) {
	if err := pause.For(ctx, time.Duration(p.frozen.Load())-p.Now()); err != nil || p.dead.Load() {
		return driver.Answer{}, fmt.Errorf("the process sends nothing: %w", errors.Join(lockstore.ErrUnavailable, err))
	}
	op := checker.Op{
		Client: p.id, Kind: checker.Kind(r.Kind.String()), Key: key, Owner: string(r.Owner), Fence: int64(r.Fence),
		Most: r.MaxHolders, Waits: r.Join, TTL: r.TTL, Data: string(r.Result), Call: p.Now(),
	}
	a, err := send(ctx, key, r)
	if r.Kind == driver.AwaitTurn && err == nil && a.Outcome == driver.Granted {
		op.Kind, op.Waits = checker.Acquire, true
	}
	op.Outcome = outcome(a, err)
	switch {
	case op.Outcome == checker.Completed:
		op.Data = string(a.Status.Result)
	case op.Outcome == checker.OK && op.Kind == checker.Acquire:
		op.Fence, op.Seat, op.Trust = int64(a.Fence), a.Seat, a.TTL
	case op.Outcome == checker.OK && op.Kind == checker.Renew:
		op.Trust = a.TTL
	}
	if r.Kind != driver.Inspect && r.Kind != driver.Leave && op.Kind != checker.Kind(driver.AwaitTurn.String()) {
		p.told(op, err)
	}
	return a, err
}

// told records an operation that has returned.
func (r *run) told(op checker.Op, err error) {
	op.Return = r.Now()
	if err != nil {
		op.Cause = err.Error()
	}
	r.Add(op)
}

// outcome reads a store's answer.
func outcome(a driver.Answer, err error) checker.Outcome {
	switch {
	case errors.Is(err, lockstore.ErrUnavailable):
		return checker.NotApplied
	case errors.Is(err, lockstore.ErrInvalid), errors.Is(err, lockstore.ErrCorrupt):
		return checker.Invalid
	case err != nil:
		return checker.Unknown
	case a.Outcome == driver.Lost:
		return checker.Lost
	case a.Outcome != driver.Refused:
		return checker.OK
	case a.Status.State.Done():
		return checker.Completed
	case a.Status.State == driver.InDoubt:
		return checker.InDoubt
	}
	return checker.Busy
}

// client has a process, and after a crash the next one, with the shipped guard over a store.
type client struct {
	*process
	store  *lockstore.Store // with the process before it
	random *rand.Rand
	done   context.Context // ends with the history
}

func (r *run) client(id int, store *lockstore.Store, random *rand.Rand, done context.Context) *client {
	c := &client{process: &process{run: r, id: id}, random: random, done: done}
	c.store = store.WrapDriver(func(d driver.Driver) driver.Driver {
		c.Driver = d
		return c.process
	})
	return c
}

// work has one run after the other, until the history ends.
func (r *run) work(id int, store *lockstore.Store, random *rand.Rand, done context.Context) {
	c := r.client(id, store, random, done)
	for pause.For(done, c.upTo(80*time.Millisecond)) == nil {
		if c.dead.Load() {
			c = r.client(id, store, random, done)
		}
		wait := c.upTo(2 * ttl)
		err := c.visit(c.keys[random.IntN(len(c.keys))], wait)
		busy, ok := errors.AsType[*guard.LockBusy](err)
		switch {
		case ok && busy.State == lockstore.InDoubt && c.chance(0.5):
			c.resolve(busy.Key)
		case ok && busy.State == lockstore.Held && c.chance(0.02):
			c.operate(busy.Key, func(ctx context.Context, fence lockstore.Fence) error {
				_, err := c.store.Revoke(ctx, lockstore.RevokeRequest{Key: busy.Key, Fence: fence, By: lockstore.HolderInfo{Name: "an operator"}})
				return err
			})
		}
	}
}

// visit is one run.
func (c *client) visit(k key, wait time.Duration) error {
	opt := guard.Options{TTL: ttl}
	if k.waits {
		opt.Wait = wait
	}
	g, err := guard.New(c.store, opt)
	if err != nil {
		return err
	}
	g = g.WithMaxHolders(k.most[c.random.IntN(len(k.most))])
	if k.waits && c.chance(c.mix.crash/2) { // probably while it waits (F02)
		defer time.AfterFunc(c.upTo(ttl), func() { c.crash(g) }).Stop()
	}
	if !k.once {
		return g.Do(c.done, k.name, func(ctx context.Context, _ guard.Lock) error {
			c.hold(ctx, g)
			return nil
		})
	}
	started := c.chance(0.3)
	return g.DoOnce(c.done, k.name, doonce.Options{MarkStarted: started}, func(ctx context.Context, lock guard.Lock) (doonce.Completion, error) {
		c.hold(ctx, g)
		switch p := c.random.Float64(); {
		case p < 0.3:
			return doonce.Completion{ResultTime: resultTime, Result: lockstore.HiddenBytes(fmt.Sprintf("of %s under fence %d", lock.Key, lock.Fence))}, nil
		case p < 0.5 && started:
			return doonce.Completion{}, errors.New("nobody knows whether it had its effect")
		}
		return doonce.Completion{NoEffect: true}, nil
	})
}

// crash ends the process. Its guard learns that nothing is sent any more.
func (c *client) crash(g *guard.Guard) {
	c.crashes.Add(1)
	c.dead.Store(true)
	g.Shutdown()
}

// hold does what holders do, and sometimes what they may not do: work that stands still does not look at its context.
func (c *client) hold(ctx context.Context, g *guard.Guard) {
	switch p := c.random.Float64(); {
	case p < c.mix.crash:
		c.crash(g)
		return
	case p < c.mix.crash+c.mix.freeze:
		c.freezes.Add(1)
		d := ttl + c.upTo(ttl/2+c.late)
		c.frozen.Store(int64(c.Now() + d))
		_ = pause.For(c.done, d)
		return
	case p < c.mix.crash+c.mix.freeze+0.1:
		_ = pause.For(ctx, c.upTo(3*ttl/2)) // it is renewed
	default:
		_ = pause.For(ctx, c.upTo(40*time.Millisecond))
	}
}

// operate is what an operator does about the last lease of a key.
func (c *client) operate(key string, do func(context.Context, lockstore.Fence) error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	defer cancel()
	if status, err := c.store.Inspect(ctx, key); err == nil && status.Fence != 0 {
		_ = do(ctx, status.Fence) // the history has what was told
	}
}

// resolve says of a key in doubt whether its work had an effect.
func (c *client) resolve(key string) {
	effect := c.chance(0.5)
	c.operate(key, func(ctx context.Context, fence lockstore.Fence) error {
		if effect {
			return c.store.ResolveEffect(ctx, key, fence, fmt.Appendf(nil, "resolved, of %s under fence %d", key, fence), resultTime)
		}
		return c.store.ResolveNoEffect(ctx, key, fence)
	})
}

func (c *client) chance(p float64) bool { return c.random.Float64() < p }

func (c *client) upTo(d time.Duration) time.Duration { return time.Duration(c.random.Int64N(int64(d))) }

// lockAgain locks every key once more when the history is over, all at once. It returns the keys that do not become free within bound.
func (r *run) lockAgain(store *lockstore.Store, bound time.Duration) []string {
	var all sync.WaitGroup
	stuck := make([]string, len(r.keys))
	for i, k := range r.keys {
		c := r.client(clients+i, store, rand.New(rand.NewPCG(r.seed, uint64(i))), context.Background())
		all.Go(func() {
			g, err := guard.New(c.store, guard.Options{TTL: ttl})
			if err != nil {
				stuck[i] = err.Error()
				return
			}
			end := r.Now() + bound
			for {
				err := g.Do(c.done, k.name, func(context.Context, guard.Lock) error { return nil })
				if err == nil {
					return
				}
				if r.Now() > end {
					stuck[i] = fmt.Sprintf("%s is not free %v after the end: %v", k.name, bound, err)
					return
				}
				c.resolve(k.name) // if it is in doubt
				_ = pause.For(c.done, 250*time.Millisecond)
			}
		})
	}
	all.Wait()
	return slices.DeleteFunc(stuck, func(text string) bool { return text == "" })
}
