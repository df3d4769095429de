package casstore

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/lambdalock/lambdalock/internal/modelcheck"
	"github.com/lambdalock/lambdalock/internal/rules"
	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// TestSearch visits what a few clients can reach with this store's loop, see modelcheck. In the
// search nobody writes between the read of a call and its write. That loses no state: a
// write is applied only to the version that its call has read, and after a conflict the call begins again
// from a read. That a call knows that a write of its own may have been applied is the simulation's part,
// and so are old reads. But time may pass between the read and the write, without a bound: so what a call believes is the
// time is right, a tick off, or so far off that every lease and turn is live or over. The stamp
// of each write is right or a step too early, because stamps are cut down to a step.
func TestSearch(t *testing.T) {
	verifyrecord.SkipSearchWithRace(t)
	result := verifyrecord.Result{
		Kind: verifyrecord.Search, Name: "every state of a few clients of a store over a KV", Counts: map[string]int64{},
		Limits: []string{"In the search of a store over a KV nobody writes between the read and the write of a call, and no read is old. The simulation has both. Time stamps have a resolution of one tick."},
	}
	began, two := time.Now(), []int{1, 1}
	for _, size := range []modelcheck.Size{
		{MaxHolders: two, Register: true, Does: modelcheck.Renew | modelcheck.Revoke, Earlier: 1, States: 100_000},
		{MaxHolders: two, Register: true, Does: modelcheck.Queue | modelcheck.Complete, States: 100_000},
		{MaxHolders: two, Register: true, Does: modelcheck.Start | modelcheck.Complete, States: 100_000},
	} {
		if !verifyrecord.Full() {
			size.States = 2000
		}
		searched := &searched{known: map[string][]modelcheck.Outcome{}}
		r := modelcheck.Search(size, modelcheck.None, modelcheck.Store{Decide: rules.Book.Decide, Outcomes: searched.outcomes})
		t.Logf("%v: %d states, %d steps deep, to the end: %t, %v", size, r.States, r.Depth, r.Closed, time.Since(began))
		if r.Bad != "" {
			t.Fatalf("%v: %s:\n%s", size, r.Bad, r.Trace)
		}
		result.Counts[fmt.Sprintf("states with %v", size)] = int64(r.States)
		result.Counts[fmt.Sprintf("steps with %v", size)] = int64(r.Depth)
	}
	result.Took = time.Since(began)
	verifyrecord.Write(t, result)
}

// searched asks a new store, over a KV with one entry, once for each state and request.
type searched struct {
	mu    sync.Mutex
	known map[string][]modelcheck.Outcome
}

const searchStep = time.Second

// firstFence is added to the search's fences, and searchNow is the time: it is smaller than every fence, so a
// new fence is the previous fence + 1.
const firstFence = 1 << 40

var searchNow = time.Unix(100_000, 0)

func (s *searched) outcomes(state rules.State, now time.Time, r driver.Request) (all []modelcheck.Outcome) {
	moved := move(state, searchNow.Sub(now), firstFence)
	if r.Fence != 0 {
		r.Fence += firstFence
	}
	value := (&store{kv: &oneEntry{}}).encode(view{}, moved)
	id := fmt.Sprintf("%s %d %s %d %d %v %v", value, r.Kind, string(r.Owner), r.Fence, r.TTL, r.Join, r.Effect)
	s.mu.Lock()
	all, ok := s.known[id]
	s.mu.Unlock()
	if ok {
		return all
	}
	different := map[string]bool{}
	for _, read := range []time.Duration{0, -16, -1, 1, 16} {
		for stamps := range 8 {
			one := &oneEntry{entry: Entry{Value: value, Version: "before", WrittenAt: searchNow}, read: read * searchStep, stamps: stamps}
			store, err := newStore(one, Options{})
			if err != nil {
				panic(err)
			}
			a, err := store.Do(context.Background(), "k", r)
			if err != nil {
				panic(err)
			}
			next := state
			if one.writes > 0 {
				v, err := store.view("k", one.entry)
				if err != nil {
					panic(err)
				}
				next = move(v.State, now.Sub(searchNow), -firstFence)
			}
			for _, f := range []*lockstore.Fence{&a.Fence, &a.Status.Fence} {
				*f = max(0, *f-firstFence)
			}
			if id := fmt.Sprintf("%s %v", store.encode(view{}, move(next, searchNow.Sub(now), firstFence)), a); !different[id] {
				different[id] = true
				all = append(all, modelcheck.Outcome{State: next, Answer: a})
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known[id] = all
	return all
}

// move is a state with other times and fences.
func move(s rules.State, by time.Duration, fence lockstore.Fence) rules.State {
	s.LastFence += fence
	s.Holders = append([]rules.Holder(nil), s.Holders...)
	for i := range s.Holders {
		s.Holders[i].Since, s.Holders[i].Fence = s.Holders[i].Since.Add(by), s.Holders[i].Fence+fence
	}
	s.Closed.Since = s.Closed.Since.Add(by)
	return s
}

// oneEntry is a KV for one call.
type oneEntry struct {
	entry  Entry
	read   time.Duration // by how much the time of the first read is off
	stamps int           // the bits say which writes have a stamp that is a step too early
	writes int
}

func (o *oneEntry) ClockResolution() time.Duration { return searchStep }

func (o *oneEntry) Read(context.Context, string, bool) (Entry, time.Time, error) {
	now := searchNow.Add(o.read)
	o.read = 0 // who reads again knows the time better
	return o.entry, now, nil
}

func (o *oneEntry) Write(_ context.Context, _ string, value []byte, ifVersion string) (Entry, error) {
	if ifVersion != o.entry.Version {
		panic("nobody else has written")
	}
	written := searchNow.Add(-time.Duration(o.stamps>>o.writes&1) * searchStep)
	o.writes++
	o.entry = Entry{Value: value, Version: fmt.Sprint("w", o.writes), WrittenAt: written}
	return o.entry, nil
}
