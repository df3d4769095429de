// Package portable makes the methods of package lockstore out of a driver: it checks
// arguments and contexts, and gives answers their names as errors.
package portable

import (
	"context"
	"fmt"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// Store has the methods of lockstore.Store, Inspector, Completer, Resolver, Queuer and
// Revoker. Name stands before its errors.
type Store struct {
	Driver driver.Driver
	Name   string
}

// Acquire implements lockstore.Store.
func (s Store) Acquire(ctx context.Context, req lockstore.Request) (lockstore.Lease, error) {
	if err := req.Validate(); err != nil {
		return lockstore.Lease{}, err
	}
	a, err := s.do(ctx, req.Key, driver.Request{
		Kind: driver.Acquire, Owner: req.Owner, TTL: req.TTL, MaxHolders: 1, Holder: req.HolderInfo.Encode(), Join: req.JoinQueue,
	})
	if err != nil {
		return lockstore.Lease{}, err
	}
	return lockstore.Lease{Key: req.Key, Owner: req.Owner, Fence: a.Fence, TTL: a.TTL}, nil
}

// Renew implements lockstore.Store.
func (s Store) Renew(ctx context.Context, lease lockstore.Lease, ttl time.Duration) (time.Duration, error) {
	if err := lease.Validate(); err != nil {
		return 0, err
	}
	if err := lockstore.ValidateTTL(ttl); err != nil {
		return 0, err
	}
	a, err := s.do(ctx, lease.Key, driver.Request{Kind: driver.Renew, Owner: lease.Owner, Fence: lease.Fence, TTL: ttl})
	return a.TTL, err
}

// Release implements lockstore.Store.
func (s Store) Release(ctx context.Context, lease lockstore.Lease) error {
	if err := lease.Validate(); err != nil {
		return err
	}
	kind := driver.Release
	if lease.Fence == 0 {
		kind = driver.Abandon
	}
	_, err := s.do(ctx, lease.Key, driver.Request{Kind: kind, Owner: lease.Owner, Fence: lease.Fence})
	return err
}

// MarkStarted implements lockstore.Completer.
func (s Store) MarkStarted(ctx context.Context, lease lockstore.Lease) error {
	if err := lockstore.ValidateGrant(lease); err != nil {
		return err
	}
	_, err := s.do(ctx, lease.Key, driver.Request{Kind: driver.MarkStarted, Owner: lease.Owner, Fence: lease.Fence})
	return err
}

// Complete implements lockstore.Completer.
func (s Store) Complete(ctx context.Context, lease lockstore.Lease, data []byte, d time.Duration) error {
	if err := lockstore.ValidateComplete(lease, data, d); err != nil {
		return err
	}
	_, err := s.do(ctx, lease.Key, driver.Request{Kind: driver.Complete, Owner: lease.Owner, Fence: lease.Fence, Result: data, TTL: d})
	return err
}

// ResolveEffect implements lockstore.Resolver.
func (s Store) ResolveEffect(ctx context.Context, key string, fence lockstore.Fence, data []byte, d time.Duration) error {
	if err := lockstore.ValidateResolveEffect(key, fence, data, d); err != nil {
		return err
	}
	_, err := s.do(ctx, key, driver.Request{Kind: driver.Resolve, Fence: fence, Effect: true, Result: data, TTL: d})
	return err
}

// ResolveNoEffect implements lockstore.Resolver.
func (s Store) ResolveNoEffect(ctx context.Context, key string, fence lockstore.Fence) error {
	if err := lockstore.ValidateResolveNoEffect(key, fence); err != nil {
		return err
	}
	_, err := s.do(ctx, key, driver.Request{Kind: driver.Resolve, Fence: fence})
	return err
}

// Revoke implements lockstore.Revoker.
func (s Store) Revoke(ctx context.Context, req lockstore.RevokeRequest) (lockstore.Status, error) {
	if err := req.Validate(); err != nil {
		return lockstore.Status{}, err
	}
	a, err := s.do(ctx, req.Key, driver.Request{Kind: driver.Revoke, Fence: req.Fence, Holder: req.By.Encode(), AtOnce: req.OpenAtOnce})
	if err != nil {
		return lockstore.Status{}, err
	}
	status := Status(req.Key, a.Status)
	if req.OpenAtOnce {
		status.Holder, status.Remaining = lockstore.DecodeHolderInfo(a.Status.Holder), a.Status.Remaining
	}
	return status, nil
}

// Inspect implements lockstore.Inspector.
func (s Store) Inspect(ctx context.Context, key string) (lockstore.Status, error) {
	if err := lockstore.ValidateKey(key); err != nil {
		return lockstore.Status{}, err
	}
	a, err := s.do(ctx, key, driver.Request{Kind: driver.Inspect})
	if err != nil {
		return lockstore.Status{}, err
	}
	return Status(key, a.Status), nil
}

// AwaitTurn implements lockstore.Queuer.
func (s Store) AwaitTurn(ctx context.Context, key string, owner lockstore.Owner) error {
	if err := (lockstore.Lease{Key: key, Owner: owner}).Validate(); err != nil {
		return err
	}
	for {
		a, err := s.Driver.Await(ctx, key, driver.Request{Owner: owner})
		if err != nil || a.Outcome != driver.NotYet {
			return err
		}
	}
}

// Leave implements lockstore.Queuer.
func (s Store) Leave(ctx context.Context, key string, owner lockstore.Owner) error {
	if err := (lockstore.Lease{Key: key, Owner: owner}).Validate(); err != nil {
		return err
	}
	_, err := s.do(ctx, key, driver.Request{Kind: driver.Leave, Owner: owner})
	return err
}

// do returns an error for each outcome that is not what the caller wants.
func (s Store) do(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	if err := ctx.Err(); err != nil {
		return driver.Answer{}, fmt.Errorf("%s: not applied: %w: %w", s.Name, lockstore.ErrUnavailable, err)
	}
	a, err := s.Driver.Do(ctx, key, r)
	if err != nil {
		return driver.Answer{}, err
	}
	switch a.Outcome {
	case driver.Granted, driver.Done:
		return a, nil
	case driver.Refused:
		return driver.Answer{}, refused(key, r, a)
	case driver.Lost:
		return driver.Answer{}, fmt.Errorf("%s: key %q: %s: %w", s.Name, key, a.Why, lockstore.ErrLost)
	case driver.Holding:
		return driver.Answer{}, fmt.Errorf("%s: key %q: %w", s.Name, key, lockstore.ErrGranted)
	}
	return driver.Answer{}, fmt.Errorf("%s: key %q: the driver gave the outcome %d, which no request has", s.Name, key, a.Outcome)
}

func refused(key string, r driver.Request, a driver.Answer) error {
	s := a.Status
	held := lockstore.HeldError{Key: key, Holder: lockstore.DecodeHolderInfo(s.Holder), Remaining: s.Remaining, QueuePosition: a.Position, Reserved: s.State == driver.Reserved}
	switch {
	case s.State == driver.Completed || s.State == driver.Cooldown:
		return &lockstore.KeptError{HeldError: held, Result: s.Result}
	case s.State == driver.InDoubt:
		return &lockstore.DoubtError{HeldError: held}
	case r.AtOnce:
		return &lockstore.BegunError{HeldError: held}
	}
	return &held
}

// Status is a driver's status in the words of package lockstore.
func Status(key string, s driver.Status) lockstore.Status {
	status := lockstore.Status{Key: key, Fence: s.Fence, Waiting: s.Waiting}
	if s.State == driver.Free || s.State == driver.Reserved {
		return status
	}
	status.Held, status.Holder, status.Remaining = true, lockstore.DecodeHolderInfo(s.Holder), s.Remaining
	status.Kept = s.State == driver.Completed || s.State == driver.Cooldown
	status.InDoubt, status.Broken = s.State == driver.InDoubt, s.State == driver.Revoked
	return status
}
