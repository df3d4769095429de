package guard

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"sync"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// The numbers of the life cycle that nobody has needed to change.
const (
	defaultTTL     = time.Minute
	defaultMaxHold = 15 * time.Minute
	defaultReserve = 300 * time.Millisecond

	// margin ends the trust in a lease before the store may grant the key to
	// another: it covers the time in which a cancelled context is noticed and
	// clocks that run at slightly different rates.
	margin = 250 * time.Millisecond
	// leastWork is the least time that is worth starting work for.
	leastWork = 100 * time.Millisecond
	// callTime bounds one call to the store. When less than twice as much is left,
	// a call gets half of that, so that a repeat fits in behind one that hangs.
	callTime = 2 * time.Second
	// minCallTimeout is what a call gets when the time to ask is nearly over: a call
	// cut short would turn a clear answer into an unknown outcome.
	minCallTimeout = 200 * time.Millisecond
	// storeRetryBudget bounds how long a run that does not wait for longer goes on
	// asking a store that is unavailable or whose answers are lost.
	storeRetryBudget = 5 * time.Second
	// releaseTime bounds release and abandon with all their repeats.
	releaseTime = time.Second
	// shutdownTime bounds them after Shutdown: Lambda ends the process 500 ms after
	// SIGTERM, a store may take 50 ms to notice that its time is over, and the
	// report has to be written.
	shutdownTime = 300 * time.Millisecond
	// answerTime is kept for the handler's answer when a release runs late.
	answerTime = 100 * time.Millisecond
	// ttlSlack is how much longer than the run's own end a lease lasts, so that
	// a run that ends in time does not renew though the store lets somewhat less
	// than the lease be trusted.
	ttlSlack = time.Second

	firstPause = 50 * time.Millisecond
	maxPause   = time.Second
)

// Options are a Guard's settings; the zero value is good for most functions.
type Options struct {
	// TTL is the longest lease that is taken at once, and so the longest time
	// for which a dead holder blocks others. 0 is one minute, or MaxHold when
	// that is less. A run whose context ends sooner takes a shorter lease; one
	// that may last longer renews after each third.
	TTL time.Duration

	// MaxHold bounds the work of one run, renewals included. 0 is 15 minutes, or
	// TTL when that is more.
	MaxHold time.Duration

	// Wait is how long a run waits for a lock that another holds, at most half
	// of the time that its context has left. 0 does not wait.
	Wait time.Duration

	// Reserve is how long before the context's deadline the work's context ends,
	// so that the lease can be released and the answer sent. 0 is 300 ms.
	Reserve time.Duration

	// Holder says, for people who look at the lock, who this run is. nil leaves
	// it unnamed.
	Holder func(context.Context) lockstore.Holder

	// Observe is called once at the end of every run, also of one that got no
	// lock, on the run's own goroutine. nil observes nothing.
	Observe func(context.Context, Report)
}

// Guard runs work only while a lock is held. It is safe for concurrent use and
// keeps nothing from one run to the next.
type Guard struct {
	store  lockstore.Store
	opt    Options
	clock  clock
	random func(time.Duration) time.Duration // 0 up to its argument

	mu       sync.Mutex
	runs     map[*run]struct{}
	shutdown time.Time // when Shutdown was called first; zero before
}

// New checks the options against one another and returns a Guard. Its error
// names the option and the bound.
func New(store lockstore.Store, opt Options) (*Guard, error) {
	// The one use of reflection, once at the start: a nil *Store in an interface is
	// not nil, and would panic at the first request.
	if v := reflect.ValueOf(store); store == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		return nil, errors.New("guard: the store is nil")
	}
	for _, o := range []struct {
		name  string
		value time.Duration
	}{{"TTL", opt.TTL}, {"MaxHold", opt.MaxHold}, {"Wait", opt.Wait}, {"Reserve", opt.Reserve}} {
		if o.value < 0 {
			return nil, fmt.Errorf("guard: %s is %v; want 0 (the default) or more", o.name, o.value)
		}
	}
	// The TTL first: a MaxHold that is not given follows it.
	if opt.TTL != 0 && (opt.TTL < lockstore.MinTTL || opt.TTL > lockstore.MaxTTL) {
		return nil, fmt.Errorf("guard: TTL is %v; want %v to %v", opt.TTL, lockstore.MinTTL, lockstore.MaxTTL)
	}
	if opt.MaxHold == 0 {
		opt.MaxHold = max(defaultMaxHold, opt.TTL)
	}
	if opt.TTL == 0 {
		opt.TTL = min(defaultTTL, opt.MaxHold)
	}
	if opt.Reserve == 0 {
		opt.Reserve = defaultReserve
	}
	switch {
	case opt.MaxHold < lockstore.MinTTL || opt.MaxHold > lockstore.MaxTTL:
		return nil, fmt.Errorf("guard: MaxHold is %v; want %v to %v", opt.MaxHold, lockstore.MinTTL, lockstore.MaxTTL)
	case opt.TTL > opt.MaxHold:
		return nil, fmt.Errorf("guard: TTL is %v but MaxHold is %v; want TTL at most MaxHold", opt.TTL, opt.MaxHold)
	case opt.Reserve > opt.MaxHold-leastWork:
		return nil, fmt.Errorf("guard: Reserve is %v but MaxHold is %v; want Reserve at most MaxHold less %v", opt.Reserve, opt.MaxHold, leastWork)
	}
	if opt.Wait > lockstore.MaxTTL {
		return nil, fmt.Errorf("guard: Wait is %v; want at most %v", opt.Wait, lockstore.MaxTTL)
	}
	if opt.Holder == nil {
		opt.Holder = func(context.Context) lockstore.Holder { return lockstore.Holder{} }
	}
	if opt.Observe == nil {
		opt.Observe = func(context.Context, Report) {}
	}
	return &Guard{store: store, opt: opt, clock: clock{now: systemClock()}, random: rand.N[time.Duration], runs: make(map[*run]struct{})}, nil
}

var (
	errNoGuard   = errors.New("guard: the Guard is nil or was not made by New")
	errNoContext = errors.New("guard: the context is nil")
)

// usable makes a mistake in the program an error and no panic.
func (g *Guard) usable(ctx context.Context) error {
	switch {
	case g == nil || g.store == nil:
		return errNoGuard
	case ctx == nil:
		return errNoContext
	}
	return nil
}

// Holder says who a run with this context would be in the lock. Adapters
// compare it with the holder of a busy lock.
func (g *Guard) Holder(ctx context.Context) lockstore.Holder {
	if g == nil || g.opt.Holder == nil {
		return lockstore.Holder{}
	}
	return g.opt.Holder(ctx)
}

// Shutdown cancels the context of all running work, with the cause ErrShutdown,
// and refuses new calls of Do and Acquire. It returns at once. Each run releases
// its lease when its work has returned, never before. A release has until 300 ms
// after Shutdown, and at least 100 ms when the work returns later; one that is
// under way is cut short then. So Do returns within 400 ms of Shutdown if the work
// returns at once and the store's calls end within 50 ms of their context.
func (g *Guard) Shutdown() {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.shutdown.IsZero() {
		return
	}
	g.shutdown = time.Now()
	for r := range g.runs {
		r.cancel(ErrShutdown)
		if r.cut != nil {
			time.AfterFunc(shutdownTime, r.endRelease)
		}
	}
}

func (g *Guard) isShutDown() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.shutdown.IsZero()
}

// beginRelease returns how long a release that begins now may take. From here on
// Shutdown ends it.
func (r *run) beginRelease() time.Duration {
	g := r.guard
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.shutdown.IsZero() {
		return shutdownTime - time.Since(g.shutdown)
	}
	r.cut = func() {} // no call is under way yet
	return releaseTime
}

// register makes Shutdown reach the run.
func (g *Guard) register(r *run) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.runs[r] = struct{}{}
}

func (g *Guard) unregister(r *run) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.runs, r)
}
