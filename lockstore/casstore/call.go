package casstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// call is one call of a method: what it has sent, and what its errors therefore say.
type call struct {
	store     *Store
	ctx       context.Context
	key       string
	now       time.Time // of the last fresh read; zero without one
	sent      bool      // a write was sent: a failure leaves the outcome unknown
	conflicts int
	first     bool // the caller has the lease, or is the first in line: it yields to nobody
	trip      time.Duration
}

func (s *Store) begin(ctx context.Context, key string) *call {
	return &call{store: s, ctx: ctx, key: key}
}

// start returns what this process wrote last if it will do for a write, else what
// the service has.
func (c *call) start(good func(view) bool) (view, error) {
	s := c.store
	if c.ctx.Err() == nil {
		s.mu.Lock()
		known, ok := s.cache[c.key]
		s.mu.Unlock()
		if ok && good(known.view) && (known.State != stateHeld || passed(known.at) < known.ttl()-s.opt.Margin) {
			return known.view, nil
		}
	}
	return c.read(false)
}

// again reads after a conflict.
func (c *call) again() (view, error) {
	if err := c.backOff(); err != nil {
		return view{}, err
	}
	return c.read(false)
}

// backOff pauses after a conflict unless the caller is the first. The pause grows slowly and
// to ten trips at most: whoever pauses for long is overtaken by many that came later. A
// renewal does not depend on the pause, see yields.
func (c *call) backOff() error {
	c.conflicts++
	if c.first {
		return nil
	}
	most := time.Duration(min(c.conflicts, 10)) * max(time.Millisecond, c.trip)
	if err := pause(c.ctx, rand.N(most)); err != nil {
		return c.failed(err)
	}
	return nil
}

func (c *call) fresh() (view, error) { return c.read(true) }

func (c *call) read(fresh bool) (view, error) {
	if err := c.ctx.Err(); err != nil {
		return view{}, c.failed(fmt.Errorf("%w: %w", lockstore.ErrUnavailable, err))
	}
	began := time.Now()
	e, now, err := c.store.register.Read(c.ctx, c.key, fresh)
	c.trip = time.Since(began)
	if err != nil {
		if !errors.Is(err, lockstore.ErrCorrupt) && !errors.Is(err, lockstore.ErrUnavailable) {
			err = fmt.Errorf("%w: %w", lockstore.ErrUnavailable, err) // a read changes nothing
		}
		return view{}, c.failed(err)
	}
	c.now = now
	c.store.learn(now, began)
	c.store.learn(e.Written, time.Time{})
	return c.store.parse(c.key, e)
}

// parse returns an error that matches lockstore.ErrCorrupt for an entry it cannot read.
func (s *Store) parse(key string, e Entry) (view, error) {
	v, err := newView(key, e)
	if err != nil {
		return view{}, fmt.Errorf("%s: key %q: %w: %w", s.opt.Name, key, err, lockstore.ErrCorrupt)
	}
	return v, nil
}

// when is from when on the state of an entry counts.
type when bool

const (
	own  when = true  // from this write on
	same when = false // from where it began
)

// touch writes an entry as it is, for the service's stamp.
func (c *call) touch(v view) (view, error) { return c.write(v, v.record, same) }

// write replaces an entry that nobody has changed. Which of own and same is right
// depends on what the write is for, and never on what the entry says: a renewal that
// kept another's begin would let two owners trust their leases.
func (c *call) write(v view, next record, w when) (view, error) {
	s := c.store
	next.N = v.N + 1
	next.Begin = 0
	if w == same && v.version != "" {
		next.Begin = v.begin.UnixNano()
	}
	if err := c.ctx.Err(); err != nil {
		return view{}, c.failed(fmt.Errorf("%w: %w", lockstore.ErrUnavailable, err))
	}
	value, began := next.encode(), time.Now()
	e, err := s.register.Write(c.ctx, c.key, value, v.version)
	if err != nil {
		s.forget(c.key)
	}
	switch {
	case errors.Is(err, ErrConflict):
		c.sent = true // it may be the echo of this very write
		return view{}, err
	case errors.Is(err, lockstore.ErrUnavailable):
		return view{}, c.failed(err)
	case errors.Is(err, lockstore.ErrCorrupt):
		return view{}, fmt.Errorf("%s: key %q: %w", s.opt.Name, c.key, err)
	case err != nil:
		c.sent = true
		return view{}, c.failed(err)
	}
	c.sent = true
	if e.Version == "" || e.Version == v.version || e.Written.IsZero() {
		return view{}, c.failed(errors.New("the service's reply to a write has the old version or no time"))
	}
	s.learn(e.Written, began)
	e.Value = value
	written, err := newView(c.key, e)
	if err != nil {
		return view{}, c.failed(err)
	}
	s.remember(written, began)
	return written, nil
}

// failed is the error of a call: when a write was sent, its outcome is unknown.
func (c *call) failed(err error) error {
	name := c.store.opt.Name
	if !c.sent {
		return fmt.Errorf("%s: key %q: not applied: %w", name, c.key, err)
	}
	if ctx := c.ctx.Err(); ctx != nil {
		return fmt.Errorf("%s: key %q: the outcome is unknown: %w: %v", name, c.key, ctx, err)
	}
	return fmt.Errorf("%s: key %q: the outcome is unknown: %v", name, c.key, err)
}

func (c *call) lost(why string) error {
	return fmt.Errorf("%s: key %q: %s: %w", c.store.opt.Name, c.key, why, lockstore.ErrLost)
}

// hint is the service's time, as far as this process knows it without asking.
func (c *call) hint() (time.Time, error) {
	s := c.store
	if !c.now.IsZero() {
		return c.now, nil
	}
	s.mu.Lock()
	last := s.clock
	s.mu.Unlock()
	if last.stamp.IsZero() {
		if _, err := c.fresh(); err != nil {
			return time.Time{}, err
		}
		return c.now, nil
	}
	return last.stamp.Add(passed(last.at)), nil
}

// passed is the time since a reading of the local clock, by the one of both local
// clocks that says more: the monotonic one stands still while Lambda freezes the process.
func passed(at time.Time) time.Duration {
	now := time.Now()
	return max(now.Sub(at), now.Round(0).Sub(at.Round(0)))
}

// learn notes a time of the service's: of some moment since a request began, or of any
// earlier moment if began is zero. What was known stays if it fits: the reply may have
// taken long, and its time would set the clock back by that much.
func (s *Store) learn(stamp, began time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.clock.stamp
	if !known.IsZero() {
		known = known.Add(passed(s.clock.at))
	}
	justNow := !began.IsZero()
	behind, ahead := stamp.After(known), justNow && !known.Before(stamp.Add(passed(began)+s.register.Step()))
	if !stamp.IsZero() && (behind && (justNow || !known.IsZero()) || ahead) {
		s.clock = lastStamp{stamp, time.Now()}
	}
}

func (s *Store) remember(v view, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.cache {
		if len(s.cache) < maxCached {
			break
		}
		delete(s.cache, key) // any: a miss costs a read
	}
	s.cache[v.key] = cached{v, at}
}

func (s *Store) forget(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.cache, key)
}

// pause lets time pass.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
