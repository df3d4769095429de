package leasesim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
)

// judge is what is known of the runs of a world, and of the store.
type judge struct {
	sim       Sim
	queue     bool  // the queue has room
	coalesces bool  // all runs are of one work, and do what the events of others ask for
	mix       []int // of mixes
	look      driver.Driver

	// Step is the resolution of the store's clock and the difference of its hosts' clocks, which Open may set. With one
	// the store may forget a lease earlier than it grants the key, so the judge only looks at who trusts a lease.
	Step time.Duration

	// OldReads says that a refusal may rest on an old read. Open may set it.
	OldReads bool

	jmu        sync.Mutex // guards all that follows, and the runs
	fences     map[lockstore.Fence]*run
	working    []*run
	waiters    []*run
	highest    [2]lockstore.Fence // of work that has begun: of all, and of that with MaxHolders 1
	written    map[int]lockstore.Fence
	ends       map[lockstore.Fence]time.Time // of the leases
	free       time.Time                     // when the lease ended, or the last turn began
	waiting    int                           // places
	unanswered int                           // events
	covered    time.Time                     // when the last request that was covered was sent
	worked     time.Time                     // when the last run that ended well began
}

// run is one call of a guard.
type run struct {
	p       *Process
	most    int // its MaxHolders
	began   time.Time
	owners  []lockstore.Owner
	unknown bool // one of its requests had no answer
	calls   int  // under way, as the guard sees it
	held    bool // the store has told it that another holds the key
	trouble bool // it met a fault: of the network, or a clock that moved
	ended   bool // it has returned, and said that nothing is left behind

	asked    time.Time // its last acquire was sent
	answered bool      // its event is: it was covered, or ended well

	work    context.Context
	works   time.Time // since then
	lock    guard.Lock
	stopped time.Time // the end of its work; zero while it runs
	inTime  bool      // its context was open then
	hurry   bool      // its work ended so late that a release may not get through

	place   int       // the first that it was told
	since   time.Time // when that was
	waiting bool      // it has a place, and has not begun to leave
	passed  []pass    // of runs that came later
}

// pass is a grant that was told before that of a run that had waited for longer.
type pass struct {
	fence lockstore.Fence
	at    time.Time
}

// healthy says whether the run waits and has met no fault. The queue's promises about a
// place hold for the first places; those behind them share a turn.
func (r *run) healthy() bool { return r.waiting && !r.trouble && r.place <= driver.MaxTurnsBefore }

func (p *Process) current() *run {
	p.jmu.Lock()
	defer p.jmu.Unlock()
	return p.run
}

func (w *World) inspect() driver.Status {
	a, err := w.look.Do(context.Background(), Key, driver.Request{Kind: driver.Inspect})
	if err != nil {
		w.Fail("an inspection without a fault: %v", err)
	}
	return a.Status
}

// remaining is until the end of the first lease in the store.
func (w *World) remaining() time.Duration {
	w.jmu.Lock()
	defer w.jmu.Unlock()
	return w.inspect().Remaining
}

// several says that more than one may hold the key.
func (w *World) several() bool { return slices.Max(w.mix) > 1 }

// asked notes a request that a guard makes.
func (p *Process) asked(q driver.Request) *run {
	p.jmu.Lock()
	defer p.jmu.Unlock()
	r := p.run
	r.calls++
	if q.Kind != driver.Inspect && !slices.Contains(r.owners, q.Owner) {
		r.owners, r.unknown = append(r.owners, q.Owner), false
	}
	switch q.Kind {
	case driver.Acquire:
		r.asked = time.Now()
	case driver.Renew:
		p.Count("renewals")
		if !r.stopped.IsZero() && time.Since(r.stopped) > 0 {
			p.Fail("M24: a renewal after the end of its work: %v", p.Name)
		}
	case driver.Leave, driver.Abandon:
		if q.Kind == driver.Leave {
			p.Count("leaves")
		}
		r.waiting = false
	}
	return r
}

// answer is one in the words of the story.
type answer struct {
	driver.Answer
	err error
}

func (a answer) String() string {
	outcomes := []string{
		driver.Granted: "granted", driver.Done: "done", driver.Refused: "refused", driver.Lost: "lost: ", driver.Holding: "it holds the key",
		driver.Exclusive: "for one holder only", driver.NotYet: "not yet", driver.Ask: "ask",
	}
	switch {
	case a.err != nil:
		return "no answer: " + a.err.Error()
	case a.Outcome == driver.Granted:
		return fmt.Sprintf("granted with fence %d, seat %d, for %v", a.Fence, a.Seat, a.TTL)
	case a.Outcome == driver.Refused:
		return fmt.Sprintf("refused, for the key is %v with fence %d; place %d", a.Status.State, a.Status.Fence, a.Position)
	}
	return outcomes[a.Outcome] + a.Why
}

// told looks at an answer.
func (p *Process) told(r *run, q driver.Request, a driver.Answer, err error) {
	if p.Dead() {
		return
	}
	p.Say(p.Name, "%v of %v: %v", q.Kind, q.Owner, answer{a, err})
	p.jmu.Lock()
	defer p.jmu.Unlock()
	r.calls--
	switch {
	case errors.Is(err, lockstore.ErrUnavailable):
		if q.Kind == driver.Acquire && !r.unknown && r.place == 0 {
			p.mustBeGone(r, "M107: it was told that nothing was applied")
		}
	case err != nil:
		r.unknown = true
	case a.Outcome == driver.Granted && (q.Kind == driver.Acquire || q.Kind == driver.AwaitTurn):
		if q.Kind == driver.AwaitTurn {
			p.Count(HandOvers)
		} else if q.Fence != 0 {
			p.Count(Extended)
		}
		p.granted(r, a.Fence)
	case a.Outcome == driver.Refused:
		r.held = true
		p.refused(r, a)
	case a.Outcome == driver.Lost && q.Fence != 0:
		for _, h := range p.inspect().Holders {
			if h.Fence == q.Fence && h.Remaining > p.Step {
				p.Fail("M108: %s is told that its lease is lost, and the store has it: %+v", p.Name, h)
			}
		}
	}
}

func (p *Process) refused(r *run, a driver.Answer) {
	now := time.Now()
	if free := now.Sub(p.free); !p.several() && !r.trouble && !p.OldReads && p.Step == 0 && a.Status.State == driver.Reserved && free >= (driver.MaxTurnsBefore+1)*lockstore.TurnTime+p.sim.Slack {
		p.Fail("a key that nobody has had for %v is reserved: %+v", free, a)
	}
	if a.Position > 0 && r.place == 0 {
		p.Count("places")
		r.place, r.since, r.waiting = a.Position, now, true
		p.waiters = append(p.waiters, r)
	}
}

// granted looks at a lease that a run has, now or since its last request.
func (p *Process) granted(r *run, fence lockstore.Fence) {
	switch before := p.fences[fence]; {
	case before == r:
		return
	case before != nil:
		p.Fail("M28: two runs have fence %d", fence)
	}
	p.Count("grants")
	p.fences[fence] = r
	p.waiters = slices.DeleteFunc(p.waiters, func(other *run) bool { return other == r || !other.waiting })
	for _, other := range p.waiters {
		switch {
		case !other.healthy() || !other.since.Before(r.began):
		case p.several(): // it may have been handed the key before
			other.passed = append(other.passed, pass{fence, time.Now()})
		default:
			p.Fail("M90: %s waited at place %d since %v, and %s, which came later, has the key", other.p.Name, other.place, other.since.Sub(p.Start), p.Name)
		}
	}
	if r.healthy() {
		p.Count("grants to who waited")
		for _, before := range r.passed {
			// When a writer behind a dead reader leaves, the turns of all readers behind the writer are over at once.
			if before.fence < fence && time.Since(before.at) > p.sim.Slack {
				p.Fail("M90: who waited for fence %d was overtaken by fence %d, %v ago", fence, before.fence, time.Since(before.at))
			}
		}
		free := p.free
		if r.since.After(free) {
			free = r.since
		}
		if idle, most := time.Since(free), time.Duration(r.place-1)*lockstore.TurnTime+p.sim.Slack; idle > most && !p.several() {
			p.Fail("the key was free for %v before place %d had it; want at most %v", idle, r.place, most)
		}
	}
	r.waiting = false
}

// arrived looks at the store when a request of a run has arrived there, perhaps after the run.
func (p *Process) arrived(r *run) {
	if p.look == nil {
		return
	}
	p.jmu.Lock()
	defer p.jmu.Unlock()
	status, now := p.inspect(), time.Now()
	for _, h := range status.Holders {
		before, after := p.ends[h.Fence], now.Add(h.Remaining)
		if of := p.fences[h.Fence]; of != nil && of != r && !before.IsZero() && after.Sub(before) > p.Step+10*time.Millisecond {
			p.Fail("M106: a request of %s made the lease of %s longer by %v", p.Name, of.p.Name, after.Sub(before))
		}
		if before.IsZero() && h.State == driver.Reserved {
			p.free = now // its turn begins
		}
		p.ends[h.Fence] = after
	}
	switch end := now.Add(status.Remaining); {
	case len(status.Holders) == 0 && (p.free.After(now) || status.Waiting < p.waiting):
		p.free = now
	case len(status.Holders) > 0 && status.Holders[0].State != driver.Reserved:
		p.free = end
	}
	p.waiting = status.Waiting
	if r.ended && !p.sim.Forget {
		p.mustBeGone(r, "a late request of it has arrived")
	}
}

// mustBeGone checks that the store has nothing of a run. To ask as its owners changes nothing then.
func (w *World) mustBeGone(r *run, when string) {
	for _, owner := range r.owners {
		status := w.inspect()
		for _, h := range status.Holders {
			if h.Remaining <= w.Step {
				continue // on the clock of another host of the store it is over, so its owner had nothing to give back
			}
			q := driver.Request{Kind: driver.Renew, Owner: owner, Fence: h.Fence, TTL: lockstore.MinTTL}
			if a, _ := w.look.Do(context.Background(), Key, q); a.Outcome == driver.Granted {
				w.Fail("M18 M27 M92: a run of %s still holds the key: %s", r.p.Name, when)
			}
		}
		if status.Waiting == 0 {
			continue
		}
		_, _ = w.look.Do(context.Background(), Key, driver.Request{Kind: driver.Leave, Owner: owner})
		if w.inspect().Waiting < status.Waiting {
			w.Fail("M18 M91 M92 M109: a run of %s still has a place: %s", r.p.Name, when)
		}
	}
}

// begins notes that the work of a run begins.
func (p *Process) begins(r *run, work context.Context, lock guard.Lock) {
	p.Say(p.Name, "its work begins with fence %d, seat %d", lock.Fence, lock.Seat)
	p.jmu.Lock()
	defer p.jmu.Unlock()
	r.work, r.works, r.lock = work, time.Now(), lock
	beside := 0
	if r.most > 1 {
		beside = 1
	}
	if lock.Fence <= p.highest[beside] {
		p.Fail("P1: fence %d begins after fence %d, and not beside it", lock.Fence, p.highest[beside])
	}
	p.highest[0] = max(p.highest[0], lock.Fence)
	if r.most == 1 {
		p.highest[1] = max(p.highest[1], lock.Fence)
	}
	p.working = append(p.working, r)
	p.alone()
}

// stops notes that the work of a run has ended.
func (p *Process) stops(r *run, caller context.Context) {
	p.jmu.Lock()
	defer p.jmu.Unlock()
	deadline, _ := caller.Deadline()
	r.stopped, r.hurry, r.inTime = time.Now(), time.Until(deadline) < 1500*time.Millisecond, r.work.Err() == nil
	p.working = slices.DeleteFunc(p.working, func(other *run) bool { return other == r })
}

// alone asks the contexts of all work at once.
func (w *World) alone() {
	least, seats, trusting := lockstore.MaxHolders, map[int]bool{}, 0
	for _, r := range w.working {
		if r.work.Err() == nil {
			least, trusting, seats[r.lock.Seat] = min(least, r.most), trusting+1, true
		}
	}
	if trusting > least || len(seats) < trusting {
		w.Fail("P2: %d trust their leases at once, on %d seats; one of them allows %d", trusting, len(seats), least)
	}
	if trusting > 1 {
		w.Count("work beside other holders")
	}
}

// asks is when work has found its context open.
func (p *Process) asks(r *run) {
	p.jmu.Lock()
	defer p.jmu.Unlock()
	p.alone()
	if p.Step > 0 {
		return
	}
	holders, own, least, seats := p.inspect().Holders, false, lockstore.MaxHolders, map[int]bool{}
	for _, h := range holders {
		own = own || h.Fence == r.lock.Fence && h.Seat == r.lock.Seat && h.State != driver.Revoked
		least, seats[h.Seat] = min(least, h.MaxHolders), true
	}
	if !own || len(holders) > least || len(seats) < len(holders) {
		p.Fail("P2: fence %d found its context open, but the store has %+v; want it there, at most %d, and a seat for each", r.lock.Fence, holders, least)
	}
}

// writes is a write of the work, some time after its question.
func (p *Process) writes(r *run) {
	p.jmu.Lock()
	defer p.jmu.Unlock()
	if r.lock.Fence < p.written[r.lock.Seat] {
		p.Count(stale)
	}
	p.written[r.lock.Seat] = max(p.written[r.lock.Seat], r.lock.Fence)
}

// returned compares what a run said with what was seen of it.
func (p *Process) returned(r *run, report guard.Report, err error) {
	p.jmu.Lock()
	defer p.jmu.Unlock()
	r.waiting = false
	ran := r.work != nil
	if report.ReleaseErr == nil {
		r.ended = true
	} else if ran && !r.trouble && !r.hurry && (report.Outcome != guard.OutcomeLost || !errors.Is(report.ReleaseErr, lockstore.ErrLost)) {
		p.Fail("M26: not released, and nothing was in the way: %v", report.ReleaseErr)
	}
	if r.calls > 0 {
		p.Fail("M24: a call to the store is under way at the end of its run")
	}
	should := false
	switch err.(type) {
	case *guard.LockCovered:
		p.Count("covered")
		r.answered, p.covered = true, latest(p.covered, r.asked)
	case *guard.LockBusy:
		p.Count("busy")
		if !r.held {
			p.Fail("M17: busy, but the store never said so")
		}
	case *guard.LockLost:
		p.Count("losses")
		if should = true; r.inTime && !r.trouble {
			p.Fail("lost, and nothing was in the way: %v", err)
		}
	case *guard.LockNoTime, *guard.LockStoreUnavailable:
	default:
		if should = true; err != nil && err != errWork {
			p.Fail("%T: %v", err, err)
		}
	}
	if ran && err == nil {
		r.answered, p.worked = true, latest(p.worked, r.works)
	}
	if ran != should {
		p.Fail("M16: the work ran: %v; and the run says %v", ran, err)
	}
	if r.ended {
		p.mustBeGone(r, "it has returned")
	}
}

// due notes that an event has come, or, with -1, that one is answered. When all are, no source brings a run for those that were covered.
func (w *World) due(n int) {
	w.jmu.Lock()
	defer w.jmu.Unlock()
	if w.unanswered += n; w.unanswered == 0 && w.worked.Before(w.covered) {
		w.Fail("P7: all events are answered. One of them was covered %v after the last run began that ended well", w.covered.Sub(w.worked))
	}
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// last takes the key when all is over.
func (w *World) last() {
	q := driver.Request{Kind: driver.Acquire, Owner: lockstore.NewOwner(), TTL: TTL, MaxHolders: 1}
	a, err := w.look.Do(context.Background(), Key, q)
	highest := w.highest[0]
	for fence := range w.fences {
		highest = max(highest, fence)
	}
	switch {
	case err != nil || a.Outcome != driver.Granted:
		w.Fail("the key is not free in the end: %+v, %v", a, err)
	case a.Fence <= highest:
		w.Fail("P1: the fence fell from %d to %d", highest, a.Fence)
	}
	if n := w.inspect().Waiting; n > 0 {
		w.Fail("%d places are left after a grant without a place", n)
	}
}
