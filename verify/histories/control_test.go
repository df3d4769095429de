package histories

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/pause"
	"github.com/lambdalock/lambdalock/internal/lib/rules"
	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/internal/wrongrules"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
	"github.com/lambdalock/lambdalock/verify/checker"
)

// bugs are mistakes of a store that the histories of guards show. The others of package wrongrules need requests that no guard
// makes. severalBugs are about keys that several may hold.
var (
	bugs = []string{
		"M01 acquire unconditional",
		"M04 release unchecked",
		"M10 fence constant",
		"M15 own retry reads busy",
		"M18 late duplicate of an acquire",
		looksThenSets,
		"cooldown of half the time",
		"M123 started: ignored by a takeover",
	}
	severalBugs = []string{
		"several: one more than may hold the key",
		"several: one fewer than may hold the key",
		"several: who asks counts alone",
		"several: a seat is given twice",
		"several: a release beside others does nothing",
	}
)

// TestControls: in virtual time the guards work on a store in memory, over a network that loses, delays and repeats. The sweep
// finds nothing while the store has the rules of the lock, and with each planted bug it finds something in one of a hundred histories.
func TestControls(t *testing.T) {
	const most = 100
	began := time.Now()
	first, n := verifyrecord.Seed(t, 20, 400)
	result := verifyrecord.Result{Kind: verifyrecord.Histories, Name: "guards on a store in memory, and on stores with a planted bug", Seed: first, Counts: map[string]int64{"seeds": int64(n)}}
	for seed := first; seed < first+uint64(n); seed++ {
		violations := simulated(t, noBug, seed%2 == 0, seed)
		require.Empty(t, violations, "seed %d", seed)
	}
	for _, bug := range slices.Concat(bugs, severalBugs) {
		control := verifyrecord.Control{What: "a store with a planted bug: " + bug}
		for seed := uint64(1); seed <= most && !control.Shown; seed++ {
			if seen := simulated(t, bug, slices.Contains(severalBugs, bug), seed); len(seen) > 0 {
				control.Shown, control.Saw = true, fmt.Sprintf("%d violations, the first: %s", len(seen), strings.Join(strings.Fields(seen[0]), " "))
			}
		}
		require.True(t, control.Shown, bug)
		t.Log(bug, control.Saw)
		result.Controls = append(result.Controls, control)
	}
	result.Took = time.Since(began)
	verifyrecord.Write(t, result)
}

// noBug is the shipped store, and looksThenSets a mistake that is none of a rule.
const (
	noBug         = "none"
	looksThenSets = "M19 looks, then sets"
)

// buggy is a store in memory with a planted bug. It remembers every owner, so nothing that is late is excused.
type buggy struct {
	bug    string
	mu     sync.Mutex
	states map[string]rules.State
}

// Do implements driver.Driver.
func (b *buggy) Do(_ context.Context, key string, r driver.Request) (driver.Answer, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	decide, s := rules.Book.Decide, b.states[key]
	switch b.bug {
	case looksThenSets:
		b.mu.Unlock()
		<-time.After(time.Millisecond)
		b.mu.Lock()
	default:
		decide = wrongrules.Find(b.bug).Decide
	}
	next, changed, a, _ := decide(rules.Book{Places: 64, Marks: 1 << 20}, s, rules.At(time.Now()), r)
	if changed {
		b.states[key] = next
	}
	return a, nil
}

// Await implements driver.Driver: its caller asks after a moment.
func (b *buggy) Await(ctx context.Context, _ string, _ driver.Request) (driver.Answer, error) {
	return driver.Answer{Outcome: driver.Ask}, pause.For(ctx, 20*time.Millisecond)
}

var errPlanned = errors.New("the connection ended")

// simulated is a history on such a store, over a network with faults, and what the sweep found.
func simulated(t *testing.T, bug string, several bool, seed uint64) (violations []string) {
	var broken atomic.Bool
	f := &fault{name: "planted bug", mix: mix{crash: 0.05, freeze: 0.05}, several: several, effect: unknowns, inject: func(ctx context.Context, _ *cell) {
		broken.Store(true)
		<-ctx.Done()
		broken.Store(false)
	}}
	s := &setup{name: "simulated", late: drift, length: 10 * time.Second, start: func(t *testing.T, _ *fault) *system {
		store := memstore.New(nil)
		if bug != noBug {
			store = lockstore.New("buggy", &buggy{bug: bug, states: map[string]rules.State{}})
		}
		return &system{t: t, open: func(seed uint64) *lockstore.Store { return over(t, store, seed, &broken) }}
	}}
	synctest.Test(t, func(t *testing.T) {
		c, stuck := play(t, f, s, []uint64{seed})
		violations = append(checker.Sweep(c.runs[0].Ops(), s.limits(f)), stuck...)
	})
	return violations
}

// over is a store over a network that loses requests and replies, and has some arrive late, while it is broken.
func over(t *testing.T, store *lockstore.Store, seed uint64, broken *atomic.Bool) *lockstore.Store {
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(seed, 1))
	faulty := storetest.NewFaulty(store, func(storetest.Call) (f storetest.Fault) {
		mu.Lock()
		defer mu.Unlock()
		if !broken.Load() {
			return f
		}
		switch p := random.Float64(); {
		case p < 0.05:
			f.Drop, f.Late = errPlanned, true
		case p < 0.1:
			f.Cut = errPlanned
		case p < 0.15:
			f.Before = time.Duration(random.Int64N(int64(ttl / 4)))
		}
		return f
	})
	ctx := t.Context()
	go func() {
		for pause.For(ctx, 300*time.Millisecond) == nil {
			_, _ = faulty.Deliver(ctx) // nobody waits for these answers
		}
	}()
	return faulty.Store
}
