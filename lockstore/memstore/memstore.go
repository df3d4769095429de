// Package memstore keeps locks in the memory of one process. It is the reference
// store: it shows the promises of package lockstore in the fewest lines.
//
// It is for tests: other processes do not see its locks, and all locks are gone when
// the process ends.
//
//   - Clock. The clock that New gets decides everything: which lease is live, which
//     lease has expired, and the time part of a fence.
//   - Trust. A lease may be trusted for its whole TTL. Another owner may get the key
//     at the instant at which the lease expires.
//   - Memory. The store remembers the last 16 acquisitions of each key that have
//     ended. So a late duplicate of such an acquire gets ErrLost and takes no lock, and
//     the second release of a lease returns nil.
package memstore

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// Store keeps leases in memory. It also implements lockstore.Inspector,
// lockstore.Keeper, lockstore.Settler, lockstore.Queuer, lockstore.Breaker and
// lockstore.Lister. The zero Store works like New(nil).
type Store struct {
	now func() time.Time // nil is time.Now

	mu      sync.Mutex
	entries map[string]entry
	changed map[string]chan struct{} // closed at the next write of the key; who waits has made it
}

var (
	_ lockstore.Store     = (*Store)(nil)
	_ lockstore.Inspector = (*Store)(nil)
	_ lockstore.Keeper    = (*Store)(nil)
	_ lockstore.Settler   = (*Store)(nil)
	_ lockstore.Queuer    = (*Store)(nil)
	_ lockstore.Breaker   = (*Store)(nil)
	_ lockstore.Lister    = (*Store)(nil)
)

// lookAgain is how often a waiter looks at a clock that is not time.Now.
const lookAgain = 5 * time.Millisecond

// Opener opens memory URLs: each is a new empty store.
var Opener = lockstore.Opener{
	Schemes: []string{"memory"},
	Open:    func(context.Context, lockstore.Config) (lockstore.Store, error) { return New(nil), nil },
}

// New returns an empty store. now is its clock; nil means time.Now.
func New(now func() time.Time) *Store {
	return &Store{now: now}
}

// Acquire implements lockstore.Store.
func (s *Store) Acquire(ctx context.Context, req lockstore.Request) (lockstore.Lease, error) {
	if err := req.Validate(); err != nil {
		return lockstore.Lease{}, err
	}
	if err := done(ctx); err != nil {
		return lockstore.Lease{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now, e := s.read(req.Key)

	switch _, ended := e.ending(req.Owner); {
	case ended:
		return lockstore.Lease{}, lost(req.Key, "this acquisition has ended")
	case e.owner == req.Owner && !e.taken(now):
		return lockstore.Lease{}, lost(req.Key, "the lease has expired")
	case e.owner == req.Owner:
		return lockstore.Lease{Key: req.Key, Owner: req.Owner, Fence: e.fence, TTL: e.expires.Sub(now)}, nil
	case e.taken(now):
		held := lockstore.HeldError{Key: req.Key, Holder: lockstore.DecodeHolder(e.holder), Remaining: e.expires.Sub(now)}
		if e.owner == "" { // nobody waits until a kept key is free
			return lockstore.Lease{}, &lockstore.KeptError{HeldError: held, Data: slices.Clone(e.data)}
		}
		held.Place = s.join(req, e)
		return lockstore.Lease{}, &held
	case e.inDoubt(now):
		return lockstore.Lease{}, &lockstore.DoubtError{HeldError: lockstore.HeldError{Key: req.Key, Holder: lockstore.DecodeHolder(e.holder)}}
	}
	if left := lockstore.UntilTurn(e.before(req.Owner), e.free(now)); left > 0 {
		return lockstore.Lease{}, &lockstore.HeldError{Key: req.Key, Remaining: left, Place: s.join(req, e), Free: true}
	}

	e.pass(req.Owner, now)
	if e.owner != "" {
		e.end(e.owner, expired)
	}
	e.owner, e.data = req.Owner, nil
	e.fence = lockstore.NextFence(e.fence, now)
	e.expires, e.freed = now.Add(req.TTL), time.Time{}
	e.holder = req.Holder.Encode()
	s.write(req.Key, e)
	return lockstore.Lease{Key: req.Key, Owner: req.Owner, Fence: e.fence, TTL: req.TTL}, nil
}

// join gives a refused request a place if it asks for one and there is room, and
// returns the place that its owner has, 0 for none.
func (s *Store) join(req lockstore.Request, e entry) int {
	if req.Queue && e.place(req.Owner) < 0 && len(e.queue) < maxPlaces {
		e.queue = append(slices.Clip(e.queue), req.Owner)
		s.write(req.Key, e)
	}
	return e.place(req.Owner) + 1
}

// Renew implements lockstore.Store.
func (s *Store) Renew(ctx context.Context, lease lockstore.Lease, ttl time.Duration) (time.Duration, error) {
	if err := lease.Validate(); err != nil {
		return 0, err
	}
	if err := lockstore.ValidateTTL(ttl); err != nil {
		return 0, err
	}
	if err := done(ctx); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now, e := s.read(lease.Key)

	if !e.holds(lease, now) {
		return 0, lost(lease.Key, "this lease does not hold it")
	}
	if longer := now.Add(ttl); longer.After(e.expires) {
		e.expires = longer
		s.write(lease.Key, e)
	}
	return e.expires.Sub(now), nil
}

// Release implements lockstore.Store.
func (s *Store) Release(ctx context.Context, lease lockstore.Lease) error {
	if err := lease.Validate(); err != nil {
		return err
	}
	if err := done(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now, e := s.read(lease.Key)

	abandon := lease.Fence == 0
	how, ended := e.ending(lease.Owner)
	switch {
	case ended && (abandon || how != expired):
		return nil
	case e.holds(lease, now) || e.inDoubt(now) && e.has(lease) || abandon && e.owner == lease.Owner:
		e.release(now)
	case !abandon:
		return lost(lease.Key, "this lease does not hold it")
	}
	e.leave(lease.Owner, now)
	e.end(lease.Owner, released)
	s.write(lease.Key, e)
	return nil
}

// Begin implements lockstore.Keeper.
func (s *Store) Begin(ctx context.Context, lease lockstore.Lease) error {
	if err := lockstore.ValidateGrant(lease); err != nil {
		return err
	}
	if err := done(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now, e := s.read(lease.Key)
	if !e.holds(lease, now) {
		return lost(lease.Key, "this lease does not hold it")
	}
	e.begun = true
	s.write(lease.Key, e)
	return nil
}

// Keep implements lockstore.Keeper.
func (s *Store) Keep(ctx context.Context, lease lockstore.Lease, data []byte, d time.Duration) error {
	if err := lockstore.ValidateKeep(lease, data, d); err != nil {
		return err
	}
	if err := done(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now, e := s.read(lease.Key)
	if how, ended := e.ending(lease.Owner); ended && how == kept {
		return nil
	}
	if !e.has(lease) {
		return lost(lease.Key, "this lease does not hold it")
	}
	e.keep(data, now.Add(d), kept)
	s.write(lease.Key, e)
	return nil
}

// SettleKept implements lockstore.Settler.
func (s *Store) SettleKept(ctx context.Context, key string, fence lockstore.Fence, data []byte, d time.Duration) error {
	if err := lockstore.ValidateSettleKept(key, fence, data, d); err != nil {
		return err
	}
	return s.settle(ctx, key, fence, true, func(e *entry, now time.Time) { e.keep(data, now.Add(d), released) })
}

// SettleFree implements lockstore.Settler.
func (s *Store) SettleFree(ctx context.Context, key string, fence lockstore.Fence) error {
	if err := lockstore.ValidateSettleFree(key, fence); err != nil {
		return err
	}
	return s.settle(ctx, key, fence, false, func(e *entry, now time.Time) {
		owner := e.owner
		e.release(now)
		e.end(owner, released)
	})
}

func (s *Store) settle(ctx context.Context, key string, fence lockstore.Fence, keeps bool, change func(*entry, time.Time)) error {
	if err := done(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now, e := s.read(key)
	switch {
	case e.owner != "" && e.taken(now):
		return &lockstore.HeldError{Key: key, Holder: lockstore.DecodeHolder(e.holder), Remaining: e.expires.Sub(now)}
	case e.fence != fence || e.owner != "" && !e.begun || e.owner == "" && e.taken(now) != keeps:
		return lost(key, "it is not in doubt with this fence")
	case e.owner != "":
		change(&e, now)
		s.write(key, e)
	}
	return nil
}

// Inspect implements lockstore.Inspector.
func (s *Store) Inspect(ctx context.Context, key string) (lockstore.Status, error) {
	if err := lockstore.ValidateKey(key); err != nil {
		return lockstore.Status{}, err
	}
	if err := done(ctx); err != nil {
		return lockstore.Status{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now, e := s.read(key)
	return e.status(key, now), nil
}

// AwaitTurn implements lockstore.Queuer.
func (s *Store) AwaitTurn(ctx context.Context, key string, owner lockstore.Owner) error {
	if err := (lockstore.Lease{Key: key, Owner: owner}).Validate(); err != nil {
		return err
	}
	for {
		left, changed := s.turn(key, owner)
		if left <= 0 {
			return nil
		}
		if s.now != nil {
			left = min(left, lookAgain) // the caller's clock may go faster than timers
		}
		timer := time.NewTimer(left)
		select {
		case <-timer.C:
		case <-changed:
			timer.Stop()
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

// turn is how long it may take until the owner is granted the key, and a channel
// that is closed when its entry changes.
func (s *Store) turn(key string, owner lockstore.Owner) (time.Duration, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, e := s.read(key)
	if s.changed == nil {
		s.changed = map[string]chan struct{}{}
	}
	if s.changed[key] == nil {
		s.changed[key] = make(chan struct{})
	}
	_, ended := e.ending(owner)
	switch {
	case ended, e.owner == owner, e.place(owner) < 0, e.inDoubt(now):
		return 0, nil // there is no turn to wait for
	case e.taken(now):
		return e.expires.Sub(now), s.changed[key]
	}
	return lockstore.UntilTurn(e.before(owner), e.free(now)), s.changed[key]
}

// Leave implements lockstore.Queuer.
func (s *Store) Leave(ctx context.Context, key string, owner lockstore.Owner) error {
	if err := (lockstore.Lease{Key: key, Owner: owner}).Validate(); err != nil {
		return err
	}
	if err := done(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now, e := s.read(key)
	if e.owner == owner && e.taken(now) {
		return fmt.Errorf("memstore: key %q: %w", key, lockstore.ErrGranted)
	}
	if e.place(owner) >= 0 {
		e.leave(owner, now)
		s.write(key, e)
	}
	return nil
}

func (s *Store) read(key string) (time.Time, entry) {
	now := time.Now
	if s.now != nil {
		now = s.now
	}
	return now(), s.entries[key]
}

func (s *Store) write(key string, e entry) {
	if s.entries == nil {
		s.entries = map[string]entry{}
	}
	s.entries[key] = e
	if c := s.changed[key]; c != nil {
		close(c)
		delete(s.changed, key)
	}
}

// done returns an error when ctx has ended. Then nothing was applied.
func done(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("memstore: not applied: %w: %w", lockstore.ErrUnavailable, err)
	}
	return nil
}

func lost(key, why string) error {
	return fmt.Errorf("memstore: key %q: %s: %w", key, why, lockstore.ErrLost)
}
