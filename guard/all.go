package guard

import (
	"context"
	"slices"

	"github.com/lambdalock/lambdalock/lockstore"
)

// MaxKeys bounds the keys of one DoAll.
const MaxKeys = 16

// DoAll is Do for work that needs several locks at once, such as a transfer between two
// accounts. It acquires the lock of each key, runs work and releases all locks. locks[i] is
// the lock of keys[i]. Write locks[i].Fence with the data of keys[i].
//
// All or nothing: if DoAll cannot get one of the locks, it releases the locks that it has,
// and work does not run. The error is that of Do for this key. If the loss of a lease ends the wait
// for another, it is *LockStoreUnavailable.
//
// No deadlock: DoAll acquires in the order of the sorted keys, whatever the order of its
// argument is. So calls of DoAll side by side never wait for each other in a circle, as a Do inside another Do can.
// DoAll needs MaxHolders 1. For keys that several runs may hold, nest calls of Do, always in the same order,
// with the largest limit inside.
//
// One context: the work's context ends DeadlineMargin before ctx's deadline, MaxHold after the
// first grant, or as soon as one of the leases is lost. DoAll renews all leases, also
// while it waits for a lock. Wait bounds the waiting for all locks together.
//
// DoAll releases the locks one after the other, in reverse order. All releases together
// have the time that Do has for one. Each key that DoAll has tried has a Report. A DoAll with a wrong
// number of keys, or with an invalid key, has one.
//
// There are 1 to MaxKeys keys; other numbers are a *LockInvalid. A key that stands twice is
// locked once, and locks has the same Lock twice.
func (g *Guard) DoAll(ctx context.Context, keys []string, work func(ctx context.Context, locks []Lock) error) error {
	if err := g.usable(ctx); err != nil {
		return err
	}
	if work == nil {
		return errNoWork
	}
	if err := g.alone("DoAll"); err != nil {
		return err
	}
	c := g.newCall(ctx)
	if n := len(keys); n < 1 || n > MaxKeys {
		return c.refuse(ctx, "", lockstore.Invalidf("guard: there are %d keys; want 1 to %d", n, MaxKeys))
	}
	for _, key := range keys {
		if err := lockstore.ValidateKey(key); err != nil {
			return c.refuse(ctx, key, err)
		}
	}
	held := make(map[string]Lock, len(keys))
	sorted := slices.Compact(slices.Sorted(slices.Values(keys)))
	_, err := c.doAll(ctx, sorted, held, func(ctx context.Context) error {
		locks := make([]Lock, len(keys))
		for i, key := range keys {
			locks[i] = held[key]
		}
		return work(ctx, locks)
	})
	return err
}

// doAll runs work under the locks of all keys: each key's run is inside the work of the
// run before it. So the contexts are derived from one another, and the releases come in
// reverse order.
func (c *call) doAll(ctx context.Context, keys []string, held map[string]Lock, work func(context.Context) error) (Outcome, error) {
	c.more = len(keys) > 1
	return c.newRun(ctx, keys[0]).do(0, func(ctx context.Context, lock Lock) (Outcome, error) {
		held[lock.Key] = lock
		if len(keys) > 1 {
			return c.doAll(ctx, keys[1:], held, work)
		}
		return c.runWork(func() error { return work(ctx) })
	})
}

// refuse ends a call with an error before it has asked the store.
func (c *call) refuse(ctx context.Context, key string, err error) error {
	r := c.newRun(ctx, key)
	defer r.close()
	return r.end(r.refused(err))
}
