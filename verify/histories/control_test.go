package histories

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
	"github.com/lambdalock/lambdalock/verify/checker"
	"github.com/lambdalock/lambdalock/verify/faults"
)

// leaseBugs are about leases, resultBugs about results and starts, or none. severalBugs are about keys that
// several may hold.
var (
	leaseBugs = []string{
		"M01 acquire unconditional",
		"M04 release unchecked",
		"M05 release ignores the fence",
		"M07 renew recreates lost",
		"M08 renew after expiry",
		localFence,
		"M15 own retry reads busy",
		"M18 late duplicate of an acquire",
		looksThenSets,
		failureIsBusy,
	}
	resultBugs = []string{
		"none",
		"M124 complete: without the owner",
		"cooldown of half the time",
		"M123 started: ignored by a takeover",
	}
	severalBugs = []string{
		"several: one more than may hold the key",
		"several: one fewer than may hold the key",
		"several: who asks counts alone",
		"several: a seat is given twice",
		"several: a release beside others does nothing",
		othersFirst,
	}
)

// controls are runs that have to show a violation.
func controls(t *testing.T) (out []verifyrecord.Control) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	add := func(c verifyrecord.Control) {
		mu.Lock()
		defer mu.Unlock()
		out = append(out, c)
	}
	wg.Go(func() {
		t.Run("control/failover", func(t *testing.T) { add(lostGrant(t)) })
	})
	for _, bug := range slices.Concat(leaseBugs, resultBugs, severalBugs) {
		wg.Go(func() {
			t.Run("control/"+bug, func(t *testing.T) {
				if bug == "none" {
					require.Empty(t, buggyRun(t, bug, 1), "the store without a bug")
					return
				}
				// What a bug does is rare in some histories, and depends on the machine.
				saw := ""
				for seed := uint64(1); saw == "" && seed <= controlHistories; seed++ {
					saw = buggyRun(t, bug, seed)
				}
				require.NotEmpty(t, saw, "the bug was not found in %d histories", controlHistories)
				add(verifyrecord.Control{What: "a store with a planted bug: " + bug, Shown: true, Saw: saw})
			})
		})
	}
	wg.Wait()
	slices.SortFunc(out, func(a, b verifyrecord.Control) int { return strings.Compare(a.What, b.What) })
	return out
}

// controlHistories is how many histories a control has to show its violation.
const controlHistories = 8

// buggyRun makes one history on a store with a planted bug, and returns what the
// sweep found.
func buggyRun(t *testing.T, bug string, seed uint64) string {
	server := newBuggyServer(bug)
	late := func(r *rand.Rand) (f storetest.Fault) {
		if p := r.Float64(); p < 0.1 {
			f.Drop, f.Late = errPlanned, true
		} else if p < 0.2 {
			f.Cut = errPlanned
		}
		return f
	}
	often := mix{crash: 0.04, freeze: 0.04, complete: 0.05, start: 0.08, revoke: 0.02}
	several := slices.Contains(severalBugs, bug)
	if slices.Contains(leaseBugs, bug) || several { // it shows best where all works end by a release
		often.complete, often.start, often.revoke = 0, 0, 0
	}
	f := &fault{name: "planted bug", mix: often, several: several, effect: unknowns, inject: func(ctx context.Context, c *cell) { c.planned(ctx, late) }}
	s := &setup{name: bug, limits: exact, start: func(t *testing.T, _ *fault, _ uint64) *system {
		sys := &system{t: t, plan: new(plan)}
		sys.open = func(seed uint64) opened {
			return opened{Store: sys.plan.over(t, lockstore.New("buggy", &buggyClient{buggyServer: server}), seed)}
		}
		return sys
	}}
	c, _ := play(t, f, s, []uint64{seed}, size{length: 8 * time.Second})
	var seen []string
	for _, l := range []checker.Limits{exact, onRedis} {
		if l == onRedis && strings.HasPrefix(bug, "M18") {
			continue // a store that forgets owners may do this
		}
		l.Answer = 0 // no planted bug makes answers slow
		seen = slices.Concat(checker.Sweep(c.runs[0].Ops(), l), c.runs[0].kept)
		if len(seen) == 0 {
			return ""
		}
	}
	return fmt.Sprintf("%d violations, the first: %s", len(seen), strings.Join(strings.Fields(seen[0]), " "))
}

// lostGrant is F34: a replica that was cut off takes over, so that two hold the
// key, and only the fence saves the resource.
func lostGrant(t *testing.T) verifyrecord.Control {
	pair := faults.StartPair(t, testservers.RedisServer)
	r := newRun("failover", 1, mix{}, 0)
	key := r.keys[0]
	sys := new(system)
	sys.redis(t, "redis://"+pair.Primary(), func(string) string { return pair.Primary() })
	one := func(id int) *client {
		return &client{run: r, id: id, store: sys.open(0), random: rand.New(rand.NewPCG(1, uint64(id))), done: t.Context()}
	}
	old, next := one(0), one(1)

	acquire := func(c *client) lockstore.Lease {
		lease, _, outcome := c.acquire(lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: time.Minute})
		require.Equal(t, checker.OK, outcome)
		return lease
	}
	var lost lockstore.Lease
	f := pair.FailOver(func() { lost = acquire(old) })
	lease := acquire(next)
	next.write(lease)
	old.write(lost) // it still trusts its lease

	ops := r.Ops()
	violations := checker.Sweep(ops, exact)
	require.Len(t, violations, 1)
	require.Contains(t, violations[0], "two trusted the key")
	n := checker.Count(ops)
	require.Equal(t, 1, n.Stale, "the fence refuses the old holder's write")

	r.happened(checker.CutOff, f.CutFrom, f.CutTo, key)
	r.happened(checker.Promote, f.DownFrom, f.DownTo, key)
	require.Empty(t, checker.Sweep(r.Ops(), exact), "it is the failover that explains it")
	return verifyrecord.Control{
		What: "failover to a replica that was cut off (F34)", Shown: true,
		Saw: fmt.Sprintf("two holders at once, with fences %d and %d; the resource refused the older one's write by its fence", lost.Fence, lease.Fence),
	}
}
