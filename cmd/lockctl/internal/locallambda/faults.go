package locallambda

import (
	"context"
	mathrand "math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/pause"
)

// mostLooks is how often a fault looks for the holder of a lock, a millisecond apart, before it takes any
// environment with an event under way.
const mostLooks = 500

// faults freezes and kills environments while events are under way.
type faults struct {
	driver *driver
	all    environments
	kinds  []faultKind

	mu      sync.Mutex
	made    []fault
	running sync.WaitGroup
}

func newFaults(d *driver, all environments) *faults {
	kinds := append(slices.Repeat([]faultKind{freeze}, d.freeze), slices.Repeat([]faultKind{kill}, d.kill)...)
	mathrand.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
	return &faults{driver: d, all: all, kinds: kinds}
}

// make begins the faults that are due after so many answers: they are spread evenly over the events.
func (f *faults) make(ctx context.Context, answered int) {
	for i, kind := range f.kinds {
		if answered == (i+1)*f.driver.events/(len(f.kinds)+1) {
			f.running.Go(func() { f.one(ctx, kind) })
		}
	}
}

// wait waits for the faults under way, whose context has ended, and returns all.
func (f *faults) wait() []fault {
	f.running.Wait()
	return f.made
}

// one makes a fault, unless the run ends before.
func (f *faults) one(ctx context.Context, kind faultKind) {
	for looks := 0; ctx.Err() == nil; looks++ {
		anybody := looks >= mostLooks
		for _, i := range mathrand.Perm(len(f.all)) {
			if f.all[i].take(anybody) && f.hit(ctx, i, kind, anybody) {
				return
			}
		}
		_ = pause.For(ctx, time.Millisecond)
	}
}

// hit makes the fault of an environment. It returns false if that had released its lock before it was frozen, or
// had no process any more.
func (f *faults) hit(ctx context.Context, i int, kind faultKind, anybody bool) bool {
	e := f.all[i]
	made := fault{kind: kind, environment: i, from: time.Now()}
	var err error
	missed := false
	if kind == kill {
		err = e.Kill()
	} else if err = e.Freeze(); err == nil {
		missed = !anybody && !e.reports.holds()
		if !missed {
			_ = pause.For(ctx, f.driver.freezeTime()) // also a run that ends early continues the process
		}
		_ = e.Thaw() // an error: its timeout has ended it meanwhile
	}
	made.to = time.Now()
	e.mu.Lock()
	e.faulty = false
	e.mu.Unlock()
	if err != nil || missed {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.made = append(f.made, made)
	return true
}

// take marks the environment for a fault if it has an event under way, and a lock or anybody.
func (e *environment) take(anybody bool) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.running || e.faulty || !anybody && !e.reports.holds() {
		return false
	}
	e.faulty, e.hit = true, true
	return true
}
