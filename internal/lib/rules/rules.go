// Package rules is the rule book of the lock: what the answer to a request is, and what the
// state of the key is after it. It is a pure function, [Book.Decide]. It reads no clock,
// sends nothing and remembers nothing. memstore and casstore are this function. dynamostore asks it
// about the row, and sends an arrival and a release as conditional writes without asking. redisstore has the same rules in
// Lua. Package storetest compares each store with it. The requests, and the words of the answers, are those of package driver.
//
// # A lease
//
// An owner is one acquisition. A grant gives it a lease: a fence that is larger than every
// earlier one of the key, a seat, which is the lowest number from 0 that no other holder has,
// and a time, the TTL. The lease is live until its end. Only its owner, with its fence, renews,
// releases or completes it. An Acquire of an owner that has a live lease is a repeat: the answer
// is this lease, for what is left of it.
//
// A lease that has expired stays in the state until the next grant. Its owner can still release,
// abandon or complete it, because nobody was granted the key since. It cannot renew it.
//
// An owner that has ended gets no lease again: it has released, abandoned or completed, an operator
// has ended its lease, or another owner was granted the key after the end of it. See [Ended] for how
// long the key remembers that.
//
// # Several holders
//
// Each request says how many may hold the key together with it. There is room for a
// request if fewer hold the key than the smallest number among these: its own, and those
// of all who hold the key. With 1 everywhere the key is a mutex.
//
// # The queue
//
// A request that is refused may take the last place. Who has k places before it may be
// granted the key when there has been room, for it and for those before it, for k turns of
// [driver.TurnTime], and at most for [driver.MaxTurnsBefore] turns. Who has no place has all places before it. So the first
// in the queue gets the key at once, somebody dead delays the others by one turn, and a
// reader does not pass a writer that waits. A grant ends the place of the owner, and all
// places before it: they had their turn.
//
// # Hand-over
//
// Whatever makes room also makes the first in the queue the holder, in the same write, for one
// turn. The end of a lease by time is no request, so it hands over to nobody. The waiter starts
// at once, and its next Acquire or Renew makes the lease as long as it asks. If neither comes
// within the turn, the lease is over and the owner is not: it may ask again, like any other. If it is the
// holder still by another clock, its place ends when its turn comes, and it gets no second lease. A place
// behind the first that goes makes no room, so nobody is handed the key: otherwise runs that come
// and go would hand it to all the dead before them, one turn each.
//
// So if there is room for the first in the queue, the end of some lease or result says since when. No request
// makes another state, but a damaged one may be another, or one of an earlier version. Then the next Acquire
// hands the key over to those before its owner: nobody passes them, and their turns begin.
//
// # Parked places
//
// Nobody waits at a parked place: its owner asks again only when somebody wakes it. So its turn is
// longer, up to [driver.MaxParkedTurn], and whoever hands the key over to it learns from the answer whom to
// wake; so does whoever closes the key. A wake-up that is lost costs the owner its place, and the others
// this turn. All turns together keep the key from nobody for longer than [driver.MaxDelay]. At most half
// of the places are parked.
//
// # One waits for all
//
// A request may say what its work is, and which event it is for. If it is refused, and its owner has no place,
// while another event's run of the same work waits, it is covered: that run begins later than this
// request was sent, so it does what this event asks for, too. A covered owner takes no place. A place covers nobody if its owner has
// had a lease, because its run may have begun. Nobody is covered whose own event has a place for this work: a source sends its event
// again after the first owner has died, whose place waits still, and two events with dead places would cover each other.
//
// # Work that has started
//
// An owner may mark that its work starts. If its lease then ends by time, nobody knows whether
// the work had its effect: the key is in doubt, and nobody is granted it. The owner can still
// release or complete it, unless it was revoked. Otherwise an operator resolves it: with effect,
// the key is closed, as if the owner had completed it; without effect, it is handed over.
//
// # A closed key
//
// A completion ends the lease and closes the key for a time, with a result or, as a cooldown,
// without one. It also ends the queue. Until the key opens, every Acquire is refused and is
// told the result, and nobody joins.
//
// A lease with a mark of its start, or that completes, has to be alone: its MaxHolders is 1.
//
// # A revocation
//
// An operator may take a lease from its owner. The owner can do nothing with it any more, but it
// may be at work until it learns of that, so the lease counts until its end. When the owner
// releases it, or when the operator says so (AtOnce), it ends at once. If the work has started,
// it does not: it ends by time, and the key is then in doubt.
//
// # Clocks
//
// A request knows the earliest and the latest time that it may be now, on the store's clock. A
// lease begins at the latest time, and its owner trusts it for what is left of it at the latest
// time. A lease is over, and a key is open, when even the earliest time has reached the end. So no
// error of the clock, within what the two readings say, makes two holders. A state that begins in
// the future, because a clock was set back, begins now.
//
// If the time is only a guess, the answer says on what it has to rest: see [Basis].
package rules

import (
	"cmp"
	"slices"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
)

// Book has the settings of a store.
type Book struct {
	Places int // of a queue; a full queue takes no more owners
	Marks  int // owners that have ended and are remembered
}

// Clock is what is known of the time of a request.
type Clock struct {
	Early, Late time.Time // the earliest and the latest time that it may be now
	Sure        bool      // false: both are guesses
	Fences      time.Time // new fences are made of this time; zero is Early
}

// guess is the likely time: that of fences, or Early.
func (c Clock) guess() time.Time { return cmp.Or(c.Fences, c.Early) }

// At is a clock that knows the time.
func At(now time.Time) Clock { return Clock{Early: now, Late: now, Sure: true} }

// Basis is what an answer has to rest on to be true.
type Basis int

const (
	// OnAnything: the answer is true whatever has happened since, or is a refusal, which
	// only delays. If the request changes the state, the write has to be on this state.
	OnAnything Basis = iota
	// OnFreshRead: on a read that sees every write that ended before it began.
	OnFreshRead
	// OnItsWrite: on the time of the write that stores the new state. If the answer is another
	// one at that time, the new state must not count.
	OnItsWrite
	// OnStamp: on the store's own time, at or after the moment of the state.
	OnStamp
)

// State is all that is known of a key. The zero State is a key that nobody has had.
type State struct {
	LastFence driver.Fence // of the last grant
	Holders   []Holder     // in the order of the grants. One whose lease has ended stays until the next grant: its end says since when there is room
	Queue     []Waiter     // in the order of arrival
	Ended     []Ended      // oldest first
	Closed    Closed       // nobody may have the key
}

// Holder has a lease.
type Holder struct {
	Owner      driver.Owner
	Fence      driver.Fence
	Seat       int
	MaxHolders int
	Since      time.Time // when the lease begins
	TTL        time.Duration
	Text       string // for people; of a revoked lease: who revoked it
	HandedOver bool   // and not extended yet
	Revoked    bool   // the owner can do nothing with it any more
	Started    bool   // the work has started
}

// End is when the lease ends.
func (h Holder) End() time.Time { return h.Since.Add(h.TTL) }

// Waiter has a place in the queue.
type Waiter struct {
	Owner      driver.Owner
	MaxHolders int
	Parked     time.Duration // the turn of a place where nobody waits: its owner asks when it is woken; 0: the owner waits
	Since      time.Time     // when it joined: for people, no decision rests on it
	Work       string        // of an owner that coalesces, see driver.Request
	Event      string
}

// turn is for how long the key is handed over to the place.
func (w Waiter) turn() time.Duration {
	return min(max(driver.TurnTime, w.Parked), driver.MaxParkedTurn) // the place may be damaged
}

// Parked are the owners of the parked places of a queue.
func Parked(queue []Waiter) (owners []driver.Owner) {
	for _, w := range queue {
		if w.Parked > 0 {
			owners = append(owners, w.Owner)
		}
	}
	return owners
}

// Ended is the mark of an owner whose acquisition is over. The key has the last ones, Book.Marks.
//
// A mark is for what arrives late. Without it a late Acquire is granted a lease, or a place, that
// nobody uses: it costs the others a TTL, or a turn. And a Release, Complete, Resolve or Revoke that
// is repeated is answered as lost. No lease that somebody trusts rests on a mark. So there may be
// fewer marks than holders, although one grant may end them all.
type Ended struct {
	Owner driver.Owner
	Fence driver.Fence // of its lease; 0 if it had none
	How   How
}

// How an acquisition has ended.
type How int

const (
	Released  How = iota // or abandoned
	Expired              // and another was granted the key
	Completed            // by its own result or cooldown
	Resolved             // by an operator, as work without effect
	Revoked
)

// Closed says that nobody may have the key for a time, because its work is done. The zero Closed is not closed.
type Closed struct {
	Since  time.Time
	For    time.Duration
	Result driver.HiddenBytes // nil is a cooldown
	Text   string             // who did the work
}

// End is when the key opens.
func (c Closed) End() time.Time { return c.Since.Add(c.For) }

// Decide returns the state after a request, the answer, and what the answer has to rest on.
// The state is unchanged if changed is false; slices are never changed in place. A time
// in the new state that is neither in the old one nor a time of it is clock.Late.
func (b Book) Decide(s State, clock Clock, r driver.Request) (next State, changed bool, answer driver.Answer, basis Basis) {
	d := &decision{Book: b, State: s, clock: clock, Request: r}
	d.beginNow()
	answer = decisions[r.Kind](d)
	if r.Kind == driver.Inspect {
		return s, false, answer, d.basis
	}
	if Strict {
		mustHold(s, d.State, r)
	}
	return d.State, d.changed, answer, d.basis
}

// decision is one call of Decide.
type decision struct {
	Book
	State
	driver.Request
	clock   Clock
	changed bool
	basis   Basis
	handed  []driver.Owner
	wake    []driver.Owner
}

var decisions = [...]func(*decision) driver.Answer{
	driver.Inspect:     (*decision).inspect,
	driver.Acquire:     (*decision).acquire,
	driver.Renew:       (*decision).renew,
	driver.Release:     (*decision).release,
	driver.Abandon:     (*decision).abandon,
	driver.Leave:       (*decision).leave,
	driver.MarkStarted: (*decision).markStarted,
	driver.Complete:    (*decision).complete,
	driver.Resolve:     (*decision).resolve,
	driver.Revoke:      (*decision).revoke,
}

func (d *decision) inspect() driver.Answer {
	d.rest(OnFreshRead)
	return driver.Answer{Outcome: driver.Done, Status: d.status()}
}

// An owner that has ended gets nothing more: its Acquire is a late duplicate.
func (d *decision) acquire() driver.Answer {
	if d.mark(d.Owner) != nil {
		return lost("this acquisition has ended")
	}
	if i := d.holder(d.Owner); i >= 0 {
		h := d.Holders[i]
		switch {
		case h.Revoked:
			return lost("this lease was revoked")
		case d.Fence != 0 && d.Fence != h.Fence:
			return d.lostNow("this lease is over")
		case d.live(h) && h.HandedOver:
			// Its owner may trust the lease already, so it gets no shorter.
			h.HandedOver, h.Since, h.TTL, h.Text = false, d.clock.Late, max(d.TTL, h.TTL), d.Request.Holder
			d.setLive(i, h)
			a := d.granted(h)
			a.TTL = d.TTL
			return a
		case d.live(h):
			d.rest(OnStamp)
			a := d.granted(h)
			a.TTL = min(a.TTL, d.TTL) // a repeat asks for what it will trust
			return a
		}
		d.rest(OnStamp)
		if !h.HandedOver {
			return lost("the lease has expired")
		}
		// A hand-over that has lapsed ends the lease and not the owner, which asks like any other.
	}
	switch {
	case d.Fence != 0:
		return d.lostNow("this lease is over")
	case d.closed():
		return driver.Answer{Outcome: driver.Refused, Status: d.status()}
	case d.inDoubt():
		d.rest(OnStamp)
		return driver.Answer{Outcome: driver.Refused, Status: d.status()}
	}
	d.heal()
	before := d.before(d.Owner)
	if wait, held := d.wait(d.MaxHolders, before); wait > 0 {
		return d.refuse(wait, held)
	}
	d.restOnTime(d.MaxHolders, before)
	h := d.grant(Holder{Owner: d.Owner, MaxHolders: d.MaxHolders, TTL: d.TTL, Text: d.Request.Holder})
	d.handOver()
	return d.granted(h)
}

// refuse refuses for the time wait; for the time held somebody has the key.
func (d *decision) refuse(wait, held time.Duration) driver.Answer {
	covered := d.covered()
	if covered {
		d.rest(OnFreshRead)
	} else if d.Join && d.place(d.Owner) < 0 && len(d.Queue) < d.Places && !(d.Parked > 0 && len(Parked(d.Queue)) >= d.Places/2) {
		d.Queue = append(slices.Clip(d.Queue), Waiter{Owner: d.Owner, MaxHolders: d.MaxHolders, Parked: d.Parked, Since: d.clock.Late, Work: d.Work, Event: d.Event})
		d.changed = true
	}
	a := driver.Answer{Outcome: driver.Refused, Covered: covered, Position: d.place(d.Owner) + 1, Status: d.status(), HandedOver: d.handed, Wake: d.wake}
	if a.Status.Remaining = held; held <= 0 {
		a.Status.State, a.Status.Holder, a.Status.Remaining = driver.Reserved, "", wait
	}
	return a
}

// A renewal makes no lease shorter, and revives none: its owner may have been told that it is over.
func (d *decision) renew() driver.Answer {
	i := d.lease()
	if i < 0 {
		return d.lostNow("this lease does not hold it")
	}
	h := d.Holders[i]
	if !d.live(h) {
		d.rest(OnStamp)
		return lost("the lease has expired")
	}
	h.Since, h.TTL, h.HandedOver = d.clock.Late, max(h.TTL, d.TTL), false
	d.setLive(i, h)
	return d.granted(h)
}

// A release of a lease that has expired still frees what nobody was granted since.
func (d *decision) release() driver.Answer {
	if m := d.mark(d.Owner); m != nil {
		if m.How == Expired || m.How == Revoked {
			return lost("this lease had ended before")
		}
		return driver.Answer{Outcome: driver.Done}
	}
	i := d.holder(d.Owner)
	if i < 0 || d.Holders[i].Fence != d.Fence {
		return d.lostNow("this lease does not hold it")
	}
	h := d.Holders[i]
	if h.Revoked {
		a := lost("this lease was revoked")
		if !h.Started {
			d.end(i, Revoked) // its owner is done, so nobody needs to wait for the end of the lease
			d.handOver()
			a.HandedOver, a.Wake = d.handed, d.wake
		}
		return a
	}
	d.end(i, Released)
	d.handOver()
	return d.done()
}

// An owner that abandons has a mark even if it has nothing: its Acquire may come later.
func (d *decision) abandon() driver.Answer {
	if d.mark(d.Owner) != nil {
		return driver.Answer{Outcome: driver.Done}
	}
	i, place := d.holder(d.Owner), d.place(d.Owner)
	switch {
	case i >= 0 && d.Holders[i].Revoked && d.Holders[i].Started:
		return driver.Answer{Outcome: driver.Done}
	case i >= 0:
		d.end(i, Released)
	default:
		d.remember(Ended{Owner: d.Owner, How: Released})
		d.Queue = without(d.Queue, place)
	}
	if i >= 0 || place == 0 {
		d.handOver()
	}
	return d.done()
}

// A leave ends no lease that is live: a late one would end the lease of an owner that has asked again.
func (d *decision) leave() driver.Answer {
	if i := d.holder(d.Owner); i >= 0 && !d.Holders[i].Revoked {
		if d.live(d.Holders[i]) {
			d.rest(OnFreshRead)
			return driver.Answer{Outcome: driver.Holding, Fence: d.Holders[i].Fence}
		}
		d.rest(OnStamp)
	}
	place := d.place(d.Owner)
	if place < 0 {
		d.rest(OnFreshRead)
		return driver.Answer{Outcome: driver.Done}
	}
	d.Queue, d.changed = without(d.Queue, place), true
	if place == 0 {
		d.handOver()
	}
	return d.done()
}

// A mark that is written after the end of the lease must not count: it would put the key in doubt
// over work that does not start.
func (d *decision) markStarted() driver.Answer {
	i := d.lease()
	if i < 0 {
		return d.lostNow("this lease does not hold it")
	}
	h := d.Holders[i]
	switch {
	case !d.live(h):
		d.rest(OnStamp)
		return lost("the lease has expired")
	case h.MaxHolders != 1:
		return driver.Answer{Outcome: driver.Exclusive}
	}
	h.Started = true
	d.setLive(i, h)
	d.rest(OnItsWrite)
	return d.done()
}

// A completion after the end of its lease closes a key that nobody was granted since: the work is done.
func (d *decision) complete() driver.Answer {
	if m := d.mark(d.Owner); m != nil && m.How == Completed {
		return driver.Answer{Outcome: driver.Done}
	}
	i := d.lease()
	switch {
	case i < 0:
		return d.lostNow("this lease does not hold it")
	case d.Holders[i].MaxHolders != 1:
		return driver.Answer{Outcome: driver.Exclusive}
	}
	d.close(i, Completed)
	return d.done()
}

// An operator that resolves without effect what was resolved so or released is right, also if others have
// had the key since. With effect the key has to be closed still: the result was for that time.
func (d *decision) resolve() driver.Answer {
	d.rest(OnFreshRead)
	if d.Closed.For > 0 {
		d.rest(OnStamp) // is it closed still?
	}
	completed := d.closed() && d.LastFence == d.Fence
	if !d.Effect && !completed && (d.markOf(d.Fence, Resolved) || d.markOf(d.Fence, Released)) {
		return driver.Answer{Outcome: driver.Done}
	}
	switch {
	case slices.ContainsFunc(d.Holders, d.live):
		return driver.Answer{Outcome: driver.Refused, Status: d.status()}
	case len(d.Holders) > 0:
		d.rest(OnStamp) // have all leases ended?
	case d.LastFence == d.Fence && completed == d.Effect:
		return driver.Answer{Outcome: driver.Done}
	}
	i := slices.IndexFunc(d.Holders, func(h Holder) bool { return h.Fence == d.Fence })
	if i < 0 || !d.Holders[i].Started {
		return lost("it is not in doubt with this fence")
	}
	if d.Effect {
		d.close(i, Released)
	} else {
		d.end(i, Resolved)
		d.handOver()
	}
	return d.done()
}

// A revocation changes neither the end of the lease nor the queue: the old owner may be at work until then.
func (d *decision) revoke() driver.Answer {
	d.rest(OnFreshRead)
	if d.AtOnce && d.markOf(d.Fence, Revoked) {
		return driver.Answer{Outcome: driver.Done, Status: d.status()}
	}
	i := slices.IndexFunc(d.Holders, func(h Holder) bool { return h.Fence == d.Fence })
	if i < 0 {
		return lost("no lease with this fence holds it")
	}
	h := d.Holders[i]
	switch {
	case !d.live(h):
		d.rest(OnStamp)
		return lost("no lease with this fence holds it")
	case d.AtOnce && h.Started:
		return driver.Answer{Outcome: driver.Refused, Status: d.status()}
	}
	left := h.End().Sub(d.clock.Early)
	if !h.Revoked {
		h.Revoked, h.HandedOver, h.Text = true, false, d.Request.Holder
		d.setLive(i, h)
	}
	if d.AtOnce {
		d.end(i, Revoked)
		d.handOver()
	}
	a := d.done()
	a.Status = d.status()
	a.Status.Holder, a.Status.Remaining = h.Text, left // others may hold the key, too
	return a
}
