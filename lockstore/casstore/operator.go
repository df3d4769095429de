package casstore

import (
	"context"
	"errors"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// broken is the owner of a lease that was broken. No request has this owner, because it
// has spaces.
const broken = "broken by an operator"

// Break implements lockstore.Breaker, by a read and a write.
func (s *Store) Break(ctx context.Context, req lockstore.BreakRequest) (lockstore.Status, error) {
	if err := req.Validate(); err != nil {
		return lockstore.Status{}, err
	}
	if err := s.made(); err != nil {
		return lockstore.Status{}, err
	}
	c, by := s.begin(ctx, req.Key), req.By.Encode()
	for status := (lockstore.Status{}); ; {
		v, err := c.fresh()
		if err != nil {
			return lockstore.Status{}, err
		}
		left := s.ends(v).Sub(c.now)
		switch over := v.State != stateHeld || left <= 0; {
		case c.conflicts > 0 && over && v.Fence == req.Fence && v.Holder == by:
			return status, nil // an earlier copy of the write has done it
		case c.conflicts > 0 && req.Now && v.Fence != req.Fence:
			return lockstore.Status{}, c.failed(errors.New("another owner was granted the key meanwhile"))
		case over || v.Fence != req.Fence:
			return lockstore.Status{}, c.lost("no live lease with this fence holds it")
		case req.Now && v.Begun:
			return lockstore.Status{}, &lockstore.BegunError{HeldError: lockstore.HeldError{Key: req.Key, Holder: lockstore.DecodeHolder(v.Holder), Remaining: left}}
		case v.Owner == broken && !req.Now:
			return s.status(v, c.now), nil
		}
		next, when := v.record, same
		if v.Owner != broken {
			next.end(v.Owner, false)
			next.Owner, next.Holder = broken, by
		}
		status = s.status(view{record: next, key: v.key, begin: v.begin}, c.now)
		if req.Now {
			next.State, next.Owner, next.TTL, when = stateFree, "", 0, own
			next.Holder = by // nobody reads it but a Break whose write is sent twice
			status.Held, status.Broken = false, false
		}
		written, err := c.write(v, next, when)
		if errors.Is(err, ErrConflict) {
			if err := c.backOff(); err != nil {
				return lockstore.Status{}, err
			}
			continue
		}
		if err != nil {
			return lockstore.Status{}, err
		}
		c.wake(written)
		return status, nil
	}
}

// StatusOf returns what an entry of this key says at a time of the service. It is for a store
// that lists its keys. The error matches lockstore.ErrCorrupt.
func (s *Store) StatusOf(key string, e Entry, now time.Time) (lockstore.Status, error) {
	v, err := s.parse(key, e)
	if err != nil {
		return lockstore.Status{}, err
	}
	return s.status(v, now), nil
}

// status is what the entry says at a time of the service.
func (s *Store) status(v view, now time.Time) lockstore.Status {
	status := lockstore.Status{Key: v.key, Fence: v.Fence, Waiting: len(v.Queue)}
	if left := s.ends(v).Sub(now); v.State != stateFree && (left > 0 || v.Begun) {
		status.Held, status.Holder, status.Remaining = true, lockstore.DecodeHolder(v.Holder), max(0, left)
		status.Kept, status.InDoubt, status.Broken = v.State == stateCooldown, left <= 0, left > 0 && v.Owner == broken
	}
	return status
}
