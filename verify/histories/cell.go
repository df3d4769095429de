// Package histories makes histories on real servers during faults, and has them checked. Each cell of its table is one
// fault on one store set-up. The clients are shipped guards.
package histories

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/pause"
	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/verify/checker"
)

// clients of each history, beside each other.
const clients = 8

// cell is one fault on one set-up. Its histories run at the same time on the same servers, each with its own keys.
type cell struct {
	fault    *fault
	setup    *setup
	sys      *system
	random   *rand.Rand
	runs     []*run
	injected int // faults so far
}

// maxLength is how long the histories of a cell may go on when too little has happened in all of them.
const maxLength = 2 * time.Minute

// counts say what happened in a history, by the names of the record.
type counts map[string]int64

const (
	operations = "operations" // that the store answered
	contended  = "contended"  // acquires that were told busy
	takeovers  = "takeovers"  // grants after a lease that its owner and the operators had not begun to end
	unknown    = "unknown"
	notApplied = "refusals"
	lost       = "lost leases" // that their own holder was told to have lost, and that no operator had revoked
	losses     = "entries lost by the store"
)

func count(ops []checker.Op) counts {
	c := counts{}
	ends, revoked, grants := map[string]time.Duration{}, map[string]bool{}, map[string]checker.Op{} // by key and fence
	id := func(op checker.Op) string { return fmt.Sprint(op.Key, " ", op.Fence) }
	for _, op := range ops {
		_, granted := grants[id(op)]
		_, ended := ends[id(op)]
		switch {
		case op.Outcome == checker.Unknown:
			c[unknown]++
		case op.Outcome == checker.NotApplied:
			c[notApplied]++
		default:
			c[operations]++
		}
		switch {
		case op.Kind == checker.Forget || op.Kind == checker.Promote:
			c[losses]++
		case op.Outcome == checker.Busy:
			c[contended]++
		case op.Kind == checker.Revoke:
			revoked[id(op)] = true
		case op.Outcome == checker.Lost && op.Kind != checker.Resolve && !revoked[id(op)]:
			c[lost]++
		case op.Kind == checker.Acquire && op.Outcome == checker.OK && !granted:
			grants[id(op)] = op
		}
		if !ended && (op.Kind == checker.Release || op.Kind == checker.Complete || op.Kind == checker.Resolve) {
			ends[id(op)] = op.Call
		}
	}
	last := map[string]string{} // of each seat
	for _, op := range slices.SortedFunc(maps.Values(grants), func(a, b checker.Op) int { return cmp.Compare(a.Fence, b.Fence) }) {
		seat := fmt.Sprint(op.Key, " ", op.Seat)
		if before, ok := last[seat]; ok {
			if end, ended := ends[before]; !ended || end > op.Return {
				c[takeovers]++
			}
		}
		last[seat] = id(op)
	}
	return c
}

// missing says what histories do not show together, and have to show to prove something.
func (f *fault) missing(atLeast int, runs ...*run) (missing []string) {
	n, effects := counts{}, int64(0)
	for _, r := range runs {
		its := count(r.Ops())
		for name, more := range its {
			n[name] += more
		}
		effects += f.effect(r, its)
	}
	for _, g := range []struct {
		what      string
		have, min int64
	}{
		{operations, n[operations], int64(atLeast)},
		{contended, n[contended], 20},
		{takeovers, n[takeovers], 5},
		{lost, n[lost], 1},
		{"effects of the fault", effects, cmp.Or(f.effects, 1)},
	} {
		if g.have < g.min {
			missing = append(missing, fmt.Sprintf("%d %s, want %d", g.have, g.what, g.min))
		}
	}
	return missing
}

// play makes one history for each seed, on new servers, and returns them with how often the fault was injected, and
// which keys were not free in the end.
func play(t *testing.T, f *fault, s *setup, seeds []uint64) (c *cell, stuck []string) {
	t.Helper()
	name := s.name + "/" + f.name
	h := fnv.New64a()
	_, _ = h.Write([]byte(name)) // never fails
	c = &cell{fault: f, setup: s, random: rand.New(rand.NewPCG(seeds[0], h.Sum64())), sys: s.start(t, f)}
	for _, seed := range seeds {
		c.runs = append(c.runs, newRun(name, seed, f.mix, s.late, f.several))
	}
	var playing sync.WaitGroup
	for _, r := range c.runs {
		done, stop := context.WithCancel(t.Context())
		playing.Go(func() {
			defer stop()
			for pause.For(done, 200*time.Millisecond) == nil {
				if now := r.Now(); now > maxLength || now > s.length && (s.atLeast == 0 || len(f.missing(s.atLeast*len(c.runs), c.runs...)) == 0) {
					return
				}
			}
		})
		processes := cmp.Or(f.processes, clients)
		var stores []*lockstore.Store
		for i := range processes {
			stores = append(stores, c.sys.open(r.seed+uint64(i)<<32))
		}
		for i := range clients {
			playing.Go(func() { r.work(i, stores[i%processes], rand.New(rand.NewPCG(r.seed, h.Sum64()+uint64(i))), done) })
		}
	}
	injecting, stop := context.WithCancel(t.Context())
	go func() {
		playing.Wait()
		stop()
	}()
	if f.inject != nil {
		f.inject(injecting, c)
	} else { // the clients themselves fail
		<-injecting.Done()
		for _, r := range c.runs {
			c.injected += int(f.effect(r, counts{}))
		}
	}
	playing.Wait()
	var leaving sync.WaitGroup
	left := make([][]string, len(c.runs))
	for i, r := range c.runs {
		leaving.Go(func() {
			left[i] = r.lockAgain(c.sys.open(r.seed), ttl+s.late+time.Second+(driver.MaxTurnsBefore+1)*lockstore.TurnTime)
		})
	}
	leaving.Wait()
	return c, slices.Concat(left...)
}

// do plays a cell and judges its histories.
func do(t *testing.T, f *fault, s *setup, seeds []uint64) (out verifyrecord.Cell) {
	c, stuck := play(t, f, s, seeds)
	out, more := verifyrecord.Cell{Fault: f.name, Store: s.name, Violations: int64(len(stuck))}, counts{"faults": int64(c.injected), "histories": int64(len(c.runs))}
	if c.injected == 0 {
		t.Errorf("%s was never injected", f.name)
	}
	for _, text := range stuck {
		t.Errorf("not free: %s", text)
	}
	for _, r := range c.runs {
		ops := r.Ops()
		violations := checker.Sweep(ops, s.limits(f))
		if len(violations) > 0 {
			t.Errorf("%s, seed %d: violations:\n%s\nall operations are in %s\nagain, in verify/: VERIFY_SEED=%d VERIFY_SEEDS=1 go test ./histories -run '%s'",
				r.name, r.seed, strings.Join(violations[:min(5, len(violations))], "\n"), dump(t, r, ops), r.seed, t.Name())
		}
		for name, n := range count(ops) {
			more[name] += n
		}
		out.Violations += int64(len(violations))
	}
	// A slow machine may end one history before it shows something.
	if missing := f.missing(s.atLeast, c.runs...); len(missing) > 0 {
		t.Errorf("%s shows nothing: %s", c.runs[0].name, strings.Join(missing, "; "))
	}
	out.Counts = more
	return out
}

// dump writes a history that failed to a file, for people.
func dump(t *testing.T, r *run, ops []checker.Op) string {
	t.Helper()
	slices.SortStableFunc(ops, func(a, b checker.Op) int { return cmp.Compare(a.Key, b.Key) })
	var b strings.Builder
	for _, op := range ops {
		fmt.Fprintln(&b, op)
	}
	file := filepath.Join(os.TempDir(), strings.NewReplacer("/", "-", " ", "-").Replace(fmt.Sprintf("history-%s-%d.txt", r.name, r.seed)))
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		t.Errorf("the history could not be kept: %v", err)
	}
	return file
}
