package lockstore

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
)

// Store keeps leases. The constructor of a store's package makes it; its methods are safe for
// concurrent use. Each method makes one attempt; the guard decides about repeats. A method
// checks its arguments before it sends anything; its error about a bad argument matches
// [ErrInvalid].
//
// When the context ends, a method returns within 50 ms, whatever the server does, and
// its error matches the context's error. When the server refuses connections, a method
// returns [ErrUnavailable] within 2 s.
type Store struct {
	name   string
	driver driver.Driver
	wake   func(ctx context.Context, key string, owners []Owner)
}

// New makes a store of a driver. It is for the packages of stores. name is that of the
// package, and stands before the errors. A driver that is nil is an error of every call.
func New(name string, d driver.Driver) *Store {
	if v := reflect.ValueOf(d); d != nil && v.Kind() == reflect.Pointer && v.IsNil() {
		d = nil
	}
	return &Store{name: name, driver: d, wake: func(context.Context, string, []Owner) {}}
}

// Validate returns an error unless New has made the store of a driver.
func (s *Store) Validate() error {
	switch {
	case s == nil:
		return Invalidf("lockstore: the store is nil")
	case s.name == "" && s.driver == nil:
		return Invalidf("lockstore: the store was not made by New")
	case s.driver == nil:
		return Invalidf("%s: the driver is nil", s.name)
	}
	return nil
}

// Name is the name of the store's package.
func (s *Store) Name() string {
	if s == nil {
		return ""
	}
	return s.name
}

// Driver returns the driver, for a package that has more methods for its own store.
func (s *Store) Driver() driver.Driver {
	if s == nil {
		return nil
	}
	return s.driver
}

// Format writes the name for every verb, because a driver may remember owners, which are secret.
func (s *Store) Format(f fmt.State, _ rune) {
	_, _ = io.WriteString(f, "lockstore.Store("+s.Name()+")")
}

// WrapDriver returns a store whose requests go through another driver around this one: for
// tests that make faults, and for metrics. The driver around it has a method
// Unwrap() driver.Driver. A store that is not valid stays as it is.
func (s *Store) WrapDriver(wrap func(driver.Driver) driver.Driver) *Store {
	if s.Validate() != nil {
		return s
	}
	wrapped := *s
	wrapped.driver = wrap(s.driver)
	return &wrapped
}

// OnWake returns a store that calls wake when the answer to a request names parked owners, see Request.Parked: the key was handed over to
// them, or it was completed. The request ends when wake returns. The request may have failed, too.
func (s *Store) OnWake(wake func(ctx context.Context, key string, owners []Owner)) *Store {
	if s.Validate() != nil {
		return s
	}
	waking := *s
	waking.wake = wake
	return &waking
}

// Acquire grants the key to the owner. A refusal is a *[Refused], which matches [ErrRefused].
// The same request again returns the same lease, with the time that is left of it, but at
// most req.TTL.
func (s *Store) Acquire(ctx context.Context, req Request) (Lease, error) {
	r := driver.Request{
		Kind: driver.Acquire, Owner: req.Owner, TTL: req.TTL, MaxHolders: cmp.Or(req.MaxHolders, 1), Holder: req.HolderInfo.Encode(), Join: req.JoinQueue, Parked: req.Parked,
		Work: req.Work, Hint: req.Hint,
	}
	if req.Work != "" || req.Event != "" {
		if err := validateWork(req); err != nil {
			return Lease{}, err
		}
		sum := sha256.Sum256([]byte(req.Event))
		r.Event = hex.EncodeToString(sum[:8])
	}
	if req.Parked != 0 || req.Address != "" {
		return s.park(ctx, req.Key, r, req.Address)
	}
	return s.grant(ctx, req.Key, r)
}

// grant sends an Acquire and returns the lease.
func (s *Store) grant(ctx context.Context, key string, r driver.Request) (Lease, error) {
	a, err := s.do(ctx, key, r)
	if err != nil {
		return Lease{}, err
	}
	return Lease{Key: key, Owner: r.Owner, Fence: a.Fence, TTL: a.TTL, Seat: a.Seat, Hint: a.Hint}, nil
}

// Extend makes a lease that was handed over to its owner last for ttl from now on, and says who holds it. Like Acquire it returns the
// same lease again. It returns [ErrLost] if the lease is over.
func (s *Store) Extend(ctx context.Context, lease Lease, ttl time.Duration, holder HolderInfo) (Lease, error) {
	if lease.Fence < 1 {
		return Lease{}, Invalidf("lockstore: Fence is %d; want that of a grant", lease.Fence)
	}
	return s.grant(ctx, lease.Key, driver.Request{Kind: driver.Acquire, Owner: lease.Owner, Fence: lease.Fence, TTL: ttl, MaxHolders: 1, Holder: holder.Encode(), Hint: lease.Hint})
}

// Renew makes the lease last for the longer of its TTL and ttl, from now on. A store may let
// it end later, and never earlier. Renew returns the lease with the longest time for which the caller may
// trust it, counted from before the call: a store never returns less than
// what is left of the earlier trust. It returns [ErrLost] when the lease is expired, released or another owner's.
func (s *Store) Renew(ctx context.Context, lease Lease, ttl time.Duration) (Lease, error) {
	a, err := s.do(ctx, lease.Key, driver.Request{Kind: driver.Renew, Owner: lease.Owner, Fence: lease.Fence, Hint: lease.Hint, TTL: ttl})
	if err != nil {
		return Lease{}, err
	}
	lease.TTL, lease.Hint = min(a.TTL, MaxTTL), cmp.Or(a.Hint, lease.Hint)
	return lease, nil
}

// Release ends the lease if this lease holds the key, or held it last. The key is free then, or
// handed over to the first in the queue, see [TurnTime]. The same release again returns nil. For a lease that was revoked, see [Store.Revoke].
func (s *Store) Release(ctx context.Context, lease Lease) error {
	_, err := s.do(ctx, lease.Key, driver.Request{Kind: driver.Release, Owner: lease.Owner, Fence: lease.Fence, Hint: lease.Hint})
	return err
}

// Abandon ends all that the owner has of the key, a lease or a place, after an Acquire whose outcome is unknown. A request of this owner
// that comes later gets nothing.
func (s *Store) Abandon(ctx context.Context, key string, owner Owner) error {
	_, err := s.do(ctx, key, driver.Request{Kind: driver.Abandon, Owner: owner})
	return err
}

// MarkStarted says that the work begins. From then on the key is free again only by a
// Release or an abandon of this owner, or when the work's result has ended. If the lease
// ends without them, the state is InDoubt: nobody knows whether the work had its
// effect. Everybody is then refused, until [Store.ResolveEffect] or [Store.ResolveNoEffect].
// A store remembers the mark for at least StartMarkTime.
//
// The same MarkStarted again returns nil. MarkStarted returns [ErrLost] when the lease is
// expired, released or another owner's. A caller begins the work only after nil, and only while
// it trusts the lease.
func (s *Store) MarkStarted(ctx context.Context, lease Lease) error {
	_, err := s.do(ctx, lease.Key, driver.Request{Kind: driver.MarkStarted, Owner: lease.Owner, Fence: lease.Fence, Hint: lease.Hint})
	return err
}

// Complete ends the lease, with the result of the work in its place. For the time d from now
// on nobody can acquire the key, and a refusal brings the result; then the key is free. Without
// a result the state is Cooldown. The queue ends: all who wait learn the result when they ask
// next.
//
// Complete works also after the end of the lease, if nobody was granted the key since, and it was
// handed over to nobody.
// The same Complete again returns nil and changes neither the result nor the time. Once
// another owner was granted the key, a store may have forgotten the first Complete, and
// returns [ErrLost]. A first Complete returns ErrLost when another was granted the key since,
// and when the lease was released, revoked or resolved.
func (s *Store) Complete(ctx context.Context, lease Lease, result []byte, d time.Duration) error {
	_, err := s.do(ctx, lease.Key, driver.Request{Kind: driver.Complete, Owner: lease.Owner, Fence: lease.Fence, Hint: lease.Hint, Result: result, TTL: d})
	return err
}

// Inspect returns the state of the key. It sees every write that ended before Inspect began.
func (s *Store) Inspect(ctx context.Context, key string) (Status, error) {
	a, err := s.do(ctx, key, driver.Request{Kind: driver.Inspect})
	if err != nil {
		return Status{}, err
	}
	return statusOf(key, a.Status), nil
}

// AwaitTurn waits in the key's queue, for the owner of a request that was refused with a place. Of the request the Key, the Owner and the
// Hint count. elapsed is the time since the owner's last refused Acquire was sent, by clocks that see a freeze of the process.
//
// It returns when the store has an answer, and an answer may be no news: so a caller calls it until the AwaitedTurn has a lease or says Ask.
// It asks the driver once; some drivers read the key several times meanwhile. If ctx ends first, the error matches the context's.
func (s *Store) AwaitTurn(ctx context.Context, req Request, elapsed time.Duration) (AwaitedTurn, error) {
	r := driver.Request{Kind: driver.AwaitTurn, Owner: req.Owner, Elapsed: elapsed, Hint: req.Hint}
	if err := s.usable(ctx, req.Key, r); err != nil {
		return AwaitedTurn{}, err
	}
	a, err := s.driver.Await(ctx, req.Key, r)
	if err == nil {
		err = s.errorOf(req.Key, r, a)
	}
	switch {
	case err != nil:
		return AwaitedTurn{}, err
	case a.Outcome != driver.Granted:
		return AwaitedTurn{Ask: a.Outcome == driver.Ask, Hint: a.Hint}, nil
	}
	// The place may be a parked one, whose turn is longer.
	return AwaitedTurn{Lease: Lease{Key: req.Key, Owner: req.Owner, Fence: a.Fence, TTL: min(a.TTL, TurnTime), Seat: a.Seat, Hint: a.Hint}}, nil
}

// Leave ends the owner's place in the key's queue, and changes nothing else. It ends no lease,
// and the store may still grant the key to a late request of this owner. If the owner has no
// place, Leave returns nil. If the owner holds the key, or was handed the key and its turn has not
// ended, it returns a *[StillHolds].
func (s *Store) Leave(ctx context.Context, key string, owner Owner) error {
	_, err := s.do(ctx, key, driver.Request{Kind: driver.Leave, Owner: owner})
	return err
}

// Close closes what the driver keeps open, such as a session or its own connections.
// The program that opened the store closes it when no call is under way.
func (s *Store) Close() error {
	if c, ok := driver.As[io.Closer](s.Driver()); ok {
		return c.Close()
	}
	return nil
}

// usable is the error of a call that sends nothing.
func (s *Store) usable(ctx context.Context, key string, r driver.Request) error {
	if err := cmp.Or(s.Validate(), validate(key, r)); err != nil {
		return err
	}
	return s.unsent(ctx)
}

// unsent is the error of a call whose context has ended before it sends anything.
func (s *Store) unsent(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s: not applied: %w: %w", s.name, ErrUnavailable, err)
	}
	return nil
}

// do returns an error for each outcome that is not what the caller wants.
func (s *Store) do(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	if err := s.usable(ctx, key, r); err != nil {
		return driver.Answer{}, err
	}
	a, err := s.driver.Do(ctx, key, r)
	if len(a.Wake) > 0 {
		s.wake(ctx, key, a.Wake)
	}
	if err == nil {
		err = s.errorOf(key, r, a)
	}
	if err != nil {
		return driver.Answer{}, err
	}
	return a, nil
}

// outcomes are those that a request of each kind may have.
var outcomes = [...][]driver.Outcome{
	driver.Inspect:     {driver.Done},
	driver.Acquire:     {driver.Granted, driver.Refused, driver.Lost},
	driver.Renew:       {driver.Granted, driver.Lost},
	driver.Release:     {driver.Done, driver.Lost},
	driver.Abandon:     {driver.Done},
	driver.Leave:       {driver.Done, driver.Holding},
	driver.MarkStarted: {driver.Done, driver.Lost, driver.Exclusive},
	driver.Complete:    {driver.Done, driver.Lost, driver.Exclusive},
	driver.Resolve:     {driver.Done, driver.Refused, driver.Lost},
	driver.Revoke:      {driver.Done, driver.Refused, driver.Lost},
	driver.AwaitTurn:   {driver.Granted, driver.NotYet, driver.Ask},
}

// errorOf is the error that an answer is, nil for what the caller wants. An answer that cannot
// be true is an unknown outcome.
func (s *Store) errorOf(key string, r driver.Request, a driver.Answer) error {
	switch {
	case !slices.Contains(outcomes[r.Kind], a.Outcome):
		return fmt.Errorf("%s: key %q: a mistake in the driver: it gave the outcome %d to the request %q, which cannot have it", s.name, key, a.Outcome, r.Kind)
	case a.Outcome == driver.Lost:
		return fmt.Errorf("%s: key %q: %s: %w", s.name, key, a.Why, ErrLost)
	case a.Outcome == driver.Refused:
		return refusedBy(key, r, a)
	case a.Outcome == driver.Holding:
		return fmt.Errorf("%s: %w", s.name, &StillHolds{key, a.Fence})
	case a.Outcome == driver.Exclusive:
		return Invalidf("%s: key %q: %s needs a lease with MaxHolders 1", s.name, key, r.Kind)
	case r.Kind != driver.Acquire && r.Kind != driver.AwaitTurn || a.Outcome != driver.Granted:
		return nil
	}
	most := cmp.Or(r.TTL, MaxParkedTurn)
	if a.Fence < 1 || a.Seat < 0 || a.Seat >= MaxHolders || a.TTL > most {
		return fmt.Errorf("%s: key %q: a mistake in the driver: it granted a lease with fence %d and seat %d for %v; want a fence of 1 or more, a seat of 0 to %d, and at most %v", s.name, key, a.Fence, a.Seat, a.TTL, MaxHolders-1, most)
	}
	return nil
}

// optional returns an interface that not every driver has, for a call that may be sent.
func optional[T any](ctx context.Context, s *Store, what string) (t T, err error) {
	if err := s.Validate(); err != nil {
		return t, err
	}
	t, ok := driver.As[T](s.driver)
	if !ok {
		return t, fmt.Errorf("%s: this store cannot %s: %w", s.name, what, errors.ErrUnsupported)
	}
	return t, s.unsent(ctx)
}
