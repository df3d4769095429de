// Package recipes has short answers to questions that the guard has no method for. Copy what
// you need. The pages in docs/ say when to use which.
package recipes

import (
	"context"
	"time"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
)

// Tenant runs work if fewer than each runs of the tenant, and fewer than total runs of all tenants, are at
// work. The tenant's lock is the outer one: the other way round, runs that wait for one busy tenant would have
// the seats of all.
func Tenant(ctx context.Context, g *guard.Guard, tenant string, each, total int, work func(context.Context, guard.Lock) error) error {
	return g.WithMaxHolders(each).Do(ctx, lockstore.Key("tenant", tenant), func(ctx context.Context, _ guard.Lock) error {
		return g.WithMaxHolders(total).Do(ctx, "all-tenants", work)
	})
}

// Begin takes a lock for a later invocation, which calls Finish within ttl. The text is a secret:
// whoever has it can release the lock. Hand it on in the state of a workflow, for example.
//
// owner is of lockstore.NewOwner, is as secret, and is stored before the first try: if the answer of a try is lost, the next one
// with the same owner gets the same lease. With another owner it would get *guard.LockBusy for the whole ttl. Who
// stops trying calls g.Abandon.
func Begin(ctx context.Context, g *guard.Guard, key string, owner lockstore.Owner, ttl time.Duration) (text string, err error) {
	lease, err := g.Acquire(ctx, guard.LeaseRequest{Key: key, Owner: owner, TTL: ttl})
	return lease.Encode(), err
}

// Finish runs work under the lock that Begin has taken, and releases it, unless work returns an
// error: then the next try of the invocation needs the lock. The lease is not renewed meanwhile.
// *guard.LockLost says that it has ended.
//
// The context that work gets ends with the lease, but not in time after a freeze: the clock of its timer may have stood still,
// too. Only data that compares the fence refuses the late writes then.
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

// Both is for a move from one store to another without a stop: each run takes the lock in both, the old
// store's first. A handler that has this lock calls Both, which takes the new store's. The fence is the larger
// one. It is for keys that one run holds at a time.
func Both(ctx context.Context, first guard.Lock, to *guard.Guard, work func(context.Context, guard.Lock) error) error {
	return to.Do(ctx, first.Key, func(ctx context.Context, second guard.Lock) error {
		return work(ctx, guard.Lock{Key: first.Key, Fence: max(first.Fence, second.Fence)})
	})
}

// WrapBoth is guard.Wrap for such a move.
func WrapBoth[In, Out any](from, to *guard.Guard, key guard.KeyFunc[In], handle guard.Handler[In, Out]) guard.Wrapped[In, Out] {
	return guard.Wrap(from, key, func(ctx context.Context, first guard.Lock, in In) (out Out, err error) {
		err = Both(ctx, first, to, func(ctx context.Context, lock guard.Lock) (err error) {
			out, err = handle(ctx, lock, in)
			return err
		})
		return out, err
	})
}

// Guards returns the guards for such a move: of the store that LOCK_URL names, and of the store that
// NEW_LOCK_URL names. Both have the settings of the environment, such as LOCK_WAIT.
func Guards(openers ...lockstore.SchemeOpener) (from, to *guard.Guard) {
	return boot.MustGuardFromEnv(openers...), boot.MustGuardFromURL("NEW_LOCK_URL", openers...)
}
