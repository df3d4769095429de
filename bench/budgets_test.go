package bench

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cirello.io/dynamolock/v2"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lambdatest"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
)

const (
	key = "account/7"
	ttl = time.Minute
)

func TestBudgets(t *testing.T) {
	columns := []string{"figure", "is", "budget", "", ""}
	part(t, "guard", columns, testGuard)
	part(t, "redis", columns, testRedis)
	part(t, "redis with 127 waiters, time in the server", columns, testCrowdedRedis)
	part(t, "dynamodb", columns, testDynamoDB)
	part(t, "zookeeper", columns, testZooKeeper)
	part(t, "waiting for Redis", columns, testWaitingRedis)
	part(t, "waiting for DynamoDB", columns, testWaitingDynamoDB)
	part(t, "waiting for ZooKeeper", columns, testWaitingZooKeeper)
	part(t, "waiting for PostgreSQL", columns, testWaitingPostgres)
	part(t, "start of a function", columns, testStart)
}

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

// testGuard compares an invocation under a deadline, as Lambda sets it, with the two
// calls of the memory store in it. The fastest rounds count: the times are so short that
// in slower rounds the machine mostly did something else.
func testGuard(t *testing.T) {
	g, err := guard.New(memstore.New(nil), guard.Options{})
	fatal(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second) // longer needs a renewing goroutine
	defer cancel()
	work := func(context.Context, guard.Lock) error { return nil }
	do := func() {
		fatal(t, g.Do(ctx, key, work))
	}
	store := cycle(t, memstore.New(nil))
	judge(t, func() [][]time.Duration {
		return contest(400, 500, contestant{"guard", do}, contestant{"store", store})
	}, figure{"guard around memstore : memstore", 4.8, "x", func(times [][]time.Duration) (float64, string) {
		fastest, store := slices.Min(times[0]), slices.Min(times[1])
		return float64(fastest) / float64(store), fmt.Sprintf("%v : %v, the fastest rounds", fastest, store)
	}})
	budget(t, "  allocations", testing.AllocsPerRun(2_000, do), 20, "", "")
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

// testRedis compares with the least that a lock can do, SET NX PX and a script
// that compares and deletes, and with two lock libraries. All use one client's
// settings. The ratio is that of a process that sleeps while it waits for the
// answer, as a function does. On a machine whose other work keeps it awake the
// round trips are several times shorter, and what the server does in the
// scripts (8 µs a cycle against 3 µs for the raw lock) shows as 1.4x. So the narrow
// limits are those against the libraries, which send scripts as well.
func testRedis(t *testing.T) {
	addr := testservers.Redis(t)
	client := func() redis.UniversalClient { return redisClient(t, addr) }
	ctx := t.Context()

	raw := client()
	del := redis.NewScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)
	fatal(t, del.Load(ctx, raw).Err())
	least := func() {
		owner := string(lockstore.NewOwner())
		fatal(t, raw.SetArgs(ctx, "raw:"+key, owner, redis.SetArgs{Mode: "NX", TTL: ttl + time.Millisecond}).Err())
		n, err := del.EvalSha(ctx, raw, []string{"raw:" + key}, owner).Int()
		fatal(t, err)
		if n != 1 {
			t.Fatal("the raw lock was not there")
		}
	}
	bsm := redislock.New(client())
	withRedislock := func() {
		lock, err := bsm.Obtain(ctx, "redislock:"+key, ttl, nil)
		fatal(t, err)
		fatal(t, lock.Release(ctx))
	}
	sync := redsync.New(goredis.NewPool(client()))
	withRedsync := func() {
		lock := sync.NewMutex("redsync:"+key, redsync.WithExpiry(ttl), redsync.WithTries(1))
		fatal(t, lock.LockContext(ctx))
		if ok, err := lock.UnlockContext(ctx); err != nil || !ok {
			t.Fatal(ok, err)
		}
	}
	ours := cycle(t, redisStore(t, client()))
	again := cycle(t, redisStore(t, client()))
	slower := func() {
		start := time.Now()
		again()
		for end := time.Since(start) * 11 / 10; time.Since(start) < end; {
		}
	}

	judge(t, func() [][]time.Duration {
		return contest(rounds, 1000, contestant{"redisstore", ours}, contestant{"raw", least},
			contestant{"redislock", withRedislock}, contestant{"redsync", withRedsync}, contestant{"slower", slower})
	},
		figure{"redisstore : SET NX PX and EVALSHA", 1.6, "x", compare(0, 1)},
		figure{"redisstore : bsm/redislock", 1.35, "x", compare(0, 2)},
		figure{"redisstore : go-redsync/redsync", 0, "x", compare(0, 3)},
		// A control: a lock that is a tenth slower has to show.
		figure{"control: redisstore, a tenth slower", 0.95, "x", compare(0, 4)},
	)
	budget(t, "  allocations, acquire and release", testing.AllocsPerRun(500, ours), 30, "", "")

	counted, n := client(), &count{}
	once := cycle(t, redisStore(t, counted))
	once()
	counted.AddHook(n)
	once()
	budget(t, "  requests, acquire and release", float64(n.requests.Load()), 2, "", "")

	var servers [][]time.Duration
	judge(t, func() [][]time.Duration {
		servers = make([][]time.Duration, 2)
		for range rounds {
			for i, run := range []func(){ours, withRedislock} {
				servers[i] = append(servers[i], serverTime(t, raw, 300, run))
			}
		}
		return servers
	}, figure{"time in the server : bsm/redislock's", 2.4, "x", compare(0, 1)})
}

// serverTime is how long a Redis server worked on the scripts of one call of run, without reading and
// answering. The time of a script has that of the commands that it calls.
func serverTime(t *testing.T, c redis.UniversalClient, times int, run func()) time.Duration {
	fatal(t, c.ConfigResetStat(t.Context()).Err())
	for range times {
		run()
	}
	text, err := c.Info(t.Context(), "commandstats").Result()
	fatal(t, err)
	_, text, _ = strings.Cut(text, "cmdstat_evalsha:")
	_, text, _ = strings.Cut(text, "usec=")
	text, _, _ = strings.Cut(text, ",")
	usec, err := strconv.Atoi(text)
	fatal(t, err)
	return time.Duration(usec) * time.Microsecond / time.Duration(times)
}

// testCrowdedRedis measures the scripts on keys with 127 waiters, each on 20 keys in a row, as a busy server
// works: behind another command the caches have nothing of a script. They are compared with a script that reads and
// writes an entry of that size, which is the least that a change of one takes.
func testCrowdedRedis(t *testing.T) {
	const waiters, keys, rounds = 127, 20, 15
	addr := testservers.Redis(t)
	client := redisClient(t, addr)
	store := redisStore(t, client)
	ctx := t.Context()
	type crowd struct {
		key   string
		lease lockstore.Lease
		queue []lockstore.Request
	}
	request := func(c *crowd) lockstore.Request {
		return lockstore.Request{Key: c.key, Owner: lockstore.NewOwner(), TTL: ttl, HolderInfo: lockstore.HolderInfo{Name: "bench"}, JoinQueue: true}
	}
	must := func(lease lockstore.Lease, err error) lockstore.Lease {
		fatal(t, err)
		return lease
	}
	join := func(c *crowd) {
		r := request(c)
		if _, err := store.Acquire(ctx, r); !errors.Is(err, lockstore.ErrRefused) {
			t.Fatal(err)
		}
		c.queue = append(c.queue, r)
	}
	leave := func(c *crowd) {
		last := len(c.queue) - 1
		fatal(t, store.Leave(ctx, c.key, c.queue[last].Owner))
		c.queue = c.queue[:last]
	}
	extend := func(c *crowd) { // the first in the queue, what it was handed
		c.lease = must(store.Acquire(ctx, c.queue[0]))
		c.queue = c.queue[1:]
	}
	release := func(c *crowd) { fatal(t, store.Release(ctx, c.lease)) }
	renew := func(c *crowd) { must(store.Renew(ctx, c.lease, ttl)) }
	revoke := func(c *crowd) {
		_, err := store.Revoke(ctx, lockstore.RevokeRequest{Key: c.key, Fence: c.lease.Fence, By: lockstore.HolderInfo{Name: "bench"}, OpenAtOnce: true})
		fatal(t, err)
	}
	crowds := make([]*crowd, keys)
	for i := range crowds {
		c := &crowd{key: fmt.Sprint(key, i)}
		crowds[i], c.lease = c, must(store.Acquire(ctx, request(c)))
		fatal(t, client.Set(ctx, "rewrite:"+c.key, strings.Repeat("-", (waiters+1)*(len(lockstore.NewOwner())+1)), 0).Err())
		for range waiters {
			join(c)
		}
	}
	rewrite := redis.NewScript(`local e = redis.call('GET', KEYS[1]) redis.call('SET', KEYS[1], string.sub(e, 1, 30) .. string.sub(e, 31), 'KEEPTTL') return 1`)
	fatal(t, rewrite.Load(ctx, client).Err())
	alone := func(c *crowd) { fatal(t, rewrite.EvalSha(ctx, client, []string{"rewrite:" + c.key}).Err()) }
	steps := []struct {
		name  string // "" has no figure; the others are compared with the last
		limit float64
		do    func(*crowd)
	}{
		{"leave", 7.5, leave}, {"refused, with a place", 7.5, join}, {"renew", 7.5, renew},
		{"release and hand over", 7.5, release}, {"extend what was handed over", 7.5, extend}, {"", 0, join},
		{"revoke at once and hand over", 7.5, revoke}, {"", 0, extend}, {"", 0, join}, {"", 0, alone},
	}
	var figures []figure
	for i, s := range steps {
		if s.name != "" {
			figures = append(figures, figure{s.name + " : reading and writing the entry", s.limit, "x", compare(i, len(steps)-1)})
		}
	}
	judge(t, func() [][]time.Duration {
		times := make([][]time.Duration, len(steps))
		for range rounds {
			for i, s := range steps {
				took := serverTime(t, client, 1, func() {
					for _, c := range crowds {
						s.do(c)
					}
				}) / keys
				times[i] = append(times[i], took)
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

// testDynamoDB compares with another lock library, dynamolock. It gets what makes its cycle cheapest: one attempt, no
// heartbeats, the row is kept. It stores the holder, too.
func testDynamoDB(t *testing.T) {
	const table = "locks"
	ctx := t.Context()
	client := dynamoClient(t, testservers.Table(t, testservers.DynamoDB(t), table, "key"))
	ours := func(api dynamostore.API) func() {
		store, err := dynamostore.New(api, table, dynamostore.Options{})
		fatal(t, err)
		return cycle(t, store.Store)
	}
	peers := func(api dynamolock.DynamoDBClient) func() {
		locks, err := dynamolock.New(api, table, dynamolock.WithLeaseDuration(ttl), dynamolock.DisableHeartbeat())
		fatal(t, err)
		return func() {
			lock, err := locks.AcquireLockWithContext(ctx, "dynamolock/"+key, dynamolock.FailIfLocked(),
				dynamolock.WithData([]byte("bench 8f5a1c52-3a3c-4c1e-9d3c-000000000000")), dynamolock.ReplaceData())
			fatal(t, err)
			released, err := locks.ReleaseLockWithContext(ctx, lock)
			fatal(t, err)
			if !released {
				t.Fatal("dynamolock did not release its lock")
			}
		}
	}
	our, peer := metered{Client: client}, metered{Client: client}
	for meter, once := range map[*metered]func(){&our: ours(&our), &peer: peers(&peer)} {
		once() // so that the second finds a row, as nearly every acquire does
		*meter = metered{Client: client}
		once()
	}
	budget(t, "dynamostore, requests", float64(our.reads+our.writes), 2, "",
		fmt.Sprintf("cirello.io/dynamolock %d, of which %d reads", peer.reads+peer.writes, peer.reads))
	budget(t, "  write units", our.units, 2, "", fmt.Sprintf("cirello.io/dynamolock %.2f", peer.units))
	contestants := []contestant{{"dynamostore", ours(client)}, {"dynamolock", peers(client)}}
	contest(1, 400, contestants...) // the server's compiler is busy at first
	judge(t, func() [][]time.Duration { return contest(rounds, 100, contestants...) },
		figure{"dynamostore : cirello.io/dynamolock", 1.05, "x", compare(0, 1)},
	)
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
		{"both", []string{"LOCK_URL=dynamodb://locks"}, 1.85},
	}
	dir := t.TempDir()
	t.Chdir("..") // the probes belong to the product's module
	var contestants []contestant
	var times [][]time.Duration
	for i, p := range probes {
		binary := filepath.Join(dir, p.name)
		fatal(t, lambdatest.Build(t.Context(), "./internal/size/probe/"+p.name, binary))
		contestants = append(contestants, contestant{p.name, func() {
			env, err := lambdatest.Start(t.Context(), lambdatest.Config{Binary: binary, Env: p.env})
			fatal(t, err)
			times[i] = append(times[i], env.InitDuration())
			fatal(t, env.Close())
		}})
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
