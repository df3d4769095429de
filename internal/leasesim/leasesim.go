// Package leasesim simulates the users of one key of a store, in the virtual time
// of a synctest bubble: processes that take a lease as a guard does, renew it,
// stand still, die or release it. It looks at what they may believe: no two
// trust their lease at the same time, and fences grow in the order of trust.
//
// All that is left to chance is drawn from numbers of the process that needs it,
// so that a seed gives the same simulation again.
package leasesim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/lockstore"
)

// Key is what all lock.
const Key = "account/7"

// Sim is one simulation.
type Sim struct {
	Seed   uint64
	TTL    time.Duration // of each lease
	Length time.Duration
	Drift  float64 // how far off the rates of local clocks are, as a part of 1

	// Open opens the store in a new process. close is called at its end.
	Open func(p *Process) (s lockstore.Store, close func())

	// FromReply counts trust from the reply and not from before the request. It is
	// for a control run, which has to find two that trust at once.
	FromReply bool

	mu      sync.Mutex
	counts  Counts
	trusted []span
}

// Counts is what happened, by name.
type Counts map[string]int64

// newCounts has every name, so that what never happened is seen.
func newCounts() Counts {
	c := Counts{}
	for _, name := range []string{"seeds", "operations", "grants", "renewals", "deaths", "freezes", "unknown outcomes", "abandons", "busy", "losses"} {
		c[name] = 0
	}
	return c
}

// Process is one process of one client.
type Process struct {
	Rate float64 // of its local clock

	sim    *Sim
	client int
	mu     sync.Mutex
	rng    *rand.Rand
}

// Float is a random number from 0 to 1.
func (p *Process) Float() float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rng.Float64()
}

// UpTo is a random time from 0 to d.
func (p *Process) UpTo(d time.Duration) time.Duration {
	return time.Duration(p.Float() * float64(d))
}

type processKey struct{}

// From is the process whose request has this context.
func From(ctx context.Context) *Process { return ctx.Value(processKey{}).(*Process) }

// Seeds runs one simulation for each seed, as verifyrecord.Seed says, and fails the test
// with the first of which something must not be. simulate runs one in a bubble.
// control is what FromReply showed, in one of the first twenty seeds.
func Seeds(t *testing.T, pkg string, few, full int, simulate func(t *testing.T, seed uint64, fromReply bool) (Counts, []string)) (first uint64, count int, total Counts, control verifyrecord.Control) {
	t.Helper()
	first, count = verifyrecord.Seed(t, few, full)
	total = newCounts()
	name := t.Name()
	for seed := first; seed < first+uint64(count); seed++ {
		synctest.Test(t, func(t *testing.T) { // ends this test when it fails
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("replay with VERIFY_SEED=%d VERIFY_SEEDS=1 go test %s -run %s", seed, pkg, name)
				}
			})
			counts, wrong := simulate(t, seed, false)
			if len(wrong) > 0 {
				t.Fatal(strings.Join(wrong, "\n"))
			}
			for name, n := range counts {
				total[name] += n
			}
		})
	}
	var shown []string
	for seed := first; len(shown) == 0 && seed < first+20; seed++ {
		synctest.Test(t, func(t *testing.T) { _, shown = simulate(t, seed, true) })
	}
	if len(shown) == 0 {
		t.Fatal("M20: trust from the reply shows nothing")
	}
	return first, count, total, verifyrecord.Control{What: "M20: the same with trust that counts from the reply", Shown: true, Saw: shown[0]}
}

const clients = 3

// Run runs the simulation, in a bubble. It returns what must not be.
func (s *Sim) Run(t *testing.T) (Counts, []string) {
	s.counts = newCounts()
	s.counts["seeds"] = 1
	var wrong []string
	start := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), s.Length)
	defer cancel()
	var all sync.WaitGroup
	for client := range clients {
		all.Go(func() {
			pass(time.Duration(client) * time.Millisecond)
			for n := uint64(0); ctx.Err() == nil; n++ {
				p := &Process{sim: s, client: client, rng: rand.New(rand.NewPCG(s.Seed, uint64(client)<<32|n))}
				p.Rate = 1 + s.Drift*(2*p.Float()-1) // F18
				p.live(ctx)
			}
		})
	}
	all.Wait()

	for i, a := range s.trusted {
		for _, b := range s.trusted[i+1:] {
			if a.owner == b.owner {
				continue
			}
			if a.from.Before(b.to) && b.from.Before(a.to) {
				wrong = append(wrong, fmt.Sprintf("two trust their lease at once: %s and %s", a.in(start), b.in(start)))
			}
			if a.to.Before(b.from) && a.fence >= b.fence || b.to.Before(a.from) && b.fence >= a.fence {
				wrong = append(wrong, fmt.Sprintf("the fence did not grow: %s and %s", a.in(start), b.in(start)))
			}
		}
	}
	return s.counts, wrong
}

// pass lets time pass.
func pass(d time.Duration) { <-time.After(d) }

func (p *Process) live(ctx context.Context) {
	store, end := p.sim.Open(p)
	defer end()
	ctx = context.WithValue(ctx, processKey{}, p)
	for range 1 + int(p.Float()*4) {
		p.hold(ctx, store)
		pass(p.UpTo(p.sim.TTL / 2))
	}
}

// ask makes one call. Its caller waits for the answer for as long as a guard does,
// or much longer.
func (p *Process) ask(ctx context.Context, call func(context.Context) error) error {
	limit := 2 * time.Second
	if p.Float() < 0.5 {
		limit = 3 * p.sim.TTL
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := call(ctx)
	p.sim.count("operations")
	switch {
	case errors.Is(err, lockstore.ErrHeld):
		p.sim.count("busy")
	case errors.Is(err, lockstore.ErrLost):
		p.sim.count("losses")
	case unknown(err):
		p.sim.count("unknown outcomes")
	}
	return err
}

// hold is one acquisition as a guard makes it.
func (p *Process) hold(ctx context.Context, store lockstore.Store) {
	s := p.sim
	req := lockstore.Request{Key: Key, Owner: lockstore.NewOwner(), TTL: s.TTL}
	var lease lockstore.Lease
	acquire := func(ctx context.Context) (err error) {
		lease, err = store.Acquire(ctx, req)
		return err
	}
	asked := time.Now() // a guard counts from the owner's first request
	err := p.ask(ctx, acquire)
	ambiguous := unknown(err)
	for i := 0; i < 3 && unknown(err); i++ {
		err = p.ask(ctx, acquire)
	}
	if err != nil && ambiguous {
		s.count("abandons")
		abandon := func(ctx context.Context) error {
			return store.Release(ctx, lockstore.Lease{Key: Key, Owner: req.Owner})
		}
		for i := 0; i < 3 && p.ask(ctx, abandon) != nil; i++ {
			pass(p.UpTo(100 * time.Millisecond))
		}
		return
	}
	if err != nil {
		pass(p.UpTo(time.Second))
		return
	}
	s.count("grants")
	p.trusts(lease, asked, lease.TTL)
	for p.Float() < 0.5 {
		pass(p.UpTo(s.TTL / 2))
		p.freeze()
		asked := time.Now()
		var left time.Duration
		err := p.ask(ctx, func(ctx context.Context) (err error) {
			left, err = store.Renew(ctx, lease, s.TTL/2+p.UpTo(s.TTL/2))
			return err
		})
		switch {
		case err == nil:
			s.count("renewals")
			p.trusts(lease, asked, left)
		case errors.Is(err, lockstore.ErrLost):
			return
		}
	}
	if p.Float() < 0.4 {
		s.count("deaths")
		return // only the end of the lease frees the key
	}
	pass(p.UpTo(s.TTL / 2))
	p.freeze()
	p.trustsNoMore(lease)
	for i := 0; i < 2 && unknown(p.ask(ctx, func(ctx context.Context) error { return store.Release(ctx, lease) })); i++ {
		pass(p.UpTo(100 * time.Millisecond))
	}
}

// freeze lets the process stand still now and then.
func (p *Process) freeze() {
	if p.Float() < 0.1 {
		p.sim.count("freezes")
		pass(p.UpTo(3 * p.sim.TTL))
	}
}

// unknown says that the request may have been applied, now or later.
func unknown(err error) bool {
	for _, known := range []error{lockstore.ErrHeld, lockstore.ErrLost, lockstore.ErrInvalid, lockstore.ErrCorrupt, lockstore.ErrUnavailable} {
		if errors.Is(err, known) {
			return false
		}
	}
	return err != nil
}

func (s *Sim) count(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[what]++
}

// span is a time in which a client trusts its lease.
type span struct {
	client   int
	owner    lockstore.Owner
	fence    lockstore.Fence
	from, to time.Time
}

func (s span) in(start time.Time) string {
	return fmt.Sprintf("client %d, fence %d, %v to %v", s.client, s.fence, s.from.Sub(start), s.to.Sub(start))
}

// trusts notes that the process trusts its lease, from when it knows of it on. The
// local clock that counts down runs at its own rate.
func (p *Process) trusts(lease lockstore.Lease, asked time.Time, ttl time.Duration) {
	s, now := p.sim, time.Now()
	if s.FromReply {
		asked = now
	}
	to := asked.Add(time.Duration(float64(ttl) / p.Rate))
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Before(to) {
		s.trusted = append(s.trusted, span{client: p.client, owner: lease.Owner, fence: lease.Fence, from: now, to: to})
	}
}

func (p *Process) trustsNoMore(lease lockstore.Lease) {
	s, now := p.sim, time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, t := range s.trusted {
		if t.owner == lease.Owner && now.Before(t.to) {
			s.trusted[i].to = now
		}
	}
}
