package rules

import (
	"bytes"
	"slices"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
)

// The parts of a decision: what is true of the state, and how it changes.

// beginNow corrects a state that begins in the future.
func (d *decision) beginNow() {
	if !d.clock.Sure {
		return
	}
	for i, h := range d.Holders {
		if h.Since.After(d.clock.Late) {
			h.Since = d.clock.Late
			d.set(i, h)
		}
	}
	if d.Closed.Since.After(d.clock.Late) {
		d.Closed.Since, d.changed = d.clock.Late, true
	}
}

func (d *decision) rest(b Basis) { d.basis = max(d.basis, b) }

func lost(why string) driver.Answer { return driver.Answer{Outcome: driver.Lost, Why: why} }

// lostNow is lost for an owner that an old read does not know.
func (d *decision) lostNow(why string) driver.Answer {
	d.rest(OnFreshRead)
	return lost(why)
}

func (d *decision) done() driver.Answer {
	return driver.Answer{Outcome: driver.Done, HandedOver: d.handed, Wake: d.wake}
}

// granted is the answer with a lease. The trust is less than the TTL by all that is not
// known of the time.
func (d *decision) granted(h Holder) driver.Answer {
	return driver.Answer{Outcome: driver.Granted, Fence: h.Fence, Seat: h.Seat, TTL: h.End().Sub(d.clock.Late), HandedOver: d.handed, Wake: d.wake}
}

func (d *decision) live(h Holder) bool { return d.clock.Early.Before(h.End()) }

// holder is the index of the owner's lease, live or not; -1 without one.
func (d *decision) holder(owner driver.Owner) int {
	return slices.IndexFunc(d.Holders, func(h Holder) bool { return h.Owner == owner })
}

// lease is the index of the lease that the request names, live or not; -1 without one.
func (d *decision) lease() int {
	i := d.holder(d.Owner)
	if i >= 0 && (d.Holders[i].Fence != d.Fence || d.Holders[i].Revoked) {
		return -1
	}
	return i
}

func (d *decision) closed() bool { return d.clock.Early.Before(d.Closed.End()) }

func (d *decision) inDoubt() bool {
	return slices.ContainsFunc(d.Holders, func(h Holder) bool { return h.Started && !d.live(h) })
}

func (d *decision) place(owner driver.Owner) int {
	return slices.IndexFunc(d.Queue, func(p Waiter) bool { return p.Owner == owner })
}

// covered reports whether a run of the same work waits that has not begun, and none for the same event.
func (d *decision) covered() (is bool) {
	if d.Work == "" || d.place(d.Owner) >= 0 {
		return false
	}
	for _, w := range d.Queue {
		switch {
		case w.Work != d.Work:
		case w.Event == d.Event:
			return false
		case d.holder(w.Owner) < 0:
			is = true
		}
	}
	return is
}

// before is the part of the queue that is before an owner: all of it if it has no place.
func (d *decision) before(owner driver.Owner) []Waiter {
	if i := d.place(owner); i >= 0 {
		return d.Queue[:i]
	}
	return d.Queue
}

// wait is how long a request waits at most if nobody asks for anything: in all, and for
// the holders alone. It may be granted now if the first is not above 0.
func (d *decision) wait(most int, before []Waiter) (all, held time.Duration) {
	since, ever := d.roomSince(most, before)
	if !ever {
		return 0, 0
	}
	held = since.Sub(d.clock.Early)
	return held + delay(before), held
}

// delay is how long places keep the key from who comes after them.
func delay(before []Waiter) (d time.Duration) {
	for _, w := range before[:min(len(before), driver.MaxTurnsBefore)] {
		d += w.turn()
	}
	return min(d, driver.MaxDelay)
}

// roomSince is since when there has been room for a request and for those before it.
// ever is false if no holder was in the way.
func (d *decision) roomSince(most int, before []Waiter) (since time.Time, ever bool) {
	for _, p := range before {
		most = min(most, p.MaxHolders)
	}
	for { // the lease that ends first goes first, until there is room
		room, in, next := most, 0, time.Time{}
		for _, h := range d.Holders {
			if end := h.End(); end.After(since) {
				if in == 0 || end.Before(next) {
					next = end
				}
				room, in = min(room, h.MaxHolders), in+1
			}
		}
		if in == 0 || room > in {
			break
		}
		since, ever = next, true
	}
	if d.Closed.End().After(since) {
		since, ever = d.Closed.End(), true
	}
	return since, ever
}

// restOnTime notes that a grant rests on the store's time, unless nothing of it depends
// on any time.
func (d *decision) restOnTime(most int, before []Waiter) {
	if _, ever := d.roomSince(most, before); ever || len(before) > 0 || slices.ContainsFunc(d.Holders, func(h Holder) bool { return !d.live(h) }) {
		d.rest(OnStamp)
	}
}

// grant makes an owner a holder.
func (d *decision) grant(h Holder) Holder {
	if i := d.place(h.Owner); i >= 0 {
		d.Queue = d.Queue[i+1:]
	} else {
		d.Queue = nil
	}
	d.Holders = slices.Clone(d.Holders)
	for i := len(d.Holders) - 1; i >= 0; i-- {
		if old := d.Holders[i]; !d.live(old) {
			d.Holders = slices.Delete(d.Holders, i, i+1)
			switch {
			case old.Revoked:
				d.remember(Ended{old.Owner, old.Fence, Revoked})
			case !old.HandedOver:
				d.remember(Ended{old.Owner, old.Fence, Expired})
			}
		}
	}
	for slices.ContainsFunc(d.Holders, func(o Holder) bool { return o.Seat == h.Seat }) {
		h.Seat++
	}
	d.LastFence = driver.NextFence(d.LastFence, d.clock.guess())
	h.Fence, h.Since = d.LastFence, d.clock.Late
	d.Holders = append(d.Holders, h)
	d.Closed, d.changed = Closed{}, true
	return h
}

// handOver makes the first in the queue a holder for one turn, as long as there is room.
func (d *decision) handOver() {
	for len(d.Queue) > 0 && !d.inDoubt() {
		first := d.Queue[0]
		if wait, _ := d.wait(first.MaxHolders, nil); wait > 0 {
			return
		}
		d.handOverTo(first)
	}
}

// handOverTo makes the first in the queue a holder for one turn. One that is a holder already, see setLive, gets
// no second lease.
func (d *decision) handOverTo(first Waiter) {
	d.restOnTime(first.MaxHolders, nil)
	if i := d.holder(first.Owner); i >= 0 && d.live(d.Holders[i]) {
		d.rest(OnStamp)
		d.Queue, d.changed = d.Queue[1:], true
	} else {
		d.grant(Holder{Owner: first.Owner, MaxHolders: max(1, first.MaxHolders), TTL: first.turn(), HandedOver: true}) // the place may be damaged
	}
	if first.Parked > 0 {
		d.wake = append(d.wake, first.Owner)
	} else {
		d.handed = append(d.handed, first.Owner)
	}
}

// heal hands the key over to those before the owner for whom there is room, if nothing says since when.
func (d *decision) heal() {
	for len(d.before(d.Owner)) > 0 {
		first := d.Queue[0]
		if _, ever := d.roomSince(first.MaxHolders, nil); ever {
			return
		}
		d.handOverTo(first)
	}
}

// set replaces a holder.
func (d *decision) set(i int, h Holder) {
	d.Holders = slices.Clone(d.Holders)
	d.Holders[i], d.changed = h, true
}

// setLive replaces a live holder. It may have a place: a clock that was ahead of this one saw its
// hand-over lapse, and its owner asked again.
func (d *decision) setLive(i int, h Holder) {
	d.set(i, h)
	d.Queue = without(d.Queue, d.place(h.Owner))
}

// end ends a lease and remembers its owner. An owner whose hand-over has lapsed may have a
// place, too.
func (d *decision) end(i int, how How) {
	h := d.Holders[i]
	d.remember(Ended{h.Owner, h.Fence, how})
	d.Queue = without(d.Queue, d.place(h.Owner))
	d.Holders = without(d.Holders, i)
}

// close ends a lease and the queue. All who wait learn the result when they ask; who is parked has
// to be woken to do so.
func (d *decision) close(i int, how How) {
	text := d.Holders[i].Text
	d.end(i, how)
	d.Closed = Closed{Since: d.clock.Late, For: d.TTL, Text: text}
	if len(d.Result) > 0 {
		d.Closed.Result = bytes.Clone(d.Result)
	}
	d.wake = append(d.wake, Parked(d.Queue)...)
	d.Queue = nil
}

// remember adds a mark.
func (d *decision) remember(m Ended) {
	last := d.Ended[max(0, len(d.Ended)-d.Marks+1):]
	d.Ended, d.changed = append(slices.Clip(last), m), true
}

func (d *decision) mark(owner driver.Owner) *Ended {
	if i := slices.IndexFunc(d.Ended, func(e Ended) bool { return e.Owner == owner }); i >= 0 {
		return &d.Ended[i]
	}
	return nil
}

func (d *decision) markOf(fence driver.Fence, how How) bool {
	return slices.ContainsFunc(d.Ended, func(e Ended) bool { return e.Fence == fence && e.How == how })
}

func without[T any](s []T, i int) []T {
	if i < 0 {
		return s
	}
	return slices.Concat(s[:i], s[i+1:])
}

// status is the state for people and for a refusal.
func (d *decision) status() driver.Status {
	s := driver.Status{Fence: d.LastFence, Waiting: len(d.Queue), Parked: len(Parked(d.Queue))}
	if len(d.Queue) > 0 {
		s.OldestWait = d.waited(d.Queue[0])
	}
	if d.Kind == driver.Inspect {
		for _, w := range d.Queue {
			s.Queue = append(s.Queue, driver.Place{Waited: d.waited(w), Parked: w.Parked > 0})
		}
	}
	for _, h := range d.Holders {
		s.Started = s.Started || h.Started
		if d.live(h) {
			s.Holders = append(s.Holders, driver.LiveLease{
				Fence: h.Fence, Seat: h.Seat, MaxHolders: h.MaxHolders, Text: h.Text, Remaining: h.End().Sub(d.clock.Early), State: stateOf(h),
			})
		} else if h.Started {
			s.Holder = h.Text
		}
	}
	switch {
	case d.closed():
		s.State, s.Holder, s.Result, s.Remaining = driver.Cooldown, d.Closed.Text, d.Closed.Result, d.Closed.End().Sub(d.clock.Early)
		if d.Closed.Result != nil {
			s.State = driver.Completed
		}
	case len(s.Holders) > 0:
		for _, h := range s.Holders { // the holder is the last of those who are in the state of the key
			if s.Remaining = max(s.Remaining, h.Remaining); h.State >= s.State {
				s.State, s.Holder = h.State, h.Text
			}
		}
	case d.inDoubt():
		s.State = driver.InDoubt
	default:
		if wait, _ := d.wait(1, d.Queue); wait > 0 {
			s.State, s.Remaining = driver.Reserved, wait
		}
	}
	return s
}

// waited is for how long an owner has had its place. A time before 1970 says that it is not known.
func (d *decision) waited(w Waiter) time.Duration {
	if w.Since.Unix() <= 0 {
		return 0
	}
	return max(0, d.clock.guess().Sub(w.Since))
}

func stateOf(h Holder) driver.State {
	switch {
	case h.Revoked:
		return driver.Revoked
	case h.HandedOver:
		return driver.Reserved
	}
	return driver.Held
}

// Wait is how long it may take until an Acquire by this owner, which waits in the queue,
// has another answer than before; 0 or less is now.
func (b Book) Wait(s State, clock Clock, owner driver.Owner) time.Duration {
	d := &decision{Book: b, State: s, clock: clock}
	d.beginNow()
	i := d.place(owner)
	if h := d.holder(owner); i < 0 || d.inDoubt() || h >= 0 && d.live(d.Holders[h]) {
		return 0
	}
	all, held := d.wait(d.Queue[i].MaxHolders, d.Queue[:i])
	if held > 0 {
		return held // its turn may come nearer until then
	}
	return all
}
