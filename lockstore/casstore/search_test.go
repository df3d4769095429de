package casstore

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/lambdalock/lambdalock/internal/leasesearch"
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

func (s *searched) Put(e leasesearch.Entry, now time.Time, c leasesearch.Clocks) {
	var err error
	if s.Store, err = New(s, Options{}); err != nil {
		panic(err)
	}
	s.now, s.clocks, s.writes, s.before = now, c, 0, e
	r := record{N: 1, Fence: e.Fence, State: stateFree, Owner: string(e.Owner)}
	for _, o := range e.Queue {
		r.Queue = append(r.Queue, string(o))
	}
	switch {
	case e.Owner != "":
		r.State, r.TTL = stateHeld, int64(leasesearch.TTL)
	case e.Kept:
		r.State, r.TTL = stateCooldown, int64(leasesearch.Cooldown)
	}
	for _, p := range e.Endings {
		r.Ended = append(r.Ended, ended{string(p.Owner), p.How == leasesearch.Expired, p.How == leasesearch.Kept})
	}
	begin := e.Ends
	if r.State != stateFree {
		begin = begin.Add(-time.Duration(r.TTL) - searchStep)
	}
	s.entry = Entry{Value: r.encode(), Version: "before", Written: begin}
}

func (s *searched) Get() leasesearch.Entry {
	if s.writes == 0 {
		return s.before
	}
	v := s.cache[leasesearch.Key] // the last write
	e := leasesearch.Entry{Owner: lockstore.Owner(v.Owner), Fence: v.Fence, Ends: s.freed(v.view), Kept: v.State == stateCooldown}
	for _, o := range v.Queue {
		e.Queue = append(e.Queue, lockstore.Owner(o))
	}
	for _, p := range v.Ended {
		how := leasesearch.Released
		switch {
		case p.Lost:
			how = leasesearch.Expired
		case p.Kept:
			how = leasesearch.Kept
		}
		e.Endings = append(e.Endings, leasesearch.Ending{Owner: lockstore.Owner(p.Owner), How: how})
	}
	return e
}
