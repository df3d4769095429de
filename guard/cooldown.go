package guard

import (
	"context"
	"fmt"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// Closing returns a Do that keeps the key closed to everybody for d more after
// work that returned nil, so that a second trigger of the same work finds it
// busy. The time is the store's and counts from the release. After anything
// else (an error, a panic, a lost lock) the key is free at once, as after Do.
// When the store cannot be told to keep it closed, Report.ReleaseErr says so
// and the key opens at the end of the lease, which may be sooner.
//
// It is an error when the store is no lockstore.CooldownReleaser, or when d is
// not lockstore.MinTTL to lockstore.MaxTTL.
func (g *Guard) WithCooldown(d time.Duration) (func(ctx context.Context, key string, work func(context.Context, Lock) error) error, error) {
	if err := g.usable(context.Background()); err != nil {
		return nil, err
	}
	closer, ok := lockstore.As[lockstore.CooldownReleaser](g.store)
	if !ok {
		return nil, fmt.Errorf("guard: the store (%T) cannot keep a key closed after a release: it is no lockstore.CooldownReleaser", g.store)
	}
	if d < lockstore.MinTTL || d > lockstore.MaxTTL {
		return nil, fmt.Errorf("guard: the time to keep a key closed is %v; want %v to %v", d, lockstore.MinTTL, lockstore.MaxTTL)
	}
	return func(ctx context.Context, key string, work func(context.Context, Lock) error) error {
		return g.do(ctx, key, cooldown{closer, d}, work)
	}, nil
}

// closing keeps the key closed for a while after the release; the zero value
// does not.
type cooldown struct {
	store lockstore.CooldownReleaser
	d     time.Duration
}

func (c cooldown) release(ctx context.Context, store lockstore.Store, lease lockstore.Lease) error {
	if c.store == nil {
		return store.Release(ctx, lease)
	}
	return c.store.ReleaseAfter(ctx, lease, c.d)
}
