package histories

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
	"github.com/lambdalock/lambdalock/verify/checker"
	"github.com/lambdalock/lambdalock/verify/faults"
)

// bugs are mistakes of a store that the histories of guards show. The others of package wrongrules need requests that no guard
// makes. severalBugs are about keys that several may hold.
var (
	bugs = []string{
		"M01 acquire unconditional",
		"M04 release unchecked",
		localFence,
		"M15 own retry reads busy",
		"M18 late duplicate of an acquire",
		looksThenSets,
		failureIsBusy,
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
// finds nothing while the store has the rules of the lock, and with each planted bug it finds something in one of a few histories.
func TestControls(t *testing.T) {
	const most = 20
	began := time.Now()
	first, n := verifyrecord.Seed(t, 20, 400)
	result := verifyrecord.Result{Kind: verifyrecord.Histories, Name: "guards on a store in memory, and on stores with a planted bug", Seed: first, Counts: map[string]int64{"seeds": int64(n)}}
	for seed := first; seed < first+uint64(n); seed++ {
		violations := simulated(t, "none", seed%2 == 0, seed)
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

// simulated is a history on such a store, and what the sweep found.
func simulated(t *testing.T, bug string, several bool, seed uint64) (violations []string) {
	f := &fault{name: "planted bug", mix: mix{crash: 0.05, freeze: 0.05}, several: several, effect: unknowns, plan: func(r *rand.Rand) (f storetest.Fault) {
		switch p := r.Float64(); {
		case p < 0.05:
			f.Drop, f.Late = errPlanned, true
		case p < 0.1:
			f.Cut = errPlanned
		case p < 0.15:
			f.Before = time.Duration(r.Int64N(int64(ttl / 4)))
		}
		return f
	}}
	synctest.Test(t, func(t *testing.T) {
		server := newBuggyServer(bug)
		s := &setup{name: "simulated", late: drift, length: 10 * time.Second, start: func(t *testing.T, _ *fault, _ uint64) *system {
			sys := &system{t: t, plan: new(plan)}
			sys.open = func(seed uint64) opened {
				return opened{Store: sys.plan.over(t, lockstore.New("buggy", &buggyClient{buggyServer: server}), seed)}
			}
			return sys
		}}
		c, stuck := play(t, f, s, []uint64{seed}, size{})
		violations = append(checker.Sweep(c.runs[0].Ops(), s.limits(f)), stuck...)
	})
	return violations
}

// lostGrant is F34: a replica that was cut off takes over, so that two hold the key, and only the fence saves the resource.
func lostGrant(t *testing.T) verifyrecord.Control {
	pair := faults.StartPair(t, testservers.RedisServer)
	r, sys := newRun("failover", 1, mix{}, 0, false), new(system)
	sys.redis(t, "redis://"+pair.Primary(), func(string) string { return pair.Primary() })
	var old, next client
	hold := func(c *client, id int, work func(guard.Lock)) {
		*c = *r.client(id, sys.open(0), rand.New(rand.NewPCG(1, 1)), t.Context())
		g, err := guard.New(c.store, guard.Options{})
		require.NoError(t, err)
		_ = g.Do(t.Context(), r.keys[0].name, func(_ context.Context, lock guard.Lock) error {
			work(lock)
			return nil
		})
	}
	locks, over := make(chan guard.Lock, 2), make(chan struct{})
	var holding sync.WaitGroup
	defer holding.Wait()
	defer close(over)
	f := pair.FailOver(func() {
		holding.Go(func() {
			hold(&old, 0, func(lock guard.Lock) {
				locks <- lock
				<-over
			})
		})
		locks <- <-locks // it has the lock
	})
	lost, fence := <-locks, int64(0)
	hold(&next, 1, func(lock guard.Lock) {
		fence = int64(lock.Fence)
		next.write(lock)
		old.write(lost) // it still trusts its lease
	})
	ops := r.Ops()
	violations := checker.Sweep(ops, checker.Limits{Early: drift})
	require.Len(t, violations, 1)
	require.Contains(t, violations[0], "2 trusted the key")
	require.EqualValues(t, 1, count(ops)[stale], "the fence refuses the old holder's write")

	r.happened(checker.CutOff, f.CutFrom, f.CutTo, r.keys[:1])
	r.happened(checker.Promote, f.DownFrom, f.DownTo, r.keys[:1])
	require.Empty(t, checker.Sweep(r.Ops(), checker.Limits{Early: drift}), "it is the failover that explains it")
	return verifyrecord.Control{
		What: "failover to a replica that was cut off (F34)", Shown: true,
		Saw: fmt.Sprintf("two holders at once, with fences %d and %d; the resource refused the older one's write by its fence", lost.Fence, fence),
	}
}

// The effects of the transactions are compared with the answers.
func TestCounted(t *testing.T) {
	for _, c := range []struct {
		effects int
		outcome checker.Outcome
		wrong   int
	}{
		{1, checker.OK, 0}, {1, checker.Unknown, 0}, {0, checker.Unknown, 0},
		{0, checker.OK, 1}, {0, checker.Completed, 1}, {2, checker.Unknown, 1},
	} {
		r := newRun("counted", 1, few, 0, false)
		r.atOnce["x"] = lockstore.Lease{Key: "k", Owner: "a", Fence: 5}
		ops := []checker.Op{{Kind: checker.Complete, Key: "k", Data: "x", Outcome: c.outcome}, {Kind: checker.Complete, Data: "y", Outcome: checker.OK}}
		n, wrong := r.counted(ops, func(lockstore.Lease) int { return c.effects })
		require.Equal(t, c.effects, n)
		require.Len(t, wrong, c.wrong, "%+v: %v", c, wrong)
	}
}
