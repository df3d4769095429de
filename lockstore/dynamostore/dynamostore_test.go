package dynamostore_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"math/big"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lambdalock/lambdalock/internal/leasesim"
	"github.com/lambdalock/lambdalock/internal/watchdog"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore/internal/fakedynamo"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
	"github.com/lambdalock/lambdalock/lockstore/storetest/golden"
)

// TestMain allows many parallel tests: the cases on the wall clock only wait. The tests that
// compute for long are parallel too, so that they run meanwhile.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "32"); err != nil {
		panic(err)
	}
	watchdog.Start()
	goleak.VerifyTestMain(m, goleak.IgnoreCurrent())
}

func TestStoreOnTheFake(t *testing.T) {
	storetest.Run(t, onTheFake, inBubble)
}

// TestRuleBook compares the store with the rule book by more random requests than the suite (F09 F27).
//
// VERIFY_SEED=17 VERIFY_SEEDS=1 go test ./lockstore/dynamostore -run TestRuleBook
// replays one seed.
func TestRuleBook(t *testing.T) {
	leasesim.RuleBook(t, "random requests over DynamoDB's fake and to the rule book", 30, 3000,
		map[string]func(*testing.T) storetest.Harness{"the fake": onTheFake})
}

// Something comes between the requests of one call, or its replies are lost (F09 F23 F24 F25).
func TestPairs(t *testing.T) {
	t.Parallel()
	leasesim.Pairs(t, "pairs of requests over DynamoDB's fake and to the rule book", onTheFake)
}

func onTheFake(t *testing.T) storetest.Harness {
	service := fakedynamo.New(table)
	return harness(t, service, fakeEndpoint, rowsOf(service))
}

func TestGoldenRows(t *testing.T) {
	golden.Run(t, func(t *testing.T) golden.Storage {
		service := fakedynamo.New(table)
		client := dynamostore.ClientOver(service, fakeEndpoint)
		return golden.Storage{
			Parks: true,
			Open:  func() *lockstore.Store { return newStoreOver(t, client, 0, dynamostore.Options{}).Store },
			Read: func() string {
				text, err := json.Marshal(service.Row(golden.Key))
				require.NoError(t, err)
				return string(text)
			},
			Write: func(text string) {
				var row fakedynamo.Item
				require.NoError(t, json.Unmarshal([]byte(text), &row))
				service.SetRow(golden.Key, row)
			},
		}
	})
}

// TestTrustNeverOverlaps is package leasesim over the fake of DynamoDB, whose time has whole seconds (M03). The stores' clocks are
// wrong and step, and their tolerances differ (F16 F73). Several replies are lost in a row, or the SDK's next attempt
// gets one.
func TestTrustNeverOverlaps(t *testing.T) {
	t.Parallel()
	leasesim.Sim{
		Part: leasesim.Part{Name: "simulated guards of different tolerances (F73) over DynamoDB's fake", Few: 3, Full: 200},
		Open: func(w *leasesim.World) func(*leasesim.Process) *lockstore.Store {
			service := fakedynamo.New(table)
			w.T.Cleanup(service.Wait)
			w.Step = takeoverDelay
			return func(p *leasesim.Process) *lockstore.Store {
				p.Streak = 9
				// Random pauses from the process's own numbers, so that a seed can be replayed.
				client := dynamodb.New(dynamostore.ClientOver(way{p, service}, fakeEndpoint).Options(), func(o *dynamodb.Options) {
					o.Retryer = jitter{o.Retryer.(aws.RetryerV2), p}
				})
				var opt dynamostore.Options
				if p.Float() < 0.3 {
					opt.Skew = 100*time.Millisecond + p.UpTo(leasesim.TTL)
				}
				s, err := dynamostore.New(client, table, opt)
				require.NoError(t, err)
				s.SetNow(p.Now)
				s.SetRandom(p.UpTo)
				return s.Store
			}
		},
		// A process whose clock is ahead may die before it corrects the end of its lease (P4).
		Drift: 0.1, Offset: 3 * leasesim.TTL / 2, Slack: 8 * time.Second, Delay: 4*leasesim.TTL + takeoverDelay, Forget: true,
	}.Run(t)
}

// way is a process's way to the service.
type way struct {
	p    *leasesim.Process
	next http.RoundTripper
}

func (s way) RoundTrip(r *http.Request) (*http.Response, error) {
	body := bodyOf(s.p.T, r)
	resp, err := leasesim.Send(r.Context(), s.p, func() (*http.Response, bool, error) {
		sent := r.Clone(context.WithoutCancel(r.Context())) // what was sent arrives
		sent.Body = io.NopCloser(bytes.NewReader(body))
		resp, err := s.next.RoundTrip(sent)
		return resp, err == nil && resp.StatusCode == http.StatusOK, err
	})
	switch {
	case errors.Is(err, leasesim.ErrDown):
		err = errRefused
	case errors.Is(err, leasesim.ErrCut):
		err = errReset
	}
	return resp, err
}

// jitter takes the pauses between attempts from the simulation's random numbers.
type jitter struct {
	aws.RetryerV2
	p *leasesim.Process
}

func (j jitter) RetryDelay(int, error) (time.Duration, error) {
	return j.p.UpTo(100 * time.Millisecond), nil
}

// FuzzRow puts any row into the table. A request that says that the row is damaged leaves it as it is, no error has an owner in
// it, and the fence of a grant is above that of the row (F53 F54 M40).
func FuzzRow(f *testing.F) {
	const owner = "OWNEROWNEROWNEROWNEROWNER1"
	service := fakedynamo.New(table)
	store, rows := newStore(f, service, 0, dynamostore.Options{}), rowsOf(service)
	for seed := range uint64(20) { // make verify looks for more
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 1))
		row := item{"ttl": n("1"), "lastFence": n("100000000000000000")} // ahead of the time
		damage := 6 << random.IntN(4)                                    // the key of a row with little damage is granted
		texts := []string{owner, dynamostore.ClosedOwner, dynamostore.SharedOwner, "", "soon", `[{"fence":7,"owner":"a","max":2}]`}
		numbers := []string{"0", "1", "7", "-7", "7.5", "4102444800000", "253402300799999", "253402300800000", "99999999999999999999999999999999999999"}
		for _, name := range strings.Fields("owner fence lastFence expires handedOver revoked started holders text ended endedFence how abandoned result size queue") {
			switch random.IntN(damage) {
			case 0:
				row[name] = s(texts[random.IntN(len(texts))])
			case 1, 2:
				row[name] = n(numbers[random.IntN(len(numbers))])
			case 3:
				row[name] = []types.AttributeValue{listOf(), listOf(placeOf(owner, nil)...), listOf(s("a")), &types.AttributeValueMemberNULL{Value: true}}[random.IntN(4)]
			}
		}
		for what, ask := range methods(store, lockstore.Lease{Key: key, Owner: owner, Fence: 7}) {
			rows.put(t, key, row)
			before := rows.get(t, key)
			err := ask(t.Context())
			if err != nil {
				require.NotContains(t, err.Error(), owner, what)
			}
			if errors.Is(err, lockstore.ErrCorrupt) {
				require.Equal(t, dump(before), dump(rows.get(t, key)), what)
			}
		}
		rows.put(t, key, row)
		if lease, err := store.Acquire(t.Context(), request(time.Minute)); err == nil {
			if v, ok := row[fenceOf(row)].(*types.AttributeValueMemberN); ok {
				last, _ := new(big.Rat).SetString(v.Value)
				require.Positive(t, big.NewRat(int64(lease.Fence), 1).Cmp(last), dump(row))
			}
		}
	})
}
