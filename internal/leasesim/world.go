// Package leasesim simulates processes that share keys of a store: the shipped guard over a faulty way to any store, in the
// virtual time of a synctest bubble, from a seed.
//
// The processes freeze, die, and have clocks that are off, drift and step (see Process). Their requests and replies are
// lost, slow, late and doubled (see Send). A judge looks at what the work, the caller and the store see (see Sim).
//
// All random numbers of a process come from its own generator, and no two processes act at the same moment. So a seed
// can be replayed. A seed that fails prints its story, one event a line, and the command that repeats it.
package leasesim

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lambdalock/lambdalock/internal/verifyrecord"
)

// Part is a simulation as a part of the verification.
type Part struct {
	Name      string   // of the record
	Few, Full int      // seeds: in the tests, and in make verify
	Must      []string // counts: what has to happen in a full run, or it shows nothing
	Shows     string   // the count of what a milder rule would allow
	Limits    []string // what is not simulated, and why
}

// Seeds runs play for each seed, see verifyrecord.Seed, and writes the record. It ends the test at the first seed that
// fails.
func Seeds(t *testing.T, part Part, play func(*World)) {
	t.Helper()
	began := time.Now()
	first, seeds := verifyrecord.Seed(t, part.Few, part.Full)
	total := map[string]int64{"seeds": int64(seeds)}
	for seed := first; seed < first+uint64(seeds); seed++ {
		w := bubble(t, seed, play)
		if w.problem != "" {
			t.Fatalf("seed %d %s\n%srepeat it in this folder: VERIFY_SEED=%d VERIFY_SEEDS=1 go test -run '^%s$'", seed, w.problem, w.story(), seed, t.Name())
		}
		for name, n := range w.Counts {
			total[name] += n
		}
	}
	t.Log(total)
	for _, name := range part.Must {
		if seeds >= part.Full && total[name] == 0 { // a few seeds may miss one of these
			t.Errorf("a run without %s shows nothing", name)
		}
	}
	var controls []verifyrecord.Control
	if part.Shows != "" {
		controls = append(controls, verifyrecord.Control{What: part.Shows, Shown: total[part.Shows] > 0, Saw: fmt.Sprint(total[part.Shows])})
	}
	verifyrecord.Write(t, verifyrecord.Result{
		Kind: verifyrecord.Simulation, Name: part.Name, Seed: first, Counts: total, Took: time.Since(began), Controls: controls, Limits: part.Limits,
	})
}

// bubble runs one seed in virtual time.
func bubble(t *testing.T, seed uint64, play func(*World)) (w *World) {
	synctest.Test(t, func(t *testing.T) {
		w = &World{T: t, Seed: seed, Start: time.Now(), Counts: map[string]int64{}, over: make(chan struct{})}
		play(w)
		w.Settle()
	})
	return w
}

// World is one seed: what its processes share.
type World struct {
	T     *testing.T // of the bubble: its Cleanup is for when no process asks for anything any more
	Seed  uint64
	Start time.Time

	over chan struct{} // no process is at work any more: the dead may go on, and nothing of them counts
	late sync.WaitGroup

	settled bool

	mu      sync.Mutex // the last one that anybody takes
	Counts  map[string]int64
	events  []event
	problem string // the first
	failed  int    // events until then

	judge
}

// event is a line of the story. It is written only if the seed fails.
type event struct {
	at     time.Duration
	who    string
	format string
	args   []any
}

// Count counts what has happened.
func (w *World) Count(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.Counts[what]++
}

// Say adds an event to the story.
func (w *World) Say(who, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, event{time.Since(w.Start), who, format, args})
}

// Fail says that a promise is broken. The first problem counts.
func (w *World) Fail(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.problem == "" {
		w.problem, w.failed = fmt.Sprintf("at %v: %s", time.Since(w.Start), fmt.Sprintf(format, args...)), len(w.events)
	}
}

// told is how many events before the first failure the story has.
const told = 60

func (w *World) story() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var s strings.Builder
	for _, e := range w.events[max(0, w.failed-told):w.failed] {
		fmt.Fprintf(&s, "%12v  %-10s  %s\n", e.at.Round(time.Microsecond), e.who, fmt.Sprintf(e.format, e.args...))
	}
	return s.String()
}

// Settle lets what is under way arrive, and the dead end.
func (w *World) Settle() {
	if !w.settled {
		close(w.over)
		w.settled = true
	}
	w.late.Wait()
}

// Pass lets time pass. It makes no timer that is due at once: two of them at one moment
// crash the race detector of Go 1.26 (golang/go issue 78156, mended in Go 1.27).
func Pass(d time.Duration) {
	if d > 0 {
		<-time.After(d)
	}
}
