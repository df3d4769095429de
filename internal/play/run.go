package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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

var (
	errGone   = errors.New("the process is gone")
	errParked = errors.New(parked)
)

// run is what an environment does for an event: one invocation.
type run struct {
	*environment
	*event
	lock    string
	limit   int // how many may be at work at once, as far as this run is concerned
	fence   lockstore.Fence
	seat    int
	span    *span // what it does now; nil: its work has ended
	outcome string
}

func (e *environment) newRun(ev *event) *run {
	r := &run{environment: e, event: ev, lock: e.shown.Set.Lock, limit: 1}
	if r.lock == holders {
		r.limit = e.shown.Set.Holders
	} else if r.lock == readers && ev.reads {
		r.limit = lockstore.MaxHolders
	}
	return r
}

func (r *run) String() string {
	text := fmt.Sprintf("event %d, %s", r.number, keys[r.key])
	if r.fence != 0 {
		text += fmt.Sprintf(", fence %d, seat %d", r.fence, r.seat)
	}
	return text + ": " + cmp.Or(r.outcome, "under way")
}

// works says whether the work is under way and trusts its lease. This and all down to ends is called with the lock.
func (r *run) works() bool {
	return r.span != nil && (r.span.Kind == "held" || r.span.Kind == "overlap")
}

// gone says that the process of the run was killed.
func (r *run) gone() bool { return r.environment.run != r }

// does notes what the run does from now on; "" is nothing more.
func (r *run) does(kind string) {
	if r.span != nil {
		r.span.To = now()
	}
	if r.span = nil; kind != "" {
		r.span = r.draws(kind, r)
	}
}

// begins notes that the work begins, and which runs overlap: more are at work than one of them allows.
func (r *run) begins(lock guard.Lock) {
	if r.fence, r.seat = lock.Fence, lock.Seat; r.fence != 0 {
		r.say(r.Name, "event %d: its work begins with fence %d", r.number, r.fence)
	}
	r.does("held")
	limit, working := r.limit, []*run{}
	for _, e := range r.environments {
		if other := e.run; other != nil && other.key == r.key && other.works() {
			working, limit = append(working, other), min(limit, other.limit)
		}
	}
	if len(working) > limit {
		for _, other := range working {
			other.span.Kind = "overlap"
		}
	}
	facts := &r.shown.Facts
	facts.Runs++
	facts.Most = max(facts.Most, len(working))
}

// ends notes how the run ended. The environment is free.
func (r *run) ends(outcome string) {
	if outcome == "LockCovered" && r.span != nil {
		r.span.Kind = "covered"
	}
	r.does("")
	r.outcome, r.environment.run = outcome, nil
	r.say(r.Name, "event %d: %s", r.number, outcome)
	facts := &r.shown.Facts
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

// pass lets time of the environment pass.
func (r *run) pass(d time.Duration) error {
	for {
		r.mu.Lock()
		gone, still, part := r.gone(), r.ice != nil, min(look, d)
		if r.Slow {
			part *= slowness
		}
		r.mu.Unlock()
		switch {
		case gone:
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
func (r *run) travel() error { return r.pass(2*time.Millisecond + r.upTo(6*time.Millisecond)) }

// network is the way to the store.
type network struct {
	run *run
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
	if err := n.run.travel(); err != nil {
		return driver.Answer{}, err
	}
	answer, failed := deliver()
	// Nobody waits for an answer after the end of ctx.
	if err := cmp.Or(n.run.travel(), ctx.Err()); err != nil {
		return driver.Answer{}, err
	}
	return answer, failed
}

// guard is that of the function, as the lock was set when the run began.
func (r *run) guard() *guard.Guard {
	id := fmt.Sprint("event ", r.number)
	opt := guard.Options{
		TTL: ttl, MaxHold: timeout, Wait: timeout,
		EventID:    func(context.Context) string { return id },
		HolderInfo: func(context.Context) lockstore.HolderInfo { return lockstore.HolderInfo{Name: r.Name, ID: id} },
		Wake: func(_ context.Context, address lockstore.WakeAddress) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			for other := range r.world.parked {
				if other.address == address {
					r.wake(other, "is woken by "+r.Name)
				}
			}
			return nil
		},
	}
	if r.lock == coalesce {
		opt.Coalesce = coalesce
	}
	g, err := guard.New(r.store.WrapDriver(func(d driver.Driver) driver.Driver { return network{r, d} }), opt)
	if err != nil {
		panic(err) // these options never change
	}
	seam.Guard(g, r.clocks, r.upTo)
	return g.WithMaxHolders(r.limit)
}

func (r *run) invoke() {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	var err error
	switch r.lock {
	case off:
		err = r.work(ctx, guard.Lock{})
	case parked:
		err = r.workOrPark(ctx)
	default:
		err = r.guard().Do(ctx, keys[r.key], r.work)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.gone() {
		r.ends(outcomeOf(err))
		r.dispatch()
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
func (r *run) workOrPark(ctx context.Context) error {
	r.locked(func() { r.world.parked[r] = true }) // a wake-up may come before Park returns
	g, request := r.guard(), guard.LeaseRequest{Key: keys[r.key], TTL: 2 * ttl, Owner: r.owner}
	lease, err := g.Park(ctx, request, parkedTurn, r.address)
	if _, busy := err.(*guard.LockBusy); busy {
		r.after(parkedBeat, func() { r.wake(r, "asks again") })
		return errParked
	}
	r.locked(func() { delete(r.world.parked, r) })
	if err != nil {
		return err
	}
	trusted, cancel := context.WithTimeout(ctx, lease.TTL)
	defer cancel()
	return cmp.Or(r.work(trusted, guard.Lock{Key: lease.Key, Fence: lease.Fence}), g.Release(ctx, lease))
}

// work reads the last number, works, and stores an invoice under the next one. It looks at its context again and again, but not between the
// last look and the write: nobody can.
func (r *run) work(ctx context.Context, lock guard.Lock) error {
	var next int
	var think time.Duration
	entry := &r.resource[r.key]
	r.locked(func() {
		r.begins(lock)
		next, think = entry.stored+1, time.Duration(float64(r.situation.think)*(0.6+0.8*r.dice.Float64()))
		if r.lock == coalesce { // it does what all events ask for that have come
			next = entry.asked
		}
	})
	defer r.locked(func() { r.does("") })
	defer context.AfterFunc(ctx, func() {
		cause := context.Cause(ctx)
		r.locked(func() {
			if r.works() {
				r.does("lost")
				r.say(r.Name, "event %d: its context is cancelled: %v", r.number, cause)
			}
		})
	})()
	for ; think > 0; think -= look {
		if err := cmp.Or(r.pass(min(think, look)), context.Cause(ctx)); err != nil {
			return err
		}
	}
	if r.number == 1 && r.situation.fault != "" {
		r.locked(func() { r.strike(r.situation.fault) })
		r.after(freezeTime, func() { r.strike("thaw") })
	}
	if err := r.travel(); err != nil || r.reads {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if last := entry.fences[r.seat]; r.fence != 0 && r.fence < last {
		r.shown.Facts.Refused++
		err := fmt.Errorf("the resource has seen fence %d", last)
		r.say(r.Name, "its write with fence %d is refused: %v", r.fence, err)
		return err
	}
	if r.limit > 1 { // holders side by side store rows of their own
		next = entry.stored + 1
	}
	entry.stored, entry.fences[r.seat] = next, max(r.fence, entry.fences[r.seat])
	return nil
}
