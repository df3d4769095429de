package storetest

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
)

const (
	long     = 10 * time.Minute      // a TTL that does not end during a case
	short    = lockstore.MinTTL      // a TTL that a case waits for
	rounding = 5 * time.Millisecond  // a store may round a time to the safe side
	tick     = 20 * time.Millisecond // after this the clock of a fence has moved

	// How soon a call has to end: in every case, after the end of its context, and when the
	// server refuses connections. On the wall clock a busy machine may add the time busy to
	// the last two.
	callTimeout   = 20 * time.Second
	endsWithin    = 50 * time.Millisecond
	refusedWithin = 2 * time.Second
	busy          = 2 * time.Second
)

// reporter is the part of *testing.T that a case reports to. Tests of the suite have
// another one.
type reporter interface {
	Helper()
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	FailNow()
	Skipf(format string, args ...any)
}

// check is one run of a case: the harness, and what cases have in common.
type check struct {
	reporter
	Harness
	t       *testing.T    // for the harness's hooks
	virtual bool          // a bubble: waiting takes no time
	missing string        // what a skipped case would need
	settles time.Duration // see setClock
	start   time.Time
	opened  sync.Once
	other   *lockstore.Store // of the second process

	compared atomic.Int64 // requests whose answers were compared with the rule book
}

// newCheck is called in the bubble, if there is one.
func newCheck(t *testing.T, r reporter, h Harness, bubble bool) *check {
	c := &check{reporter: r, Harness: h, t: t, start: time.Now(), virtual: bubble}
	if h.Sleep == nil {
		c.Sleep = time.Sleep
	}
	return c
}

// setClock sets the clock, see Harness.ShiftClock. While it becomes right again a lease may be trusted for less, by a second at most: replies
// may have their time in whole seconds.
func (c *check) setClock(d time.Duration) {
	c.settles = time.Second
	c.ShiftClock(c.t, d)
}

// client is the store as one of two processes has it.
func (c *check) client(process int) *lockstore.Store {
	if c.Other == nil || process%2 == 0 {
		return c.Store
	}
	c.opened.Do(func() { c.other = c.Other(c.t) })
	return c.other
}

// run runs the case, from phase after the beginning of a second if waiting takes no time.
func (c *check) run(tc testCase) {
	if c.virtual {
		c.Sleep(phase)
	}
	tc.run(c)
}

func (c *check) fatalf(format string, args ...any) {
	c.Helper()
	c.Errorf(format, args...)
	c.FailNow()
}

// need skips the case if the harness or the store does not have what it needs.
func (c *check) need(what string, have bool) {
	c.Helper()
	if !have {
		c.missing = what
		c.Skipf("the harness has no %s", what)
	}
}

// sleepUntil waits until elapsed is d.
func (c *check) sleepUntil(d time.Duration) {
	if d -= c.elapsed(); d > 0 {
		c.Sleep(d)
	}
}

// expire waits until a lease of ttl that was granted before now is over for every owner.
func (c *check) expire(ttl time.Duration) { c.Sleep(ttl + c.TakeoverDelay + tick) }

// elapsed is the time since the start of the case.
func (c *check) elapsed() time.Duration { return time.Since(c.start) }

// within makes a call that must not hang.
func within[T any](c *check, call func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), callTimeout)
	defer cancel()
	return call(ctx)
}

// atOnce runs f n times at the same time.
func atOnce(n int, f func(i int)) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			f(i)
		})
	}
	close(start)
	wg.Wait()
}

// spread calls f with each number below n, and so many calls at once at the most.
func spread(n, most int, f func(i int)) {
	var next atomic.Int64
	atOnce(min(n, most), func(int) {
		for i := next.Add(1); i <= int64(n); i = next.Add(1) {
			f(int(i - 1))
		}
	})
}

// method is a call of one of the store's methods.
type method struct {
	name string
	call func(context.Context) error
}

// methods are calls of each kind, with the lease's key, owner and fence.
func (c *check) methods(l lockstore.Lease) (all []method) {
	for kind := range driver.AwaitTurn {
		r := driver.Request{Kind: kind, TTL: long}
		switch kind {
		case driver.Acquire:
			r.Owner, r.MaxHolders = l.Owner, 1
		case driver.Abandon, driver.Leave:
			r.Owner = l.Owner
		case driver.Renew, driver.Release, driver.MarkStarted, driver.Complete:
			r.Owner, r.Fence = l.Owner, max(1, l.Fence)
		case driver.Resolve, driver.Revoke:
			r.Fence = max(1, l.Fence)
		}
		all = append(all, method{kind.String(), func(ctx context.Context) error {
			_, err := c.Store.Driver().Do(ctx, l.Key, r)
			return err
		}})
	}
	return all
}

func (c *check) call(m method) error {
	_, err := within(c, func(ctx context.Context) (struct{}, error) { return struct{}{}, m.call(ctx) })
	return err
}

// answer calls the method with a context of limit, and calls during meanwhile. After
// during, the call must end within most.
func (c *check) answer(m method, limit time.Duration, during func(cancel func()), most time.Duration, why string) error {
	c.Helper()
	if !c.virtual {
		most += busy
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), limit)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- m.call(ctx) }()
	during(cancel)
	select {
	case err := <-done:
		return err
	case <-time.After(most):
		c.Errorf("%s: no answer within %v %s", m.name, most, why)
		cancel()
		select { // the call must end before the bubble
		case <-done:
		case <-time.After(callTimeout):
		}
		c.FailNow()
		return nil
	}
}

// must makes a call that has to end without an error.
func (c *check) must(name string, call func(context.Context) error) {
	c.Helper()
	if err := c.call(method{name, call}); err != nil {
		c.fatalf("%s: %v; want nil", name, err)
	}
}

func newKey() string { return "storetest/" + rand.Text() }

func newRequest(key string, ttl time.Duration) lockstore.Request {
	return lockstore.Request{
		Key:        key,
		Owner:      lockstore.NewOwner(),
		TTL:        ttl,
		HolderInfo: lockstore.HolderInfo{Name: "storetest", ID: rand.Text()[:8], Since: time.Now().Truncate(time.Millisecond), Caller: "caller"},
	}
}

func (c *check) tryAcquire(req lockstore.Request) (lockstore.Lease, error) {
	return c.tryAcquireBy(0, req)
}

// tryAcquireBy acquires in one of two processes.
func (c *check) tryAcquireBy(process int, req lockstore.Request) (lockstore.Lease, error) {
	return within(c, func(ctx context.Context) (lockstore.Lease, error) { return c.client(process).Acquire(ctx, req) })
}

// acquire wants a lease.
func (c *check) acquire(req lockstore.Request) lockstore.Lease {
	c.Helper()
	before := time.Now()
	lease, err := c.tryAcquire(req)
	took := time.Since(before)
	if err != nil {
		c.fatalf("Acquire of %q by %v: %v; want a lease", req.Key, req.Owner, err)
	}
	if least := req.TTL - c.Margin - c.settles - took - rounding; lease.TTL < least {
		c.Errorf("Acquire of a free key: the lease may be trusted for %v; want at least %v of its TTL of %v", lease.TTL, least, req.TTL)
	}
	return lease
}

// reacquire sends the request again, and wants the first lease.
func (c *check) reacquire(req lockstore.Request, first lockstore.Lease) lockstore.Lease {
	c.Helper()
	lease, err := c.tryAcquire(req)
	if err != nil {
		c.fatalf("Acquire again by the same owner: %v; want the same lease", err)
	}
	if lease.Fence != first.Fence {
		c.fatalf("Acquire again by the same owner: fence %d; want the first one, %d", lease.Fence, first.Fence)
	}
	return lease
}

// take acquires a new key for a new owner.
func (c *check) take(ttl time.Duration) (lockstore.Request, lockstore.Lease) {
	c.Helper()
	req := newRequest(newKey(), ttl)
	return req, c.acquire(req)
}

// next acquires the lease's key for a new owner, and wants a larger fence.
func (c *check) next(old lockstore.Lease) (lockstore.Request, lockstore.Lease) {
	c.Helper()
	req := newRequest(old.Key, long)
	lease := c.acquire(req)
	c.grew(old.Fence, lease.Fence)
	return req, lease
}

// held wants the key refused to a new owner because another has a lease.
func (c *check) held(key string) *lockstore.Refused {
	c.Helper()
	return c.refused(newRequest(key, long), lockstore.Held)
}

// refused wants the request refused, and the key in one of these states.
func (c *check) refused(req lockstore.Request, states ...lockstore.State) *lockstore.Refused {
	c.Helper()
	lease, err := c.tryAcquire(req)
	if err == nil {
		c.fatalf("Acquire of %q by %v was granted with fence %d; want it refused, for the key is %v", req.Key, req.Owner, lease.Fence, states)
	}
	return c.isRefused(err, states...)
}

// isRefused wants a refusal of a key in one of these states.
func (c *check) isRefused(err error, states ...lockstore.State) *lockstore.Refused {
	c.Helper()
	c.wantErr("a request that has to be refused", err, lockstore.ErrRefused)
	e, ok := errors.AsType[*lockstore.Refused](err)
	if !ok {
		c.fatalf("a request that has to be refused: %v (%T); want a *lockstore.Refused", err, err)
	}
	if !slices.Contains(states, e.State) {
		c.fatalf("refused, for the key is %v; want it %v: %v", e.State, states, err)
	}
	over := e.State.Done() || e.State == lockstore.InDoubt // nobody waits for it
	switch {
	case (e.StateEndsIn > 0) == (e.State == lockstore.InDoubt):
		c.Errorf("the key is %v for %v more; want more than 0, and 0 only for a key in doubt", e.State, e.StateEndsIn)
	case e.State == lockstore.Reserved && e.Holder != lockstore.HolderInfo{}:
		c.Errorf("the key is reserved, and the refusal says that %v holds it; want no holder", e.Holder)
	case over && e.QueuePosition != 0:
		c.Errorf("the key is %v, and the owner has place %d in its queue; want none", e.State, e.QueuePosition)
	case (len(e.Result) > 0) != (e.State == lockstore.Completed):
		c.Errorf("the key is %v, with a result of %v", e.State, e.Result)
	}
	return e
}

// acquireLost wants the acquisition of this owner to be over.
func (c *check) acquireLost(what string, req lockstore.Request) {
	c.Helper()
	_, err := c.tryAcquire(req)
	c.wantErr(what, err, lockstore.ErrLost)
}

func (c *check) grew(before, after lockstore.Fence) {
	c.Helper()
	if after <= before {
		c.fatalf("the fence went from %d to %d; want it larger", before, after)
	}
}

func (c *check) tryRenew(lease lockstore.Lease, ttl time.Duration) (lockstore.Lease, error) {
	return within(c, func(ctx context.Context) (lockstore.Lease, error) { return c.Store.Renew(ctx, lease, ttl) })
}

// renew wants the lease extended.
func (c *check) renew(lease lockstore.Lease, ttl time.Duration) time.Duration {
	c.Helper()
	renewed, err := c.tryRenew(lease, ttl)
	if err != nil {
		c.fatalf("Renew of %q with fence %d by %v: %v; want the lease to last", lease.Key, lease.Fence, lease.Owner, err)
	}
	return renewed.TTL
}

// renewLost wants the renewal refused.
func (c *check) renewLost(what string, lease lockstore.Lease) {
	c.Helper()
	_, err := c.tryRenew(lease, long)
	c.wantErr(what, err, lockstore.ErrLost)
}

// keeps wants that the owner still has its lease, and releases it.
func (c *check) keeps(req lockstore.Request, lease lockstore.Lease) {
	c.Helper()
	c.held(req.Key)
	c.reacquire(req, lease)
	c.renew(lease, long)
	c.release(lease)
}

func (c *check) tryRelease(lease lockstore.Lease) error {
	return c.call(method{"Release", func(ctx context.Context) error { return c.Store.Release(ctx, lease) }})
}

func (c *check) release(lease lockstore.Lease) {
	c.Helper()
	c.must("Release", func(ctx context.Context) error { return c.Store.Release(ctx, lease) })
}

func (c *check) abandon(req lockstore.Request) {
	c.Helper()
	c.must("Abandon", func(ctx context.Context) error {
		return c.Store.Abandon(ctx, req.Key, req.Owner)
	})
}

func (c *check) tryComplete(lease lockstore.Lease, result []byte, d time.Duration) error {
	return c.call(method{"Complete", func(ctx context.Context) error { return c.Store.Complete(ctx, lease, result, d) }})
}

func (c *check) complete(lease lockstore.Lease, result []byte, d time.Duration) {
	c.Helper()
	c.must("Complete", func(ctx context.Context) error { return c.Store.Complete(ctx, lease, result, d) })
}

func (c *check) inspect(key string) lockstore.Status {
	c.Helper()
	status, err := within(c, func(ctx context.Context) (lockstore.Status, error) { return c.Store.Inspect(ctx, key) })
	if err != nil {
		c.fatalf("Inspect of %q: %v", key, err)
	}
	return status
}

// wantErr wants an error with this one meaning and no other.
func (c *check) wantErr(what string, err, want error) {
	c.Helper()
	if err == nil {
		c.fatalf("%s: no error; want one that matches %q", what, want)
	}
	if !errors.Is(err, want) {
		c.fatalf("%s: %v; want an error that matches %q", what, err, want)
	}
	for _, other := range sentinels {
		if other != want && errors.Is(err, other) {
			c.Errorf("%s: %v: matches %q and %q too; want one meaning", what, err, want, other)
		}
	}
}

// wantUnknown wants an error of unknown outcome.
func (c *check) wantUnknown(what string, err error) {
	c.Helper()
	if err == nil {
		c.fatalf("%s: no error; want one, for no reply came", what)
	}
	for _, s := range sentinels {
		if errors.Is(err, s) {
			c.fatalf("%s: %v: matches %q; want an unknown outcome, for the request that changes the entry may have been applied", what, err, s)
		}
	}
}

// wantNilOr wants no error, or an error that matches want.
func (c *check) wantNilOr(what string, err, want error) {
	c.Helper()
	if err != nil {
		c.wantErr(what, err, want)
	}
}

var sentinels = []error{lockstore.ErrRefused, lockstore.ErrLost, lockstore.ErrInvalid, lockstore.ErrCorrupt, lockstore.ErrUnavailable}
