package lockset

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lambdatest"
	"github.com/lambdalock/lambdalock/internal/record"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
)

// TestLockSet adds elements to lists from environments that are killed (F01 F03
// F06), stopped for longer than their leases last (F07 F12), told to end (F69)
// and run into their timeout (F63), while failed events are repeated with their
// request ids and some events come twice (F64). No element that was acknowledged
// may be missing.
func TestLockSet(t *testing.T) {
	seed, _ := record.Seed(t, 1, 1)
	began := time.Now()
	binary := filepath.Join(t.TempDir(), "bootstrap")
	require.NoError(t, lambdatest.Build(t.Context(), "./function", binary))
	results := make([]*result, 3)
	var all sync.WaitGroup
	for i, open := range []func(*testing.T) place{onRedis, onValkey, onDynamoDB} {
		p := open(t)
		results[i] = &result{place: p, seed: seed, binary: binary}
		results[i].runs(t, &all)
	}
	all.Wait()
	assert.Empty(t, left(t, binary), "processes that nobody waited for")
	if t.Failed() {
		t.Fatalf("replay, as far as processes can be, with VERIFY_SEED=%d go test -run TestLockSet ./lockset", seed)
	}
	write(t, seed, began, results)
}

func config(t *testing.T, rawURL string) lockstore.Config {
	t.Helper()
	u, err := url.Parse(rawURL)
	require.NoError(t, err)
	return lockstore.Config{URL: u, Getenv: func(string) string { return "local" }}
}

func onRedis(t *testing.T) place { return redisPlace(t, "redis", "redis://"+testservers.Redis(t)) }

func onValkey(t *testing.T) place {
	return redisPlace(t, "valkey", "valkey://"+testservers.Valkey(t))
}

func redisPlace(t *testing.T, name, u string) place {
	store, err := redisstore.Open(t.Context(), config(t, u))
	require.NoError(t, err)
	return place{name: name, locks: u, lists: u, store: store, lanes: 3}
}

func onDynamoDB(t *testing.T) place {
	endpoint := testservers.DynamoDB(t)
	p := place{
		name:  "dynamodb",
		locks: table(t, endpoint, "locks", "key"),
		lists: table(t, endpoint, "lists", "list"),
		// The tolerated skew, the second that the store adds, and the service's whole seconds.
		late:  3 * time.Second,
		lanes: 4,
	}
	store, err := dynamostore.Open(t.Context(), config(t, p.locks))
	require.NoError(t, err)
	p.store = store
	// Its first answers take longer than a lease of a second may be trusted for.
	for range 20 {
		lease, err := store.Acquire(t.Context(), lockstore.Request{Key: "first", Owner: lockstore.NewOwner(), TTL: time.Minute})
		require.NoError(t, err)
		require.NoError(t, store.Release(t.Context(), lease))
	}
	return p
}

// table makes a table and returns its URL.
func table(t *testing.T, endpoint, name, attribute string) string {
	t.Helper()
	rawURL := "dynamodb://" + name + "?region=us-east-1&endpoint=" + endpoint
	// Not dynamostore's client: a first table takes longer than a lock may.
	client := dynamodb.New(dynamodb.Options{
		BaseEndpoint: &endpoint, Region: "us-east-1",
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "local", SecretAccessKey: "local"}, nil
		}),
	})
	_, err := client.CreateTable(context.Background(), &dynamodb.CreateTableInput{
		TableName:            aws.String(name),
		BillingMode:          types.BillingModePayPerRequest,
		AttributeDefinitions: []types.AttributeDefinition{{AttributeName: &attribute, AttributeType: types.ScalarAttributeTypeS}},
		KeySchema:            []types.KeySchemaElement{{AttributeName: &attribute, KeyType: types.KeyTypeHash}},
	})
	require.NoError(t, err)
	return rawURL
}

// result is what was seen on one store.
type result struct {
	place  place
	seed   uint64
	binary string

	counts           counts
	lost             int64 // by the control
	verdict, control Verdict
	mutants          [2]Verdict
}

// runs are the right function, the one without fences and the planted bugs, all
// at once: a run mostly waits.
func (r *result) runs(t *testing.T, all *sync.WaitGroup) {
	few, limit := int64(5), 2*time.Minute
	if record.Full() {
		few, limit = 100, 8*time.Minute
	}
	run := func(variant string, lanes, envs int, enough func(counts) bool, look func(*testing.T, *site, Verdict)) {
		all.Go(func() {
			name := variant
			if name == "" {
				name = "F01 F03 F07 F12 F63 F64 F69"
			}
			t.Run(r.place.name+" "+name, func(t *testing.T) {
				s := &site{t: t, place: r.place, seed: r.seed, lanes: lanes, envs: envs, variant: variant, enough: enough}
				v := s.run(r.binary, limit)
				t.Logf("%v: %+v", s.now().Round(time.Millisecond), s.counts)
				look(t, s, v)
				assert.Empty(t, s.problems)
				if t.Failed() {
					t.Logf("the last lines:\n%s", strings.Join(s.tail, "\n"))
				}
			})
		})
	}
	run("", r.place.lanes, 2*r.place.lanes+1, func(c counts) bool {
		return c.struck[kill] >= few && c.struck[stop] >= few && c.struck[term] >= few/5 && c.struck[hang] >= few/50 && c.refused >= few/10+1
	}, func(t *testing.T, s *site, v Verdict) {
		t.Logf("waited %v for a dead holder, the longest of %d", v.Longest, v.Waits)
		assert.Empty(t, v.Violations())
		assert.Zero(t, s.counts.missing, "acknowledged elements that were missing for a time")
		assert.Positive(t, v.Waits, "nobody waited for a dead holder")
		r.counts, r.verdict = s.counts, v
	})
	run("unfenced", 2, 5, func(c counts) bool { return c.missing >= few/10+2 }, func(t *testing.T, s *site, v Verdict) {
		t.Logf("%d acknowledged elements lost for good, %d stale requests accepted", len(v.Lost), len(v.Stale))
		assert.Positive(t, s.counts.missing, "a list that compares no fences has to lose elements")
		assert.NotEmpty(t, v.Stale)
		r.lost, r.control = s.counts.missing, v
	})
	for i, c := range []struct {
		variant     string
		lanes, envs int
	}{{"M28 init", 1, 1}, {"M28 request", 2, 5}} {
		run(c.variant, c.lanes, c.envs, func(c counts) bool { return c.shared > 0 }, func(t *testing.T, _ *site, v Verdict) {
			t.Logf("%q %q", v.Shared, v.Lost)
			assert.NotEmpty(t, v.Shared, "two runs under one fence have to be seen")
			r.mutants[i] = v
		})
	}
}

func write(t *testing.T, seed uint64, began time.Time, results []*result) {
	rung := record.Rung{
		ID: "L6", Name: "lock sets by processes that are killed and stopped", Seed: seed, Counts: map[string]int64{}, Took: time.Since(began),
		Mutants: []record.Mutant{{
			ID: "M28", What: "the owner of a lease is the process's or the request id", Rung: "L6", Killed: true, By: "verify/lockset " + t.Name(),
		}},
		Limits: []string{
			"the seed decides which signal comes when; how far a process has come by then is the machine's",
			"a stopped process's clocks go on, those of a frozen Lambda may not: that is simulated (L4)",
		},
	}
	for _, r := range results {
		c := r.counts
		for name, n := range map[string]int64{
			"SIGKILL": c.struck[kill], "SIGSTOP": c.struck[stop], "SIGTERM": c.struck[term], "timeout of the platform": c.struck[hang],
		} {
			rung.Counts[name] += n
			rung.Cells = append(rung.Cells, record.Cell{Fault: name, Store: r.place.name, Injected: n})
		}
		for name, n := range map[string]int64{
			"events": c.events, "tries": c.tries, "repeated tries": c.repeated, "events delivered twice": c.duplicates,
			"acknowledged elements": c.acknowledged, "elements added by a try that did not say so": c.found,
			"signals to a holder": c.holding, "busy": c.busy, "losses": c.lost, "unavailable": c.unavailable,
			"stale requests refused": c.refused, "stale requests accepted": int64(len(r.verdict.Stale)), "waits for a dead holder": int64(r.verdict.Waits),
		} {
			rung.Counts[name] += n
		}
		rung.Counts["longest wait for a dead holder on "+r.place.name+", ms"] = r.verdict.Longest.Milliseconds()
		rung.Controls = append(rung.Controls, record.Control{
			What:  "stopped holders and lists on " + r.place.name + " that compare no fences",
			Shown: r.lost > 0,
			Saw:   fmt.Sprintf("%d acknowledged elements lost, %d missing in the end, %d stale requests accepted", r.lost, len(r.control.Lost), len(r.control.Stale)),
		})
		for i, v := range r.mutants {
			rung.Controls = append(rung.Controls, record.Control{
				What:  "M28 on " + r.place.name + ", the owner from " + []string{"init", "the request id"}[i],
				Shown: len(v.Shared) > 0,
				Saw:   strings.Join(slices.Concat(v.Shared, v.Lost), "; "),
			})
		}
	}
	slices.SortFunc(rung.Cells, func(a, b record.Cell) int {
		return cmp.Or(cmp.Compare(a.Fault, b.Fault), cmp.Compare(a.Store, b.Store))
	})
	record.Write(t, rung)
}
