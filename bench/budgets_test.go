package bench

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cirello.io/dynamolock/v2"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lambdatest"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
)

const (
	key = "account/7"
	ttl = time.Minute
)

// cycle is one acquire and one release as the guard makes them.
func cycle(t *testing.T, store *lockstore.Store) func() {
	holder := lockstore.HolderInfo{Name: "bench", ID: "8f5a1c52-3a3c-4c1e-9d3c-000000000000", Since: time.Now()}
	ctx := t.Context()
	return func() {
		lease, err := store.Acquire(ctx, lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: ttl, HolderInfo: holder})
		fatal(t, err)
		fatal(t, store.Release(ctx, lease))
	}
}

func config(t *testing.T, rawURL string) lockstore.Config {
	u, err := url.Parse(rawURL)
	fatal(t, err)
	return lockstore.Config{URL: u, Getenv: func(string) string { return "" }}
}

// count counts the requests of any number of Redis clients.
type count struct{ requests atomic.Int64 }

func (c *count) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *count) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.requests.Add(1)
		return next(ctx, cmd)
	}
}

func (c *count) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.requests.Add(int64(len(cmds)))
		return next(ctx, cmds)
	}
}

func redisClient(t *testing.T, addr string) redis.UniversalClient {
	c, err := redisstore.Client(config(t, "redis://"+addr))
	fatal(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func redisStore(t *testing.T, c redis.UniversalClient) *lockstore.Store {
	store, err := redisstore.New(c, redisstore.Options{})
	fatal(t, err)
	return store
}

// testRedis compares with a lock library, whose client has the same settings. The ratio is that of a process that
// sleeps while it waits for the answer, as a function does. On a machine whose other work keeps it awake the round trips are
// several times shorter, and what the server does in the scripts shows more.
func testRedis(t *testing.T) {
	addr := testservers.Redis(t)
	ctx := t.Context()
	locks := redislock.New(redisClient(t, addr))
	contestants := []contestant{cycle(t, redisStore(t, redisClient(t, addr))), func() {
		lock, err := locks.Obtain(ctx, "redislock:"+key, ttl, nil)
		fatal(t, err)
		fatal(t, lock.Release(ctx))
	}}
	judge(t, func() [][]time.Duration { return contest(rounds, 1000, contestants...) },
		figure{"redisstore : bsm/redislock", 1.35, "x", compare(0, 1)},
	)
	counted, n := redisClient(t, addr), &count{}
	once := cycle(t, redisStore(t, counted))
	once()
	counted.AddHook(n)
	once()
	budget(t, "  requests, acquire and release", float64(n.requests.Load()), 2, "", "")
}

// serverTime is how long a Redis server worked on the scripts of run, without reading and answering. The time of
// a script has that of the commands that it calls.
func serverTime(t *testing.T, c redis.UniversalClient, run func()) time.Duration {
	fatal(t, c.ConfigResetStat(t.Context()).Err())
	run()
	text, err := c.Info(t.Context(), "commandstats").Result()
	fatal(t, err)
	_, text, _ = strings.Cut(text, "cmdstat_evalsha:")
	_, text, _ = strings.Cut(text, "usec=")
	text, _, _ = strings.Cut(text, ",")
	usec, err := strconv.Atoi(text)
	fatal(t, err)
	return time.Duration(usec) * time.Microsecond
}

// testCrowdedRedis measures the scripts on keys with 127 waiters, each on 20 keys in a row, as a busy server
// works: behind another command the caches have nothing of a script.
func testCrowdedRedis(t *testing.T) {
	const waiters, keys, most = 127, 20, 150 // microseconds
	client := redisClient(t, testservers.Redis(t))
	store := redisStore(t, client)
	ctx := t.Context()
	type line struct {
		key   string
		lease lockstore.Lease
		queue []lockstore.Request
	}
	request := func(l *line) lockstore.Request {
		return lockstore.Request{Key: l.key, Owner: lockstore.NewOwner(), TTL: ttl, HolderInfo: lockstore.HolderInfo{Name: "bench"}, JoinQueue: true}
	}
	acquire := func(l *line, r lockstore.Request) {
		var err error
		l.lease, err = store.Acquire(ctx, r)
		fatal(t, err)
	}
	join := func(l *line) {
		r := request(l)
		if _, err := store.Acquire(ctx, r); !errors.Is(err, lockstore.ErrRefused) {
			t.Fatal(err)
		}
		l.queue = append(l.queue, r)
	}
	extend := func(l *line) { // the first in the queue, what it was handed
		acquire(l, l.queue[0])
		l.queue = l.queue[1:]
	}
	lines := make([]*line, keys)
	for i := range lines {
		lines[i] = &line{key: fmt.Sprint(key, i)}
		acquire(lines[i], request(lines[i]))
		for range waiters {
			join(lines[i])
		}
	}
	steps := []struct {
		name string // "" has no figure: it brings the keys back to 127 waiters
		do   func(*line)
	}{
		{"leave", func(l *line) {
			last := len(l.queue) - 1
			fatal(t, store.Leave(ctx, l.key, l.queue[last].Owner))
			l.queue = l.queue[:last]
		}},
		{"refused, with a place", join},
		{"renew", func(l *line) {
			_, err := store.Renew(ctx, l.lease, ttl)
			fatal(t, err)
		}},
		{"release and hand over", func(l *line) { fatal(t, store.Release(ctx, l.lease)) }},
		{"extend what was handed over", extend},
		{"", join},
	}
	var figures []figure
	for i, s := range steps {
		if s.name != "" {
			figures = append(figures, figure{s.name, most, " µs", func(times [][]time.Duration) (float64, string) {
				return float64(median(times[i])) / float64(time.Microsecond), ""
			}})
		}
	}
	judge(t, func() [][]time.Duration {
		times := make([][]time.Duration, len(steps))
		for range rounds {
			for i, s := range steps {
				times[i] = append(times[i], serverTime(t, client, func() {
					for _, l := range lines {
						s.do(l)
					}
				})/keys)
			}
		}
		return times
	}, figures...)
}

// metered is a DynamoDB client that keeps what it was asked for and what the
// server charged.
type metered struct {
	*dynamodb.Client
	reads, writes int
	refused       int     // writes whose condition was false
	units         float64 // of the writes
}

func (m *metered) GetItem(ctx context.Context, in *dynamodb.GetItemInput, opts ...func(*dynamodb.Options)) (*dynamodb.GetItemOutput, error) {
	m.reads++
	return m.Client.GetItem(ctx, in, opts...)
}

func (m *metered) PutItem(ctx context.Context, in *dynamodb.PutItemInput, opts ...func(*dynamodb.Options)) (*dynamodb.PutItemOutput, error) {
	asked := *in
	asked.ReturnConsumedCapacity = types.ReturnConsumedCapacityTotal
	out, err := m.Client.PutItem(ctx, &asked, opts...)
	if err == nil {
		m.wrote(out.ConsumedCapacity)
	}
	return out, err
}

func (m *metered) UpdateItem(ctx context.Context, in *dynamodb.UpdateItemInput, opts ...func(*dynamodb.Options)) (*dynamodb.UpdateItemOutput, error) {
	asked := *in
	asked.ReturnConsumedCapacity = types.ReturnConsumedCapacityTotal
	out, err := m.Client.UpdateItem(ctx, &asked, opts...)
	if err == nil {
		m.wrote(out.ConsumedCapacity)
	} else {
		m.refused++
	}
	return out, err
}

func (m *metered) wrote(charged *types.ConsumedCapacity) {
	m.writes++
	m.units += *charged.CapacityUnits
}

// dynamoClient is a client of the table of a URL that testservers.Table has made.
func dynamoClient(t *testing.T, rawURL string) *dynamodb.Client {
	c, err := dynamostore.Client(config(t, rawURL))
	fatal(t, err)
	return c
}

// testDynamoDB counts the requests for a free key, beside another lock library, dynamolock. It gets what makes its cycle
// cheapest: one attempt, no heartbeats, the row is kept. It stores the holder, too.
func testDynamoDB(t *testing.T) {
	const table = "locks"
	ctx := t.Context()
	client := dynamoClient(t, testservers.Table(t, testservers.DynamoDB(t), table, "key"))
	our, peer := metered{Client: client}, metered{Client: client}
	store, err := dynamostore.New(&our, table, dynamostore.Options{})
	fatal(t, err)
	locks, err := dynamolock.New(&peer, table, dynamolock.WithLeaseDuration(ttl), dynamolock.DisableHeartbeat())
	fatal(t, err)
	for meter, once := range map[*metered]func(){&our: cycle(t, store.Store), &peer: func() {
		lock, err := locks.AcquireLockWithContext(ctx, "dynamolock/"+key, dynamolock.FailIfLocked(),
			dynamolock.WithData([]byte("bench 8f5a1c52-3a3c-4c1e-9d3c-000000000000")), dynamolock.ReplaceData())
		fatal(t, err)
		released, err := locks.ReleaseLockWithContext(ctx, lock)
		fatal(t, err)
		if !released {
			t.Fatal("dynamolock did not release its lock")
		}
	}} {
		once() // so that the second finds a row, as nearly every acquire does
		*meter = metered{Client: client}
		once()
	}
	budget(t, "dynamostore, requests", float64(our.reads+our.writes), 2, "",
		fmt.Sprintf("cirello.io/dynamolock %d, of which %d reads", peer.reads+peer.writes, peer.reads))
	budget(t, "  write units", our.units, 2, "", fmt.Sprintf("cirello.io/dynamolock %.2f", peer.units))
}

// testStart compares the time from the start of a process to its first request
// for an invocation with that of a function without a lock. With DynamoDB most of the difference is the SDK's: its
// packages of schemas and endpoints take 0.9 ms to initialize.
func testStart(t *testing.T) {
	const runs = 120
	probes := []struct {
		name  string
		env   []string
		limit float64
	}{
		{"bare", nil, 0},
		{"redis", []string{"LOCK_URL=redis://127.0.0.1:6379"}, 1.25},
		{"dynamodb", []string{"LOCK_URL=dynamodb://locks"}, 1.70},
	}
	dir := t.TempDir()
	t.Chdir("..") // the probes belong to the product's module
	var contestants []contestant
	var times [][]time.Duration
	for i, p := range probes {
		binary := filepath.Join(dir, p.name)
		fatal(t, lambdatest.Build(t.Context(), "./internal/size/probe/"+p.name, binary))
		contestants = append(contestants, func() {
			env, err := lambdatest.Start(t.Context(), lambdatest.Config{Binary: binary, Env: p.env})
			fatal(t, err)
			times[i] = append(times[i], env.InitDuration())
			fatal(t, env.Close())
		})
	}
	var figures []figure
	for i, p := range probes[1:] {
		figures = append(figures, figure{"start of a function: " + p.name + " : bare", p.limit, "x", compare(i+1, 0)})
	}
	judge(t, func() [][]time.Duration {
		times = make([][]time.Duration, len(probes))
		contest(runs, 1, contestants...)
		return times
	}, figures...)
}
