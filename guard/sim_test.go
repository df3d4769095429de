package guard

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

// TestSimulation runs guards in virtual time. Their clocks are off, drift, step and stand
// still. Their processes freeze and die at any request. Their network is slow, and loses,
// repeats and delays requests. The store's clock is the true one, and the test checks in
// the store itself:
//
//   - When the work asks its context and finds it open, its lease is in the store, and may not end
//     yet (P2). No more runs have a lease then than the smallest MaxHolders of them, each with a seat of its own.
//   - Busy, held and lost are never guesses (P5).
//   - A run renews only while its work runs. When the run ends, no call is under way, and
//     nothing is left in the store unless the run says so.
//   - A run that met no fault and had the time has released its lease.
//   - In the end the key is free, and the fences grew. No two runs have the same one.
//
// In half of the seeds several may hold the key, see simMixes.
//
// Each seed runs twice: with a queue that is full for everybody, and with a queue that has
// room. With room some clients do not wait. The test checks, too:
//
//   - A run that met no fault while it waited is not overtaken by a run that came later.
//   - Such a run takes the key as soon as the store would grant it, or leaves.
//   - A free key that one may hold is late for such a run by one lockstore.Turn for each place before it,
//     and no more. No run is refused a free key for longer than lockstore.MaxTurns turns.
//   - When a run ends, it has no place in the queue unless the run says so.
//
// There must be writes that only a comparison of fences refuses. Without them the
// simulation has too few faults.
//
// VERIFY_SEED=17 VERIFY_SEEDS=1 go test ./guard -run TestSimulation replays one.
func TestSimulation(t *testing.T) {
	const full = 8000
	first, seeds := verifyrecord.Seed(t, 50, full)
	began := time.Now()
	total := map[string]int64{"seeds": int64(seeds)}
	for seed := first; seed < first+uint64(seeds); seed++ {
		for _, queue := range []bool{false, true} {
			w := &simWorld{seed: seed, queue: queue, counts: map[string]int64{}}
			synctest.Test(t, w.run) // ends this test when it fails
			for name, n := range w.counts {
				total[name] += n
			}
		}
	}
	t.Log(total)
	if seeds >= full { // a few seeds may miss one of these
		for _, name := range simCounted {
			require.Positive(t, total[name], "a run without %s shows nothing", name)
		}
	}
	verifyrecord.Write(t, verifyrecord.Result{
		Kind: verifyrecord.Simulation, Name: "simulated guards in memory", Seed: first, Counts: total, Took: time.Since(began),
		Controls: []verifyrecord.Control{{
			What:  "a holder that stands still between its check of the lease and its write",
			Shown: total[stale] > 0, Saw: fmt.Sprintf("%d writes that only a comparison of fences refuses", total[stale]),
		}},
		Limits: []string{
			"No process can notice a wall clock that is set back while the process is frozen (P2). The simulated process reads its clocks after the freeze and before the change, so this case is not simulated.",
			"An acquire may be refused as busy while a duplicate of it is still on its way. If the duplicate arrives when the key is free, it takes the key until its TTL ends.",
		},
	})
}

const (
	stale  = "writes that only the fence refuses"
	beside = "work beside other holders"
)

// simMixes are what the clients of a seed ask for as MaxHolders: 1, as many as may hold a key, readers and writers, or
// numbers that a deployment changes.
var simMixes = [][]int{
	{1, 1, 1, 1}, {2, 2, 2, 2},
	{1, 1, 1, 1}, {lockstore.MaxHolders, lockstore.MaxHolders, 1, lockstore.MaxHolders, 1},
	{1, 1, 1, 1}, {3, 3, 3, 3, 4},
	{1, 1, 1, 1}, {10, 2, 1, lockstore.MaxHolders, 3},
}

// simCounted is what must have happened, or a simulation shows nothing.
var simCounted = []string{
	"operations", "grants", "renewals", "deaths", "freezes", "clock steps", "lost replies", "late requests", "repeated requests", "busy", "losses",
	stale, beside, "places in a queue", "turns", "hand-overs", "hand-overs that the waiter saw", "hand-overs that were extended under the work", "leaves", "early wake-ups",
}

const (
	simTTL  = 6 * time.Second
	simTime = 2 * time.Minute
	simKey  = "k"

	// simSlack is what a turn may take: AwaitTurn, an acquire that was sent before the
	// turn, a pause of the guard, and an acquire. Each way of the network takes 40 ms.
	simSlack = 600 * time.Millisecond
)

// simWorld is the store, the network and the resource of one seed.
type simWorld struct {
	seed  uint64
	queue bool  // the queue has room
	mix   []int // of simMixes
	t     *testing.T
	ctx   context.Context // the end of the simulation
	start time.Time
	store *lockstore.Store

	mu      sync.Mutex
	counts  map[string]int64
	runs    map[lockstore.Owner]*simRun
	grants  map[lockstore.Fence]*simRun // as they were told
	highest lockstore.Fence             // of all grants
	written map[int]lockstore.Fence     // the resource's, by seat
	places  int                         // that the store has given
	end     time.Time                   // of the lease or of the turn of who was handed the key, or when the key became free
	handed  lockstore.Fence             // of the last hand-over
	free    time.Time                   // when the key was handed over
	late    sync.WaitGroup
}

// simRun is one call of Do as the network sees it.
type simRun struct {
	most    int       // its MaxHolders
	held    bool      // the store has told it that another holds the key
	stopped time.Time // the end of its work; zero while it runs
	calls   int       // under way, as the guard sees it
	trouble bool      // it met a fault: of the network, or a clock that moved
	hurry   bool      // its work ended so late that a release may not get through
	ended   bool      // Do has returned, and said that nothing is left behind

	// In a queue:
	joined  int               // its first place, counted over all that the store has given; 0 without one
	place   int               // its first place
	since   time.Time         // when the store gave it this place
	waiting bool              // it has a place, and has not begun to leave
	watched bool              // the world waits for its turn
	passed  []lockstore.Fence // of runs that came later, and were told before this one
	turn    time.Time         // when the store would have granted the key to it; zero before
}

// healthy says whether the run waits and has met no fault. The queue's promises about a
// place hold for the first places; those behind them share a turn.
func (r *simRun) healthy() bool {
	return r.waiting && !r.trouble && r.place <= lockstore.MaxTurns
}

func (w *simWorld) fail(format string, args ...any) {
	w.t.Errorf("seed %d at %v: %s", w.seed, time.Since(w.start), fmt.Sprintf(format, args...))
}

func (w *simWorld) count(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts[what]++
}

func (w *simWorld) run(t *testing.T) {
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("queue: %v; replay with VERIFY_SEED=%d VERIFY_SEEDS=1 go test ./guard -run TestSimulation", w.queue, w.seed)
		}
	})
	w.t, w.start, w.store = t, time.Now(), memstore.New(nil)
	w.runs, w.grants, w.written = map[lockstore.Owner]*simRun{}, map[lockstore.Fence]*simRun{}, map[int]lockstore.Fence{}
	w.mix = simMixes[w.seed%uint64(len(simMixes))]
	ctx, cancel := context.WithTimeout(t.Context(), simTime)
	defer cancel()
	w.ctx = ctx
	var clients sync.WaitGroup
	for id, most := range w.mix {
		clients.Go(func() {
			for n := uint64(0); ctx.Err() == nil; n++ {
				p := &simProcess{world: w, most: most, rng: rand.New(rand.NewPCG(w.seed, uint64(id)<<32|n))}
				p.live()
			}
		})
	}
	clients.Wait()
	w.late.Wait()
	// A dead holder delays others by at most a TTL, and a queue of the dead by its turns.
	pass(simTTL)
	if w.queue {
		pass(lockstore.MaxTurns * lockstore.Turn)
	}
	lease, err := w.store.Acquire(context.Background(), lockstore.Request{Key: simKey, Owner: "last", TTL: simTTL})
	if err != nil {
		w.fail("the key is not free in the end: %v", err)
	} else if lease.Fence <= w.highest {
		w.fail("the fence fell from %d to %d", w.highest, lease.Fence)
	}
	if n := w.inspect().Waiting; n > 0 {
		w.fail("%d places are left after a grant without a place", n)
	}
}

func (w *simWorld) inspect() driver.Status {
	a, err := w.store.Driver().Do(context.Background(), simKey, driver.Request{Kind: driver.Inspect})
	require.NoError(w.t, err)
	return a.Status
}

// several says that more than one may hold the key.
func (w *simWorld) several() bool { return slices.Max(w.mix) > 1 }

// atWork looks at the store while a run finds its context open.
func (w *simWorld) atWork(lock Lock) {
	w.mu.Lock()
	defer w.mu.Unlock()
	holders, own, least, seats := w.inspect().Holders, false, lockstore.MaxHolders, map[int]bool{}
	for _, h := range holders {
		own = own || h.Fence == lock.Fence && h.Seat == lock.Seat && h.State != driver.Revoked
		most := h.MaxHolders
		if run := w.grants[h.Fence]; run != nil { // else who was handed the key does not know it yet
			most = run.most
		}
		least, seats[h.Seat] = min(least, most), true
	}
	if !own || len(holders) > least || len(seats) < len(holders) {
		w.fail("P2: fence %d found its context open, but the store has %+v; want it there, at most %d, and a seat for each", lock.Fence, holders, least)
	}
	if len(holders) > 1 {
		w.counts[beside]++
	}
}

// changed notes when the lease ends, or when the key became free or was handed over. A leave may begin a turn
// anew. It is called with the lock held.
func (w *simWorld) changed(left bool) {
	status := w.inspect()
	switch now := time.Now(); {
	case len(status.Holders) > 0:
		w.end = now.Add(status.Remaining)
		if h := status.Holders[0]; h.State == driver.Reserved && h.Fence > w.handed {
			w.handed, w.free = h.Fence, now
		}
	case left || w.end.After(now):
		w.end = now
	}
}

// refused is what the store said to a run: it may have a place now. It is called with the
// lock held.
func (w *simWorld) refused(run *simRun, owner lockstore.Owner, a driver.Answer) {
	now := time.Now()
	if a.Status.State == driver.Reserved && now.Sub(w.end) >= lockstore.MaxTurns*lockstore.Turn {
		w.fail("a key that nobody has had for %v is reserved: %+v", now.Sub(w.end), a)
	}
	if a.Position == 0 {
		return
	}
	if run.ended {
		w.fail("M92: a request of a run that left nothing behind took place %d", a.Position)
	}
	if run.joined == 0 {
		w.places++
		w.counts["places in a queue"]++
		run.joined, run.place, run.since, run.waiting = w.places, a.Position, now, true
	}
	run.turn = time.Time{}
	if !run.watched {
		run.watched = true
		w.late.Go(func() {
			err := storetest.AwaitTurn(w.ctx, w.store, simKey, owner)
			w.mu.Lock()
			defer w.mu.Unlock()
			if run.watched = false; err == nil {
				run.turn = time.Now()
			}
		})
	}
}

// granted is what the store said to a run that has the key, now or since its last request. It is
// called with the lock held.
func (w *simWorld) granted(run *simRun, fence lockstore.Fence) {
	defer w.changed(false)
	switch told := w.grants[fence]; {
	case told == run:
		return
	case told != nil:
		w.fail("M28: two runs have fence %d", fence)
	case fence < w.highest && (run.joined == 0 || !w.several()): // two that are handed the key are told in any order
		w.fail("fence %d was granted after %d", fence, w.highest)
	}
	w.counts["grants"]++
	w.grants[fence], w.highest = run, max(w.highest, fence)
	now := time.Now()
	for _, other := range w.runs {
		switch {
		case other == run || !other.healthy() || run.joined != 0 && run.joined < other.joined:
		case w.several(): // it may have been handed the key before
			other.passed = append(other.passed, fence)
		default:
			w.fail("M90: a waiter with place %d was overtaken: it was number %d of all, the next holder is number %d", other.place, other.joined, run.joined)
		}
	}
	if run.healthy() {
		if len(run.passed) > 0 && slices.Min(run.passed) < fence {
			w.fail("M90: who waited for fence %d was overtaken by the fences %d", fence, run.passed)
		}
		w.counts["turns"]++
		w.tookItsTurn(run, now)
		free := w.end
		if fence == w.handed {
			w.counts["hand-overs"]++
			free = w.free
		}
		if run.since.After(free) {
			free = run.since
		}
		if w.several() {
			run.waiting = false
			return
		}
		if idle, most := now.Sub(free), time.Duration(run.place-1)*lockstore.Turn+simSlack; idle > most {
			w.fail("the key was free for %v before place %d had it; want at most %v", idle, run.place, most)
		}
	}
	run.waiting = false
}

// tookItsTurn is called with the lock held.
func (w *simWorld) tookItsTurn(run *simRun, now time.Time) {
	if run.healthy() && !run.turn.IsZero() && now.Sub(run.turn) > simSlack {
		w.fail("a waiter did not take its turn for %v", now.Sub(run.turn))
	}
}

// leaves says that a run begins to leave the queue.
func (w *simWorld) leaves(run *simRun) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tookItsTurn(run, time.Now())
	run.waiting = false
}

// simProcess is one execution environment: a guard, its clocks and its way to
// the store.
type simProcess struct {
	world *simWorld
	most  int // MaxHolders
	guard *Guard

	mu       sync.Mutex
	rng      *rand.Rand
	rate     float64       // of the local clocks
	ahead    time.Duration // of the wall clock
	frozen   time.Duration // what the monotonic clock has missed in all freezes that are over
	freezing time.Time     // since when it stands still; zero when it goes
	until    time.Time     // the end of the freeze
	dead     bool
	run      *simRun
}

func (p *simProcess) float() float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rng.Float64()
}

func (p *simProcess) upTo(d time.Duration) time.Duration {
	return time.Duration(p.float() * float64(d))
}

// clocks are the process's own. Monotonic time stands still in a freeze.
func (p *simProcess) clocks() instant {
	p.mu.Lock()
	defer p.mu.Unlock()
	true := time.Since(p.world.start)
	mono := true - p.frozen
	if !p.freezing.IsZero() {
		mono -= time.Since(p.freezing)
	}
	return instant{
		mono: time.Duration(p.rate * float64(mono)),
		wall: time.Duration(p.world.start.UnixNano()) + p.ahead + time.Duration(p.rate*float64(true)),
	}
}

// yield is a point at which the process may freeze or die.
func (p *simProcess) yield() {
	p.mu.Lock()
	if p.freezing.IsZero() && !p.dead {
		f := p.rng.Float64()
		if f < 0.040 {
			p.world.mu.Lock()
			p.run.trouble = true
			p.world.mu.Unlock()
		}
		switch {
		case f < 0.010:
			p.dead = true
			p.world.count("deaths")
		case f < 0.025:
			p.freezing = time.Now()
			p.until = p.freezing.Add(time.Duration(p.rng.Float64() * 3 * float64(simTTL)))
			p.world.count("freezes")
		case f < 0.040:
			p.ahead += time.Duration((p.rng.Float64() - 0.5) * 4 * float64(simTTL))
			p.world.count("clock steps")
		}
	}
	freezing, until, dead := !p.freezing.IsZero(), p.until, p.dead
	p.mu.Unlock()
	// If a wall clock is set back and the process freezes between the same two readings,
	// nobody can notice either. This is the documented limit, so the guard reads the
	// clocks in between.
	p.guard.clock.read()
	if dead {
		<-p.world.ctx.Done()
		return
	}
	if !freezing {
		return
	}
	pass(time.Until(until))
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.freezing.IsZero() {
		p.frozen += time.Since(p.freezing)
		p.freezing = time.Time{}
	}
}

// change changes what is known of the present run, and returns it.
func (p *simProcess) change(f func(*simRun)) *simRun {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	f(p.run)
	return p.run
}

func (p *simProcess) isDead() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dead
}

func (p *simProcess) live() {
	p.rate = 0.985 + 0.03*p.float() // F18
	p.ahead = time.Duration((p.float() - 0.5) * float64(20*time.Minute))
	var report Report
	wait := p.upTo(simTTL)
	if p.world.queue {
		if wait *= 3; p.float() < 0.2 {
			wait = 0
		}
	}
	g, err := New(lockstore.New("sim", &simWire{p}), Options{
		TTL: simTTL, MaxHold: 4 * simTTL, Wait: wait,
		Observe: func(_ context.Context, r Report) { report = r },
	})
	require.NoError(p.world.t, err)
	g = g.WithMaxHolders(p.most)
	g.clock.now = p.clocks
	g.random = p.upTo
	p.guard = g
	for p.world.ctx.Err() == nil && !p.isDead() {
		p.once(&report)
	}
}

// once is one run, and what comes after it. The caller's context lives on for a
// while then, as that of a batch does.
func (p *simProcess) once(report *Report) {
	run := &simRun{most: p.most}
	p.mu.Lock()
	p.run = run
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(p.world.ctx, time.Second+p.upTo(5*simTTL))
	defer cancel()
	if p.float() < 0.1 { // the caller goes away
		defer time.AfterFunc(p.upTo(2*simTTL), cancel).Stop()
	}
	ran := false
	err := p.do(ctx, &ran)
	if p.isDead() {
		return
	}
	p.judge(run, *report, ran, err)
	pass(p.upTo(3 * time.Second))
}

var errSim = errors.New("the work failed")

// do is Do, with work that panics now and then.
func (p *simProcess) do(ctx context.Context, ran *bool) (err error) {
	defer func() {
		if r := recover(); r != nil {
			if r != errSim {
				panic(r)
			}
			err = errSim
		}
	}()
	return p.guard.Do(ctx, simKey, func(work context.Context, lock Lock) error {
		*ran = true
		defer func() {
			deadline, _ := ctx.Deadline()
			p.change(func(run *simRun) {
				run.stopped, run.hurry = time.Now(), time.Until(deadline) < 1500*time.Millisecond
			})
		}()
		return p.work(work, lock)
	})
}

// work asks its context and writes, for some rounds. Between the question
// and a write the process may freeze: only the fence helps there.
func (p *simProcess) work(ctx context.Context, lock Lock) error {
	w := p.world
	for p.float() < 0.8 {
		if p.float() < 0.9 {
			pass(p.upTo(1500 * time.Millisecond))
		} else { // until just after the lease, if it is not renewed
			pass(w.inspect().Remaining + p.upTo(margin/4))
		}
		p.yield()
		if p.isDead() {
			return nil
		}
		if ctx.Err() != nil {
			return nil
		}
		w.atWork(lock)
		p.yield()
		if p.isDead() {
			return nil
		}
		w.mu.Lock()
		if lock.Fence < w.written[lock.Seat] {
			w.counts[stale]++ // refused by its fence; without it, it would have been accepted
		}
		w.written[lock.Seat] = max(w.written[lock.Seat], lock.Fence)
		w.mu.Unlock()
	}
	switch f := p.float(); {
	case f < 0.05:
		panic(errSim)
	case f < 0.15:
		return errSim
	}
	return nil
}

// judge compares what Do said with what the network saw.
func (p *simProcess) judge(run *simRun, report Report, ran bool, err error) {
	w := p.world
	w.mu.Lock()
	defer w.mu.Unlock()
	run.waiting = false
	if report.ReleaseErr == nil {
		run.ended = true
	} else if ran && !run.trouble && !run.hurry && (report.Outcome != OutcomeLost || !errors.Is(report.ReleaseErr, lockstore.ErrLost)) {
		w.fail("M26: not released, and nothing was in the way: %v", report.ReleaseErr)
	}
	if run.calls > 0 {
		w.fail("M24: a call to the store is under way at the end of its run")
	}
	switch err.(type) {
	case *LockBusy:
		w.counts["busy"]++
		if !run.held {
			w.fail("M17: busy, but the store never said so")
		}
		if ran {
			w.fail("busy, and the work ran")
		}
	case *LockLost:
		w.counts["losses"]++
		if !ran {
			w.fail("lost, and the work did not run")
		}
	case *LockDeadline, *LockStoreUnavailable:
		if ran {
			w.fail("%v, and the work ran", err)
		}
	case nil:
		if !ran {
			w.fail("M16: no error, and the work did not run")
		}
	default:
		if err != errSim {
			w.fail("%T: %v", err, err)
		}
	}
	if !run.ended {
		return
	}
	for owner, r := range w.runs {
		if r == run {
			w.mustNotHold(owner, fmt.Sprintf("after its run: %+v, %v", report, err))
			w.mustNotWait(owner, fmt.Sprintf("after its run: %+v, %v", report, err))
		}
	}
}

// mustNotWait is called with the lock held. To leave changes nothing for an owner without
// a place.
func (w *simWorld) mustNotWait(owner lockstore.Owner, when string) {
	before := w.inspect().Waiting
	_ = w.store.Leave(context.Background(), simKey, owner)
	if w.inspect().Waiting < before {
		w.fail("M18 M91: %v still has a place %s", owner, when)
	}
}

// mustNotHold is called with the lock held.
func (w *simWorld) mustNotHold(owner lockstore.Owner, when string) {
	// Asking as this owner tells whether it holds the key, and changes nothing of
	// an owner that has ended.
	for _, h := range w.inspect().Holders {
		if _, err := w.store.Renew(context.Background(), lockstore.Lease{Key: simKey, Owner: owner, Fence: h.Fence}, lockstore.MinTTL); err == nil {
			w.fail("M18 M27: %v still holds the key %s", owner, when)
		}
	}
}

// simWire is a process's way to the store: the driver of its guard's store.
type simWire struct{ p *simProcess }

var errSimCut = errors.New("connection reset by peer")

// send carries one request. server applies it, at most twice and perhaps late,
// and may be called after send has returned.
func (s *simWire) send(ctx context.Context, server func() (driver.Answer, error)) (driver.Answer, error) {
	p, w := s.p, s.p.world
	var none driver.Answer
	p.yield()
	if p.isDead() {
		return none, w.ctx.Err()
	}
	if err := ctx.Err(); err != nil {
		return none, fmt.Errorf("%w: not sent: %w", lockstore.ErrUnavailable, err)
	}
	w.count("operations")
	run := p.change(func(run *simRun) { run.calls++ })
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		run.calls--
	}()
	in, out, fate := p.upTo(40*time.Millisecond), p.upTo(40*time.Millisecond), p.float()
	if fate < 0.20 {
		p.change(func(run *simRun) { run.trouble = true })
	}
	again := time.Duration(0)
	type reply struct {
		a   driver.Answer
		err error
	}
	replies := make(chan reply, 1)
	deliver := func() {
		pass(in)
		a, err := server()
		if again > 0 && (a.Outcome == driver.Granted || a.Outcome == driver.Done) {
			w.late.Go(func() {
				pass(again)
				_, _ = server()
			})
		}
		pass(out)
		replies <- reply{a, err}
	}
	switch {
	case fate < 0.03: // refused, certainly not applied
		return none, fmt.Errorf("%w: throttled", lockstore.ErrUnavailable)
	case fate < 0.07: // the reply is lost
		w.count("lost replies")
		pass(in)
		_, _ = server()
		return none, errSimCut
	case fate < 0.10: // swallowed
		deliver = func() {}
	case fate < 0.13: // F11, F18: it arrives when nobody waits any more
		w.count("late requests")
		in = p.upTo(2 * simTTL)
	case fate < 0.16: // F29
		out = p.upTo(2 * simTTL)
	case fate < 0.20: // F26: a proxy repeats it, later. A repeated acquire that was
		// refused at first can take the key when it is free again: the documented
		// limit, so it is not repeated here.
		w.count("repeated requests")
		again = p.upTo(2 * simTTL)
	}
	w.late.Go(deliver)
	select {
	case r := <-replies:
		p.yield()
		if p.isDead() {
			return none, w.ctx.Err()
		}
		return r.a, r.err
	case <-ctx.Done():
		p.yield()
		return none, ctx.Err()
	}
}

// current is the run that asks.
func (s *simWire) current(owner lockstore.Owner) *simRun {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	s.p.world.mu.Lock()
	defer s.p.world.mu.Unlock()
	s.p.world.runs[owner] = s.p.run
	return s.p.run
}

func (s *simWire) Do(ctx context.Context, _ string, r driver.Request) (driver.Answer, error) {
	w := s.p.world
	var run *simRun
	switch r.Kind {
	case driver.Acquire:
		run, r.Join = s.current(r.Owner), r.Join && w.queue
	case driver.Renew:
		w.mu.Lock()
		if stopped := w.runs[r.Owner].stopped; !stopped.IsZero() && time.Since(stopped) > 0 {
			w.fail("M24: a renewal after the end of its work")
		}
		w.counts["renewals"]++
		w.mu.Unlock()
	case driver.Abandon:
		w.leaves(s.current(r.Owner))
	case driver.Leave:
		w.count("leaves")
		w.leaves(s.current(r.Owner))
	}
	a, err := s.send(ctx, func() (driver.Answer, error) { return w.serve(run, r) })
	if a.Outcome == driver.Refused {
		w.mu.Lock()
		defer w.mu.Unlock()
		run.held = true
	}
	return a, err
}

// serve is the server. run is the run that acquires.
func (w *simWorld) serve(run *simRun, r driver.Request) (driver.Answer, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a, err := w.store.Driver().Do(context.Background(), simKey, r)
	switch {
	case r.Kind == driver.Acquire && a.Outcome == driver.Refused:
		w.refused(run, r.Owner, a)
	case r.Kind == driver.Acquire && a.Outcome == driver.Granted:
		if run.ended && w.grants[a.Fence] != run {
			w.fail("M18: a request of a run that left nothing behind took the key")
		}
		if r.Fence != 0 {
			w.counts["hand-overs that were extended under the work"]++
		}
		w.granted(run, a.Fence)
	case r.Kind == driver.Renew, r.Kind == driver.Release:
		w.changed(false)
	case r.Kind == driver.Abandon, r.Kind == driver.Leave:
		w.changed(true)
	}
	return a, err
}

// Await now and then returns early, as a driver may: a wake-up came twice. A lease that was handed
// over is a grant when the guard is told of it: it may work from then on.
func (s *simWire) Await(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	w, run, early := s.p.world, s.current(r.Owner), s.p.float() < 0.1
	return s.send(ctx, func() (driver.Answer, error) {
		if early {
			w.count("early wake-ups")
			ctx, cancel := context.WithTimeout(ctx, s.p.upTo(time.Second))
			defer cancel()
			_, _ = w.store.Driver().Await(ctx, key, r)
			return driver.Answer{Outcome: driver.Ask}, nil
		}
		a, err := w.store.Driver().Await(ctx, key, r)
		if a.Outcome == driver.Granted {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.counts["hand-overs that the waiter saw"]++
			w.granted(run, a.Fence)
		}
		return a, err
	})
}
