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
)

// TestProcesses adds elements to lists from environments that are killed (F01 F03
// F06) and while they wait in the queue of a list's key (F02), stopped for longer than their leases last (F07 F12), told to end (F69)
// and run into their timeout (F63), while failed events are repeated with their
// request ids and some events come twice (F64). No acknowledged element may be
// missing, and no list may refuse a holder that still trusts its lease. Two may hold some keys, on
// DynamoDB three others, and others one writer or many readers: none that reads may see a change. In the end each event succeeds.
func TestProcesses(t *testing.T) {
	seed, _ := verifyrecord.Seed(t, 1, 1)
	began := time.Now()
	binary := filepath.Join(t.TempDir(), "bootstrap")
	require.NoError(t, lambdatest.Build(t.Context(), "./function", binary))
	few, limit := int64(5), 2*time.Minute
	if verifyrecord.Full() {
		few, limit = 100, 8*time.Minute
	}
	result := verifyrecord.Result{
		Kind: verifyrecord.Processes, Name: "function processes killed and stopped while lists change under the lock", Seed: seed, Counts: map[string]int64{},
		Limits: []string{
			"In the runs with processes the seed decides which signal comes when. The machine decides how far a process has come by then.",
			"The clocks of a stopped process go on. The clocks of a frozen Lambda may not, which is simulated.",
			"Processes notice a second holder only if it writes before the first has finished.",
			"The runs show that a dead holder's key becomes free, and not how soon. The comparison and the simulations show that.",
		},
	}
	var all sync.WaitGroup
	var mu sync.Mutex // guards result
	play := func(name string, r *run, check func(*testing.T, Verdict) verifyrecord.Control) {
		all.Go(func() {
			t.Run(r.target.name+" "+name, func(t *testing.T) {
				r.t, r.seed = t, seed
				v := r.play(binary, limit)
				t.Logf("%v: %+v", r.now().Round(time.Millisecond), r.counts)
				control := check(t, v)
				assert.Empty(t, r.problems)
				if t.Failed() {
					t.Logf("the last lines:\n%s", strings.Join(r.tail, "\n"))
				}
				mu.Lock()
				defer mu.Unlock()
				if r.variant != "" {
					result.Controls = append(result.Controls, control)
					return
				}
				result.Violations += int64(len(v.Violations()))
				for name, n := range r.counts {
					result.Counts[name] += n
				}
			})
		})
	}
	redis := onRedis(t, "redis", testservers.Redis(t))
	for _, on := range []target{redis, onRedis(t, "valkey", testservers.Valkey(t)), onDynamoDB(t)} {
		r := &run{target: on, several: true, parallel: on.parallel, envs: 2*on.parallel + 1, enough: func(c counts) bool {
			return c[string(kill)] >= few && c[string(stop)] >= few && c[string(term)] >= few/5 && c[string(hang)] >= few/50 && c[refused] >= few/10+1 && c[toWaiter] >= few/5
		}}
		play("F01 F02 F03 F06 F07 F12 F63 F64 F69", r, func(t *testing.T, v Verdict) (none verifyrecord.Control) {
			assert.Empty(t, v.Violations())
			assert.Zero(t, r.counts[unreleased], unreleased)
			return none
		})
	}
	controls := []struct {
		what   string
		run    *run
		enough func(counts) bool
		saw    func(counts, Verdict) bool
	}{
		{"holders are stopped, and the lists compare no fences", &run{variant: "unfenced", parallel: 2, envs: 5},
			func(c counts) bool { return c[string(stop)] >= few/5+20 },
			func(_ counts, v Verdict) bool { return len(v.Lost) > 0 && len(v.Stale) > 0 }},
		{"M01, a key that another holds is granted", &run{variant: "M01", several: true, parallel: 3, envs: 7}, // readers, writers, and one holder
			func(c counts) bool { return c[refusedTrusted] > 0 && c[changedTrusted] > 0 },
			func(_ counts, v Verdict) bool { return len(v.RefusedTrusted) > 0 }},
		{"M26, others are always first", &run{variant: "M26", several: true, parallel: 5, envs: 11},
			func(c counts) bool { return c[unreleased] > 0 },
			func(c counts, _ Verdict) bool { return c[unreleased] > 0 }},
		{"M28, the owner of a lease is the request's", &run{variant: "M28", parallel: 2, envs: 5},
			func(c counts) bool { return c[shared] > 0 },
			func(_ counts, v Verdict) bool { return len(v.Shared) > 0 }},
	}
	for _, c := range controls {
		r := c.run
		r.target, r.enough = redis, c.enough
		play(r.variant, r, func(t *testing.T, v Verdict) verifyrecord.Control {
			control := verifyrecord.Control{What: c.what, Shown: c.saw(r.counts, v), Saw: strings.Join(append(v.Violations(), fmt.Sprint(r.counts[unreleased], " ", unreleased))[:1], "")}
			assert.True(t, control.Shown, "the control shows nothing: %+v", v)
			return control
		})
	}
	all.Wait()
	if t.Failed() {
		t.Fatalf("replay in verify/, as far as processes can be: VERIFY_SEED=%d go test -run TestProcesses ./processes", seed)
	}
	result.Took = time.Since(began)
	verifyrecord.Write(t, result)
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
	store, err := redisstore.Opener.Open(t.Context(), config(t, rawURL))
	require.NoError(t, err)
	return target{name: name, locks: rawURL, lists: rawURL, store: store, ttl: ttl, parallel: 1 + 2 + 2}
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
