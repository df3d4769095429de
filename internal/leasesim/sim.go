package leasesim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
)

// Sim simulates several clients that share one key of a store. Each is one process after another. Their work asks its
// context and writes, and may stand still between the two: only the fence helps there. The judge checks:
//
//   - When the work finds its context open, its lease is in the store (P2). No more runs trust their leases then than the
//     smallest MaxHolders of them, each with a seat of its own. Fences grow in the order of trust (P1).
//   - Busy, held, lost and "not applied" are never guesses (P5). A run that met no fault keeps its lease.
//   - A run renews only while its work runs. When the run ends, no call is under way, and nothing of it is left in the
//     store unless the run says so, also when its late requests have arrived.
//   - A run that met no fault and had the time has released its lease.
//   - A run that waits and met no fault is not overtaken by one that came later (P6), and takes a free key in time (P4).
//   - Nobody makes another's lease longer. In the end the key is free, and the fences grew.
//   - When all events are answered, a run that ended well had begun after the last covered one was sent (P7).
//
// In an even seed nobody gets a place in the queue. In half of the others the runs coalesce. In half of the seeds several may hold the key.
type Sim struct {
	Part

	// Open opens the server of a world, and returns how a process opens its store. What the process sends
	// goes through Send, or through Over.
	Open func(w *World) func(p *Process) *lockstore.Store

	Drift  float64       // how wrong the rate of a local clock may be; 0 is 0.015
	Offset time.Duration // how wrong a wall clock may be at first; 0 is 10 minutes
	Slack  time.Duration // how much later than at the end of its turns a waiter may get a free key
	Delay  time.Duration // for which the end of a dead holder's lease is not known
	Forget bool          // a store that remembers one owner, or a client that repeats: a late request may take the key (P5)
}

// Key is the key of a Sim.
const Key = "account/7"

// Time is for how long clients come.
const Time = 2 * time.Minute

// mixes are what the clients of a seed ask for as MaxHolders: a mutex, a semaphore, readers and writers, and a deployment
// that changes the number.
var mixes = [][]int{
	{1, 1, 1, 1, 1}, {2, 2, 2, 2, 2},
	{1, 1, 1, 1}, {lockstore.MaxHolders, lockstore.MaxHolders, 1, lockstore.MaxHolders, 1},
	{1, 1, 1, 1}, {3, 3, 3, 1, 4},
	{1, 1, 1, 1}, {10, 2, 1, lockstore.MaxHolders, 3},
}

// always are counts that every Sim must have.
var always = []string{
	"operations", "grants", "renewals", "deaths", "freezes", "clock steps", "replies lost", "replies late", "requests lost", "requests late", "requests repeated",
	"busy", "losses", stale, "work beside other holders", "places", "grants to who waited", "leaves", "covered",
}

// stale counts the writes of holders that stood still between their question and their write.
const stale = "writes that only a comparison of fences refuses"

// Counts of stores whose Await says that the key was handed over.
const (
	HandOvers = "hand-overs that the waiter saw"
	Extended  = "hand-overs that were extended under the work"
)

// Run runs the simulation.
func (s Sim) Run(t *testing.T) {
	t.Helper()
	s.Must = append(s.Must, always...)
	s.Shows = stale
	if s.Drift == 0 {
		s.Drift = 0.015
	}
	Seeds(t, s.Part, func(w *World) { w.play(s) })
}

func (w *World) play(s Sim) {
	w.judge = judge{
		sim: s, queue: w.Seed%2 == 1, coalesces: w.Seed%8 == 1 || w.Seed%8 == 7, mix: mixes[w.Seed/2%uint64(len(mixes))],
		fences: map[lockstore.Fence]*run{}, written: map[int]lockstore.Fence{}, ends: map[lockstore.Fence]time.Time{},
	}
	open := s.Open(w)
	own := w.NewProcess("the judge", 1<<63, 0)
	own.Latency, own.offset = 0, 0
	w.look = open(own).Driver()
	w.Say("the world", "queue: %v; coalesces: %v; MaxHolders %v", w.queue, w.coalesces, w.mix)
	var clients sync.WaitGroup
	for id, most := range w.mix {
		clients.Go(func() {
			Pass(time.Duration(id) * time.Millisecond)
			events := &source{World: w, name: fmt.Sprintf("%c", 'a'+id)}
			for n := uint64(0); events.more(); n++ {
				p := w.NewProcess(fmt.Sprint(events.name, n), uint64(id)<<32|n, s.Drift)
				p.prompt = w.coalesces
				if s.Offset > 0 {
					p.offset %= s.Offset
				}
				p.live(open, most, events)
			}
		})
	}
	clients.Wait()
	w.Settle()
	// A dead holder delays others by at most a TTL, and a queue of the dead by its turns.
	Pass(TTL + s.Delay)
	if w.queue {
		Pass(driver.MaxTurnsBefore * lockstore.TurnTime)
	}
	w.last()
}

// source sends the events of one client, one after the other, and each again until it is answered.
type source struct {
	*World
	name   string
	number int
	open   bool // the event is not answered
}

// more says whether there is an event to send.
func (s *source) more() bool { return time.Since(s.Start) < Time || s.coalesces && s.open }

// next is the context of a run for the next event, or again for one that is not answered.
func (s *source) next(ctx context.Context) context.Context {
	if !s.open {
		s.open, s.number = true, s.number+1
		s.due(1)
	}
	return guard.WithEventID(ctx, fmt.Sprint(s.name, " ", s.number))
}

func (p *Process) live(open func(*Process) *lockstore.Store, most int, events *source) {
	p.Struck = func(string) {
		p.jmu.Lock()
		defer p.jmu.Unlock()
		p.run.trouble = true
	}
	wait := p.UpTo(TTL)
	if p.queue {
		if wait *= 3; p.Float() < 0.2 && !p.coalesces {
			wait = 0
		}
	}
	work := ""
	if p.coalesces {
		work = "work"
	}
	p.run = &run{p: p} // of the start
	var report guard.Report
	g := p.NewGuard(open(p).WrapDriver(func(d driver.Driver) driver.Driver { return watch{p, d} }), guard.Options{
		TTL: TTL, MaxHold: 4 * TTL, Wait: wait, Coalesce: work, Observe: func(_ context.Context, r guard.Report) { report = r },
	}).WithMaxHolders(most)
	for n := 1 + int(8*p.Float()); n > 0 && events.more() && !p.Dead(); n-- {
		p.once(g, &report, events)
	}
}

// once is one run, and what comes after it. The caller's context lives on for a while then, as that of a batch does.
func (p *Process) once(g *guard.Guard, report *guard.Report, events *source) {
	r := &run{p: p, most: g.MaxHolders(), began: time.Now()}
	p.jmu.Lock()
	p.run = r
	p.jmu.Unlock()
	ctx, cancel := context.WithTimeout(events.next(context.Background()), time.Second+p.UpTo(5*TTL))
	defer cancel()
	if p.Float() < 0.1 { // the caller goes away
		defer time.AfterFunc(p.UpTo(2*TTL), cancel).Stop()
	}
	p.Do(func() {
		err := p.call(ctx, g, r)
		if !p.Dead() {
			p.Say(p.Name, "its run ends: %s %v; ReleaseErr %v", report.Outcome, err, report.ReleaseErr)
			p.returned(r, *report, err)
		}
	})
	if !p.Dead() {
		if r.answered {
			events.open = false
			p.due(-1)
		}
		Pass(p.UpTo(3 * time.Second))
	}
}

var errWork = errors.New("the work failed")

// call is Do, with work that panics now and then.
func (p *Process) call(ctx context.Context, g *guard.Guard, r *run) (err error) {
	defer func() {
		if v := recover(); v == errWork {
			err = errWork
		} else if v != nil {
			panic(v)
		}
	}()
	return g.Do(ctx, Key, func(work context.Context, lock guard.Lock) error {
		p.begins(r, work, lock)
		defer p.stops(r, ctx)
		return p.work(work, r)
	})
}

// work asks its context and writes, for some rounds.
func (p *Process) work(ctx context.Context, r *run) error {
	for p.Float() < 0.8 {
		if p.Float() < 0.9 {
			Pass(p.UpTo(1500 * time.Millisecond))
		} else { // until just after the lease, if it is not renewed
			Pass(p.remaining() + p.UpTo(60*time.Millisecond))
		}
		if !p.Yield() || ctx.Err() != nil {
			return nil
		}
		p.asks(r)
		if !p.Yield() {
			return nil
		}
		p.writes(r)
	}
	switch f := p.Float(); {
	case f < 0.05:
		panic(errWork)
	case f < 0.15:
		return errWork
	}
	return nil
}

// watch tells the judge what a guard asks and is told. While the process stands still, the guard asks nothing and is told nothing,
// also if its store would give up.
type watch struct {
	p *Process
	driver.Driver
}

func (s watch) Do(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	r.Join = r.Join && s.p.queue
	return s.ask(r, func() (driver.Answer, error) { return s.Driver.Do(ctx, key, r) })
}

func (s watch) Await(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	return s.ask(r, func() (driver.Answer, error) { return s.Driver.Await(ctx, key, r) })
}

func (s watch) ask(r driver.Request, send func() (driver.Answer, error)) (driver.Answer, error) {
	run := s.p.asked(r)
	if !s.p.thawed() {
		return driver.Answer{}, ErrDown
	}
	a, err := send()
	if !s.p.thawed() {
		return driver.Answer{}, ErrCut
	}
	s.p.told(run, r, a, err)
	return a, err
}
