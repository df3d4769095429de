// Package casstore makes a lock store out of any database that can read an entry,
// write it back if nobody else has, and say when it was written. It is the short way
// to a store of one's own: write a [KV], call [New], and run package castest.
//
// # How it works
//
// The rules of the lock are package internal/rules: a pure function of an entry, the time and a
// request. This package reads the entry, asks the rules, and replaces the entry if nobody has
// changed it meanwhile. An entry has the whole state of a key, so all changes have one order.
//
// The service's times are the only clock. A lease begins at the WrittenAt of the write that
// granted or renewed it. Before it takes the key over from another owner, the store writes the same
// state again, to learn the service's time. It takes the key over if the WrittenAt
// of this write is begin + TTL + ClockResolution + MaxClockSkew or later. The holder trusts its lease for TTL - Margin
// from before its own write.
//
// A release hands the key to the first in the queue, for one lockstore.Turn. The
// next Acquire of this owner writes the whole TTL. If the hand-over is younger than the owner's last refused
// Acquire, the owner trusts it for Turn - Margin from before that Acquire.
//
// Only the stamp of a write of the same call counts as the time. Otherwise the store guesses, also after a
// fresh read: the last known time of the service + what has passed since. A wrong guess may delay an
// answer. The rules say what each answer has to rest on:
//
//   - Any read is enough for what never changes back ("this acquisition has ended", "this lease was revoked"), for
//     most refusals of an Acquire (not for "in doubt"), and for a change that does not depend on the time, because it
//     is applied to the entry that was read, or not at all.
//   - A fresh read is needed for an ErrLost that means "another owner or nobody has the key", for the result
//     of Inspect, for each Revoke and Resolve, and for a Leave of an owner without a place or with a live lease.
//   - These need the stamp of a write of this call: a takeover, the turn in a queue, the trusted time that
//     a repeated Acquire gets, "the lease has expired", "in doubt", a Resolve of a key that is in doubt or has
//     a result, and an Acquire if a lease or a result begins more than 3 s in the future. First the store writes the state as it is. The
//     WrittenAt of this write is the time, and the change goes on top of it.
//   - The time of the change itself is needed for MarkStarted. If the lease was over by then, the
//     mark does not count: everybody sees that by the stamp.
//
// The trust in a lease counts from before the write that granted or renewed it, and so depends on no
// guess. A renewal that was sent in time and is applied after the end of the lease still extends it,
// if nobody else wrote the entry before. A new fence may be made from a guess of
// the time, with what has passed by that clock of the process that shows less: so a wall clock that is set ahead moves no
// fence. If the two clocks disagree, the first fence of an entry needs a fresh read.
//
// # Cost
//
// Requests of the KV, reads included (on ZooKeeper a fresh read sends two):
//
//	acquire a free key                        2, and 1 after a release by the same process
//	a refusal                                 1, and one more to take a place in the queue
//	a refusal because the key is in doubt     2: one is a write
//	Renew, Release, MarkStarted, Complete     1, and 2 from another process or while somebody waits
//	Inspect                                   1
//	Leave, Revoke                             2; mostly 1 if nothing changes
//	takeover, also of a key kept for others,
//	or that had a result or a cooldown        3
//	repeat of an Acquire that was granted     2
//	extend a lease that was handed over       1 by the process that handed over or learned of it in
//	                                          AwaitTurn, 2 by others or while somebody waits; none for
//	                                          short work under a guard, if the owner's last refusal is
//	                                          at most 1.65 s - Margin old
//	resolve a key in doubt                    3
//
// A hand-over is part of the write that frees the key. The first read of a process is a fresh one.
//
// A conflict costs a fresh read and the write again. These repeat at once: the holder, an Acquire of
// who was handed the key or is the first in the queue, an abandon, and an operator who resolves a key. All
// others pause first, for about the time of ten requests at most.
//
// Of the calls of one process that ask for one key (an Acquire, Inspect, Leave or Abandon) two are under way at once, so that
// many runs that wait do not keep the service from the holder. The others wait, and share what a call has read or written
// that has begun after theirs: to them it is a fresh read. A call whose context ends before that was not applied.
//
// # Limits
//
// An entry has at most 64 places, and the last 16 owners whose acquisitions have ended. MaxValue says how
// large it is. The store never deletes an entry. An operator may delete the entry of a
// key that is free, that nobody waits for and that nobody will use in the next minute, unless the
// documentation of the store forbids it.
//
// Nobody else may write an entry, not even with the value that it has: the stamp of each write is a part of the entry.
//
// An entry is JSON behind a name of the format and a checksum. A field that this version does not know, of the
// entry, a holder, a place, a mark or a result, stays as it is. So a later version may add fields
// while both are in use. Each process keeps in memory its last write of each key, for at most
// 1,024 keys, but not of a key that is completed or in a cooldown. When an owner of the process was handed
// the key, it keeps in its place what AwaitTurn has read.
//
// # A KV of one's own
//
//   - Write is the database's conditional write. Versions must never come twice. Some databases count the
//     versions of an entry, and begin again after a deletion. Then add something random to the entry when
//     it is created, and let each write check it.
//
//   - WrittenAt is the time in the reply to the write, or what the database keeps beside
//     the entry: a time of the service between the call of Write and its commit, cut
//     down to the clock's resolution. Do not use
//     the client's clock. Do not use the remaining TTL of the service either: after a change of its
//     leader it may count from the start.
//
//   - If the database has no clock, begin each Write by asking another part of the service for its time,
//     such as the header Date of an HTTP answer, and write this time into the entry. Ask again for each Write: with
//     an older time the lease would end while its holder trusts it. MaxClockSkew has to cover all hosts that may
//     answer. examples/etcdstore does this.
//
//   - A fresh read is what the database calls strongly consistent or linearizable. now is
//     the time in its reply. If the reply to a read has no time, write
//     some other entry before the read, and return the time of this write.
//
//   - If the database's client repeats requests by itself, ErrConflict may be the answer to
//     the second copy of a write. That is allowed.
//
//   - Only a refusal that certainly comes before the write is applied is
//     lockstore.ErrUnavailable: a connection that was never made, a lack of permission. A
//     timeout is not.
//
//   - The store looks whether the KV also implements [Waker], [Lister], driver.Checker for
//     lockstore.Store.Check, or io.Closer for lockstore.Store.Close.
//
//   - An opener, see lockstore.Opener, makes a store of it:
//
//     return casstore.New(kv, casstore.Options{Name: "mystore", MaxClockSkew: skew})
//
// The test of a KV is two calls, castest.Run and storetest.Run with
// castest.Harness. storetest.Run also compares the store with the rules. castest.Memory is the
// shortest KV.
package casstore

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/lambdalock/lambdalock/internal/pause"
	"github.com/lambdalock/lambdalock/internal/rules"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// Options are a store's settings.
type Options struct {
	// Name stands before the store's errors; "" is casstore.
	Name string
	// MaxClockSkew is how far the clocks of the service's hosts may disagree, 0 to a minute.
	MaxClockSkew time.Duration
	// Margin is how long before the end of its TTL a lease is not trusted any more: 0 to 500 ms.
	Margin time.Duration
}

const maxClockResolution = time.Second

// New returns a store that keeps its leases in a KV. An error of New matches lockstore.ErrInvalid.
func New(kv KV, opt Options) (*lockstore.Store, error) {
	s, err := newStore(kv, opt)
	if err != nil {
		return nil, err
	}
	return lockstore.New(s.opt.Name, s.withOptional()), nil
}

// store is the driver: it keeps leases in a KV.
type store struct {
	kv  KV
	opt Options

	mu    sync.Mutex
	clock lastStamp
	// writes is this process's last write of each key, or what it has read when it was handed the key. Only
	// decisions that are written may rest on it: the write checks the version.
	writes map[string]view
	lanes  map[string]*lane // of the keys that somebody asks for now
	loses  map[string]int   // of a key, how many requests of holders that have had a conflict are under way
}

func newStore(kv KV, opt Options) (*store, error) {
	if opt.Name == "" {
		opt.Name = "casstore"
	}
	switch {
	case kv == nil:
		return nil, lockstore.Invalidf("%s: the KV is nil", opt.Name)
	case opt.MaxClockSkew < 0 || opt.MaxClockSkew > time.Minute:
		return nil, lockstore.Invalidf("%s: MaxClockSkew is %v; want 0 to 1m", opt.Name, opt.MaxClockSkew)
	case opt.Margin < 0 || opt.Margin > time.Second/2:
		return nil, lockstore.Invalidf("%s: Margin is %v; want 0 to 500ms", opt.Name, opt.Margin)
	case kv.ClockResolution() <= 0 || kv.ClockResolution() > maxClockResolution:
		return nil, lockstore.Invalidf("%s: the KV's ClockResolution is %v; want more than 0, at most 1s", opt.Name, kv.ClockResolution())
	}
	return &store{kv: kv, opt: opt, writes: map[string]view{}, lanes: map[string]*lane{}, loses: map[string]int{}}, nil
}

// withOptional is the driver with the optional interfaces that its KV has. The wrappers are
// pointers: fmt would print the fields of a struct, and a KV may have a secret.
func (s *store) withOptional() driver.Driver {
	var d driver.Driver = s
	if l, ok := s.kv.(Lister); ok {
		d = &listing{s, l}
	}
	if c, ok := s.kv.(driver.Checker); ok {
		d = &struct {
			around
			driver.Checker
		}{around{d}, c}
	}
	if c, ok := s.kv.(io.Closer); ok {
		d = &struct {
			around
			io.Closer
		}{around{d}, c}
	}
	return d
}

// around is for a driver around another one.
type around struct{ driver.Driver }

// Unwrap is for driver.As.
func (a around) Unwrap() driver.Driver { return a.Driver }

// A waiter that is the first in line begins with a read every shortLook. The pause is longer with each
// place before it and with the time that it has waited, up to about longLook. While it listens at a Waker, it reads only
// when something may have happened without a wake-up: the holder died, a turn is over, the wake-up got lost.
const (
	shortLook = 25 * time.Millisecond
	longLook  = 300 * time.Millisecond
	wokenLook = 750 * time.Millisecond

	// listenTime is how long the first read waits for Listen at most, so that no release is missed.
	listenTime = 250 * time.Millisecond
)

// Await implements driver.Driver, by reads that are not fresh, except the first of a process. If
// the KV is a Waker, it waits for a wake-up, and reads about every 0.75 s or more often.
func (s *store) Await(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ask, look := driver.Answer{Outcome: driver.Ask}, time.Duration(0)
	var woken <-chan struct{} // nil while nobody listens: never
	heard := s.listen(ctx, key, r.Owner)
	if heard != nil {
		look = listenTime
	}
	wasWoken := false
	for began := time.Now(); ; {
		select {
		case <-time.After(look):
		case l := <-heard: // what was released before this is found by a read
			defer l.stop()
			heard, woken = nil, l.woken
		case <-woken:
			wasWoken = true
		case <-ctx.Done():
			return ask, ctx.Err()
		}
		v, err := (&call{store: s, ctx: ctx, key: key, since: time.Now()}).read(false)
		if err != nil {
			return ask, errors.Join(ctx.Err(), pause.For(ctx, longLook))
		}
		if a := s.handedOver(v, r); a.Outcome == driver.Granted {
			s.remember(key, v) // the owner writes next
			return a, nil
		}
		wait := book.Wait(v.State, s.clockAt(v), r.Owner)
		if wait <= 0 || wasWoken {
			return ask, nil
		}
		look = max(shortLook, min(wokenLook, wait))
		if woken == nil {
			place := slices.IndexFunc(v.Queue, func(w rules.Waiter) bool { return w.Owner == r.Owner })
			look = min(longLook, time.Duration(1+place)*shortLook+time.Since(began)/20)
		}
		look = look*3/4 + rand.N(look/2)
	}
}

// handedOver is the answer to an owner that was handed the key since its last refusal. The note of that refusal is
// a time of the service that the refused Acquire has seen. A lease that begins at that time or later ends one
// Turn after the Acquire was sent, or later, however long this Await takes. A lease that begins earlier may be over.
func (s *store) handedOver(v view, r driver.Request) (a driver.Answer) {
	refusedAt, err := strconv.ParseInt(string(r.Note), 10, 64)
	ttl := driver.Turn - r.Elapsed - s.opt.Margin
	i := slices.IndexFunc(v.Holders, func(h rules.Holder) bool { return h.Owner == r.Owner && h.HandedOver && !h.Revoked })
	if i < 0 || err != nil || ttl < driver.LeastTrust || s.begin(v.Holders[i].Since) < refusedAt {
		return a
	}
	h := v.Holders[i]
	return driver.Answer{Outcome: driver.Granted, Fence: h.Fence, Seat: h.Seat, TTL: ttl}
}

// listener is what Listen has returned.
type listener struct {
	woken <-chan struct{}
	stop  func()
}

// listen calls Listen on a goroutine of its own. The caller gets the result from the channel, once, and calls
// stop. listen returns nil for a KV that is no Waker. The goroutine ends with ctx.
func (s *store) listen(ctx context.Context, key string, owner driver.Owner) <-chan listener {
	w, ok := s.kv.(Waker)
	if !ok {
		return nil
	}
	heard := make(chan listener)
	go func() {
		woken, stop, err := w.Listen(ctx, key, string(owner))
		if err != nil {
			woken, stop = nil, func() {}
		}
		select {
		case heard <- listener{woken, stop}:
		case <-ctx.Done():
			stop()
		}
	}()
	return heard
}
