// Package casstore makes a lock store out of any database that can read an entry,
// write it back if nobody else has, and say when it was written. It is the short way
// to a store of one's own: write a [KV], call [New], and run package castest.
//
// # How it works
//
// The rules of the lock are package internal/rules: a pure function of an entry, the time and a
// request. This package reads the entry, asks the rules, and replaces the entry if nobody has
// changed it meanwhile. An entry has the whole state of a key, so all changes have one order.
//
// The service's stamps are the only clock. A lease begins at the stamp of the write that
// granted or renewed it. Another owner may be granted the key when a write of its own into the
// same entry has a stamp of begin + TTL + Step + Skew or later. Step is the resolution of the
// stamps, and MaxClockSkew is how far the clocks of the service's hosts may differ. The holder trusts its lease for TTL - Margin from
// before the write.
//
// Every other time is a guess: the time of a read, or the last stamp and what has passed since.
// A guess may delay an answer. For each answer the rules say what it has to rest on:
//
//   - Any read: a refusal, and that an acquisition has ended, because that never changes. So
//     may a change of the entry, if it does not depend on the time: it is applied to the entry
//     that was read, or not at all.
//   - A fresh read: ErrLost, the result of Inspect, and "no place in the queue".
//   - The stamp of a write of the caller's own: a takeover, the turn in a queue, the time of
//     trust of a repeat, "the lease has expired", "in doubt". First the store writes the entry as
//     it is. The stamp of this write is the time, and the change goes on top of it.
//   - The stamp of the change itself: MarkStarted. If the lease was over by then, the store takes the
//     change back.
//
// A lease that was granted or renewed is trusted from before the write of that, whatever the
// guess was. A renewal that is under way when the lease ends still extends it, if nobody else
// wrote the entry before the renewal arrives. The fence of a free key is made of a guess, which
// is too late if the process's wall clock has jumped ahead. Then the next fences grow by 1,
// until the service's time has come so far.
//
// # Cost
//
// Requests to the service, reads included: a free key 2 (1 after a release by the
// same process), a refusal 1 and one more to take a place in the queue, renewal and
// release 1 (2 from another process), a takeover 3, also of a free key that was kept for
// others, a repeat 2, to settle a key in doubt 3. The first read of a process is a fresh one.
//
// A conflict costs a fresh read and the write again. The holder, the first in the queue and who
// settles a key repeat at once. All others pause first, for the time of ten requests at most.
//
// # Limits
//
// An entry has at most 64 places and the last 16 owners whose acquisitions have ended, see
// MaxValue for its size. The store never deletes an entry. An operator may delete the entry of a
// key that nobody holds or waits for, and that is neither kept nor in doubt.
//
// An entry is JSON behind a mark and a checksum. A field that this version does not know, of the
// entry, a holder, a place, a mark or a result, stays as it is. So a later version may add fields
// while both are in use. The store remembers what it wrote last, of 1,024 keys at most, and no
// results.
//
// # A register of one's own
//
//   - Write is the database's conditional write. What a version is made of matters
//     most: if the database counts versions of an entry, and begins again after a deletion,
//     add something random to the entry when it is created, and let each write check it.
//
//   - Written is the time in the reply to the write, or what the database keeps beside
//     the entry: a time of the service between the call of Write and its commit. A time of
//     the client's clock will not do. Nor will the rest of a lease or of a TTL that the
//     service counts down itself: after a change of its leader it may count from the start.
//
//   - A fresh read is what the database calls strongly consistent or linearizable. now is
//     the time in its reply. If the reply to a read has no time, write
//     another entry first, and take the time of that write.
//
//   - If the database's client repeats requests by itself, ErrConflict may be the answer to
//     the second copy of a write. That is allowed.
//
//   - Only a refusal that certainly comes before the write is applied is
//     lockstore.ErrUnavailable: a connection that was never made, a lack of permission. A
//     timeout is not.
//
//   - An opener, see lockstore.Opener, makes a store of it:
//
//     return casstore.New(register, casstore.Options{Name: "mystore", Skew: skew})
//
// The test of a register is two calls, castest.Run and storetest.Run with
// castest.Harness. storetest.Run also compares the store with the rules. castest.Memory is the shortest register.
package casstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/lambdalock/lambdalock/internal/rules"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
	"github.com/lambdalock/lambdalock/lockstore/internal/portable"
)

// Options are a store's settings.
type Options struct {
	// Name stands before the store's errors; "" is casstore.
	Name string
	// MaxClockSkew is how far the clocks of the service's hosts may disagree, 0 to a minute.
	MaxClockSkew time.Duration
	// The trust in a lease ends Margin before its TTL is over: 0 to half a second.
	Margin time.Duration
}

// Store keeps leases in a Register. It implements lockstore.Store,
// lockstore.Inspector, lockstore.Completer, lockstore.Resolver, lockstore.Revoker and
// lockstore.Queuer.
type Store struct {
	register KV
	opt      Options

	mu     sync.Mutex
	clock  lastStamp
	writes map[string]view // own last ones, by key; they may lead to a write, never to an answer
}

var (
	_ lockstore.Store     = (*Store)(nil)
	_ lockstore.Inspector = (*Store)(nil)
	_ lockstore.Completer = (*Store)(nil)
	_ lockstore.Resolver  = (*Store)(nil)
	_ lockstore.Revoker   = (*Store)(nil)
	_ lockstore.Queuer    = (*Store)(nil)
	_ driver.Driver       = (*Store)(nil)
)

const maxStep = time.Second

// New returns a store over a register. Its errors match lockstore.ErrInvalid.
func New(r KV, opt Options) (*Store, error) {
	if opt.Name == "" {
		opt.Name = "casstore"
	}
	switch {
	case r == nil:
		return nil, fmt.Errorf("%s: the register is nil: %w", opt.Name, lockstore.ErrInvalid)
	case opt.MaxClockSkew < 0 || opt.MaxClockSkew > time.Minute:
		return nil, fmt.Errorf("%s: Skew is %v; want 0 to 1m: %w", opt.Name, opt.MaxClockSkew, lockstore.ErrInvalid)
	case opt.Margin < 0 || opt.Margin > time.Second/2:
		return nil, fmt.Errorf("%s: Margin is %v; want 0 to 500ms: %w", opt.Name, opt.Margin, lockstore.ErrInvalid)
	case r.ClockResolution() <= 0 || r.ClockResolution() > maxStep:
		return nil, fmt.Errorf("%s: the register's Step is %v; want more than 0, at most 1s: %w", opt.Name, r.ClockResolution(), lockstore.ErrInvalid)
	}
	return &Store{register: r, opt: opt, writes: map[string]view{}}, nil
}

// made returns an error for a Store that New has not made.
func (s *Store) made() error {
	if s == nil || s.register == nil {
		return lockstore.Invalidf("casstore: the store was not made by New")
	}
	return nil
}

func (s *Store) name() string {
	if s.made() != nil {
		return "casstore"
	}
	return s.opt.Name
}

// A waiter reads the entry every shortLook when it is the first in line, and less often
// the longer the line and the wait are. One that is woken reads when something may have
// happened without a wake-up: the holder died, a turn is over, the wake-up got lost.
const (
	shortLook = 25 * time.Millisecond
	longLook  = 300 * time.Millisecond
	wokenLook = 750 * time.Millisecond
)

// Await implements driver.Driver, by reads that are not fresh. If the register is a Waker, it
// waits for a wake-up, and reads every 0.75 s. Its outcome is Ask.
func (s *Store) Await(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	if err := s.made(); err != nil {
		return driver.Answer{}, err
	}
	var woken <-chan struct{} // nil without a Waker: never
	if w, ok := s.register.(Waker); ok {
		// The first read comes after Listen, so that no release is missed.
		if listening, stop, err := w.Listen(ctx, key, string(r.Owner)); err == nil {
			woken = listening
			defer stop()
		}
	}
	ask := driver.Answer{Outcome: driver.Ask}
	for began := time.Now(); ; {
		v, err := (&call{store: s, ctx: ctx, key: key}).read(false)
		if err != nil {
			return ask, errors.Join(ctx.Err(), pause(ctx, longLook))
		}
		wait := book.Wait(v.State, s.clockAt(v), r.Owner)
		if wait <= 0 {
			return ask, nil
		}
		look := max(shortLook, min(wokenLook, wait))
		if woken == nil {
			place := slices.IndexFunc(v.Queue, func(w rules.Waiter) bool { return w.Owner == r.Owner })
			look = min(longLook, time.Duration(1+place)*shortLook+time.Since(began)/20)
		}
		timer := time.NewTimer(look*3/4 + rand.N(look/2))
		select {
		case <-timer.C:
		case <-woken:
			timer.Stop()
			return ask, nil
		case <-ctx.Done():
			timer.Stop()
			return ask, ctx.Err()
		}
	}
}

// StatusOf returns what an entry of this key says at a time of the service. It is for a store
// that lists its keys. The error matches lockstore.ErrCorrupt.
func (s *Store) StatusOf(key string, e Entry, now time.Time) (lockstore.Status, error) {
	v, err := s.view(key, e)
	if err != nil {
		return lockstore.Status{}, err
	}
	_, _, a, _ := book.Decide(v.State, rules.Clock{Early: now, Late: thisWrite}, driver.Request{Kind: driver.Inspect})
	return portable.Status(key, a.Status), nil
}

func (s *Store) portable() portable.Store { return portable.Store{Driver: s, Name: s.name()} }

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

// Complete implements lockstore.Completer. Those who wait learn the answer when they read the entry
// next, within a second.
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

// Inspect implements lockstore.Inspector by one fresh read.
func (s *Store) Inspect(ctx context.Context, key string) (lockstore.Status, error) {
	return s.portable().Inspect(ctx, key)
}

// AwaitTurn implements lockstore.Queuer, see Await.
func (s *Store) AwaitTurn(ctx context.Context, key string, owner lockstore.Owner) error {
	return s.portable().AwaitTurn(ctx, key, owner)
}

// Leave implements lockstore.Queuer.
func (s *Store) Leave(ctx context.Context, key string, owner lockstore.Owner) error {
	return s.portable().Leave(ctx, key, owner)
}

// Revoke implements lockstore.Revoker, by a read and a write.
func (s *Store) Revoke(ctx context.Context, req lockstore.RevokeRequest) (lockstore.Status, error) {
	return s.portable().Revoke(ctx, req)
}
