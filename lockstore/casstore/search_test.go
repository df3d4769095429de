package casstore

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/lambdalock/lambdalock/internal/leasesearch"
	"github.com/lambdalock/lambdalock/internal/rules"
	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/lockstore"
)

const searchStep = time.Second

// TestSearch visits every state of a few clients and this store, see leasesearch.Verify. In
// the search nobody writes between the read of a call and its write. That loses no state:
//
//   - A write is applied only to the version that its call has read, or knows from its own
//     last write, and no version comes twice. So nobody has written between the two. The second
//     write of a call is applied to the version of its first one, a touch, which changes
//     nothing but a counter. (Begin may write three times. It is not in the search.)
//   - After a conflict a call begins again from a read. It knows only that a write of its own
//     may have been applied, and then says "unknown" where it would say "lost" or "not applied".
//   - If the conflict was an echo of the call's own write, the request has arrived twice. In the
//     search each request may arrive many times.
//   - A call that writes nothing changes no state. Its refusal may rest on an old read. These
//     answers, and the pauses after conflicts, are the simulation's part.
//
// But time may pass between the read and the write, and without a bound: a write may arrive
// late. What the call believes is the time may be wrong, too. So the read's time is right, a
// tick off, or so far off that every lease and turn is live or over. The stamp of each write
// is right or a Step too early, because stamps are cut down to a Step. A touch that was
// written still earlier adds nothing: for a takeover it is a refusal, and for a renewal it is
// the early time of a read. A lease that has ended without a queue counts as just ended when
// somebody with a wrong time takes a place.
//
// The order of the queue is promised by times that are right, so a healthy client and the
// others have these.
func TestSearch(t *testing.T) {
	var clocks []leasesearch.Clocks
	for _, read := range []time.Duration{-16, -1, 0, 1, 16} {
		for _, first := range []time.Duration{0, -1} {
			for _, second := range []time.Duration{0, -1} {
				clocks = append(clocks, leasesearch.Clocks{Read: read * searchStep, First: first * searchStep, Second: second * searchStep})
			}
		}
	}
	sizes := []leasesearch.Size{{Clients: 2, Clocks: clocks, Breaks: true}, {Clients: 2, Dead: 1, Healthy: true}}
	if verifyrecord.Full() {
		sizes = []leasesearch.Size{
			{Clients: 2, Earlier: 2, Clocks: clocks, Breaks: true}, {Clients: 3, Clocks: clocks},
			{Clients: 2, Dead: 2, Clocks: clocks}, {Clients: 2, Dead: 3, Healthy: true}, {Clients: 2, Earlier: 1, Dead: 2, Healthy: true},
		}
	}
	leasesearch.Verify(t, "every state of a few clients of a store over a register", func() leasesearch.Store { return &searched{} }, sizes,
		"In the search of a store over a register nobody writes between the read and the write of a call, and no read is old. The simulation has both.",
		"In the search of a store over a register, time stamps have a resolution of one tick. In the variants with a client that never crashes, no clock is wrong.")
}

// searched is the store of the search, and the register below it.
type searched struct {
	*Store
	before leasesearch.Entry
	entry  Entry
	now    time.Time
	clocks leasesearch.Clocks
	writes int // of this call
}

func (s *searched) Step() time.Duration { return searchStep }

func (s *searched) Read(context.Context, string, bool) (Entry, time.Time, error) {
	return s.entry, s.now.Add(s.clocks.Read), nil
}

func (s *searched) Write(_ context.Context, _ string, value []byte, ifVersion string) (Entry, error) {
	if ifVersion != s.entry.Version {
		panic("nobody else has written")
	}
	s.writes++
	shift := s.clocks.First
	if s.writes > 1 {
		shift = s.clocks.Second
	}
	s.entry = Entry{Value: value, Version: fmt.Sprint("w", s.writes), Written: s.now.Add(shift)}
	return s.entry, nil
}

// hows are in the order of leasesearch.How, without None.
var hows = []rules.How{rules.Released, rules.Expired, rules.Completed}

// revoked stands for the owner of a lease that was revoked.
const revoked lockstore.Owner = "revoked by an operator"

func (s *searched) Put(e leasesearch.Entry, now time.Time, c leasesearch.Clocks) {
	var err error
	if s.Store, err = New(s, Options{}); err != nil {
		panic(err)
	}
	s.now, s.clocks, s.writes, s.before = now, c, 0, e
	next := rules.State{LastFence: e.Fence}
	switch {
	case e.Owner != "":
		h := rules.Holder{Owner: e.Owner, Fence: e.Fence, MaxHolders: 1, Since: e.Ends.Add(-leasesearch.TTL), TTL: leasesearch.TTL}
		if e.Owner == revoked {
			h.Owner, h.Revoked = "", true
		}
		next.Holders = []rules.Holder{h}
	case e.Kept:
		next.Closed = rules.Closed{Since: e.Ends.Add(-leasesearch.Cooldown), For: leasesearch.Cooldown}
	default:
		next.Freed = e.Ends
	}
	for _, o := range e.Queue {
		next.Queue = append(next.Queue, rules.Waiter{Owner: o, MaxHolders: 1})
	}
	for _, p := range e.Endings {
		next.Ended = append(next.Ended, rules.Ended{Owner: p.Owner, How: hows[p.How-1]})
	}
	s.entry = Entry{Value: s.encode(view{}, next), Version: "before", Written: now}
}

func (s *searched) Get() leasesearch.Entry {
	if s.writes == 0 {
		return s.before
	}
	v, err := s.view(leasesearch.Key, s.entry)
	if err != nil {
		panic(err)
	}
	e := leasesearch.Entry{Fence: v.LastFence, Ends: v.Freed, Kept: v.Closed.For > 0}
	if e.Kept {
		e.Ends = v.Closed.End()
	}
	for _, h := range v.Holders {
		if e.Owner = h.Owner; h.Revoked {
			e.Owner = revoked
		}
		if h.End().After(e.Ends) {
			e.Ends = h.End()
		}
	}
	for _, p := range v.Queue {
		e.Queue = append(e.Queue, p.Owner)
	}
	for _, p := range v.Ended {
		if p.How == rules.Revoked {
			p.How = rules.Released
		}
		e.Endings = append(e.Endings, leasesearch.Ending{Owner: p.Owner, How: leasesearch.How(slices.Index(hows, p.How) + 1)})
	}
	return e
}
