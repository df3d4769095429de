// Package memstore keeps locks in the memory of one process. It is package rules, the
// rules of the lock, under a mutex.
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
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lambdalock/lambdalock/internal/rules"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
	"github.com/lambdalock/lambdalock/lockstore/internal/portable"
)

// book has the settings of the rules.
var book = rules.Book{Places: 128, Marks: 16, FreeOnRelease: true}

// Store keeps leases in memory. It also implements lockstore.Inspector,
// lockstore.Completer, lockstore.Resolver, lockstore.Queuer, lockstore.Revoker and
// lockstore.Lister. The zero Store works like New(nil).
type Store struct {
	now func() time.Time // nil is time.Now

	mu      sync.Mutex
	states  map[string]rules.State
	changed map[string]chan struct{} // closed at the next write of the key; who waits has made it
}

var (
	_ lockstore.Store     = (*Store)(nil)
	_ lockstore.Inspector = (*Store)(nil)
	_ lockstore.Completer = (*Store)(nil)
	_ lockstore.Resolver  = (*Store)(nil)
	_ lockstore.Queuer    = (*Store)(nil)
	_ lockstore.Revoker   = (*Store)(nil)
	_ lockstore.Lister    = (*Store)(nil)
	_ driver.Driver       = (*Store)(nil)
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

// Do implements driver.Driver.
func (s *Store) Do(_ context.Context, key string, r driver.Request) (driver.Answer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next, changed, answer, _ := book.Decide(s.states[key], rules.At(s.time()), r)
	if changed {
		s.write(key, next)
	}
	return answer, nil
}

// Await implements driver.Driver.
func (s *Store) Await(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	left, changed := s.turn(key, r.Owner)
	if left <= 0 {
		return driver.Answer{Outcome: driver.Ask}, nil
	}
	if s.now != nil {
		left = min(left, lookAgain) // the caller's clock may go faster than timers
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-changed:
	case <-ctx.Done():
		return driver.Answer{}, ctx.Err()
	}
	return driver.Answer{Outcome: driver.NotYet}, nil
}

// turn is how long it may take until a request of the owner has another answer, and a
// channel that is closed when the key's state changes.
func (s *Store) turn(key string, owner driver.Owner) (time.Duration, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed == nil {
		s.changed = map[string]chan struct{}{}
	}
	if s.changed[key] == nil {
		s.changed[key] = make(chan struct{})
	}
	return book.Wait(s.states[key], rules.At(s.time()), owner), s.changed[key]
}

func (s *Store) write(key string, next rules.State) {
	if s.states == nil {
		s.states = map[string]rules.State{}
	}
	s.states[key] = next
	if c := s.changed[key]; c != nil {
		close(c)
		delete(s.changed, key)
	}
}

func (s *Store) time() time.Time {
	if s.now == nil {
		return time.Now()
	}
	return s.now()
}

func (s *Store) portable() portable.Store { return portable.Store{Driver: s, Name: "memstore"} }

// Acquire implements lockstore.Store.
func (s *Store) Acquire(ctx context.Context, req lockstore.Request) (lockstore.Lease, error) {
	return s.portable().Acquire(ctx, req)
}

// Renew implements lockstore.Store.
func (s *Store) Renew(ctx context.Context, lease lockstore.Lease, ttl time.Duration) (time.Duration, error) {
	return s.portable().Renew(ctx, lease, ttl)
}

// Release implements lockstore.Store.
func (s *Store) Release(ctx context.Context, lease lockstore.Lease) error {
	return s.portable().Release(ctx, lease)
}

// MarkStarted implements lockstore.Completer.
func (s *Store) MarkStarted(ctx context.Context, lease lockstore.Lease) error {
	return s.portable().MarkStarted(ctx, lease)
}

// Complete implements lockstore.Completer.
func (s *Store) Complete(ctx context.Context, lease lockstore.Lease, data []byte, d time.Duration) error {
	return s.portable().Complete(ctx, lease, data, d)
}

// ResolveEffect implements lockstore.Resolver.
func (s *Store) ResolveEffect(ctx context.Context, key string, fence lockstore.Fence, data []byte, d time.Duration) error {
	return s.portable().ResolveEffect(ctx, key, fence, data, d)
}

// ResolveNoEffect implements lockstore.Resolver.
func (s *Store) ResolveNoEffect(ctx context.Context, key string, fence lockstore.Fence) error {
	return s.portable().ResolveNoEffect(ctx, key, fence)
}

// Inspect implements lockstore.Inspector.
func (s *Store) Inspect(ctx context.Context, key string) (lockstore.Status, error) {
	return s.portable().Inspect(ctx, key)
}

// AwaitTurn implements lockstore.Queuer.
func (s *Store) AwaitTurn(ctx context.Context, key string, owner lockstore.Owner) error {
	return s.portable().AwaitTurn(ctx, key, owner)
}

// Leave implements lockstore.Queuer.
func (s *Store) Leave(ctx context.Context, key string, owner lockstore.Owner) error {
	return s.portable().Leave(ctx, key, owner)
}

// Revoke implements lockstore.Revoker.
func (s *Store) Revoke(ctx context.Context, req lockstore.RevokeRequest) (lockstore.Status, error) {
	return s.portable().Revoke(ctx, req)
}

// List implements lockstore.Lister: one page, in the order of the keys.
func (s *Store) List(ctx context.Context, prefix string, page func(lockstore.Page) error) error {
	if err := done(ctx); err != nil {
		return err
	}
	return page(s.list(prefix))
}

func (s *Store) list(prefix string) lockstore.Page {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, now := lockstore.Page{Read: len(s.states), Requests: 1}, rules.At(s.time())
	for _, key := range slices.Sorted(maps.Keys(s.states)) {
		if strings.HasPrefix(key, prefix) {
			_, _, answer, _ := book.Decide(s.states[key], now, driver.Request{Kind: driver.Inspect})
			p.Keys = append(p.Keys, portable.Status(key, answer.Status))
		}
	}
	return p
}

// Extent implements lockstore.Lister.
func (s *Store) Extent(ctx context.Context) (lockstore.Extent, error) {
	if err := done(ctx); err != nil {
		return lockstore.Extent{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return lockstore.Extent{Entries: int64(len(s.states))}, nil
}

// done returns an error when ctx has ended.
func done(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("memstore: not applied: %w: %w", lockstore.ErrUnavailable, err)
	}
	return nil
}
