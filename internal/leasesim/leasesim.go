// Package leasesim simulates several clients of one key of a store, in the virtual time of
// a synctest bubble. Each client is one process after another. A process takes a lease as
// a guard does, waits in the key's queue, renews the lease, stands still, dies, leaves or
// releases. The simulation checks that no more processes trust their leases at the same
// time than each of them allows, that they have different seats, and that fences grow in the order of trust unless several may
// hold the key.
//
// In an even seed nobody waits. Then a free key is granted at once, and leases follow each
// other closely.
//
// All random numbers of a process come from its own generator, so a seed can be replayed.
package leasesim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

// Key is the key that all clients lock.
const Key = "account/7"

const clients = 5

// mixes are what the clients ask for as MaxHolders: a mutex, a semaphore, readers and writers, and a deployment that changes
// the number.
var mixes = [][clients]int{
	{1, 1, 1, 1, 1}, {2, 2, 2, 2, 2}, {lockstore.MaxHolders, lockstore.MaxHolders, 1, lockstore.MaxHolders, 1}, {2, 2, 1, 2, 1},
	{1, 1, 1, 1, 1}, {3, 3, 3, 1, 3}, {3, 2, 1, lockstore.MaxHolders, 3},
}

// Sim is one simulation.
type Sim struct {
	Seed   uint64
	TTL    time.Duration // of each lease
	Length time.Duration
	Drift  float64 // a local clock is faster or slower by up to this part of 1

	// Several lets more than one client hold the key, in most seeds.
	Several bool

	// Open opens the store in a new process. close is called at the end of the process.
	Open func(p *Process) (s *lockstore.Store, close func())

	// FromReply counts trust from the reply and not from before the request. That is the
	// control run: it has to find two processes that trust at the same time.
	FromReply bool

	mu      sync.Mutex
	counts  Counts
	trusted []span
}

// mix is what the clients of this seed ask for, whether they wait or not.
func (s *Sim) mix() [clients]int {
	if !s.Several {
		return mixes[0]
	}
	return mixes[s.Seed/2%uint64(len(mixes))]
}

// Counts is what happened, by name.
type Counts map[string]int64

// NewCounts has every name, so that an event that never happens shows as 0.
func NewCounts(names ...string) Counts {
	c := Counts{}
	for _, name := range names {
		c[name] = 0
	}
	return c
}

// Verify runs simulate in a bubble for each seed, see verifyrecord.Seed. It fails the test
// at the first seed with a problem. It also fails if the control run finds no problem, or,
// in the full run, if an event happened less often than least times a seed. (A few seeds say
// nothing about a rare event.) Then it writes the record.
func Verify(t *testing.T, record string, few, full int, least float64, simulate func(t *testing.T, seed uint64, fromReply bool) (counts Counts, problems []string)) {
	t.Helper()
	began := time.Now()
	first, seeds := verifyrecord.Seed(t, few, full)
	total, test := NewCounts(), t.Name()
	for seed := first; seed < first+uint64(seeds); seed++ {
		synctest.Test(t, func(t *testing.T) { // a failure ends the whole test
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("replay in this folder: VERIFY_SEED=%d VERIFY_SEEDS=1 go test -run '^%s$'", seed, test)
				}
			})
			counts, problems := simulate(t, seed, false)
			if len(problems) > 0 {
				t.Fatal(strings.Join(problems, "\n"))
			}
			for name, n := range counts {
				total[name] += n
			}
		})
	}
	t.Logf("%v", total)
	if verifyrecord.WithRaceDetector {
		return // it looks for races, not for mistakes of the simulation
	}
	for name, n := range total {
		if seeds >= full && float64(n) < least*float64(seeds) {
			t.Errorf("%s: %d in %d seeds; want %v a seed", name, n, seeds, least)
		}
	}
	var found []string
	for seed := first; len(found) == 0 && seed < first+20; seed++ {
		synctest.Test(t, func(t *testing.T) { _, found = simulate(t, seed, true) })
	}
	if len(found) == 0 {
		t.Fatal("M20: trust that counts from the reply shows no problem")
	}
	verifyrecord.Write(t, verifyrecord.Result{
		Kind: verifyrecord.Simulation, Name: record, Seed: first, Counts: total, Took: time.Since(began),
		Controls: []verifyrecord.Control{{What: "M20: the same with trust that counts from the reply", Shown: true, Saw: found[0]}},
	})
}

// RuleBook compares each of the stores with the rule book by random sequences of requests, see
// storetest.Sequences and verifyrecord.Seed: full are those on each store. Then it writes the record.
func RuleBook(t *testing.T, record string, few, full int, stores map[string]func(t *testing.T) storetest.Harness) {
	t.Helper()
	first, seeds := verifyrecord.Seed(t, few, full)
	compare(t, record, first, seeds, len(stores), func(t *testing.T, requests *atomic.Int64) {
		workers := min(runtime.GOMAXPROCS(0), seeds)
		for name, open := range stores {
			for w := range workers {
				from, to := seeds*w/workers, seeds*(w+1)/workers
				t.Run(fmt.Sprintf("%s from %d", name, first+uint64(from)), func(t *testing.T) {
					t.Parallel()
					requests.Add(storetest.Sequences(t, open, first+uint64(from), to-from))
				})
			}
		}
	})
}

// Pairs compares the store with the rule book by pairs of requests, see storetest.Within. Then it writes the record.
func Pairs(t *testing.T, record string, open func(t *testing.T) storetest.Harness) {
	t.Helper()
	began := time.Now()
	first, _ := verifyrecord.Seed(t, 0, 0)
	tried := storetest.Within(t, open)
	t.Logf("%d pairs of requests, %v", tried, time.Since(began))
	verifyrecord.Write(t, verifyrecord.Result{
		Kind: verifyrecord.Comparison, Name: record, Seed: first, Counts: map[string]int64{verifyrecord.Pairs: int64(tried)}, Took: time.Since(began),
	})
}

// RuleBookOnServers compares stores on real servers with the rule book, in make verify: by so many
// sequences on each, see storetest.SequencesAtOnce. Elsewhere the suite compares a few.
func RuleBookOnServers(t *testing.T, record string, full int, stores map[string]func(t *testing.T) storetest.Harness) {
	t.Helper()
	if !verifyrecord.Full() {
		t.Skip("the suite compares a few sequences on the wall clock; make verify has many")
	}
	first, seeds := verifyrecord.Seed(t, 0, full)
	compare(t, record, first, seeds, len(stores), func(t *testing.T, requests *atomic.Int64) {
		for name, open := range stores {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				requests.Add(storetest.SequencesAtOnce(t, open(t), first, seeds))
			})
		}
	})
}

func compare(t *testing.T, record string, first uint64, seeds, stores int, run func(*testing.T, *atomic.Int64)) {
	began := time.Now()
	var requests atomic.Int64
	t.Run("sequences", func(t *testing.T) { run(t, &requests) })
	t.Logf("%d sequences, %d requests, %v", seeds*stores, requests.Load(), time.Since(began))
	verifyrecord.Write(t, verifyrecord.Result{
		Kind: verifyrecord.Comparison, Name: record, Seed: first,
		Counts: map[string]int64{verifyrecord.Sequences: int64(seeds * stores), verifyrecord.Requests: requests.Load()}, Took: time.Since(began),
	})
}

// Run runs the simulation in a bubble. It returns what happened and what must not happen.
func (s *Sim) Run(t *testing.T) (counts Counts, problems []string) {
	s.counts = NewCounts("seeds", "operations", "grants", "renewals", "deaths", "freezes", "unknown outcomes", "abandons", "busy", "losses",
		"places", "grants after a wait", "waiters that leave", "waiters that die")
	s.counts["seeds"] = 1
	start := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), s.Length)
	defer cancel()
	var all sync.WaitGroup
	for client := range clients {
		all.Go(func() {
			Pass(time.Duration(client) * time.Millisecond)
			for n := uint64(0); ctx.Err() == nil; n++ {
				p := &Process{sim: s, client: client, Dice: NewDice(rand.New(rand.NewPCG(s.Seed, uint64(client)<<32|n)))}
				p.Rate = 1 + s.Drift*(2*p.Float()-1) // F18
				p.live(ctx)
			}
		})
	}
	all.Wait()
	for i, a := range s.trusted {
		with, fewest := map[lockstore.Owner]bool{a.owner: true}, a.most
		for _, b := range s.trusted {
			if a.owner != b.owner && !b.from.After(a.from) && a.from.Before(b.to) { // when a began to trust
				with[b.owner], fewest = true, min(fewest, b.most)
				if a.seat == b.seat {
					problems = append(problems, fmt.Sprintf("two have the same seat: %s and %s", a.in(start), b.in(start)))
				}
			}
		}
		if len(with) > fewest {
			problems = append(problems, fmt.Sprintf("%d trust their lease at once, and one of them allows %d: %s", len(with), fewest, a.in(start)))
		}
		for _, b := range s.trusted[i+1:] {
			if a.owner == b.owner {
				continue
			}
			if a.fence == b.fence {
				problems = append(problems, fmt.Sprintf("the same fence: %s and %s", a.in(start), b.in(start)))
			}
			if a.most > 1 && b.most > 1 {
				continue
			}
			if a.from.Before(b.to) && b.from.Before(a.to) {
				problems = append(problems, fmt.Sprintf("two trust their lease at once: %s and %s", a.in(start), b.in(start)))
			}
			if a.to.Before(b.from) && a.fence >= b.fence || b.to.Before(a.from) && b.fence >= a.fence {
				problems = append(problems, fmt.Sprintf("the fence did not grow: %s and %s", a.in(start), b.in(start)))
			}
		}
	}
	return s.counts, problems
}

func (s *Sim) count(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[what]++
}

// Process is one process of one client.
type Process struct {
	Rate float64 // of its local clock

	sim    *Sim
	client int
	*Dice
}

// Dice are random numbers that several goroutines share.
type Dice struct {
	mu  sync.Mutex
	rng *rand.Rand
}

// NewDice returns the random numbers of rng.
func NewDice(rng *rand.Rand) *Dice { return &Dice{rng: rng} }

// Float is a random number from 0 to 1.
func (d *Dice) Float() float64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rng.Float64()
}

// UpTo is a random time from 0 to most.
func (d *Dice) UpTo(most time.Duration) time.Duration {
	return time.Duration(d.Float() * float64(most))
}

type processKey struct{}

// From is the process whose request has this context.
func From(ctx context.Context) *Process { return ctx.Value(processKey{}).(*Process) }

func (p *Process) live(ctx context.Context) {
	store, end := p.sim.Open(p)
	defer end()
	ctx = context.WithValue(ctx, processKey{}, p)
	for range 1 + int(p.Float()*4) {
		p.hold(ctx, store)
		Pass(p.UpTo(p.sim.TTL / 2))
	}
}

// call makes one call. It waits for the answer as long as a guard does, or much longer.
func (p *Process) call(ctx context.Context, f func(context.Context) error) error {
	limit := 2 * time.Second
	if p.Float() < 0.5 {
		limit = 3 * p.sim.TTL
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := f(ctx)
	p.sim.count("operations")
	switch {
	case errors.Is(err, lockstore.ErrRefused):
		p.sim.count("busy")
	case errors.Is(err, lockstore.ErrLost):
		p.sim.count("losses")
	case unknown(err):
		p.sim.count("unknown outcomes")
	}
	return err
}

// hold is one acquisition, as a guard makes it.
func (p *Process) hold(ctx context.Context, store *lockstore.Store) {
	s := p.sim
	req := lockstore.Request{Key: Key, Owner: lockstore.NewOwner(), TTL: s.TTL, JoinQueue: p.Float() < 0.7 && s.Seed%2 == 1, MaxHolders: s.mix()[p.client]}
	var lease lockstore.Lease
	acquire := func(ctx context.Context) (err error) {
		lease, err = store.Acquire(ctx, req)
		return err
	}
	sent := time.Now() // a guard counts from the owner's first request
	err := p.call(ctx, acquire)
	ambiguous := unknown(err)
	repeat := func() {
		for i := 0; i < 3 && unknown(err); i++ {
			err = p.call(ctx, acquire)
		}
	}
	repeat()
	waited := place(err) > 0
	if waited {
		s.count("places")
	}
	for end := time.Now().Add(p.UpTo(4 * s.TTL)); place(err) > 0 && time.Now().Before(end); {
		if p.Float() < 0.08 {
			s.count("waiters that die")
			return
		}
		if p.await(ctx, store, &lease, &req, err, &sent) {
			err = nil
			break
		}
		sent = time.Now() // the trust counts from the request that returns the lease
		err = p.call(ctx, acquire)
		ambiguous = ambiguous || unknown(err)
		repeat()
	}
	if place(err) > 0 && !ambiguous {
		s.count("waiters that leave")
		for i := range 3 {
			left := p.call(ctx, func(ctx context.Context) error { return store.Leave(ctx, Key, req.Owner) })
			if errors.Is(left, lockstore.ErrGranted) {
				ambiguous = true
			}
			if left == nil || ambiguous || i == 2 {
				break
			}
			Pass(p.UpTo(100 * time.Millisecond))
		}
	}
	if err != nil && ambiguous {
		s.count("abandons")
		abandon := func(ctx context.Context) error {
			return store.Release(ctx, lockstore.Lease{Key: Key, Owner: req.Owner})
		}
		for i := 0; i < 3 && p.call(ctx, abandon) != nil; i++ {
			Pass(p.UpTo(100 * time.Millisecond))
		}
		return
	}
	if err != nil {
		Pass(p.UpTo(time.Second))
		return
	}
	s.count("grants")
	if waited {
		s.count("grants after a wait")
	}
	p.trusts(lease, sent, lease.TTL)
	if lease.TTL < lockstore.Turn && p.Float() < 0.7 && !p.extend(ctx, store, lease, req) {
		return
	}
	for p.Float() < 0.5 {
		Pass(p.UpTo(s.TTL / 2))
		p.freeze()
		sent := time.Now()
		var renewed lockstore.Lease
		err := p.call(ctx, func(ctx context.Context) (err error) {
			renewed, err = store.Renew(ctx, lease, s.TTL/2+p.UpTo(s.TTL/2))
			return err
		})
		switch {
		case err == nil:
			s.count("renewals")
			p.trusts(lease, sent, renewed.TTL)
		case errors.Is(err, lockstore.ErrLost):
			return
		}
	}
	if p.Float() < 0.4 {
		s.count("deaths")
		return // the key becomes free at the end of the lease
	}
	Pass(p.UpTo(s.TTL / 2))
	p.freeze()
	p.trusts(lease, time.Now(), 0)
	release := func(ctx context.Context) error { return store.Release(ctx, lease) }
	for i := 0; i < 2 && unknown(p.call(ctx, release)); i++ {
		Pass(p.UpTo(100 * time.Millisecond))
	}
}

// await waits until an Acquire may have another answer, or until the owner is handed the key: then it
// returns true, and the lease. sent is when the last Acquire was sent, which was refused, and then when the
// request was sent that returned the lease.
func (p *Process) await(ctx context.Context, store *lockstore.Store, lease *lockstore.Lease, req *lockstore.Request, refused error, sent *time.Time) bool {
	at := lockstore.Place{Key: Key, Owner: req.Owner}
	if r, ok := errors.AsType[*lockstore.Refused](refused); ok {
		at.Note = r.Note
	}
	for {
		began, news := time.Now(), lockstore.Awaited{}
		at.Elapsed = time.Duration(float64(began.Sub(*sent)) * p.Rate)
		err := p.call(ctx, func(ctx context.Context) (err error) {
			news, err = store.AwaitTurn(ctx, at)
			return err
		})
		switch at.Note = news.Note; {
		case err != nil:
			Pass(p.UpTo(100 * time.Millisecond))
			return false
		case news.Lease.Fence != 0:
			p.sim.count(HandedOver)
			*lease, *sent, req.Fence = news.Lease, began, news.Lease.Fence
			return true
		case news.Ask:
			return false
		}
	}
}

// HandedOver counts the leases that AwaitTurn returned.
const HandedOver = "leases of AwaitTurn"

// extend extends a lease that was handed over. It returns false if the lease is lost.
func (p *Process) extend(ctx context.Context, store *lockstore.Store, lease lockstore.Lease, req lockstore.Request) bool {
	Pass(p.UpTo(200 * time.Millisecond))
	p.freeze()
	sent := time.Now()
	err := p.call(ctx, func(ctx context.Context) (err error) {
		lease, err = store.Acquire(ctx, req)
		return err
	})
	if err == nil {
		p.trusts(lease, sent, lease.TTL)
	}
	return !errors.Is(err, lockstore.ErrLost)
}

// place is the place in the queue that a refusal says, 0 without one.
func place(err error) int {
	if refused, ok := errors.AsType[*lockstore.Refused](err); ok {
		return refused.QueuePosition
	}
	return 0
}

// freeze sometimes lets the process stand still.
func (p *Process) freeze() {
	if p.Float() < 0.1 {
		p.sim.count("freezes")
		Pass(p.UpTo(3 * p.sim.TTL))
	}
}

// span is a time in which a process trusts its lease.
type span struct {
	client   int
	most     int
	seat     int
	owner    lockstore.Owner
	fence    lockstore.Fence
	from, to time.Time
}

func (s span) in(start time.Time) string {
	return fmt.Sprintf("client %d, MaxHolders %d, seat %d, fence %d, %v to %v", s.client, s.most, s.seat, s.fence, s.from.Sub(start), s.to.Sub(start))
}

// trusts records that the process trusts its lease from now on, for ttl after sent by its
// local clock. With a ttl of 0 it records that the process does not trust the lease any more.
func (p *Process) trusts(lease lockstore.Lease, sent time.Time, ttl time.Duration) {
	s, now := p.sim, time.Now()
	if s.FromReply {
		sent = now
	}
	to := sent.Add(time.Duration(float64(ttl) / p.Rate))
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, t := range s.trusted {
		if ttl == 0 && t.owner == lease.Owner && now.Before(t.to) {
			s.trusted[i].to = now
		}
	}
	if now.Before(to) {
		s.trusted = append(s.trusted, span{client: p.client, most: s.mix()[p.client], seat: lease.Seat, owner: lease.Owner, fence: lease.Fence, from: now, to: to})
	}
}

// Pass lets time pass. It makes no timer that is due at once: two of them at one moment
// crash the race detector of Go 1.26 (golang/go issue 78156, mended in Go 1.27).
func Pass(d time.Duration) {
	if d > 0 {
		<-time.After(d)
	}
}

// unknown reports whether a failed request may have been applied.
func unknown(err error) bool {
	for _, known := range []error{lockstore.ErrRefused, lockstore.ErrLost, lockstore.ErrInvalid, lockstore.ErrCorrupt, lockstore.ErrUnavailable} {
		if errors.Is(err, known) {
			return false
		}
	}
	return err != nil
}

// UntilTurn says how much longer an owner must wait for a free key. The number of places
// before the owner's is before, and free is for how long the key has been free. If free is
// negative, because a clock was set back, the owner need not wait.
func UntilTurn(before int, free time.Duration) time.Duration {
	if free < 0 {
		return 0
	}
	return max(0, time.Duration(min(before, lockstore.MaxTurns))*lockstore.Turn-free)
}
