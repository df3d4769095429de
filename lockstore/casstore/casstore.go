// Package casstore makes a lock store out of any database that can read an entry, write it back if nobody else
// has, and say when it was written: write a [KV], call [New], and run castest.Run and storetest.Run with castest.Harness.
// castest.Memory is the shortest KV.
//
// # How it works
//
// The rules of the lock are package internal/lib/rules: a pure function of an entry, the time and a request. This package
// reads the entry, asks the rules, and replaces the entry if nobody has changed it meanwhile. An entry has the whole state
// of a key, so all changes have one order.
//
// The service's times are the only clock. The clock of the process ends no lease and gives nobody a turn; if its wall clock jumps
// ahead, the next fence may be ahead by as much. A lease begins at the WrittenAt of the write that granted or renewed it, and
// its holder trusts it for TTL - Margin, counted from before this write. Another owner gets the key at TTL + ClockResolution +
// MaxClockSkew.
//
// Only a write of the same call tells the time, by its stamp. Otherwise, also after a fresh read, the store guesses: the last
// known time of the service, and what has passed since. A wrong guess only delays an answer: where an
// answer has to rest on a fresh read or on a stamp, see rules.Basis, the store reads again, or writes the state unchanged
// and decides by the WrittenAt of this write.
//
// An owner trusts a hand-over for Turn - Margin, counted from before its last refused Acquire. Short work needs no
// further request.
//
// # Cost
//
// Requests of the KV, reads included (on ZooKeeper a fresh read sends two):
//
//	acquire a free key                        2, and 1 after a release by the same process
//	a refusal                                 1, plus 1 to take a place in the queue; soon after a write of this process only the 1 for the place
//	Renew, Release, MarkStarted, Complete     1, and 2 from another process or while somebody waits
//	Inspect                                   1
//	Leave, Revoke                             2; mostly 1 if nothing changes
//	takeover, or a key that was closed        3
//	repeat of an Acquire; a key in doubt      2
//	extend a lease that was handed over       1 by a process that knows of it, else 2
//	resolve a key in doubt                    3
//
// After a conflict come a pause (for holders only after the fifth), a fresh read and the write again. In one process those who do not hold
// the key have two calls under way in all, and two more that end a wait. The others wait, and share what these have read or written.
//
// # Limits
//
// An entry has at most 64 places, and the last 16 owners that have ended. The store never deletes an entry. An operator
// may, if the key is free and nobody will use it in the next minute. Nobody else may write an entry, not even the same value.
//
// An entry is JSON behind the name of its format and a checksum. A field that this version does not know stays as it is,
// so a later version may add fields while both are in use.
//
// # A KV of one's own
//
//   - Write is the database's conditional write. Versions must never come twice: if they begin again after a deletion,
//     add something random when an entry is created, and let each write check it.
//   - WrittenAt is a time of the service between the call of Write and its commit: from the reply, or what the database
//     keeps beside the entry. It is neither the client's clock nor made of a remaining TTL.
//   - If the database has no clock, begin each Write by asking another part of the service for its time, such as the header
//     Date of an HTTP answer, and write it into the entry; see examples/etcdstore. With an older time the lease would end
//     while its holder trusts it.
//   - A fresh read is what the database calls strongly consistent or linearizable. If its reply has no time, write
//     some other entry before it, and return the time of that write.
//   - If the database's client repeats a write by itself, the second copy may be answered with ErrConflict.
//   - Only a refusal that certainly comes before the write is applied is lockstore.ErrUnavailable. A timeout is not.
package casstore

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/pause"
	"github.com/lambdalock/lambdalock/internal/lib/rules"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore/internal/entry"
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

// New returns a store that keeps its leases in a KV. An error of New matches lockstore.ErrInvalid.
func New(kv KV, opt Options) (*lockstore.Store, error) {
	s, err := newStore(kv, opt)
	if err != nil {
		return nil, err
	}
	return lockstore.New(s.opt.Name, s), nil
}

// store is the driver: it keeps leases in a KV.
type store struct {
	kv    KV
	opt   Options
	codec entry.Codec

	mu    sync.Mutex
	clock lastStamp
	// writes is this process's last write of each key, or what it has read when it was handed the key. Only
	// decisions that are written may rest on it: the write checks the version.
	writes map[string]view
	lanes  map[string]*lane // of the keys that somebody asks for now
}

func newStore(kv KV, opt Options) (*store, error) {
	opt.Name = cmp.Or(opt.Name, "casstore")
	switch {
	case kv == nil:
		return nil, lockstore.Invalidf("%s: the KV is nil", opt.Name)
	case opt.MaxClockSkew < 0 || opt.MaxClockSkew > time.Minute:
		return nil, lockstore.Invalidf("%s: MaxClockSkew is %v; want 0 to 1m", opt.Name, opt.MaxClockSkew)
	case opt.Margin < 0 || opt.Margin > time.Second/2:
		return nil, lockstore.Invalidf("%s: Margin is %v; want 0 to 500ms", opt.Name, opt.Margin)
	case kv.ClockResolution() <= 0 || kv.ClockResolution() > entry.MaxResolution:
		return nil, lockstore.Invalidf("%s: the KV's ClockResolution is %v; want more than 0, at most 1s", opt.Name, kv.ClockResolution())
	}
	codec := entry.Codec{Resolution: kv.ClockResolution(), Skew: opt.MaxClockSkew}
	return &store{kv: kv, opt: opt, codec: codec, writes: map[string]view{}, lanes: map[string]*lane{}}, nil
}

// Optional is for driver.As: a KV checks, closes and lists.
func (s *store) Optional() []any {
	if l, ok := s.kv.(Lister); ok {
		return []any{s.kv, &listing{s, l}}
	}
	return []any{s.kv}
}

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

// Await waits by reads that are not fresh, except the first of a process.
func (s *store) Await(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ask, look, began := driver.Answer{Outcome: driver.Ask}, time.Duration(0), time.Now()
	refusedAt, wait := readHint(r.Hint)
	var woken <-chan string // nil while nobody listens: never
	heard := s.listen(ctx, key, r.Owner, began.Add(-r.Elapsed))
	if heard != nil {
		look = listenTime
	}
	wasWoken := false
	for {
		select {
		case <-time.After(look):
		case l := <-heard:
			woken, heard = l.woken, nil
			if l.all && wait > r.Elapsed {
				look = jitter(min(wokenLook, wait-r.Elapsed))
				continue
			} // else what was released before this is found by a read
		case note := <-woken:
			if h, begin := readNote(key, r.Owner, note); h.Fence > 0 {
				return s.trusted(h, begin, refusedAt, r), nil
			}
			wasWoken = true
		case <-ctx.Done():
			return ask, ctx.Err()
		}
		c, end := s.call(ctx, key, r)
		v, err := c.read(false)
		if end(); err != nil {
			return ask, errors.Join(ctx.Err(), pause.For(ctx, longLook))
		}
		i := slices.IndexFunc(v.Holders, func(h rules.Holder) bool { return h.Owner == r.Owner && h.HandedOver && !h.Revoked })
		if i >= 0 {
			a := s.trusted(v.Holders[i], s.codec.Begin(v.Holders[i].Since), refusedAt, r)
			if a.Outcome == driver.Granted {
				s.remember(key, v) // the owner writes next
			}
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
		look = jitter(look)
	}
}

func jitter(d time.Duration) time.Duration { return d*3/4 + rand.N(max(1, d/2)) }

// trusted is the answer to an owner that was handed the key by a lease that begins at begin or later. refusedAt is
// a time of the service that its last refused Acquire has seen. A lease that begins at that time or later ends one
// Turn after the Acquire was sent, or later, however long this Await takes. A lease that begins earlier may be over.
func (s *store) trusted(h rules.Holder, begin, refusedAt int64, r driver.Request) driver.Answer {
	ttl := driver.TurnTime - r.Elapsed - s.opt.Margin
	if refusedAt == 0 || begin < refusedAt || ttl < driver.LeastTrust {
		return driver.Answer{Outcome: driver.Ask}
	}
	return driver.Answer{Outcome: driver.Granted, Fence: h.Fence, Seat: h.Seat, TTL: ttl}
}

// hint is for the next Await of an owner that was refused: see trusted, and for how long it has to wait if nobody ends a lease early.
func hint(refusedAt time.Time, wait time.Duration) driver.Hint {
	return driver.Hint(fmt.Sprintf("%d %d", refusedAt.UnixNano(), wait))
}

func readHint(text driver.Hint) (refusedAt int64, wait time.Duration) {
	if _, err := fmt.Sscanf(string(text), "%d %d", &refusedAt, &wait); err != nil {
		return 0, 0
	}
	return refusedAt, wait
}

// note tells an owner in a wake-up of the lease by which it was handed the key, and that this begins at begin or later. Only who knows
// the owner can make it.
func note(key string, h rules.Holder, begin int64) string {
	text := fmt.Sprintf("%d %d %d", begin, h.Fence, h.Seat)
	proof := sha256.Sum256([]byte(key + "\n" + string(h.Owner) + "\n" + text))
	return fmt.Sprintf("%s %x", text, proof[:16])
}

// readNote returns no fence for another text than that of a note to this owner.
func readNote(key string, owner driver.Owner, text string) (h rules.Holder, begin int64) {
	h.Owner = owner
	if _, err := fmt.Sscanf(text, "%d %d %d", &begin, &h.Fence, &h.Seat); err != nil || note(key, h, begin) != text {
		return rules.Holder{}, 0
	}
	return h, begin
}

// listening is what Listen of a Waker has returned.
type listening struct {
	woken <-chan string
	all   bool
}

// listen calls Listen on a goroutine of its own, which ends with ctx. The caller gets the wake-ups from the channel, or nil for none; the
// channel is nil for a KV that is no Waker.
func (s *store) listen(ctx context.Context, key string, owner driver.Owner, since time.Time) <-chan listening {
	w, ok := s.kv.(Waker)
	if !ok {
		return nil
	}
	heard := make(chan listening, 1)
	go func() {
		woken, all, stop, err := w.Listen(ctx, key, string(owner), since)
		if err != nil {
			heard <- listening{}
			return
		}
		defer stop()
		heard <- listening{woken, all}
		<-ctx.Done()
	}()
	return heard
}
