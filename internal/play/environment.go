package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/seam"
	"github.com/lambdalock/lambdalock/lockstore"
)

const (
	ttl        = 5 * time.Second
	timeout    = 30 * time.Second // of an invocation
	freezeTime = 9 * time.Second  // of a fault
	parkedTurn = 10 * time.Second
	parkedBeat = 20 * time.Second      // then a parked event asks again
	look       = 50 * time.Millisecond // how often the work looks at its context
	slowness   = 5
)

// The faults of an environment.
const (
	freeze = "freeze"
	kill   = "kill"
)

var (
	errGone   = errors.New("the environment is gone")
	errParked = errors.New(parked)
)

// environment is one process. While it stands still it sends nothing, and its monotonic clock stands still.
type environment struct {
	*world
	index int

	// With the lock of the world.
	lane
	dice   *rand.Rand
	run    *run // nil: it is free
	dead   bool
	ice    *span         // nil: it does not stand still
	missed time.Duration // for how long it stood still before
}

func (w *world) newEnvironment(index int) *environment {
	dice := rand.New(rand.NewPCG(1, uint64(index)))
	return &environment{world: w, index: index, lane: lane{Name: fmt.Sprintf("env %d", index+1)}, dice: dice}
}

// draws begins a span. This and all down to strike is called with the lock.
func (e *environment) draws(kind string, r *run) *span {
	s := &span{From: now(), Kind: kind, run: r}
	e.Spans = append(e.Spans, s)
	return s
}

// does notes what a run does from now on; "" is nothing more.
func (e *environment) does(r *run, kind string) {
	if r.span != nil {
		r.span.To = now()
	}
	if r.span = nil; kind != "" {
		r.span = e.draws(kind, r)
	}
}

// begins notes that the work of a run begins, and which runs overlap: more are at work than one of them allows.
func (e *environment) begins(r *run, lock guard.Lock) {
	if r.fence, r.seat = lock.Fence, lock.Seat; r.fence != 0 {
		e.say(e.Name, "event %d: its work begins with fence %d", r.number, r.fence)
	}
	e.does(r, "held")
	limit, working := r.limit, []*run{}
	for _, e := range e.environments {
		if other := e.run; other != nil && other.key == r.key && other.works() {
			working, limit = append(working, other), min(limit, other.limit)
		}
	}
	if len(working) > limit {
		for _, other := range working {
			other.span.Kind = "overlap"
		}
	}
	facts := &e.shown.Facts
	facts.Runs++
	facts.Most = max(facts.Most, len(working))
}

// ends notes how a run ended.
func (e *environment) ends(r *run, outcome string) {
	e.does(r, "")
	r.outcome = outcome
	e.say(e.Name, "event %d: %s", r.number, outcome)
	facts := &e.shown.Facts
	switch {
	case outcome == "LockCovered":
		facts.Covered++
		facts.Wanted++
	case outcome == "done" && !r.reads:
		facts.Wanted++
	case outcome != "done" && outcome != parked:
		facts.Unserved++
	}
}

// strike does to the environment what a visitor or a situation wants: freeze, thaw, kill, slow, or fast.
func (e *environment) strike(what string) {
	switch {
	case what == freeze && e.ice == nil:
		e.ice = e.draws(freeze, nil)
		e.say(e.Name, "it stands still")
	case what == "thaw" && e.ice != nil:
		e.ice.To = now()
		e.missed += time.Duration(e.ice.To-e.ice.From) * time.Millisecond
		e.ice = nil
		e.say(e.Name, "it goes on")
	case what == "slow" || what == "fast":
		e.Slow = what == "slow"
		e.say(e.Name, "it is %s", what)
	case what == kill:
		if e.ice != nil {
			e.ice.To = now()
			e.ice = nil
		}
		e.dead = true
		e.draws(kill, nil).To = now() + look.Milliseconds()
		e.say(e.Name, "it is killed")
		if e.run != nil {
			delete(e.parked, e.run)
			e.ends(e.run, "killed")
		}
		next := e.newEnvironment(e.index) // Lambda starts another process
		next.Spans = slices.Clone(e.Spans)
		e.environments[e.index] = next
	}
	e.dispatch()
}

// clocks are those of a guard. This and all below is called without the lock.
func (e *environment) clocks() (mono, wall time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	wall = time.Duration(time.Now().UnixNano())
	if mono = wall; e.ice != nil {
		mono = time.Duration(e.ice.From) * time.Millisecond
	}
	return mono - e.missed, wall
}

func (e *environment) upTo(most time.Duration) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	return time.Duration(e.dice.Float64() * float64(most))
}

// pass lets time of the environment pass.
func (e *environment) pass(d time.Duration) error {
	for {
		e.mu.Lock()
		dead, still, part := e.dead, e.ice != nil, min(look, d)
		if e.Slow {
			part *= slowness
		}
		e.mu.Unlock()
		switch {
		case dead:
			return errGone
		case still:
			part = look
		case d <= 0:
			return nil
		default:
			d -= look
		}
		<-time.After(part)
	}
}

// travel is one way of the network.
func (e *environment) travel() error { return e.pass(2*time.Millisecond + e.upTo(6*time.Millisecond)) }

// network is the way to the store.
type network struct {
	e *environment
	driver.Driver
}

func (n network) Unwrap() driver.Driver { return n.Driver }

func (n network) Do(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	return n.send(ctx, func() (driver.Answer, error) { return n.Driver.Do(ctx, key, r) })
}

func (n network) Await(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	return n.send(ctx, func() (driver.Answer, error) { return n.Driver.Await(ctx, key, r) })
}

func (n network) send(ctx context.Context, deliver func() (driver.Answer, error)) (driver.Answer, error) {
	if err := n.e.travel(); err != nil {
		return driver.Answer{}, err
	}
	answer, failed := deliver()
	// Nobody waits for an answer after the end of ctx.
	if err := cmp.Or(n.e.travel(), ctx.Err()); err != nil {
		return driver.Answer{}, err
	}
	return answer, failed
}

// guard is that of the function, as the lock was set when the run began.
func (e *environment) guard(r *run) *guard.Guard {
	id := fmt.Sprint("event ", r.number)
	opt := guard.Options{
		TTL: ttl, MaxHold: timeout, Wait: timeout,
		EventID:    func(context.Context) string { return id },
		HolderInfo: func(context.Context) lockstore.HolderInfo { return lockstore.HolderInfo{Name: e.Name, ID: id} },
		Wake: func(_ context.Context, address lockstore.WakeAddress) error {
			e.mu.Lock()
			defer e.mu.Unlock()
			for r := range e.parked {
				if r.address == address {
					e.wake(r, "is woken by "+e.Name)
				}
			}
			return nil
		},
	}
	if r.lock == coalesce {
		opt.Coalesce = coalesce
	}
	g, err := guard.New(e.store.WrapDriver(func(d driver.Driver) driver.Driver { return network{e, d} }), opt)
	if err != nil {
		panic(err) // these options never change
	}
	seam.Guard(g, e.clocks, e.upTo)
	return g.WithMaxHolders(r.limit)
}

// invoke is an invocation.
func (e *environment) invoke(r *run) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	work := func(ctx context.Context, lock guard.Lock) error { return e.work(ctx, r, lock) }
	var err error
	switch r.lock {
	case off:
		err = work(ctx, guard.Lock{})
	case parked:
		err = e.workOrPark(ctx, r)
	default:
		err = e.guard(r).Do(ctx, keys[r.key], work)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.dead {
		e.run = nil
		e.ends(r, outcomeOf(err))
		e.dispatch()
	}
}

// outcomeOf is how an invocation ends. Lambda shows the type of an error, too.
func outcomeOf(err error) string {
	switch err {
	case nil:
		return "done"
	case errParked:
		return parked
	}
	if name, ok := strings.CutPrefix(fmt.Sprintf("%T", err), "*guard."); ok {
		return name
	}
	return "error: " + err.Error()
}

// workOrPark is what a state machine does that has a lock: it takes the lock and works, or parks and ends the invocation. Who is woken comes
// again. Who is not woken asks again after parkedBeat.
func (e *environment) workOrPark(ctx context.Context, r *run) error {
	e.locked(func() { e.parked[r] = true }) // a wake-up may come before Park returns
	g, request := e.guard(r), guard.LeaseRequest{Key: keys[r.key], TTL: 2 * ttl, Owner: r.owner}
	lease, err := g.Park(ctx, request, parkedTurn, r.address)
	if _, busy := err.(*guard.LockBusy); busy {
		e.after(parkedBeat, func() { e.wake(r, "asks again") })
		return errParked
	}
	e.locked(func() { delete(e.parked, r) })
	if err != nil {
		return err
	}
	trusted, cancel := context.WithTimeout(ctx, lease.TTL)
	defer cancel()
	return cmp.Or(e.work(trusted, r, guard.Lock{Key: lease.Key, Fence: lease.Fence}), g.Release(ctx, lease))
}

// work reads the last number, works, and stores an invoice under the next one. It looks at its context again and again, but not between the
// last look and the write: nobody can.
func (e *environment) work(ctx context.Context, r *run, lock guard.Lock) error {
	var next int
	var think time.Duration
	entry := &e.resource[r.key]
	e.locked(func() {
		e.begins(r, lock)
		next, think = entry.stored+1, time.Duration(float64(e.situation.think)*(0.6+0.8*e.dice.Float64()))
		if r.lock == coalesce { // it does what all events ask for that have come
			next = entry.asked
		}
	})
	defer e.locked(func() { e.does(r, "") })
	defer context.AfterFunc(ctx, func() {
		cause := context.Cause(ctx)
		e.locked(func() {
			if r.works() {
				e.does(r, "lost")
				e.say(e.Name, "event %d: its context is cancelled: %v", r.number, cause)
			}
		})
	})()
	for ; think > 0; think -= look {
		if err := cmp.Or(e.pass(min(think, look)), context.Cause(ctx)); err != nil {
			return err
		}
	}
	if r.number == 1 && e.situation.fault != "" {
		e.locked(func() { e.strike(e.situation.fault) })
		e.after(freezeTime, func() { e.strike("thaw") })
	}
	if err := e.travel(); err != nil || r.reads {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if last := entry.fences[r.seat]; r.fence != 0 && r.fence < last {
		e.shown.Facts.Refused++
		err := fmt.Errorf("the resource has seen fence %d", last)
		e.say(e.Name, "its write with fence %d is refused: %v", r.fence, err)
		return err
	}
	if r.limit > 1 { // holders side by side store rows of their own
		next = entry.stored + 1
	}
	entry.stored, entry.fences[r.seat] = next, max(r.fence, entry.fences[r.seat])
	return nil
}
