package leasesim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/lib/seam"
	"github.com/lambdalock/lambdalock/lockstore"
)

// TTL is that of the leases that guards ask for.
const TTL = 6 * time.Second

// latency bounds each way of the network.
const latency = 40 * time.Millisecond

// Process is one execution environment. At each request, and in its work, it may freeze, die, or have its wall clock
// set. Its clocks run too fast or too slow. In a freeze the monotonic clock stands still.
type Process struct {
	*World
	Name    string
	Latency time.Duration     // of each way of the network: at most so much; 0 is the judge's, who meets no fault
	Calm    bool              // no faults
	Streak  int               // how many replies in a row may be lost: a client that repeats by itself gets through otherwise
	Struck  func(what string) // called for each fault that strikes
	Died    chan struct{}

	rate   float64 // of the local clocks
	prompt bool    // no copy of its requests arrives late: one of an event that is answered would take a place (P7)
	run    *run    // that is judged

	mu     sync.Mutex
	random *rand.Rand
	offset time.Duration // of the wall clock: how far ahead it is at first
	step   time.Duration // how much further ahead it is now
	frozen time.Duration // in all freezes before the last one
	from   time.Time     // the last freeze
	until  time.Time
	read   time.Duration // how long it had been frozen when the guard read the clocks last
	unread bool          // the wall clock was set, and the guard has not read it since
	dead   bool
	lost   int // replies still to lose
}

// NewProcess starts a process that has the random numbers of this stream. The rate of its clocks is wrong by up to drift.
func (w *World) NewProcess(name string, stream uint64, drift float64) *Process {
	p := &Process{World: w, random: rand.New(rand.NewPCG(w.Seed, stream)), Name: name, Latency: latency, Streak: 1, Struck: func(string) {}, Died: make(chan struct{})}
	p.rate = 1 + drift*(2*p.Float()-1) // F18
	p.offset = p.UpTo(20*time.Minute) - 10*time.Minute
	return p
}

// Float is a random number from 0 to 1.
func (p *Process) Float() float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.random.Float64()
}

// UpTo is a random time from 0 to most.
func (p *Process) UpTo(most time.Duration) time.Duration {
	return time.Duration(p.Float() * float64(most))
}

// NewGuard is a guard with the clocks and the random numbers of the process.
func (p *Process) NewGuard(s *lockstore.Store, opt guard.Options) *guard.Guard {
	g, err := guard.New(s, opt)
	if err != nil {
		p.T.Fatal(err)
	}
	seam.Guard(g, p.clocks, p.UpTo)
	return g
}

// missed is for how long the monotonic clock stood still. It is called with the lock held.
func (p *Process) missed() time.Duration {
	return p.frozen + min(time.Since(p.from), p.until.Sub(p.from))
}

func (p *Process) clocks() (mono, wall time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.read, p.unread = p.missed(), false
	return time.Duration(p.rate * float64(time.Since(p.Start)-p.read)), time.Duration(p.now().UnixNano())
}

// Now is the wall clock.
func (p *Process) Now() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now()
}

func (p *Process) now() time.Time {
	return p.Start.Add(p.offset + p.step + time.Duration(p.rate*float64(time.Since(p.Start))))
}

// Yield is a point at which the process may freeze or die. It returns as thawed does.
func (p *Process) Yield() bool {
	p.strike()
	return p.thawed()
}

// thawed returns at the end of a freeze. In a dead process it returns false at the end of the world.
func (p *Process) thawed() bool {
	for {
		p.mu.Lock()
		still, dead := time.Until(p.until), p.dead
		p.mu.Unlock()
		if dead {
			<-p.over
			return false
		}
		if still <= 0 {
			return true
		}
		Pass(still + p.UpTo(time.Millisecond)) // two goroutines do not go on at the same moment
	}
}

// If a wall clock is set back and the process freezes between two readings of the guard, nobody can notice either. This is
// the documented limit (P2), so the guard reads its clocks between the two.
func (p *Process) strike() {
	f, d := p.Float(), p.UpTo(3*TTL)
	what := ""
	p.mu.Lock()
	switch {
	case p.Calm || p.dead || time.Now().Before(p.until):
	case f < 0.010:
		what, p.dead = "deaths", true
		close(p.Died)
	case f < 0.025 && !p.unread:
		what = "freezes"
		p.frozen = p.missed()
		p.from, p.until = time.Now(), time.Now().Add(d)
	case f > 0.985 && p.missed() == p.read:
		what = "clock steps"
		p.step = d - 3*TTL/2
		p.unread = true
	}
	p.mu.Unlock()
	if what != "" {
		p.strikes(what)
	}
}

func (p *Process) strikes(what string) {
	p.Count(what)
	p.Say(p.Name, "%s", what)
	p.Struck(what)
}

// Chance is true with this chance, unless the process has no faults. Then what strikes: it is a fault of the store's own.
func (p *Process) Chance(chance float64, what string) bool {
	strikes := p.Float() < chance && p.Latency > 0 && !p.Calm
	if strikes {
		p.strikes(what)
	}
	return strikes
}

// Dead says whether the process is dead.
func (p *Process) Dead() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dead
}

// Do runs f in the process, and returns when f has returned or the process is dead.
func (p *Process) Do(f func()) {
	done := make(chan struct{})
	p.late.Go(func() {
		defer close(done)
		f()
	})
	select {
	case <-done:
	case <-p.Died:
	}
}

var (
	// ErrDown is why a request was certainly not applied, and ErrCut why nobody knows.
	ErrDown = fmt.Errorf("%w: throttled", lockstore.ErrUnavailable)
	ErrCut  = errors.New("connection reset by peer")
)
