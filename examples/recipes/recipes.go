// Package recipes has short answers to questions that the guard has no method for. Copy what
// you need. The pages in docs/ say when to use which.
package recipes

import (
	"context"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
)

// AtMost runs work if fewer than n run under this name, and is a *guard.LockBusy otherwise. Each
// of n keys is one place. All programs need the same n. Options.Wait of the guard has to be 0.
func AtMost(ctx context.Context, g *guard.Guard, name string, n int, work func(context.Context, guard.Lock) error) (err error) {
	first := rand.IntN(n)
	for i := range n {
		started := false
		err = g.Do(ctx, lockstore.Key(name, strconv.Itoa((first+i)%n)), func(ctx context.Context, lock guard.Lock) error {
			started = true
			return work(ctx, lock)
		})
		if _, busy := err.(*guard.LockBusy); started || !busy {
			return err
		}
	}
	return err
}

// Begin takes a lock for a later invocation, which calls Finish within ttl. The text is a secret:
// whoever has it can release the lock. Hand it on in the state of a workflow, for example.
func Begin(ctx context.Context, g *guard.Guard, key string, ttl time.Duration) (text string, err error) {
	lease, err := g.Acquire(ctx, guard.LeaseRequest{Key: key, TTL: ttl})
	return lease.Encode(), err
}

// Finish runs work under the lock that Begin has taken, and releases it, unless work returns an
// error: then the next try of the invocation needs the lock. The lease is not renewed meanwhile.
// *guard.LockLost says that it has ended.
func Finish(ctx context.Context, g *guard.Guard, text string, ttl time.Duration, work func(context.Context, guard.Lock) error) error {
	lease, err := lockstore.ParseLease(text)
	if err != nil {
		return err
	}
	trusted, err := g.Renew(ctx, lease, ttl)
	if err != nil {
		return err
	}
	within, cancel := context.WithTimeout(ctx, trusted)
	defer cancel()
	if err := work(within, guard.Lock{Key: lease.Key, Fence: lease.Fence}); err != nil {
		return err
	}
	return g.Release(ctx, lease)
}

// Both is for a move from one store to another without a stop: each run takes the lock in both,
// always in this order. The fence is the larger one.
func Both(ctx context.Context, from, to *guard.Guard, key string, work func(context.Context, guard.Lock) error) error {
	return from.Do(ctx, key, func(ctx context.Context, first guard.Lock) error {
		return to.Do(ctx, key, func(ctx context.Context, second guard.Lock) error {
			return work(ctx, guard.Lock{Key: key, Fence: max(first.Fence, second.Fence)})
		})
	})
}
