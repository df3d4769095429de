package processes

import (
	"fmt"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/lambdatest"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
	"github.com/lambdalock/lambdalock/verify/faults"
)

// TestProcesses adds elements to lists from environments that are killed (F01 F03
// F06) and while they wait in the queue of a list's key (F02), stopped for longer than their leases last (F07 F12), told to end (F69)
// and run into their timeout (F63), while failed events are repeated with their
// request ids and some events come twice (F64). No acknowledged element may be
// missing, and no list may refuse a holder that still trusts its lease. Two may hold some keys, on
// DynamoDB three others, and others one writer or many readers: none that reads may see a change. In the end each event succeeds.
//
// In further runs no process gets a signal, and the locks are in a Redis or a Valkey with
// planned failovers. Where these lose nothing, no run may lose its lease, and package
// idempotency may repeat no work.
func TestProcesses(t *testing.T) {
	seed, _ := verifyrecord.Seed(t, 1, 1)
	began := time.Now()
	binary := filepath.Join(t.TempDir(), "bootstrap")
	require.NoError(t, lambdatest.Build(t.Context(), "./function", binary))
	var results []*result
	var all sync.WaitGroup
	for _, on := range []target{
		onRedis(t, "redis", testservers.Redis(t)), onRedis(t, "valkey", testservers.Valkey(t)), onDynamoDB(t),
		onPair(t, "redis", false), onPair(t, "redis", true), onPair(t, "valkey", false), onPair(t, "valkey", true),
	} {
		r := &result{target: on, seed: seed, binary: binary}
		r.runs(t, &all)
		results = append(results, r)
	}
	all.Wait()
	assert.Empty(t, left(t, binary), "processes that nobody waited for")
	if t.Failed() {
		t.Fatalf("replay in verify/, as far as processes can be: VERIFY_SEED=%d go test -run TestProcesses ./processes", seed)
	}
	write(t, seed, began, results)
}

// TestRollingDeployment has the last version and this one on one Redis and on one table, while the environments of a
// function are replaced one by one, and back. It finds what TestProcesses finds, and a stored result that
// the other version does not tell. Without a tag the last version is the last commit. Both have the function
// of this package: what it takes and prints stays as it was in the last version.
func TestRollingDeployment(t *testing.T) {
	seed, _ := verifyrecord.Seed(t, 1, 1)
	dir, tree := t.TempDir(), t.TempDir()
	version := "HEAD"
	if tag, err := exec.CommandContext(t.Context(), "git", "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*.[0-9]*.[0-9]*").Output(); err == nil {
		version = strings.TrimSpace(string(tag))
	}
	archive := filepath.Join(dir, "tree.tar")
	for _, command := range [][]string{{"git", "-C", "../..", "archive", "-o", archive, version}, {"tar", "-xf", archive, "-C", tree}} {
		out, err := exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	before, now := filepath.Join(dir, "before"), filepath.Join(dir, "now")
	require.NoError(t, lambdatest.Build(t.Context(), filepath.Join(tree, "verify/processes/function"), before))
	require.NoError(t, lambdatest.Build(t.Context(), "./function", now))
	for _, on := range []target{onRedis(t, "redis", testservers.Redis(t)), onDynamoDB(t)} {
		on.ttl = lossless
		r := &run{t: t, target: on, seed: seed, old: before, parallel: 3, envs: 5}
		r.enough = func(c counts) bool {
			return len(r.problems) > 0 || c[replaced] >= int64(2*r.envs) && c[told] > 0 && c[acknowledged] >= int64(10*(2*r.envs+1))
		}
		v := r.play(now, 5*time.Minute)
		t.Logf("%s and now on %s in %v: %v", version, on.name, r.now().Round(time.Millisecond), r.counts)
		assert.Empty(t, v.Violations(), on.name)
		assert.Empty(t, r.problems, on.name)
		for _, never := range []string{lost, doubt, unreleased} {
			assert.Zero(t, r.counts[never], "%s: %s", on.name, never)
		}
	}
}

func config(t *testing.T, rawURL string) lockstore.Config {
	t.Helper()
	u, err := url.Parse(rawURL)
	require.NoError(t, err)
	return lockstore.Config{URL: u, Getenv: func(string) string { return "local" }}
}

func onRedis(t *testing.T, name, addr string) target {
	rawURL := name + "://" + addr
	store, err := redisstore.Open(t.Context(), config(t, rawURL))
	require.NoError(t, err)
	return target{name: name, locks: rawURL, lists: rawURL, store: store, ttl: ttl, parallel: 1 + 2 + 2}
}

// onPair has the locks in a pair of servers, and the lists in a server that does not fail.
func onPair(t *testing.T, name string, loses bool) target {
	pair := faults.StartPair(t, name+"-server")
	on := onRedis(t, name, testservers.ProxyTo(t, pair.Primary).Addr)
	on.lists = "redis://" + testservers.Redis(t)
	on.pair, on.loses, on.parallel = pair, loses, 3
	on.name += ", planned failovers"
	if loses {
		on.name += " with loss"
		on.parallel = 6
		on.late = lockstore.MaxTurns * lockstore.Turn // for places that were left in what was lost
	} else {
		on.ttl = lossless
	}
	return on
}

// lossless is the TTL where no run may lose its lease, also on a machine with too much to do.
const lossless = 10 * time.Second

// dynamoLate is the tolerated skew, the second that the store adds, and the
// service's whole seconds.
const dynamoLate = dynamostore.DefaultSkew + 2*time.Second

func onDynamoDB(t *testing.T) target {
	endpoint := testservers.DynamoDB(t)
	on := target{
		name:     "dynamodb",
		locks:    testservers.Table(t, endpoint, "locks", "key"),
		lists:    "redis://" + testservers.Redis(t),
		ttl:      ttl,
		late:     dynamoLate,
		parallel: 1 + 2 + 3 + 2,
	}
	store, err := dynamostore.Open(t.Context(), config(t, on.locks))
	require.NoError(t, err)
	on.store = store.Store
	return on
}

// result is what was seen on one store.
type result struct {
	target target
	seed   uint64
	binary string

	counts   counts
	verdict  Verdict
	controls []verifyrecord.Control
}

// runs are the right function and the controls, all at once: a run mostly waits.
func (r *result) runs(t *testing.T, all *sync.WaitGroup) {
	few, limit := int64(5), 2*time.Minute
	if verifyrecord.Full() {
		few, limit = 100, 8*time.Minute
	}
	play := func(name string, run *run, check func(*testing.T, Verdict)) {
		all.Go(func() {
			t.Run(r.target.name+" "+name, func(t *testing.T) {
				run.t, run.target, run.seed = t, r.target, r.seed
				v := run.play(r.binary, limit)
				t.Logf("%v: %+v", run.now().Round(time.Millisecond), run.counts)
				check(t, v)
				assert.Empty(t, run.problems)
				if t.Failed() {
					t.Logf("the last lines:\n%s", strings.Join(run.tail, "\n"))
				}
			})
		})
	}
	if r.target.pair != nil {
		r.failovers(few, play)
		return
	}
	right := &run{several: true, parallel: r.target.parallel, envs: 2*r.target.parallel + 1, enough: func(c counts) bool {
		return c[string(kill)] >= few && c[string(stop)] >= few && c[string(term)] >= few/5 && c[string(hang)] >= few/50 && c[refused] >= few/10+1 && c[toWaiter] >= few/5
	}}
	play("F01 F02 F03 F06 F07 F12 F63 F64 F69", right, func(t *testing.T, v Verdict) {
		assert.Empty(t, v.Violations())
		assert.Zero(t, right.counts[unreleased], unreleased)
		r.counts, r.verdict = right.counts, v
	})
	controls := []struct {
		variant, what  string
		several        bool
		parallel, envs int
		enough         func(counts) bool
		saw            func(counts, Verdict) string // "" if it did not show
	}{
		{"unfenced", "holders are stopped, and the lists compare no fences", false, 2, 5,
			func(c counts) bool { return c[string(stop)] >= few/5+10 },
			func(_ counts, v Verdict) string {
				if len(v.Lost) == 0 || len(v.Stale) == 0 {
					return ""
				}
				return fmt.Sprintf("%d acknowledged elements are missing, %d stale requests were accepted", len(v.Lost), len(v.Stale))
			}},
		{"M01", "M01, a key that another holds is granted", true, 3, 7, // readers, writers, and one holder
			func(c counts) bool { return c[refusedTrusted] > 0 && c[changedTrusted] > 0 },
			func(_ counts, v Verdict) string { return first(v.RefusedTrusted) }},
		{"M26 fails", "M26, a release fails", true, 5, 11,
			func(c counts) bool { return c[unreleased] > 0 },
			func(c counts, _ Verdict) string { return kept(c) }},
		{"M26 does nothing", "M26, a release beside others does nothing", true, 5, 11,
			func(c counts) bool { return c[unreleased] > 0 },
			func(c counts, _ Verdict) string { return kept(c) }},
		{"M28 init", "M28, the owner of a lease is the process's", false, 1, 1,
			func(c counts) bool { return c[shared] > 0 },
			func(_ counts, v Verdict) string { return first(v.Shared) }},
		{"M28 request", "M28, the owner of a lease is the request's", false, 2, 5,
			func(c counts) bool { return c[shared] > 0 },
			func(_ counts, v Verdict) string { return first(v.Shared) }},
	}
	r.controls = make([]verifyrecord.Control, len(controls))
	for i, c := range controls {
		run := &run{variant: c.variant, several: c.several, parallel: c.parallel, envs: c.envs, enough: c.enough}
		play(c.variant, run, func(t *testing.T, v Verdict) {
			saw := c.saw(run.counts, v)
			t.Log(saw)
			assert.NotEmpty(t, saw, "the control shows nothing: %+v", v)
			r.controls[i] = verifyrecord.Control{What: c.what + ", on " + r.target.name, Shown: saw != "", Saw: saw}
		})
	}
}

// failovers is the run of the right function on a pair of servers.
func (r *result) failovers(few int64, play func(string, *run, func(*testing.T, Verdict))) {
	one := &run{parallel: r.target.parallel, envs: 2, enough: func(c counts) bool {
		refused := c[refused]+c[refusedTrusted] > 0 || !r.target.loses
		return c[demoted] >= few/10+1 && c[demotedAtWork] > 0 && c[acknowledged] >= few/2 && refused
	}}
	id := "F80"
	if r.target.loses {
		id = "F34"
	}
	play(id, one, func(t *testing.T, v Verdict) {
		if r.target.loses {
			v.RefusedTrusted = nil // the lost grant of a holder; the fence protects the list
		} else {
			assert.Zero(t, one.counts[lost], "runs that lost their lease")
			assert.Zero(t, one.counts[doubt], "events whose work is in doubt")
		}
		assert.Empty(t, v.Violations())
		r.counts, r.verdict = one.counts, v
	})
}

func kept(c counts) string {
	if c[unreleased] == 0 {
		return ""
	}
	return fmt.Sprintf("%d finished runs whose lease stayed", c[unreleased])
}

func first(all []string) string {
	if len(all) == 0 {
		return ""
	}
	return all[0]
}

func write(t *testing.T, seed uint64, began time.Time, results []*result) {
	result := verifyrecord.Result{
		Kind: verifyrecord.Processes, Name: "function processes killed and stopped, and servers failed over, while lists change under the lock", Seed: seed, Counts: map[string]int64{}, Took: time.Since(began),
		Limits: []string{
			"In the runs with processes the seed decides which signal comes when. The machine decides how far a process has come by then.",
			"The clocks of a stopped process go on. The clocks of a frozen Lambda may not, which is simulated.",
			"A live key that is granted to a second process is noticed only if the second process reaches the list before the first is done with it.",
			"Of a key whose holder is dead the runs show that it becomes free, and not how soon. The comparison and the simulations show that.",
		},
	}
	for _, r := range results {
		v := r.verdict
		for name, n := range r.counts {
			result.Counts[name] += n
		}
		result.Counts["stale requests accepted"] += int64(len(v.Stale))
		result.Violations += int64(len(v.Violations()))
		result.Controls = append(result.Controls, r.controls...)
	}
	verifyrecord.Write(t, result)
}
