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
	"sync"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// Store keeps leases in memory. It also implements lockstore.Inspector and
// lockstore.CooldownReleaser. The zero Store works like New(nil).
type Store struct {
	now func() time.Time // nil is time.Now

	mu      sync.Mutex
	entries map[string]entry
}

var (
	_ lockstore.Store            = (*Store)(nil)
	_ lockstore.Inspector        = (*Store)(nil)
	_ lockstore.CooldownReleaser = (*Store)(nil)
)

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
		return lockstore.Lease{}, &lockstore.HeldError{
			Key:       req.Key,
			Holder:    lockstore.DecodeHolder(e.holder),
			Remaining: e.expires.Sub(now),
		}
	}

	if e.owner != "" {
		e.end(e.owner, expired)
	}
	e.owner = req.Owner
	e.fence = lockstore.NextFence(e.fence, now)
	e.expires = now.Add(req.TTL)
	e.holder = req.Holder.Encode()
	s.write(req.Key, e)
	return lockstore.Lease{Key: req.Key, Owner: req.Owner, Fence: e.fence, TTL: req.TTL}, nil
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
	return s.release(ctx, lease, 0)
}

// ReleaseAfter implements lockstore.CooldownReleaser.
func (s *Store) ReleaseAfter(ctx context.Context, lease lockstore.Lease, d time.Duration) error {
	if err := lockstore.ValidateReleaseAfter(lease, d); err != nil {
		return err
	}
	return s.release(ctx, lease, d)
}

func (s *Store) release(ctx context.Context, lease lockstore.Lease, cooldown time.Duration) error {
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
	case ended && (abandon || how == released):
		return nil
	case e.holds(lease, now) || abandon && e.owner == lease.Owner:
		// The fence stays: the next grant must be above it.
		e.owner, e.expires = "", time.Time{}
		if cooldown > 0 {
			e.expires = now.Add(cooldown)
		}
	case !abandon:
		return lost(lease.Key, "this lease does not hold it")
	}
	e.end(lease.Owner, released)
	s.write(lease.Key, e)
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

	st := lockstore.Status{Key: key, Fence: e.fence}
	if e.taken(now) {
		st.Held = true
		st.Holder = lockstore.DecodeHolder(e.holder)
		st.Remaining = e.expires.Sub(now)
	}
	return st, nil
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
