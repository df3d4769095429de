package storetest

import (
	"context"
	"crypto/rand"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

const (
	long     = 10 * time.Minute      // a TTL that does not end during a case
	short    = lockstore.MinTTL      // a TTL that a case waits for
	rounding = 5 * time.Millisecond  // how much shorter or later than promised; never longer or earlier
	tick     = 20 * time.Millisecond // lets the clock of a fence move on

	// How soon a call has to end: in any case, or the run would hang with it; after the
	// end of its context; when the server refuses connections. A busy machine, which is not
	// the store's fault, may add to the last two on the wall clock.
	callTimeout   = 20 * time.Second
	endsWithin    = 50 * time.Millisecond
	refusedWithin = 2 * time.Second
	busy          = 2 * time.Second
)

// reporter is the part of *testing.T that a case reports to. It is an
// interface so that a test can watch a case fail.
type reporter interface {
	Helper()
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	FailNow()
	Skipf(format string, args ...any)
}

// check is one case's run: the harness, and the questions that cases ask.
type check struct {
	reporter
	Harness
	t        *testing.T // for the harness's hooks only
	virtual  bool       // waiting takes no time
	injected bool       // because the harness has a clock of its own
	lacks    string     // what a skipped case would have needed
	start    time.Time
	slept    atomic.Int64
}

// newCheck is called in the bubble, if there is one.
func newCheck(t *testing.T, r reporter, h Harness, bubble bool) *check {
	c := &check{reporter: r, Harness: h, t: t, start: time.Now()}
	c.injected = h.Sleep != nil && !bubble
	c.virtual = bubble || c.injected
	if h.Sleep == nil {
		c.Sleep = time.Sleep
	}
	return c
}

// at runs the case from this far into a second on, if waiting takes no time.
func (c *check) at(phase time.Duration, tc testCase) {
	if c.virtual && phase > 0 {
		c.sleep(phase)
	}
	tc.run(c)
}

func (c *check) fatalf(format string, args ...any) {
	c.Helper()
	c.Errorf(format, args...)
	c.FailNow()
}

// need skips the case when the harness cannot do what it needs.
func (c *check) need(field string, have bool) {
	c.Helper()
	if !have {
		c.lacks = field
		c.Skipf("the harness has no %s", field)
	}
}

func (c *check) sleep(d time.Duration) {
	c.slept.Add(int64(d))
	c.Sleep(d)
}

// sleepUntil waits until elapsed is d.
func (c *check) sleepUntil(d time.Duration) {
	if d -= c.elapsed(); d > 0 {
		c.sleep(d)
	}
}

// expire waits until a lease of ttl that was granted before now is over for
// everybody.
func (c *check) expire(ttl time.Duration) { c.sleep(ttl + c.TakeoverDelay + tick) }

// elapsed is the time since the start of the case on the clock that sleep moves.
func (c *check) elapsed() time.Duration {
	if c.injected {
		return time.Duration(c.slept.Load())
	}
	return time.Since(c.start)
}

func (c *check) context() (context.Context, context.CancelFunc) {
	return context.WithTimeout(c.t.Context(), callTimeout)
}

// method is a call of one of the store's methods.
type method struct {
	name string
	call func(context.Context) error
}

// methods are calls of each method, for the lease's key and owner.
func (c *check) methods(l lockstore.Lease) []method {
	all := []method{
		{"Acquire", func(ctx context.Context) error {
			_, err := c.Store.Acquire(ctx, lockstore.Request{Key: l.Key, Owner: l.Owner, TTL: long})
			return err
		}},
		{"Renew", func(ctx context.Context) error {
			_, err := c.Store.Renew(ctx, l, long)
			return err
		}},
		{"Release", func(ctx context.Context) error { return c.Store.Release(ctx, l) }},
		{"Abandon", func(ctx context.Context) error {
			return c.Store.Release(ctx, lockstore.Lease{Key: l.Key, Owner: l.Owner})
		}},
	}
	if i, ok := lockstore.As[lockstore.Inspector](c.Store); ok {
		all = append(all, method{"Inspect", func(ctx context.Context) error {
			_, err := i.Inspect(ctx, l.Key)
			return err
		}})
	}
	if d, ok := lockstore.As[lockstore.CooldownReleaser](c.Store); ok {
		all = append(all, method{"ReleaseAfter", func(ctx context.Context) error { return d.ReleaseAfter(ctx, l, long) }})
	}
	return all
}

// everyMethod calls each method and hands its answer to want.
func (c *check) everyMethod(about string, l lockstore.Lease, want func(what string, err error)) {
	c.Helper()
	for _, m := range c.methods(l) {
		ctx, cancel := c.context()
		err := m.call(ctx)
		cancel()
		want(m.name+" ("+about+")", err)
	}
}

// answer calls the method and returns its answer, which has to come within most.
// during happens while the call is on its way; most counts from its end.
func (c *check) answer(m method, limit time.Duration, during func(cancel func()), most time.Duration, why string) (context.Context, error) {
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
		return ctx, err
	case <-time.After(most):
		c.Errorf("%s: no answer within %v %s", m.name, most, why)
		cancel()
		select { // a bubble must not end before the call
		case <-done:
		case <-time.After(callTimeout):
		}
		c.FailNow()
		return nil, nil
	}
}

func newKey() string { return "storetest/" + rand.Text() }

func newRequest(key string, ttl time.Duration) lockstore.Request {
	return lockstore.Request{
		Key:    key,
		Owner:  lockstore.NewOwner(),
		TTL:    ttl,
		Holder: lockstore.Holder{Name: "storetest", ID: rand.Text()[:8], Since: time.Now().Truncate(time.Millisecond), Caller: "caller"},
	}
}

func (c *check) tryAcquire(req lockstore.Request) (lockstore.Lease, error) {
	ctx, cancel := c.context()
	defer cancel()
	return c.Store.Acquire(ctx, req)
}

// acquire wants the lease, and a lease that fits the request.
func (c *check) acquire(req lockstore.Request) lockstore.Lease {
	c.Helper()
	before := time.Now()
	lease, err := c.tryAcquire(req)
	took := time.Since(before)
	if err != nil {
		c.fatalf("Acquire of %q by %v: %v; want a lease", req.Key, req.Owner, err)
	}
	c.fits(lease, req)
	if lease.TTL > req.TTL {
		c.fatalf("the lease may be trusted for %v; want at most the TTL that was asked for, %v", lease.TTL, req.TTL)
	}
	if least := req.TTL - c.Margin - took - rounding; lease.TTL < least {
		c.Errorf("Acquire of a free key: the lease may be trusted for %v; want at least %v of its TTL of %v", lease.TTL, least, req.TTL)
	}
	return lease
}

// reacquire wants the lease that was granted before.
func (c *check) reacquire(req lockstore.Request, first lockstore.Lease) lockstore.Lease {
	c.Helper()
	lease, err := c.tryAcquire(req)
	if err != nil {
		c.fatalf("Acquire again by the same owner: %v; want the same lease", err)
	}
	c.fits(lease, req)
	if lease.Fence != first.Fence {
		c.fatalf("Acquire again by the same owner: fence %d; want the first one, %d", lease.Fence, first.Fence)
	}
	return lease
}

func (c *check) fits(lease lockstore.Lease, req lockstore.Request) {
	c.Helper()
	if lease.Key != req.Key || lease.Owner != req.Owner {
		c.fatalf("the lease is for key %q and owner %v; want %q and %v", lease.Key, lease.Owner, req.Key, req.Owner)
	}
	if lease.Fence <= 0 {
		c.fatalf("the lease has the fence %d; want more than 0", lease.Fence)
	}
}

// take acquires a new key for a new owner.
func (c *check) take(ttl time.Duration) (lockstore.Request, lockstore.Lease) {
	c.Helper()
	req := newRequest(newKey(), ttl)
	return req, c.acquire(req)
}

// held wants the request refused because another has the key.
func (c *check) held(req lockstore.Request) *lockstore.HeldError {
	c.Helper()
	lease, err := c.tryAcquire(req)
	if err == nil {
		c.fatalf("Acquire of %q by %v was granted with fence %d; want it held by another", req.Key, req.Owner, lease.Fence)
	}
	c.wantErr("Acquire of a held key", err, lockstore.ErrHeld)
	var held *lockstore.HeldError
	if !errors.As(err, &held) {
		c.fatalf("Acquire of a held key: %v (%T); want a *lockstore.HeldError", err, err)
	}
	if held.Key != req.Key {
		c.Errorf("the held error is for key %q; want %q", held.Key, req.Key)
	}
	return held
}

// remaining asks, as a new owner, how long the key is held for.
func (c *check) remaining(key string) time.Duration {
	c.Helper()
	return c.held(newRequest(key, long)).Remaining
}

// between wants a time that is above 0 and in the bounds, give or take what the
// store may round and its delay.
func (c *check) between(what string, d, least, most time.Duration) {
	c.Helper()
	least -= rounding
	most += c.TakeoverDelay + rounding
	if d <= 0 || d < least || d > most {
		c.Errorf("%s is %v; want more than 0, and %v to %v", what, d, least, most)
	}
}

// notGranted wants an acquire refused as held or as lost; either is true when
// another has the key now and the owner's time is over too.
func (c *check) notGranted(what string, req lockstore.Request) {
	c.Helper()
	lease, err := c.tryAcquire(req)
	switch {
	case err == nil:
		c.fatalf("%s: granted with fence %d; want it refused", what, lease.Fence)
	case errors.Is(err, lockstore.ErrHeld):
		c.wantErr(what, err, lockstore.ErrHeld)
	default:
		c.wantErr(what, err, lockstore.ErrLost)
	}
}

func (c *check) tryRenew(lease lockstore.Lease, ttl time.Duration) (time.Duration, error) {
	ctx, cancel := c.context()
	defer cancel()
	return c.Store.Renew(ctx, lease, ttl)
}

// renew wants the lease extended.
func (c *check) renew(lease lockstore.Lease, ttl time.Duration) time.Duration {
	c.Helper()
	trusted, err := c.tryRenew(lease, ttl)
	if err != nil {
		c.fatalf("Renew of %q with fence %d by %v: %v; want the lease to last", lease.Key, lease.Fence, lease.Owner, err)
	}
	return trusted
}

// renewLost wants the renew refused.
func (c *check) renewLost(what string, lease lockstore.Lease) {
	c.Helper()
	_, err := c.tryRenew(lease, long)
	c.wantErr(what, err, lockstore.ErrLost)
}

func (c *check) tryRelease(lease lockstore.Lease) error {
	ctx, cancel := c.context()
	defer cancel()
	return c.Store.Release(ctx, lease)
}

func (c *check) release(lease lockstore.Lease) {
	c.Helper()
	if err := c.tryRelease(lease); err != nil {
		c.fatalf("Release of %q with fence %d: %v; want nil", lease.Key, lease.Fence, err)
	}
}

func (c *check) abandon(req lockstore.Request) {
	c.Helper()
	if err := c.tryRelease(lockstore.Lease{Key: req.Key, Owner: req.Owner}); err != nil {
		c.fatalf("Abandon (Release with Fence 0) of %q: %v; want nil", req.Key, err)
	}
}

// inspector skips the case when the store cannot look at a key.
func (c *check) inspector() lockstore.Inspector {
	c.Helper()
	i, ok := lockstore.As[lockstore.Inspector](c.Store)
	if !ok {
		c.lacks = "Inspector"
		c.Skipf("the store is no lockstore.Inspector")
	}
	return i
}

func (c *check) inspect(key string) lockstore.Status {
	c.Helper()
	ctx, cancel := c.context()
	defer cancel()
	status, err := c.inspector().Inspect(ctx, key)
	if err != nil {
		c.fatalf("Inspect of %q: %v", key, err)
	}
	if status.Key != key {
		c.Errorf("the status is for key %q; want %q", status.Key, key)
	}
	return status
}

// delayed skips the case when the store cannot keep a key closed.
func (c *check) delayed() lockstore.CooldownReleaser {
	c.Helper()
	d, ok := lockstore.As[lockstore.CooldownReleaser](c.Store)
	if !ok {
		c.lacks = "CooldownReleaser"
		c.Skipf("the store is no lockstore.CooldownReleaser")
	}
	return d
}

func (c *check) tryReleaseAfter(lease lockstore.Lease, d time.Duration) error {
	ctx, cancel := c.context()
	defer cancel()
	return c.delayed().ReleaseAfter(ctx, lease, d)
}

func (c *check) releaseAfter(lease lockstore.Lease, d time.Duration) {
	c.Helper()
	if err := c.tryReleaseAfter(lease, d); err != nil {
		c.fatalf("ReleaseAfter of %q with fence %d: %v; want nil", lease.Key, lease.Fence, err)
	}
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
	for _, other := range sentinels() {
		if other != want && errors.Is(err, other) {
			c.Errorf("%s: %v: matches %q and %q too; want one meaning", what, err, want, other)
		}
	}
}

// wantUnknown wants an error that says nothing about what was applied.
func (c *check) wantUnknown(what string, err error) {
	c.Helper()
	if err == nil {
		c.fatalf("%s: no error; want one, for no reply came", what)
	}
	for _, s := range sentinels() {
		if errors.Is(err, s) {
			c.fatalf("%s: %v: matches %q; want an unknown outcome, for the request that changes the entry may have been applied", what, err, s)
		}
	}
}

// wantNilOr wants no error, or one that matches want.
func (c *check) wantNilOr(what string, err, want error) {
	c.Helper()
	if err != nil {
		c.wantErr(what, err, want)
	}
}

func sentinels() []error {
	return []error{lockstore.ErrHeld, lockstore.ErrLost, lockstore.ErrInvalid, lockstore.ErrCorrupt, lockstore.ErrUnavailable}
}
