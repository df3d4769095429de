package casstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// Begin implements lockstore.Keeper.
func (s *Store) Begin(ctx context.Context, lease lockstore.Lease) error {
	if err := lockstore.ValidateGrant(lease); err != nil {
		return err
	}
	if err := s.made(); err != nil {
		return err
	}
	mine := func(v view) bool { return v.mine(lease.Owner) && v.Fence == lease.Fence }
	c := s.begin(ctx, lease.Key)
	c.first = true
	v, err := c.start(mine)
	for ; ; v, err = c.again() {
		if err == nil && !mine(v) {
			v, err = c.fresh()
		}
		switch {
		case err != nil:
			return err
		case !mine(v):
			return c.lost("this lease does not hold it")
		}
		hint, err := c.hint()
		if err != nil {
			return err
		}
		over := v.begin.Add(v.ttl() + s.register.Step())
		if !hint.Before(over) {
			v, err = c.touch(v)
			if err == nil && !v.written.Before(over) {
				return c.lost("the lease has expired")
			}
		}
		if err == nil {
			next := v.record
			next.Begun = true
			v, err = c.write(v, next, same)
		}
		if err == nil && !v.written.Before(over) {
			// The write came too late, and nobody begins. So others may take the key over.
			next := v.record
			next.Begun = false
			if _, err = c.write(v, next, same); err == nil {
				return c.lost("the lease has expired")
			}
		}
		if !errors.Is(err, ErrConflict) {
			return err
		}
	}
}

// Keep implements lockstore.Keeper. Those who wait learn the answer when they read the entry
// next, within a second.
func (s *Store) Keep(ctx context.Context, lease lockstore.Lease, data []byte, d time.Duration) error {
	if err := lockstore.ValidateKeep(lease, data, d); err != nil {
		return err
	}
	if err := s.made(); err != nil {
		return err
	}
	mine := func(v view) bool { return v.mine(lease.Owner) && v.Fence == lease.Fence }
	c := s.begin(ctx, lease.Key)
	c.first = true
	v, err := c.start(mine)
	for ; ; v, err = c.again() {
		if err == nil && !mine(v) && !v.kept(lease.Owner) {
			v, err = c.fresh()
		}
		_, over := v.ending(lease.Owner)
		switch {
		case err != nil:
			return err
		case v.kept(lease.Owner):
			return nil
		case !mine(v) && !over && c.conflicts > 0 && v.version != "":
			// An earlier copy of the write may have kept it, as in Release.
			return fmt.Errorf("%s: key %q: the outcome is unknown: the entry has no trace of this lease", s.opt.Name, lease.Key)
		case !mine(v):
			return c.lost("this lease does not hold it")
		}
		next := v.record
		next.keep(data, d, true)
		if _, err = c.write(v, next, own); !errors.Is(err, ErrConflict) {
			return err
		}
	}
}

// SettleKept implements lockstore.Settler.
func (s *Store) SettleKept(ctx context.Context, key string, fence lockstore.Fence, data []byte, d time.Duration) error {
	if err := lockstore.ValidateSettleKept(key, fence, data, d); err != nil {
		return err
	}
	return s.settle(ctx, key, fence, true, func(next *record) { next.keep(data, d, false) })
}

// SettleFree implements lockstore.Settler.
func (s *Store) SettleFree(ctx context.Context, key string, fence lockstore.Fence) error {
	if err := lockstore.ValidateSettleFree(key, fence); err != nil {
		return err
	}
	return s.settle(ctx, key, fence, false, func(next *record) {
		next.end(next.Owner, false)
		next.State, next.Owner, next.TTL, next.Begun = stateFree, "", 0, false
	})
}

func (s *Store) settle(ctx context.Context, key string, fence lockstore.Fence, keeps bool, change func(*record)) error {
	if err := s.made(); err != nil {
		return err
	}
	c := s.begin(ctx, key)
	for {
		v, err := c.fresh()
		if err != nil {
			return err
		}
		left := s.ends(v).Sub(c.now)
		if left <= 0 && v.State == stateHeld && v.Begun && v.Fence == fence {
			// The time of a read ends no lease. That of a write of one's own does.
			v, err = c.touch(v)
			if errors.Is(err, ErrConflict) {
				continue
			}
			if err != nil {
				return err
			}
			left = s.ends(v).Sub(v.written)
		}
		switch {
		case v.State == stateHeld && left > 0:
			return &lockstore.HeldError{Key: key, Holder: lockstore.DecodeHolder(v.Holder), Remaining: left}
		case v.Fence == fence && v.State != stateHeld && (v.State == stateCooldown && left > 0) == keeps:
			return nil
		case v.Fence != fence || !v.Begun:
			return c.lost("it is not in doubt with this fence")
		}
		next, when := v.record, own
		if change(&next); !keeps {
			v.begin, when = s.ends(v), same // the turns of those who wait began at the end of the lease
		}
		freed, err := c.write(v, next, when)
		if errors.Is(err, ErrConflict) {
			continue
		}
		if err == nil {
			c.wake(freed)
		}
		return err
	}
}
