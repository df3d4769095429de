package casstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/pause"
	"github.com/lambdalock/lambdalock/internal/lib/rules"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore/internal/entry"
)

// book has the settings of the rules.
var book = rules.Book{Places: 64, Marks: 16}

func (s *store) Do(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	c, end := s.call(ctx, key, r)
	defer end()
	leave, err := c.enter()
	if err != nil {
		return driver.Answer{}, err
	}
	defer leave()
	a, err := c.do()
	switch {
	case a.Outcome == driver.Granted:
		a.TTL -= s.opt.Margin
	case a.Outcome == driver.Refused && a.Position > 0 && !c.told.IsZero():
		a.Hint = hint(c.told, book.Wait(c.seen.State, s.clockAt(c.seen), r.Owner))
	case a.Outcome == driver.Refused:
		a.Hint = "unsure" // in place of that of an earlier refusal
	}
	return a, err
}

// call is one request of the driver, with all reads and writes of the KV that it takes. It remembers what it
// has sent, because its errors depend on that.
type call struct {
	store *store
	lane  *lane
	ctx   context.Context
	key   string
	driver.Request

	since     time.Time // a read must not have begun before: the call did, or it had its last conflict
	sent      bool      // a write was sent: a failure leaves the outcome unknown
	seen      view      // what was read or written last
	told      time.Time // the latest time of the service since the call began; zero if none is known
	conflicts int
	tried     driver.Answer // to the last change that was sent
	room      string        // the version of the entry when this Leave last let a renewal go first
	trip      time.Duration // how long the last read took
}

// do decides by what it has read and by a guess of the time. If the answer has to rest on more,
// it gets more and decides again, see rules.Basis.
func (c *call) do() (driver.Answer, error) {
	v, err := c.start()
	for {
		if errors.Is(err, ErrConflict) {
			v, err = c.again(v)
		}
		if err != nil {
			return driver.Answer{}, err
		}
		next, changed, a, basis := c.decide(v, c.Request)
		switch {
		case c.Kind == driver.Leave && changed && !v.own && c.room != v.version && c.yields(v):
			// A Leave gives way to a renewal once for each version, before it writes even a stamp. If the version is the
			// same after that, no holder is about to write; it may be dead, and then nobody would ever leave.
			c.room = v.version
			v, err = c.again(v)
		case basis == rules.OnStamp && !v.own:
			v, err = c.write(v, v.State) // the same state, for the service's stamp
		case basis == rules.OnFreshRead && !v.fresh:
			v, err = c.read(true)
		case !changed:
			return c.certain(v, a)
		case a.Outcome == driver.Refused && len(a.HandedOver)+len(a.Wake) == 0 && c.yields(v):
			r := c.Request
			r.Join = false
			_, _, a, _ = c.decide(v, r)
			return a, nil
		default:
			if a, err = c.change(v, next, a, basis); !errors.Is(err, ErrConflict) {
				return a, err
			}
		}
	}
}

// start returns the entry to begin with. For an Acquire that is granted, and for Renew, Release, MarkStarted and
// Complete, that is this process's last write of the key, if one write on top of it is the whole answer: this write
// fails if the entry has changed since. Otherwise, or if somebody waits, start reads: others have probably joined since,
// and a conflict costs more than a read. Who takes a place soon after a write, as a process does that runs again after its release, reads nothing either.
func (c *call) start() (view, error) {
	switch c.Kind {
	case driver.Inspect, driver.Leave, driver.Resolve, driver.Revoke:
		return c.read(true)
	case driver.Abandon: // of an owner that the entry may not know
		return c.read(false)
	}
	if v, ok := c.store.remembered(c.key); ok && c.ctx.Err() == nil {
		_, changed, a, basis := c.decide(v, c.Request)
		alone := len(v.Queue) == 0 && a.Outcome != driver.Refused
		joins := a.Outcome == driver.Refused && c.store.clockAt(v).Early.Sub(v.written) < soon && !c.yields(v) && !c.renewsSoon(v)
		if changed && basis != rules.OnStamp && (alone || joins) {
			return v, nil
		}
	}
	return c.read(false)
}

// soon after a write hardly anybody else has written.
const soon = 5 * time.Millisecond

// again reads fresh, after a conflict or when a Leave gives way. Before that it pauses, unless first says
// that this request goes at once. After five conflicts such a request pauses, too, for a round trip at most: a service may go on to
// answer with a conflict. The pause of others grows slowly, and to ten round trips at most: during a
// long pause many that came later would pass it. What protects renewals is the method yields, not this pause.
func (c *call) again(v view) (view, error) {
	if c.conflicts++; c.conflicts == 1 && laneOf(c.Request) < 0 {
		c.store.mu.Lock()
		c.lane.loses++
		c.store.mu.Unlock()
	}
	c.since = time.Now()
	if first := c.first(v); !first || c.conflicts > 5 {
		trips := 1
		if !first {
			trips = min(c.conflicts, 10)
		}
		if err := pause.For(c.ctx, rand.N(time.Duration(trips)*max(time.Millisecond, c.trip))); err != nil {
			return view{}, c.failed(err)
		}
	}
	return c.read(true)
}

// first says that the request does not pause after its first conflicts: the holder's, an Acquire of who was handed the
// key or is the first in the queue, an Abandon, a Resolve.
func (c *call) first(v view) bool {
	switch c.Kind {
	case driver.Acquire:
		return len(v.Queue) > 0 && v.Queue[0].Owner == c.Owner ||
			slices.ContainsFunc(v.Holders, func(h rules.Holder) bool { return h.Owner == c.Owner }) // it was handed the key
	case driver.Leave, driver.Revoke:
		return false
	}
	return true
}

// yields says that an Acquire that only wants a place, or a Leave, must not write now: a holder of this process has lost
// against such a write already, or others write the entry, too, and a holder renews its lease soon. Its renewal must not lose.
func (c *call) yields(v view) bool {
	if c.first(v) {
		return false
	}
	c.store.mu.Lock()
	loses := c.lane.loses
	c.store.mu.Unlock()
	if loses > 0 {
		return true
	}
	return (c.conflicts > 0 || c.store.clockAt(v).Early.Sub(v.written) < 4*c.trip) && c.renewsSoon(v)
}

// renewsSoon says that a holder is in the second half of its lease. Nobody renews a lease that is revoked.
func (c *call) renewsSoon(v view) bool {
	now := c.store.clockAt(v).Early
	return slices.ContainsFunc(v.Holders, func(h rules.Holder) bool {
		return !h.Revoked && now.Before(h.End()) && now.Sub(h.Since.Add(-c.store.codec.Blur())) > h.TTL/2
	})
}

// change writes the state that a decision has made.
func (c *call) change(v view, next rules.State, a driver.Answer, basis rules.Basis) (driver.Answer, error) {
	c.tried = a
	written, err := c.write(v, next, a.HandedOver...)
	if err == nil && basis == rules.OnItsWrite {
		_, _, a, _ = c.decide(written, c.Request) // lost if the write came too late: then the mark does not count
	}
	if err != nil {
		return driver.Answer{}, err
	}
	switch now := c.status(written); { // a lease that this write has handed over has an end only now
	case c.Kind == driver.Revoke:
		a.Status.Holders = now.Holders
	case a.Outcome == driver.Refused && len(a.HandedOver)+len(a.Wake) > 0:
		a.Status = now
	}
	return a, nil
}

func (c *call) status(v view) driver.Status {
	_, _, a, _ := c.decide(v, driver.Request{Kind: driver.Inspect})
	return a.Status
}

// certain judges a Lost that comes after a conflict: an earlier copy of the write may have been
// applied. If the entry does not tell, it returns an error for Release, Complete and Revoke. If the entry shows that a copy of a Revoke was applied, it
// returns the answer of that copy.
func (c *call) certain(v view, a driver.Answer) (driver.Answer, error) {
	if a.Outcome != driver.Lost || c.conflicts == 0 || v.version == "" {
		return a, nil
	}
	switch {
	case c.Kind == driver.Release || c.Kind == driver.Complete:
		// More owners than the entry remembers may have had the key since then.
		if !slices.ContainsFunc(v.Ended, func(e rules.Ended) bool { return e.Owner == c.Owner }) {
			return driver.Answer{}, c.failed(errors.New("the entry has no trace of this lease"))
		}
	case c.Kind == driver.Revoke && c.tried.Outcome != 0:
		end := slices.IndexFunc(v.Ended, func(e rules.Ended) bool { return e.Fence == c.Fence })
		lease := slices.IndexFunc(v.Holders, func(h rules.Holder) bool { return h.Fence == c.Fence }) // it is over
		switch {
		case end >= 0 && v.Ended[end].How == rules.Revoked || lease >= 0 && v.Holders[lease].Revoked:
			a = c.tried
			now := c.status(v)
			a.Status.State, a.Status.Holders = now.State, now.Holders
		case lease < 0 && (end < 0 || !c.AtOnce && v.Ended[end].How != rules.Completed && v.Ended[end].How != rules.Expired): // nobody completes a revoked lease
			return driver.Answer{}, c.failed(errors.New("the entry does not show whether the lease was revoked"))
		}
	}
	return a, nil
}

// decide asks the rule book, at the time of the entry if the call has written it, else at a
// guess of the time.
func (c *call) decide(v view, r driver.Request) (next rules.State, changed bool, a driver.Answer, basis rules.Basis) {
	clock := c.store.clockAt(v)
	next, changed, a, basis = book.Decide(v.State, clock, r)
	if changed && v.own { // its write comes later
		clock.Late = entry.ThisWrite
		next, changed, a, basis = book.Decide(v.State, clock, r)
	}
	if c.Kind == driver.Acquire && v.version == "" && !v.fresh && clock.Early.Sub(clock.Fences) > farAhead {
		basis = max(basis, rules.OnFreshRead) // the two clocks of this process do not tell of which time the first fence has to be
	}
	if c.Kind == driver.Acquire && v.begins().After(clock.Early.Add(c.store.codec.Blur()+farAhead)) {
		basis = rules.OnStamp // a state begins in the future, so a clock was set back: a write sets its begin to now
	}
	return next, changed, a, basis
}

// farAhead is how far a stamp may be ahead of a guess of the time.
const farAhead = 3 * time.Second

func (c *call) read(fresh bool) (view, error) {
	fresh = fresh || !c.store.knowsTime()
	if err := c.ctx.Err(); err != nil {
		return view{}, c.failed(fmt.Errorf("%w: %w", lockstore.ErrUnavailable, err))
	}
	if seen, ok := c.shared(fresh); ok {
		c.seen, c.told, c.trip = seen.view, later(c.told, seen.now), seen.trip
		return seen.view, nil
	}
	began := time.Now()
	e, now, err := c.store.kv.Read(c.ctx, c.key, fresh)
	c.trip = time.Since(began)
	if err != nil {
		if !errors.Is(err, lockstore.ErrCorrupt) && !errors.Is(err, lockstore.ErrUnavailable) {
			err = fmt.Errorf("%w: %w", lockstore.ErrUnavailable, err) // a read changes nothing
		}
		return view{}, c.failed(err)
	}
	switch {
	case !now.IsZero():
		c.told = later(c.told, now)
		c.store.learn(now, began)
	case fresh:
		return view{}, c.failed(fmt.Errorf("%w: a fresh read has no time", lockstore.ErrUnavailable))
	default:
		c.store.learn(e.WrittenAt, time.Time{})
	}
	v, err := c.store.view(c.key, e)
	v.fresh = fresh
	if c.seen = v; err == nil {
		c.share(sighting{v, began, c.trip, now})
	}
	return v, err
}

// write replaces an entry that nobody has changed. It wakes the owners that it hands the key over to.
func (c *call) write(v view, next rules.State, handedOver ...driver.Owner) (view, error) {
	s := c.store
	if err := c.ctx.Err(); err != nil {
		return v, c.failed(fmt.Errorf("%w: %w", lockstore.ErrUnavailable, err))
	}
	replacing := s.codec.Replacing(v.entry, v.State, next)
	value, began := replacing.Encode(), time.Now()
	e, err := c.send(value, v.version, next, handedOver)
	if err != nil {
		s.forget(c.key)
		c.sent = c.sent || !errors.Is(err, lockstore.ErrUnavailable) && !errors.Is(err, lockstore.ErrCorrupt) // a conflict may be the echo of this very write
		if errors.Is(err, ErrConflict) {
			return v, err
		}
		return v, c.failed(err)
	}
	c.sent = true
	if e.Version == "" || e.Version == v.version || e.WrittenAt.IsZero() {
		return v, c.failed(errors.New("the service's reply to a write has the old version or no time"))
	}
	c.told = later(c.told, e.WrittenAt)
	s.learn(e.WrittenAt, began)
	written := s.viewOf(replacing, e)
	s.remember(c.key, written)
	written.fresh = true
	c.share(sighting{written, began, time.Since(began), e.WrittenAt})
	written.own = true
	c.seen = written
	return written, nil
}

// send writes the value of the state next. If the KV is no Waker or the wake-up gets lost, a waiter looks for itself.
func (c *call) send(value []byte, ifVersion string, next rules.State, handedOver []driver.Owner) (Entry, error) {
	if w, ok := c.store.kv.(Waker); ok && len(handedOver) > 0 {
		return w.WriteAndWake(c.ctx, c.key, value, ifVersion, c.notes(next, handedOver))
	}
	return c.store.kv.Write(c.ctx, c.key, value, ifVersion)
}

// notes are for those that a write of the state next hands the key over to. Its stamp is a time after what the call was told. Without such a
// time a note is empty.
func (c *call) notes(next rules.State, handedOver []driver.Owner) map[string]string {
	notes := map[string]string{}
	for _, h := range next.Holders {
		switch {
		case !slices.Contains(handedOver, h.Owner):
		case c.told.IsZero():
			notes[string(h.Owner)] = ""
		default:
			notes[string(h.Owner)] = note(c.key, h, c.told.Add(-c.store.codec.Blur()).UnixNano())
		}
	}
	return notes
}

// failed is the error of a call that has got no answer from the KV: when a write was sent, its outcome is unknown.
func (c *call) failed(err error) error {
	why := fmt.Errorf("%s: key %q", c.store.opt.Name, c.key)
	if c.conflicts > 0 {
		why = fmt.Errorf("%w: %w: %d conflicts", why, lockstore.ErrContended, c.conflicts)
	}
	if !c.sent {
		return fmt.Errorf("%w: not applied: %w", why, err)
	}
	if ctx := c.ctx.Err(); ctx != nil {
		why = fmt.Errorf("%w: %w", why, ctx)
	}
	return fmt.Errorf("%w: the outcome is unknown: %v", why, err)
}
