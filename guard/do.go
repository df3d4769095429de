package guard

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// Lock is what the work gets: the key that is held and its fencing token. Write the
// fence with the data, and let the resource refuse a smaller fence. Then a holder that
// stalled past its lease can overwrite nothing that a later holder has written.
type Lock struct {
	Key   string
	Fence lockstore.Fence

	// Seat is the lowest number, from 0, that no other holder of the key had at the grant. It is 0
	// unless the guard is one of WithMaxHolders.
	Seat int
}

// Do acquires the lock of key, runs work and releases the lock. It returns what work
// returned, with these exceptions. A mistake in the program is a plain error, and work does not
// run. If Do does not get the lock, work does not run, and the error is a *LockBusy, *LockCovered (see Options.Coalesce), *LockNoTime,
// *LockBadRequest, *LockCorrupt or *LockStoreUnavailable. If the lock is lost while work runs, the
// error is a *LockLost. A *LockCovered of a Do inside work comes wrapped in another error.
//
// The work's context ends in time: DeadlineMargin before ctx's deadline, at MaxHold, or when
// a lease of this run, or of a run around it, can no longer be trusted. It is cancelled when work returns. If work panics
// or calls runtime.Goexit, Do releases the lease and lets the panic go on with its own
// stack. While work runs, Do never releases the lease. If work never returns, the lease
// ends by its TTL.
func (g *Guard) Do(ctx context.Context, key string, work func(context.Context, Lock) error) error {
	if err := g.usable(ctx); err != nil {
		return err
	}
	if work == nil {
		return errNoWork
	}
	event, err := g.eventID(ctx)
	if err != nil {
		return err
	}
	return g.newCall(ctx, g.opt.Wait).do([]string{key}, job{
		wanted:   wanted{long: g.cooldown > 0, once: g.cooldown > 0, work: g.opt.Coalesce, event: event},
		work:     func(ctx context.Context, locks map[string]Lock) error { return work(ctx, locks[key]) },
		endLease: (*run).releaseAfterWork,
	})
}

// WithCooldown returns a guard whose Do has a cooldown: after work that returned nil, nobody can
// acquire the key for the time d. So a second trigger of the same work finds the key
// busy. d counts from the release. After an error, a panic or a
// lost lock there is no cooldown. If the release with the
// cooldown fails, Report.ReleaseErr says so; the key may then be free from the end of the lease on.
//
// A run of this guard that finds the key in its cooldown does not wait, and State of its
// LockBusy is lockstore.Cooldown. A run of another guard waits if the cooldown ends within its
// Options.Wait. DoAll and package idempotency need a guard without a cooldown, and return an error.
//
// The guard shares Shutdown with g. If d is not within lockstore.MinTTL and lockstore.MaxTTL, or MaxHolders is above 1,
// every call for a lock is an error, see Validate.
func (g *Guard) WithCooldown(d time.Duration) *Guard {
	if g.Validate() != nil {
		return g
	}
	with := *g
	if with.cooldown = d; d < lockstore.MinTTL || d > lockstore.MaxTTL {
		with.mistake = fmt.Errorf("guard: the cooldown is %v; want %v to %v", d, lockstore.MinTTL, lockstore.MaxTTL)
	}
	return with.checked()
}

// maxKeys bounds the keys of one DoAll.
const maxKeys = 16

// DoAll is Do for work that needs several locks at once, such as a transfer between two
// accounts. It acquires the lock of each key, runs work and releases all locks. locks[i] is
// the lock of keys[i]. Write locks[i].Fence with the data of keys[i].
//
// All or nothing: if DoAll cannot get one of the locks, it releases the locks that it has,
// and work does not run. The error is that of Do for this key. If a lease is lost while DoAll waits
// for another, the error is *LockStoreUnavailable.
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
// DoAll releases the locks side by side, in the time that Do has for one. Each key that DoAll has tried has a Report.
//
// There are 1 to 16 keys; other numbers are a *LockBadRequest. A key that stands twice is locked once.
func (g *Guard) DoAll(ctx context.Context, keys []string, work func(ctx context.Context, locks []Lock) error) error {
	if err := g.usable(ctx); err != nil {
		return err
	}
	if work == nil {
		return errNoWork
	}
	if err := g.plain("DoAll"); err != nil {
		return err
	}
	c := g.newCall(ctx, g.opt.Wait)
	if n := len(keys); n < 1 || n > maxKeys {
		return c.refuse("", lockstore.Invalidf("guard: there are %d keys; want 1 to %d", n, maxKeys))
	}
	for _, key := range keys {
		if err := lockstore.ValidateKey(key); err != nil {
			return c.refuse(key, err)
		}
	}
	sorted := slices.Compact(slices.Sorted(slices.Values(keys)))
	return c.do(sorted, job{
		work: func(ctx context.Context, held map[string]Lock) error {
			locks := make([]Lock, len(keys))
			for i, key := range keys {
				locks[i] = held[key]
			}
			return work(ctx, locks)
		},
		endLease: (*run).releaseAfterWork,
	})
}

// refuse ends a call with an error before it has asked the store, and reports it to Options.Observe. DoAll calls it, for its keys.
func (c *call) refuse(key string, err error) error {
	r := c.newRun(key, nil)
	defer r.endRun()
	return r.finish(r.failure(err))
}
