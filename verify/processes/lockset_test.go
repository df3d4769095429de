package processes

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/lambdatest"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
)

// TestLockSet adds elements to lists from environments that are killed (F01 F03
// F06), stopped for longer than their leases last (F07 F12), told to end (F69)
// and run into their timeout (F63), while failed events are repeated with their
// request ids and some events come twice (F64). No element that was acknowledged
// may be missing, and no list may refuse a holder that still trusts its lease.
func TestLockSet(t *testing.T) {
	seed, _ := verifyrecord.Seed(t, 1, 1)
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
		t.Fatalf("replay in verify/, as far as processes can be: VERIFY_SEED=%d go test -run TestLockSet ./lockset", seed)
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

// dynamoLate is the tolerated skew, the second that the store adds, and the
// service's whole seconds.
const dynamoLate = dynamostore.DefaultSkew + 2*time.Second

func onDynamoDB(t *testing.T) place {
	endpoint := testservers.DynamoDB(t)
	p := place{
		name:  "dynamodb",
		locks: table(t, endpoint, "locks", "key"),
		lists: table(t, endpoint, "lists", "list"),
		late:  dynamoLate,
		lanes: 5,
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
	run := func(name string, s *site, look func(*testing.T, Verdict)) {
		all.Go(func() {
			t.Run(r.place.name+" "+name, func(t *testing.T) {
				s.t, s.place, s.seed = t, r.place, r.seed
				v := s.run(r.binary, limit)
				t.Logf("%v, the slowest look %v: %+v", s.now().Round(time.Millisecond), s.slowest.Round(time.Millisecond), s.counts)
				look(t, v)
				assert.Empty(t, s.problems)
				if t.Failed() {
					t.Logf("the last lines:\n%s", strings.Join(s.tail, "\n"))
				}
			})
		})
	}
	right := &site{lanes: r.place.lanes, envs: 2*r.place.lanes + 1, enough: func(c counts) bool {
		return c.struck[kill] >= few && c.struck[stop] >= few && c.struck[term] >= few/5 && c.struck[hang] >= few/50 && c.refused >= few/10+1
	}}
	run("F01 F03 F06 F07 F12 F63 F64 F69", right, func(t *testing.T, v Verdict) {
		t.Logf("waited %v for a dead holder, the longest of %d", v.Longest, v.Waits)
		assert.Empty(t, v.Violations())
		assert.Zero(t, right.counts.missing, "acknowledged elements that were missing for a time")
		assert.Positive(t, v.Waits, "nobody waited for a dead holder")
		r.counts, r.verdict = right.counts, v
	})
	controls := []struct {
		variant, what string
		lanes, envs   int
		enough        func(counts) bool
		saw           func(counts, Verdict) string // "" if it did not show
	}{
		{"unfenced", "holders are stopped, and the lists compare no fences", 2, 5,
			func(c counts) bool { return c.missing >= few/10+2 },
			func(c counts, v Verdict) string {
				if c.missing == 0 || len(v.Stale) == 0 {
					return ""
				}
				return fmt.Sprintf("%d acknowledged elements seen missing, %d missing in the end, %d stale requests accepted", c.missing, len(v.Lost), len(v.Stale))
			}},
		{"M01", "M01, a key that another holds is granted", 2, 5,
			func(c counts) bool { return c.robbed > 0 },
			func(_ counts, v Verdict) string { return first(v.Robbed) }},
		{"M28 init", "M28, the owner of a lease is the process's", 1, 1,
			func(c counts) bool { return c.shared > 0 },
			func(_ counts, v Verdict) string { return first(v.Shared) }},
		{"M28 request", "M28, the owner of a lease is the request's", 2, 5,
			func(c counts) bool { return c.shared > 0 },
			func(_ counts, v Verdict) string { return first(v.Shared) }},
	}
	r.controls = make([]verifyrecord.Control, len(controls))
	for i, c := range controls {
		s := &site{variant: c.variant, lanes: c.lanes, envs: c.envs, enough: c.enough}
		run(c.variant, s, func(t *testing.T, v Verdict) {
			saw := c.saw(s.counts, v)
			t.Log(saw)
			assert.NotEmpty(t, saw, "the control shows nothing: %+v", v)
			r.controls[i] = verifyrecord.Control{What: c.what + ", on " + r.place.name, Shown: saw != "", Saw: saw}
		})
	}
}

func first(all []string) string {
	if len(all) == 0 {
		return ""
	}
	return all[0]
}

func write(t *testing.T, seed uint64, began time.Time, results []*result) {
	result := verifyrecord.Result{
		Kind: verifyrecord.Processes, Name: "function processes killed and stopped while they change lists under the lock", Seed: seed, Counts: map[string]int64{}, Took: time.Since(began),
		Limits: []string{
			"In the runs with processes the seed decides which signal comes when. The machine decides how far a process has come by then.",
			"The clocks of a stopped process go on. The clocks of a frozen Lambda may not, which is simulated.",
			"A live key that is granted to a second process is noticed only if the second process reaches the list before the first is done with it.",
			fmt.Sprintf("The key of a dead holder may stay held for its lease (%v) and for what the store adds (%v on DynamoDB Local, whose Date has whole seconds), and a waiter polls once in %v. "+
				"For a busy machine the check allows %v more, and as much as the slowest answer took. It notices no shorter delay.", ttl, dynamoLate, poll, slack),
		},
	}
	for _, r := range results {
		c, v := r.counts, r.verdict
		for name, n := range map[string]int64{
			"SIGKILL": c.struck[kill], "SIGSTOP": c.struck[stop], "SIGTERM": c.struck[term], "timeout of the platform": c.struck[hang],
			"events": c.events, "tries": c.tries, "repeated tries": c.repeated, "events delivered twice": c.duplicates,
			"acknowledged elements": c.acknowledged, "elements added by a try that did not say so": c.found,
			"signals to a holder": c.holding, "busy": c.busy, "losses": c.lost, "unavailable": c.unavailable,
			"stale requests refused": c.refused, "stale requests accepted": int64(len(v.Stale)), "live keys granted to another": int64(len(v.Robbed)),
			"waits for a dead holder": int64(v.Waits),
		} {
			result.Counts[name] += n
		}
		result.Counts["longest wait for a dead holder on "+r.place.name+", ms"] = v.Longest.Milliseconds()
		result.Violations += int64(len(v.Violations()))
		result.Controls = append(result.Controls, r.controls...)
	}
	verifyrecord.Write(t, result)
}
