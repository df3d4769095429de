package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
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
	noPlace    = 2 * time.Second       // the same, without a place
	look       = 50 * time.Millisecond // how often the work looks at its context
	slowness   = 5
)

// The faults of an environment.
const (
	freeze = "freeze"
	kill   = "kill"
)

var errGone = errors.New("the environment is gone")

// parking ends the invocation of an event that has parked. If nobody wakes the event, it asks again after this time.
type parking time.Duration

func (parking) Error() string { return "the event has parked" }

// environment is one process, with guards that have its clocks. While it stands still it sends nothing, and its monotonic clock stands still.
type environment struct {
	*world
	lane   int
	guards map[string]*guard.Guard // by the work that coalesces; "" does not

	// With the lock of the world.
	dice   *rand.Rand
	run    *run // nil: it is free
	slow   bool
	dead   bool
	ice    *span         // nil: it does not stand still
	still  time.Time     // since then, if it does
	missed time.Duration // for how long it stood still before
}

type runKey struct{}

func (w *world) newEnvironment(lane int) *environment {
	e := &environment{world: w, lane: lane, dice: rand.New(rand.NewPCG(1, uint64(lane))), guards: map[string]*guard.Guard{}}
	name := fmt.Sprintf("env %d", lane+1)
	store := w.store.WrapDriver(func(d driver.Driver) driver.Driver { return network{e, d} })
	eventID := func(ctx context.Context) string {
		return fmt.Sprint("event ", ctx.Value(runKey{}).(*run).number)
	}
	for _, work := range []string{"", coalesce} {
		g, err := guard.New(store, guard.Options{
			TTL: ttl, MaxHold: timeout, Wait: timeout, Coalesce: work, EventID: eventID,
			HolderInfo: func(ctx context.Context) lockstore.HolderInfo {
				return lockstore.HolderInfo{Name: name, ID: eventID(ctx)}
			},
			Wake: func(_ context.Context, address lockstore.WakeAddress) error {
				token, _ := address.TaskToken()
				number, err := strconv.Atoi(token)
				w.locked(func() { w.wake(w.events[number-1], "is woken by "+name) })
				return err
			},
		})
		if err != nil {
			panic(err) // these options never change
		}
		seam.Guard(g, e.clocks, e.upTo)
		e.guards[work] = g
	}
	return e
}

func (e *environment) clocks() (mono, wall time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	if mono = now.Sub(e.start) - e.missed; e.ice != nil {
		mono -= now.Sub(e.still)
	}
	return mono, time.Duration(now.UnixNano())
}

func (e *environment) upTo(most time.Duration) (d time.Duration) {
	e.locked(func() { d = time.Duration(e.dice.Float64() * float64(most)) })
	return d
}

// strike does to the environment what a visitor or a situation wants: freeze, thaw, kill, slow, or fast. It is called with the lock held.
func (e *environment) strike(what string) {
	now := time.Now()
	switch {
	case what == freeze && e.ice == nil:
		e.ice, e.still = e.draws(e.lane, freeze, nil), now
		e.say(e.lane, "it stands still")
	case (what == "thaw" || what == kill) && e.ice != nil:
		e.ice.To, e.missed = now.UnixMilli(), e.missed+now.Sub(e.still)
		if e.ice = nil; what == "thaw" {
			e.say(e.lane, "it goes on")
		}
	case what == "slow" || what == "fast":
		e.slow = what == "slow"
		e.say(e.lane, "it is %s", what)
	}
	if what == kill {
		e.dead = true
		e.draws(e.lane, kill, nil).To = now.Add(look).UnixMilli()
		e.say(e.lane, "it is killed")
		if e.run != nil {
			e.run.parked = nil
			e.ends(e.run, "killed")
		}
		e.environments[e.lane] = e.newEnvironment(e.lane) // Lambda starts another process
	}
	e.dispatch()
}

// pass lets time of the environment pass. In a dead one it returns when the world is over.
func (e *environment) pass(d time.Duration) error {
	for {
		e.mu.Lock()
		dead, still, part := e.dead, e.ice != nil, min(look, d)
		if e.slow {
			part *= slowness
		}
		e.mu.Unlock()
		var passed <-chan time.Time
		switch {
		case dead: // no time passes
		case still:
			passed = time.After(look)
		case d <= 0:
			return nil
		default:
			passed = time.After(part)
			d -= look
		}
		select {
		case <-e.over:
			return errGone
		case <-passed:
		}
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
	return n.send(ctx, key, r, n.Driver.Do)
}

func (n network) Await(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	return n.send(ctx, key, r, n.Driver.Await)
}

func (n network) send(ctx context.Context, key string, r driver.Request, deliver func(context.Context, string, driver.Request) (driver.Answer, error)) (a driver.Answer, err error) {
	if err := n.e.travel(); err != nil {
		return a, err
	}
	answer, failed := deliver(ctx, key, r)
	if err := n.e.travel(); err != nil {
		return a, err
	}
	if ctx.Err() != nil { // nobody waits for the answer any more
		return a, ctx.Err()
	}
	return answer, failed
}

// invoke is an invocation: the handler as the lock is set.
func (e *environment) invoke(r *run, set settings) {
	ctx, cancel := context.WithTimeout(context.WithValue(context.Background(), runKey{}, r), timeout)
	defer cancel()
	g, work := e.guards[""], func(ctx context.Context, lock guard.Lock) error { return e.work(ctx, r, lock) }
	var err error
	switch set.Lock {
	case off:
		err = work(ctx, guard.Lock{})
	case parked:
		err = e.workOrPark(ctx, r, g)
	case coalesce:
		r.covers = true
		err = e.guards[coalesce].Do(ctx, keys[r.key], work)
	default:
		if set.Lock == holders {
			r.limit = set.Holders
		} else if r.reads {
			r.limit = lockstore.MaxHolders
		}
		err = g.WithMaxHolders(r.limit).Do(ctx, keys[r.key], work)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.dead {
		return
	}
	e.run = nil
	e.ends(r, outcomeOf(err))
	if beat, ok := err.(parking); ok {
		e.after(time.Duration(beat), func() {
			if r.parked == r {
				e.wake(r.event, "asks again")
			}
		})
	}
	e.dispatch()
}

// outcomeOf is how an invocation ends. Lambda shows the type of an error, too.
func outcomeOf(err error) string {
	if _, ok := err.(parking); ok {
		return parked
	} else if err == nil {
		return "done"
	}
	if name, ok := strings.CutPrefix(fmt.Sprintf("%T", err), "*guard."); ok {
		return name
	}
	return "error: " + err.Error()
}

// workOrPark is what a state machine does that has a lock: it takes the lock and works, or parks and ends the invocation. Who is woken comes again.
func (e *environment) workOrPark(ctx context.Context, r *run, g *guard.Guard) error {
	e.locked(func() { r.parked = r }) // a wake-up may come before Park returns
	lease, err := g.Park(ctx, guard.LeaseRequest{Key: keys[r.key], TTL: 2 * ttl, Owner: r.owner}, parkedTurn, lockstore.TaskToken(strconv.Itoa(r.number)))
	if busy, ok := err.(*guard.LockBusy); ok && busy.QueuePosition > 0 {
		return parking(parkedBeat)
	} else if ok {
		return parking(noPlace)
	}
	e.locked(func() { r.parked = nil })
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
		if r.fence, r.seat = lock.Fence, lock.Seat; r.fence != 0 {
			e.say(e.lane, "event %d: its work begins with fence %d", r.number, r.fence)
		}
		e.begins(r)
		next, think = entry.stored+1, time.Duration(float64(e.think)*(0.6+0.8*e.dice.Float64()))
		if r.covers {
			next = entry.asked
		}
	})
	defer e.locked(func() { e.does(r, "") })
	defer context.AfterFunc(ctx, func() {
		cause := context.Cause(ctx)
		e.locked(func() {
			if r.works() {
				e.does(r, "lost")
				e.say(e.lane, "event %d: its context is cancelled: %v", r.number, cause)
			}
		})
	})()
	for ; think > 0; think -= look {
		if err := e.pass(min(think, look)); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	if r.fault != "" {
		e.locked(func() { e.strike(r.fault) })
		e.after(freezeTime, func() { e.strike("thaw") })
	}
	if err := e.travel(); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case r.reads:
		return nil
	case r.limit > 1: // holders side by side store rows of their own
		next = entry.stored + 1
	}
	return e.storeInvoice(r, next)
}
