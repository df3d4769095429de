// Package casstore makes a lock store out of any database that can read an entry,
// write it back if nobody else has, and say when it was written. It is the short way
// to a store of one's own: write a [Register], call [New], and run package castest.
//
// # How it keeps the promises of package lockstore
//
//   - One entry for each key has the lease, the queue, the fence and the owners whose
//     acquisitions have ended. Each change of it is one compare-and-swap, so changes
//     have one order.
//   - The service's stamps are the only clock. A lease begins at the stamp of the write that
//     granted or renewed it, and another owner may be granted the key when a write of its own
//     into the same entry has a stamp of begin + TTL + Step + Skew or later. (Step is the
//     resolution of the service's stamps, Skew is how far the clocks of its hosts may differ.)
//     That write, a touch, changes nothing but a counter; the takeover then goes on top of the
//     touch's version.
//   - The holder trusts its lease for TTL - Margin from before the write.
//   - Every other time (the time of a read, the last stamp and what has passed since)
//     is a hint. A hint may delay an answer or start a touch. It grants nothing and ends
//     nothing: a touch also decides whether a free key is still kept for those who have
//     places before the caller. A slow reply makes a hint old by the time that the reply
//     took. For that long a free key may be refused.
//   - The fence of a free key is made of a hint, which is too late if the process's wall
//     clock has jumped ahead. Then the next fences grow by 1, until the service's time
//     has come so far.
//   - A renewal for less than the lease's TTL renews it for this TTL, from now: the entry
//     has a begin and a TTL, and no end.
//   - A renewal that is under way when the lease ends still extends it, if nobody else
//     wrote the entry before the renewal arrives. Otherwise it may be ErrLost.
//
// What each result is based on: a refusal, on any read. ErrLost, the result of Inspect and
// "no place in the queue", on a fresh read or a write. A grant, the time of trust and "the
// lease has expired", on a write of the caller's own. That an acquisition has ended never
// changes, so any read may say it.
//
// # Cost
//
// Requests to the service, reads included: a free key 2 (1 after a release by the
// same process), a refusal 1 and one more to take a place in the queue, renewal and
// release 1 (2 from another process), a takeover 3, also of a free key that was kept for
// others, a repeat 2, to settle a key in doubt 3.
//
// A conflict costs a read and the write again. The holder, the first in the queue and who
// settles a key repeat at once. All others pause first, for the time of ten requests at most.
//
// # Limits
//
// An entry has at most 64 places and the last 16 owners whose acquisitions have ended, and
// takes at most 8 KB. What is kept comes on top, as base64, see MaxValue. The store never
// deletes an entry. An operator may delete the entry of a key that nobody holds or waits
// for, and that is neither kept nor in doubt.
//
// # A register of one's own
//
//   - Write is the database's conditional write. What a version is made of matters
//     most: if the database counts versions of an entry, and begins again after a deletion,
//     add something random to the entry when it is created, and let each write check it.
//
//   - Written is the time in the reply to the write, or what the database keeps beside
//     the entry. A time of the client's clock will not do.
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
// castest.Harness. castest.Memory is the shortest register.
package casstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// Options are a store's settings.
type Options struct {
	// Name stands before the store's errors; "" is casstore.
	Name string
	// Skew is how far the clocks of the service's hosts may disagree, 0 to a minute.
	Skew time.Duration
	// The trust in a lease ends Margin before its TTL is over: 0 to half a second.
	Margin time.Duration
}

// Store keeps leases in a Register. It implements lockstore.Store,
// lockstore.Inspector, lockstore.Keeper, lockstore.Settler, lockstore.Breaker and
// lockstore.Queuer.
type Store struct {
	register Register
	opt      Options

	mu    sync.Mutex
	clock lastStamp
	cache map[string]cached // of own last writes; they may lead to a write, never to an answer
}

type cached struct {
	view
	at time.Time // local, before the write
}

// maxCached bounds the cache. Without an entry a call reads first.
const maxCached = 1024

// lastStamp is the latest time of the service that was seen, and when.
type lastStamp struct{ stamp, at time.Time }

var (
	_ lockstore.Store     = (*Store)(nil)
	_ lockstore.Inspector = (*Store)(nil)
	_ lockstore.Keeper    = (*Store)(nil)
	_ lockstore.Settler   = (*Store)(nil)
	_ lockstore.Breaker   = (*Store)(nil)
	_ lockstore.Queuer    = (*Store)(nil)
)

// New returns a store over a register. Its errors match lockstore.ErrInvalid.
func New(r Register, opt Options) (*Store, error) {
	if opt.Name == "" {
		opt.Name = "casstore"
	}
	switch {
	case r == nil:
		return nil, fmt.Errorf("%s: the register is nil: %w", opt.Name, lockstore.ErrInvalid)
	case opt.Skew < 0 || opt.Skew > time.Minute:
		return nil, fmt.Errorf("%s: Skew is %v; want 0 to 1m: %w", opt.Name, opt.Skew, lockstore.ErrInvalid)
	case opt.Margin < 0 || opt.Margin > time.Second/2:
		return nil, fmt.Errorf("%s: Margin is %v; want 0 to 500ms: %w", opt.Name, opt.Margin, lockstore.ErrInvalid)
	case r.Step() <= 0 || r.Step() > time.Second:
		return nil, fmt.Errorf("%s: the register's Step is %v; want more than 0, at most 1s: %w", opt.Name, r.Step(), lockstore.ErrInvalid)
	}
	return &Store{register: r, opt: opt, cache: map[string]cached{}}, nil
}

// made returns an error for a Store that New has not made.
func (s *Store) made() error {
	if s == nil || s.register == nil {
		return lockstore.Invalidf("casstore: the store was not made by New")
	}
	return nil
}

// ends is when another owner may be granted a key that is held or in its cooldown.
func (s *Store) ends(v view) time.Time {
	step := s.register.Step()
	end := v.begin.Add(v.ttl() + step + s.opt.Skew)
	if whole := end.Truncate(step); whole.Before(end) {
		return whole.Add(step) // no stamp lies between two steps
	}
	return end
}

// freed is since when an owner may be granted the key.
func (s *Store) freed(v view) time.Time {
	if v.State == stateFree {
		return v.begin
	}
	return s.ends(v)
}

// farAhead is how far a stamp may be ahead of the service's present time. A clock
// that was set back by more keeps the key for nobody.
const farAhead = 3 * time.Second

// untilTurn is how long the key is kept for those before an owner.
func (s *Store) untilTurn(v view, o lockstore.Owner, hint time.Time) time.Duration {
	if len(v.Queue) == 0 || s.ahead(v, hint) {
		return 0
	}
	return lockstore.UntilTurn(v.before(o), max(0, hint.Sub(s.freed(v))))
}

func (s *Store) ahead(v view, hint time.Time) bool { return s.freed(v).Sub(hint) > farAhead }

// Acquire implements lockstore.Store.
func (s *Store) Acquire(ctx context.Context, req lockstore.Request) (lockstore.Lease, error) {
	if err := req.Validate(); err != nil {
		return lockstore.Lease{}, err
	}
	if err := s.made(); err != nil {
		return lockstore.Lease{}, err
	}
	c := s.begin(ctx, req.Key)
	v, err := c.start(func(v view) bool {
		_, over := v.ending(req.Owner)
		return v.State == stateFree && len(v.Queue) == 0 && !over
	})
	for ; ; v, err = c.again() {
		if err != nil {
			return lockstore.Lease{}, err
		}
		if _, over := v.ending(req.Owner); over {
			return lockstore.Lease{}, c.lost("this acquisition has ended")
		}
		c.first = v.place(req.Owner) == 0
		if v.mine(req.Owner) {
			touched, err := c.touch(v)
			if errors.Is(err, ErrConflict) {
				continue
			}
			if err != nil {
				return lockstore.Lease{}, err
			}
			left := v.begin.Add(v.ttl()).Sub(touched.written)
			if left <= 0 {
				return lockstore.Lease{}, c.lost("the lease has expired")
			}
			return lockstore.Lease{Key: req.Key, Owner: req.Owner, Fence: v.Fence, TTL: min(req.TTL, left) - s.opt.Margin}, nil
		}
		hint, err := c.hint()
		if err != nil {
			return lockstore.Lease{}, err
		}
		held := v.State != stateFree && hint.Before(s.ends(v))
		left := s.untilTurn(v, req.Owner, hint)
		// A hint may be wrong. So a lease ends by the stamp of a touch, and so does the time in
		// which a free key is kept for others.
		takesOver := v.State != stateFree && !held && (left == 0 || v.Begun)
		overtakes := v.State == stateFree && len(v.Queue) > 0 && !c.first && left == 0
		// A clock that was set back left the state to begin in days. A touch lets it begin now.
		inDays := v.State != stateFree && v.begin.Sub(hint) > farAhead+s.opt.Skew
		if takesOver || overtakes || inDays {
			if v, err = c.touch(v); errors.Is(err, ErrConflict) {
				continue
			}
			if err != nil {
				return lockstore.Lease{}, err
			}
			hint = v.written
			held = v.State != stateFree && hint.Before(s.ends(v))
			left = s.untilTurn(v, req.Owner, hint)
		}
		switch {
		case held && v.State == stateCooldown:
			return lockstore.Lease{}, &lockstore.KeptError{
				HeldError: lockstore.HeldError{Key: req.Key, Holder: lockstore.DecodeHolder(v.Holder), Remaining: max(s.ends(v).Sub(hint), s.register.Step())},
				Data:      v.Data,
			}
		case !held && v.Begun:
			return lockstore.Lease{}, &lockstore.DoubtError{HeldError: lockstore.HeldError{Key: req.Key, Holder: lockstore.DecodeHolder(v.Holder)}}
		}
		if held || left > 0 {
			refused, err := c.refuse(v, req, hint, held, left)
			if errors.Is(err, ErrConflict) {
				continue
			}
			if err != nil {
				return lockstore.Lease{}, err
			}
			return lockstore.Lease{}, refused
		}
		next := v.record
		if v.State == stateHeld {
			next.end(v.Owner, true)
		}
		switch i := v.place(req.Owner); {
		case s.ahead(v, hint):
			next.leave(i)
		case i >= 0:
			next.Queue = next.Queue[i+1:]
		default:
			next.Queue = nil
		}
		next.State, next.Owner, next.TTL, next.Holder = stateHeld, string(req.Owner), req.TTL.Nanoseconds(), req.Holder.Encode()
		next.Fence, next.Data = lockstore.NextFence(v.Fence, hint), nil
		granted, err := c.write(v, next, own)
		if errors.Is(err, ErrConflict) {
			continue
		}
		if err != nil {
			return lockstore.Lease{}, err
		}
		return lockstore.Lease{Key: req.Key, Owner: req.Owner, Fence: granted.Fence, TTL: req.TTL - s.opt.Margin}, nil
	}
}

// yields says whether the call must not write now. If others write the entry, no write of
// the call stands in the way of a renewal in the second half of a lease. Nobody renews a
// lease that is broken.
func (c *call) yields(v view, hint time.Time) bool {
	others := c.conflicts > 0 || hint.Sub(v.written) < 4*c.trip
	return others && !c.first && v.State == stateHeld && v.Owner != broken && hint.Before(c.store.ends(v)) && hint.Sub(v.begin) > v.ttl()/2
}

// refuse is the answer to an owner that has to wait. It takes a place first if the
// owner asks for one.
func (c *call) refuse(v view, req lockstore.Request, hint time.Time, held bool, left time.Duration) (*lockstore.HeldError, error) {
	s := c.store
	e := &lockstore.HeldError{Key: req.Key, Place: v.place(req.Owner) + 1, Remaining: left, Free: !held}
	if held {
		e.Holder = lockstore.DecodeHolder(v.Holder)
		e.Remaining = max(s.ends(v).Sub(hint), s.register.Step())
	}
	if !req.Queue || e.Place > 0 || len(v.Queue) >= maxPlaces || c.yields(v, hint) {
		return e, nil
	}
	next := v.record
	next.Queue = append(next.Queue[:len(next.Queue):len(next.Queue)], string(req.Owner))
	if _, err := c.write(v, next, same); err != nil {
		return nil, err
	}
	e.Place = len(next.Queue)
	return e, nil
}

// Renew implements lockstore.Store.
func (s *Store) Renew(ctx context.Context, lease lockstore.Lease, ttl time.Duration) (time.Duration, error) {
	if err := lease.Validate(); err != nil {
		return 0, err
	}
	if err := lockstore.ValidateTTL(ttl); err != nil {
		return 0, err
	}
	if err := s.made(); err != nil {
		return 0, err
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
			return 0, err
		case !mine(v):
			return 0, c.lost("this lease does not hold it")
		}
		hint, err := c.hint()
		if err != nil {
			return 0, err
		}
		if over := v.begin.Add(v.ttl() + s.register.Step()); !hint.Before(over) {
			touched, err := c.touch(v)
			if errors.Is(err, ErrConflict) {
				continue
			}
			if err != nil {
				return 0, err
			}
			if !touched.written.Before(over) {
				return 0, c.lost("the lease has expired")
			}
			v = touched
		}
		next := v.record
		next.TTL = max(next.TTL, ttl.Nanoseconds())
		renewed, err := c.write(v, next, own)
		if errors.Is(err, ErrConflict) {
			continue
		}
		if err != nil {
			return 0, err
		}
		return renewed.ttl() - s.opt.Margin, nil
	}
}

// Release implements lockstore.Store.
func (s *Store) Release(ctx context.Context, lease lockstore.Lease) error {
	if err := lease.Validate(); err != nil {
		return err
	}
	if err := s.made(); err != nil {
		return err
	}
	abandons := lease.Fence == 0
	mine := func(v view) bool { return v.mine(lease.Owner) && (abandons || v.Fence == lease.Fence) }
	c := s.begin(ctx, lease.Key)
	c.first = true
	v, err := c.start(mine)
	for ; ; v, err = c.again() {
		over, lost := false, false
		if err == nil {
			lost, over = v.ending(lease.Owner)
		}
		if err == nil && !mine(v) && !abandons && (!over || lost) {
			if v, err = c.fresh(); err == nil {
				lost, over = v.ending(lease.Owner)
			}
		}
		switch {
		case err != nil:
			return err
		case over && (abandons || !lost):
			return nil
		case !mine(v) && !abandons && !over && c.conflicts > 0 && v.version != "":
			// An earlier copy of the write may have released it, and more owners than the
			// entry remembers had the key since then.
			return fmt.Errorf("%s: key %q: the outcome is unknown: the entry has no trace of this lease", s.opt.Name, lease.Key)
		case !mine(v) && !abandons:
			return c.lost("this lease does not hold it")
		}
		hint, err := c.hint()
		if err != nil {
			return err
		}
		next := v.record
		when := s.leave(&v, &next, v.place(lease.Owner), hint)
		if mine(v) {
			// The key is free from this write on, or since the lease ended. A state never
			// begins after its write.
			v.begin, when = s.ends(v), same
			next.State, next.Owner, next.TTL, next.Begun = stateFree, "", 0, false
		}
		next.end(string(lease.Owner), false)
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

// Leave implements lockstore.Queuer.
func (s *Store) Leave(ctx context.Context, key string, owner lockstore.Owner) error {
	if err := (lockstore.Lease{Key: key, Owner: owner}).Validate(); err != nil {
		return err
	}
	if err := s.made(); err != nil {
		return err
	}
	c := s.begin(ctx, key)
	room := "" // the version at which the call has made room for the holder
	v, err := c.fresh()
	for ; ; v, err = c.again() {
		if err != nil {
			return err
		}
		hint, err := c.hint()
		if err != nil {
			return err
		}
		if v.mine(owner) && hint.Before(s.ends(v)) {
			return fmt.Errorf("%s: key %q: %w", s.opt.Name, key, lockstore.ErrGranted)
		}
		i := v.place(owner)
		if i < 0 && c.conflicts > 0 {
			v, err = c.fresh() // the read after a conflict may be an old one
			if err != nil {
				return err
			}
			i = v.place(owner)
		}
		if i < 0 {
			return nil
		}
		// If a later read shows the same version, the holder does not try to write: it may be
		// dead, and then nobody would ever leave.
		if v.version != room && c.yields(v, hint) {
			room = v.version
			continue
		}
		next := v.record
		when := s.leave(&v, &next, i, hint)
		left, err := c.write(v, next, when)
		if errors.Is(err, ErrConflict) {
			continue
		}
		if err == nil {
			c.wake(left)
		}
		return err
	}
}

// leave takes a place out of next. It returns from when on the state counts then, see
// lockstore.FreeAfterLeave, and changes v if that is neither now nor as it was.
func (s *Store) leave(v *view, next *record, i int, hint time.Time) when {
	next.leave(i)
	free := hint.Sub(s.freed(*v))
	switch after := lockstore.FreeAfterLeave(i, free); {
	case i == 0 && v.State == stateFree && free < lockstore.Turn:
		return own
	case i >= 0 && free > 0:
		v.begin = v.begin.Add(free - after)
	}
	return same
}

// wake wakes the first in line of a free key. The write is done: a wake-up that
// fails costs the waiter the time until it looks for itself.
func (c *call) wake(v view) {
	if w, ok := c.store.register.(Waker); ok && v.State == stateFree && len(v.Queue) > 0 {
		_ = w.Wake(c.ctx, c.key, v.Queue[0])
	}
}

// A waiter reads the entry every shortLook when it is the first in line, and less often
// the longer the line and the wait are. One that is woken reads when something may have
// happened without a wake-up: the holder died, a turn is over, the wake-up got lost.
const (
	shortLook = 25 * time.Millisecond
	longLook  = 300 * time.Millisecond
	wokenLook = 750 * time.Millisecond
)

// AwaitTurn implements lockstore.Queuer, by reads that are not fresh. If the register is
// a Waker, it waits for a wake-up, and reads every 0.75 s.
func (s *Store) AwaitTurn(ctx context.Context, key string, owner lockstore.Owner) error {
	if err := (lockstore.Lease{Key: key, Owner: owner}).Validate(); err != nil {
		return err
	}
	if err := s.made(); err != nil {
		return err
	}
	var woken <-chan struct{} // nil without a Waker: never
	if w, ok := s.register.(Waker); ok {
		// The first read comes after Listen, so that no release is missed.
		if listening, stop, err := w.Listen(ctx, key, string(owner)); err == nil {
			woken = listening
			defer stop()
		}
	}
	for began := time.Now(); ; {
		c := s.begin(ctx, key)
		v, err := c.read(false)
		if err != nil {
			return errors.Join(ctx.Err(), pause(ctx, longLook))
		}
		hint, err := c.hint()
		if err != nil {
			return errors.Join(ctx.Err(), pause(ctx, longLook))
		}
		held := v.State != stateFree && hint.Before(s.ends(v))
		left := s.untilTurn(v, owner, hint)
		if _, over := v.ending(owner); over || v.mine(owner) || v.place(owner) < 0 || !held && (left == 0 || v.Begun) {
			return nil
		}
		look := min(longLook, time.Duration(1+v.place(owner))*shortLook+time.Since(began)/20)
		if woken != nil {
			look = left
			if held {
				look = s.ends(v).Sub(hint)
			}
			look = max(shortLook, min(wokenLook, look))
		}
		timer := time.NewTimer(look*3/4 + rand.N(look/2))
		select {
		case <-timer.C:
		case <-woken:
			timer.Stop()
			return nil
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

// Inspect implements lockstore.Inspector by one fresh read.
func (s *Store) Inspect(ctx context.Context, key string) (lockstore.Status, error) {
	if err := lockstore.ValidateKey(key); err != nil {
		return lockstore.Status{}, err
	}
	if err := s.made(); err != nil {
		return lockstore.Status{}, err
	}
	c := s.begin(ctx, key)
	v, err := c.fresh()
	if err != nil {
		return lockstore.Status{}, err
	}
	return s.status(v, c.now), nil
}
