package dynamostore_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore/internal/fakedynamo"
)

// TestGuardsOverDynamoDB runs guards over this store in virtual time. Some clients call Do.
// Other clients have long-lived leases, and each of their requests goes through another
// process, as in a lock service. The clock of a process is wrong by up to 5 minutes, and
// many processes get only one request. In every seed:
//
//   - no two owners trust their leases at the same time
//   - fences grow in the order of trust
//   - at the end the key is free
//
// In an even seed the network is slow and nothing else happens. Then no lease may be lost
// while its holder can trust it. In an odd seed requests and replies are lost, late,
// repeated and refused, and holders die.
//
// VERIFY_SEED=17 VERIFY_SEEDS=1 go test ./lockstore/dynamostore -run TestGuardsOverDynamoDB
// replays one seed, except for the guard's own random pauses.
func TestGuardsOverDynamoDB(t *testing.T) {
	t.Parallel()
	began := time.Now()
	first, seeds := verifyrecord.Seed(t, 2, fullSeeds)
	total := map[string]int64{}
	for seed := first; seed < first+uint64(seeds); seed++ {
		synctest.Test(t, func(t *testing.T) { // ends this test when it fails
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("replay with VERIFY_SEED=%d VERIFY_SEEDS=1 go test ./lockstore/dynamostore -run TestGuardsOverDynamoDB", seed)
				}
			})
			w := &guardSim{t: t, rng: rand.New(rand.NewPCG(seed, 0)), quiet: seed%2 == 0, trusting: map[int]trust{}, counts: map[string]int64{"seeds": 1, falseLosses: 0}}
			w.run()
			for name, n := range w.counts {
				total[name] += n
			}
		})
	}
	t.Logf("%d seeds: %v", seeds, total)
	if seeds >= fullSeeds { // a few seeds may miss one of these
		for _, name := range []string{"runs", "busy", "long-lived leases", "renewals", "lost renewals", "repeated acquires", "abandons", "deaths", "unknown outcomes", "places in a row", "hand-overs", "grants past a place", "places given up"} {
			require.Positive(t, total[name], "a run without %s shows nothing", name)
		}
	}
	verifyrecord.Write(t, verifyrecord.Result{
		Kind: verifyrecord.Simulation, Name: "simulated guards over DynamoDB's fake", Seed: first, Counts: total, Took: time.Since(began),
	})
}

// fullSeeds is how many seeds make verify tries.
const fullSeeds = 100

// falseLosses counts leases of quiet seeds that were reported lost while their holder could
// trust them.
const falseLosses = "false losses"

const guardTTL = 6 * time.Second

// guardSim is one seed: the service, its network, and everybody who trusts a lease.
type guardSim struct {
	t       *testing.T
	service *fakedynamo.Service
	quiet   bool

	mu       sync.Mutex
	rng      *rand.Rand
	entered  int
	trusting map[int]trust
	highest  lockstore.Fence
	last     string // the holder with the highest fence
	counts   map[string]int64
}

// trust is one holder's belief in its lease.
type trust struct {
	who   string
	fence lockstore.Fence
	alive func() bool
}

func (w *guardSim) float() float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rng.Float64()
}

func (w *guardSim) upTo(d time.Duration) time.Duration {
	return time.Duration(w.float() * float64(d))
}

func (w *guardSim) count(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts[name]++
}

func (w *guardSim) run() {
	w.service = fakedynamo.New(table)
	w.service.Fault = w.fault
	checks := newQueueChecks(w.t)
	w.service.Changed = checks.changed
	pass(w.upTo(time.Second)) // the phase of the service's Date
	end := time.Now().Add(12 * guardTTL)
	var all sync.WaitGroup
	for n := range 3 {
		all.Go(func() { w.runWork(n, end) })
	}
	for n := range 2 {
		all.Go(func() { w.useLeases(n, end) })
	}
	all.Wait()
	w.service.Wait()
	w.service.Fault = nil
	maps.Copy(w.counts, checks.counts)
	// The clock of a dead holder may have been ahead in its last request.
	pass(3*guardTTL + 2*time.Second + 5*time.Minute)
	lease, err := newStore(w.t, w.service, 0, dynamostore.Options{}).Acquire(w.t.Context(), request(guardTTL))
	require.NoError(w.t, err, "the key is not free at the end")
	require.Greater(w.t, lease.Fence, w.highest)
}

func (w *guardSim) fault(fakedynamo.Request) fakedynamo.Fault {
	f := fakedynamo.Fault{In: w.upTo(60 * time.Millisecond), Out: w.upTo(60 * time.Millisecond)}
	if w.quiet {
		return f
	}
	switch fate := w.float(); {
	case fate < 0.04:
		f.In = w.upTo(2 * guardTTL)
	case fate < 0.08:
		f.Out = w.upTo(2 * guardTTL)
	case fate < 0.18:
		f.LoseReply = errors.New("connection reset by peer")
	case fate < 0.26:
		f.Repeat = w.upTo(2 * guardTTL)
	case fate < 0.30:
		f.Refuse = &fakedynamo.Failure{Status: 400, Code: "ThrottlingException"}
	}
	return f
}

// open is the guard of a new process.
func (w *guardSim) open() *guard.Guard {
	options := dynamostore.Options{}
	if w.float() < 0.3 {
		options.Skew = 100*time.Millisecond + w.upTo(guardTTL)
	}
	s := newStore(w.t, w.service, 0, options)
	start, offset, rate := time.Now(), time.Duration(0), 1+(w.float()-0.5)*0.02
	switch fate := w.float(); {
	case fate < 0.3: // seconds, around the tolerance
		offset = time.Duration((w.float() - 0.5) * float64(3*guardTTL))
	case fate < 0.6:
		offset = time.Duration((w.float() - 0.5) * float64(10*time.Minute))
	}
	steps, step := time.Hour, time.Duration(0)
	if !w.quiet && w.float() < 0.3 {
		steps, step = w.upTo(guardTTL), time.Duration((w.float()-0.5)*float64(4*guardTTL))
	}
	s.SetNow(func() time.Time {
		passed := time.Since(start)
		now := start.Add(offset + time.Duration(rate*float64(passed)))
		if passed > steps {
			now = now.Add(step)
		}
		return now
	})
	g, err := guard.New(s.Store, guard.Options{TTL: guardTTL, Wait: 3 * time.Second, MaxHold: time.Minute})
	require.NoError(w.t, err)
	return g
}

// trusts records that a holder trusts its lease from now on, and fails if another holder
// does too. Each overlap begins when one of two holders begins to trust.
func (w *guardSim) trusts(h trust) (end func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, other := range w.trusting {
		if other.who != h.who && other.alive() && h.alive() {
			w.t.Errorf("two trust their lease at once: %s with fence %d and %s with fence %d", other.who, other.fence, h.who, h.fence)
		}
	}
	if h.alive() && (h.fence < w.highest || h.fence == w.highest && h.who != w.last) {
		w.t.Errorf("the fence did not grow: %s has %d, after %s with %d", h.who, h.fence, w.last, w.highest)
	}
	if h.fence > w.highest {
		w.highest, w.last = h.fence, h.who
	}
	w.entered++
	n := w.entered
	w.trusting[n] = h
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.trusting, n)
	}
}

// runWork calls Do in one process after another.
func (w *guardSim) runWork(n int, end time.Time) {
	g := w.open()
	for i := 0; time.Now().Before(end); i++ {
		if w.float() < 0.3 {
			g = w.open()
		}
		ctx, cancel := context.WithTimeout(context.Background(), w.upTo(4*guardTTL)+time.Second)
		err := g.Do(ctx, key, func(ctx context.Context, lock guard.Lock) error {
			defer w.trusts(trust{fmt.Sprintf("run %d.%d", n, i), lock.Fence, func() bool { return ctx.Err() == nil }})()
			select {
			case <-time.After(w.upTo(2 * guardTTL)):
			case <-ctx.Done():
			}
			return nil
		})
		cancel()
		switch {
		case err == nil:
			w.count("runs")
		case errors.Is(err, lockstore.ErrLost):
			w.count("lost runs")
			if w.quiet {
				w.count(falseLosses)
				w.t.Errorf("a run lost its lease, and only clocks were wrong: %v", err)
			}
		case errors.Is(err, lockstore.ErrRefused):
			w.count("busy")
		}
		pass(w.upTo(time.Second))
	}
}

// useLeases takes long-lived leases, as a client of a lock service does. Each request
// reaches another process.
func (w *guardSim) useLeases(n int, end time.Time) {
	for i := 0; time.Now().Before(end); i++ {
		w.useLease(fmt.Sprintf("lease %d.%d", n, i))
		pass(w.upTo(2 * time.Second))
	}
}

func (w *guardSim) useLease(who string) {
	owner := lockstore.NewOwner()
	acquire := func() (lockstore.Lease, error) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		return w.open().Acquire(ctx, guard.LeaseRequest{Key: key, TTL: guardTTL, Owner: owner, Wait: 5 * time.Second})
	}
	lease, err := acquire()
	for n := 0; n < 3 && err != nil && !errors.Is(err, lockstore.ErrLost); n++ {
		lease, err = acquire()
	}
	if err != nil {
		w.count("abandons")
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = w.open().Release(ctx, lockstore.Lease{Key: key, Owner: owner}) // if this fails, the lease still ends by its TTL
		return
	}
	w.count("long-lived leases")
	var mu sync.Mutex
	until := time.Now().Add(lease.TTL)
	left := func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return time.Until(until)
	}
	alive := func() bool { return left() > 0 }
	h := trust{who, lease.Fence, alive}
	stop := w.trusts(h)
	judge := func(what string, err error, had time.Duration) {
		lost := errors.Is(err, lockstore.ErrLost)
		switch {
		case lost && had <= 0, err == nil:
		case lost && w.quiet:
			w.count(falseLosses)
			w.t.Errorf("%s: the %s says lost, %v before the end of trust: %v", who, what, had, err)
		case !lost:
			w.count("unknown outcomes")
		}
		if lost {
			w.count("lost " + what + "s")
		}
	}
	for range int(w.float() * 4) {
		pass(w.upTo(guardTTL * 5 / 4)) // some come too late
		had := left()
		if w.float() < 0.2 {
			w.count("repeated acquires")
			again, err := acquire()
			// A guard keeps trying when too little of the lease is left for work.
			judge("repeat", err, left())
			if err == nil && again.Fence != lease.Fence {
				if alive() {
					w.t.Errorf("%s: the repeat has fence %d; want %d", who, again.Fence, lease.Fence)
				}
				stop() // the lease was over, and other owners have had the key since
				return
			}
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		trusted, err := w.open().Renew(ctx, lease, lockstore.MinTTL+w.upTo(guardTTL-lockstore.MinTTL))
		cancel()
		judge("renewal", err, had)
		if err == nil {
			w.count("renewals")
			mu.Lock()
			until = later(until, time.Now().Add(trusted)) // a renewal never makes the end earlier
			mu.Unlock()
			stop()
			stop = w.trusts(h)
		} else if errors.Is(err, lockstore.ErrLost) {
			stop()
			return
		}
	}
	if w.float() < 0.3 {
		w.count("deaths")
		return
	}
	had := left()
	stop()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	judge("release", w.open().Release(ctx, lease), had)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
