// Package histories makes histories on real servers during faults, and has them
// checked. Each cell of its table is one fault on one store set-up.
package histories

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/verify/checker"
)

// cell is one fault on one set-up. Its histories run at the same time on the same
// servers, each with its own keys.
type cell struct {
	fault    *fault
	setup    *setup
	sys      *system
	random   *rand.Rand
	runs     []*run
	injected int // faults so far
}

// size says how much a cell has to do.
type size struct {
	operations int           // of each history at least; 0 is whatever happens
	length     time.Duration // of each history at least; 0 is the set-up's
}

// maxLength is how long a history may go on when too little has happened.
const maxLength = 90 * time.Second

// missing says what a history does not show and has to show to prove something.
func (f *fault) missing(s *setup, r *run, atLeast int) (missing []string) {
	n := checker.Count(r.Ops())
	for _, g := range []struct {
		what      string
		have, min int
	}{
		{"operations", n.Operations, atLeast},
		{"contended acquires", n.Contended, 20},
		{"takeovers", n.Takeovers, 5},
		{"lost leases", n.Lost, 1},
		{"effects of the fault", f.effect(r, n), 1},
	} {
		if g.have < g.min {
			missing = append(missing, fmt.Sprintf("%d %s, want %d", g.have, g.what, g.min))
		}
	}
	if f.ambiguous && f.hidden != s.name && n.Unknown < 5 {
		missing = append(missing, fmt.Sprintf("%d unknown outcomes, want 5", n.Unknown))
	}
	return missing
}

// play makes one history for each seed, on new servers, and returns them with how
// often the fault was injected, and which keys were not free in the end.
func play(t *testing.T, f *fault, s *setup, seeds []uint64, sz size) (c *cell, stuck []string) {
	t.Helper()
	name := s.name + "/" + f.name
	c = &cell{fault: f, setup: s, random: rand.New(rand.NewPCG(seeds[0], hash(name)))}
	c.sys = s.start(t, f, seeds[0])
	for _, seed := range seeds {
		r := newRun(name, seed, f.mix, s.limits.Late)
		r.calm = f.inject == nil
		if f.several {
			r.severalHolders()
		}
		c.runs = append(c.runs, r)
	}
	if sz.length == 0 {
		sz.length = s.length
	}

	healed, heal := context.WithCancel(t.Context())
	var playing, leaving sync.WaitGroup
	var mu sync.Mutex
	for _, r := range c.runs {
		done, stop := context.WithCancel(t.Context())
		playing.Go(func() {
			for sleep(done, 200*time.Millisecond) {
				now := r.Now()
				if now > maxLength || now > sz.length && (sz.operations == 0 || len(f.missing(s, r, sz.operations)) == 0) {
					stop()
				}
			}
		})
		playing.Go(func() { r.watch(done) })
		processes := cmp.Or(f.processes, clients)
		var stores []opened
		for i := range processes {
			stores = append(stores, c.sys.open(r.seed+uint64(i)<<32))
		}
		for i := range clients {
			own := &client{run: r, id: i, store: stores[i%processes], random: rand.New(rand.NewPCG(r.seed, hash(name)+uint64(i))), done: done}
			playing.Go(own.work)
		}
		last := c.sys.open(r.seed)
		leaving.Go(func() {
			<-healed.Done()
			left := r.lockAgain(last, longTTL+s.limits.Late+time.Second+(lockstore.MaxTurns+1)*lockstore.Turn)
			mu.Lock()
			defer mu.Unlock()
			stuck = append(stuck, left...)
		})
	}
	injecting, stop := context.WithCancel(t.Context())
	go func() {
		playing.Wait()
		stop()
	}()
	if f.inject == nil {
		<-injecting.Done()
	} else {
		f.inject(injecting, c)
	}
	playing.Wait()
	heal()
	leaving.Wait()
	for _, r := range c.runs {
		if f.inject == nil {
			c.injected += f.effect(r, checker.Counts{})
		}
	}
	return c, stuck
}

func hash(name string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name)) // never fails
	return h.Sum64()
}

// do plays a cell, repeats the histories that show nothing, once
// and with other seeds, and judges all. more are counts that only the sum of the cells shows.
func do(t *testing.T, f *fault, s *setup, seeds []uint64, sz size) (out verifyrecord.Cell, more map[string]int64) {
	out, more = verifyrecord.Cell{Fault: f.name, Store: s.name}, map[string]int64{}
	limits := s.judged(f)
	if s.fewer > 0 {
		sz.operations = min(sz.operations, s.fewer)
	}
	for again := range 2 {
		c, stuck := play(t, f, s, seeds, sz)
		out.Injected += int64(c.injected)
		if c.injected == 0 {
			t.Errorf("%s was never injected", f.name)
		}
		for _, text := range stuck {
			out.Violations++
			t.Errorf("not free: %s", text)
		}
		var empty []uint64
		for _, r := range c.runs {
			ops := r.played()
			inTransactions, wrong := r.counted(ops, c.sys.effects)
			violations := slices.Concat(checker.Sweep(ops, limits), wrong, r.kept)
			out.Violations += int64(len(violations))
			if len(violations) > 0 {
				t.Errorf("%s, seed %d: violations:\n%s\nall operations are in %s\nagain, in verify/: VERIFY_DIR=/tmp VERIFY_SEED=%d VERIFY_SEEDS=1 go test ./histories -run '%s'",
					r.name, r.seed, strings.Join(violations[:min(5, len(violations))], "\n"), dump(t, r.name, r.seed, ops), r.seed, t.Name())
			}
			if missing := f.missing(s, r, sz.operations); len(missing) > 0 {
				t.Logf("%s, seed %d shows nothing: %s", r.name, r.seed, strings.Join(missing, "; "))
				if again > 0 {
					t.Errorf("%s shows nothing with a second seed either", r.name)
				}
				empty = append(empty, r.seed+1000)
				continue
			}
			n := checker.Count(ops)
			out.Histories++
			out.Operations += int64(n.Operations)
			out.Contended += int64(n.Contended)
			out.Takeovers += int64(n.Takeovers)
			out.Unknown += int64(n.Unknown)
			out.Lost += int64(n.Lost)
			more["stale writes refused by the fence"] += int64(n.Stale)
			more["entries lost by the store"] += int64(n.Losses)
			more["refusals"] += int64(n.NotApplied)
			more["effects"] += int64(n.Effects)
			more["results stored"] += int64(n.Completions)
			more["effects written with their result"] += int64(inTransactions)
			more["results read"] += int64(n.Results)
			more["acquires of a key in doubt"] += int64(n.InDoubt)
			more["settlements"] += int64(n.Resolved)
			more["leases broken"] += int64(n.Revocations)
			more["places in a queue"] += r.places.Load()
			more["grants to waiters"] += r.served.Load()
			more["waiters that died"] += r.died.Load()
			more["waiters that left"] += r.left.Load()
		}
		more["histories repeated because they showed nothing"] += int64(len(empty))
		if seeds = empty; len(seeds) == 0 {
			break
		}
	}
	return out, more
}

// dump writes a history that failed to a file, for people.
func dump(t *testing.T, name string, seed uint64, ops []checker.Op) string {
	t.Helper()
	slices.SortStableFunc(ops, func(a, b checker.Op) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Call, b.Call))
	})
	var b strings.Builder
	for _, op := range ops {
		fmt.Fprintln(&b, op)
	}
	file := filepath.Join(os.TempDir(), strings.Map(func(r rune) rune {
		if r == '/' || r == ' ' {
			return '-'
		}
		return r
	}, fmt.Sprintf("history-%s-%d.txt", name, seed)))
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		t.Errorf("the history could not be kept: %v", err)
	}
	return file
}
