package bench

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/lambdatest"
	"github.com/lambdalock/lambdalock/internal/testservers"
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
	line("", "is", "budget", "", "")
	t.Run("guard", testGuard)
	t.Run("redis", testRedis)
	t.Run("dynamodb", testDynamoDB)
	t.Run("start", testStart)
}

// cycle is one acquire and one release as the guard makes them.
func cycle(t *testing.T, store lockstore.Store) func() {
	holder := lockstore.Holder{Name: "bench", ID: "8f5a1c52-3a3c-4c1e-9d3c-000000000000", Since: time.Now()}
	ctx := t.Context()
	return func() {
		lease, err := store.Acquire(ctx, lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: ttl, Holder: holder})
		if err != nil {
			t.Fatal(err)
		}
		if err := store.Release(ctx, lease); err != nil {
			t.Fatal(err)
		}
	}
}

func config(t *testing.T, rawURL string) lockstore.Config {
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local"}
	return lockstore.Config{URL: u, Getenv: func(name string) string { return env[name] }}
}

// testGuard measures an invocation under a deadline, as Lambda sets it, around
// the memory store. Its fastest round counts: there is nothing to compare it
// with, and slower rounds are what the machine had to do besides.
func testGuard(t *testing.T) {
	g, err := guard.New(memstore.New(nil), guard.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second) // longer needs a renewing goroutine
	defer cancel()
	work := func(context.Context, guard.Lock) error { return nil }
	do := func() {
		if err := g.Do(ctx, key, work); err != nil {
			t.Fatal(err)
		}
	}
	store := cycle(t, memstore.New(nil))
	times := contest(400, 500, contestant{"guard", do}, contestant{"store", store})
	fastest := times[0][0]
	for _, d := range times[0] {
		fastest = min(fastest, d)
	}
	budget(t, "guard around memstore, an invocation", float64(fastest)/float64(time.Microsecond), 3, "µs",
		fmt.Sprintf("median %v, memstore %v", median(times[0]), median(times[1])))
	budget(t, "  allocations", testing.AllocsPerRun(2_000, do), 20, "", "")
}

// count counts the requests of a client.
type count struct{ requests int }

func (c *count) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *count) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.requests++
		return next(ctx, cmd)
	}
}

func (c *count) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.requests += len(cmds)
		return next(ctx, cmds)
	}
}

// testRedis compares with the least that a lock can do, SET NX PX and a script
// that compares and deletes, and with two lock libraries. All use one client's
// settings. The ratio is that of a process that sleeps while it waits for the
// answer, as a function does. On a machine whose other work keeps it awake the
// round trips are several times shorter, and what the server does in the
// scripts (8 µs a cycle against 3 µs for the raw lock) shows as 1.4x.
func testRedis(t *testing.T) {
	addr := testservers.Redis(t)
	client := func() redis.UniversalClient {
		c, err := redisstore.Client(config(t, "redis://"+addr))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	open := func(c redis.UniversalClient) lockstore.Store {
		store, err := redisstore.New(c, redisstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return store
	}
	ctx := t.Context()
	fatal := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}

	raw := client()
	del := redis.NewScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)
	fatal(del.Load(ctx, raw).Err())
	floor := func() {
		owner := string(lockstore.NewOwner())
		fatal(raw.SetArgs(ctx, "raw:"+key, owner, redis.SetArgs{Mode: "NX", TTL: ttl + time.Millisecond}).Err())
		n, err := del.EvalSha(ctx, raw, []string{"raw:" + key}, owner).Int()
		fatal(err)
		if n != 1 {
			t.Fatal("the raw lock was not there")
		}
	}
	bsm := redislock.New(client())
	withRedislock := func() {
		lock, err := bsm.Obtain(ctx, "redislock:"+key, ttl, nil)
		fatal(err)
		fatal(lock.Release(ctx))
	}
	sync := redsync.New(goredis.NewPool(client()))
	withRedsync := func() {
		lock := sync.NewMutex("redsync:"+key, redsync.WithExpiry(ttl), redsync.WithTries(1))
		fatal(lock.LockContext(ctx))
		if ok, err := lock.UnlockContext(ctx); err != nil || !ok {
			t.Fatal(ok, err)
		}
	}
	ours := cycle(t, open(client()))

	times := contest(40, 1000, contestant{"redisstore", ours}, contestant{"raw", floor},
		contestant{"redislock", withRedislock}, contestant{"redsync", withRedsync})
	note := func(i int) string { return fmt.Sprintf("%v : %v", micro(times[0]), micro(times[i])) }
	budget(t, "redisstore : SET NX PX and EVALSHA", ratio(times[0], times[1]), 1.35, "x", note(1))
	// No slower than the peers; 0.05 is what two runs of one lock differ by.
	budget(t, "redisstore : bsm/redislock", ratio(times[0], times[2]), 1.05, "x", note(2))
	budget(t, "redisstore : go-redsync/redsync", ratio(times[0], times[3]), 1.05, "x", note(3))
	budget(t, "  allocations, acquire and release", testing.AllocsPerRun(500, ours), 34, "", "")

	counted, n := client(), &count{}
	again := cycle(t, open(counted))
	again()
	counted.AddHook(n)
	again()
	budget(t, "  requests, acquire and release", float64(n.requests), 2, "", "")
}

// recorder keeps the updates that a store sends.
type recorder struct {
	*dynamodb.Client
	sent []*dynamodb.UpdateItemInput
}

func (r *recorder) UpdateItem(ctx context.Context, in *dynamodb.UpdateItemInput, opts ...func(*dynamodb.Options)) (*dynamodb.UpdateItemOutput, error) {
	r.sent = append(r.sent, in)
	return r.Client.UpdateItem(ctx, in, opts...)
}

// testDynamoDB compares with the same two updates, sent by hand through the
// same client: what the store costs. Beside it, without a budget, stands the
// least lock there is, an owner that is set and removed: what DynamoDB Local
// takes longer for the fence, the expiry and the holder.
func testDynamoDB(t *testing.T) {
	const table = "locks"
	endpoint := testservers.DynamoDB(t)
	ctx := t.Context()
	fatal := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	client, err := dynamostore.Client(config(t, "dynamodb://"+table+"?endpoint="+url.QueryEscape(endpoint)))
	fatal(err)
	_, err = client.CreateTable(ctx, &dynamodb.CreateTableInput{
		TableName:            aws.String(table),
		BillingMode:          types.BillingModePayPerRequest,
		AttributeDefinitions: []types.AttributeDefinition{{AttributeName: aws.String("key"), AttributeType: types.ScalarAttributeTypeS}},
		KeySchema:            []types.KeySchemaElement{{AttributeName: aws.String("key"), KeyType: types.KeyTypeHash}},
	})
	fatal(err)
	text := func(s string) types.AttributeValue { return &types.AttributeValueMemberS{Value: s} }

	recorded := &recorder{Client: client}
	store, err := dynamostore.New(recorded, table, dynamostore.Options{})
	fatal(err)
	once := cycle(t, store)
	once() // so that the second finds a row, as nearly every acquire does
	recorded.sent = nil
	once()
	updates := recorded.sent
	budget(t, "  requests, acquire and release", float64(len(updates)), 2, "", "")
	byHand := func() {
		me := text(string(lockstore.NewOwner()))
		fence := &types.AttributeValueMemberN{Value: strconv.FormatInt(time.Now().UnixMicro(), 10)}
		for _, in := range updates {
			again := *in
			again.Key = map[string]types.AttributeValue{"key": text("by hand/" + key)}
			again.ExpressionAttributeValues = maps.Clone(in.ExpressionAttributeValues)
			again.ExpressionAttributeValues[":me"] = me
			again.ExpressionAttributeValues[":fence"] = fence
			_, err := client.UpdateItem(ctx, &again)
			fatal(err)
		}
	}
	least := func() {
		in := dynamodb.UpdateItemInput{
			TableName:                 aws.String(table),
			Key:                       map[string]types.AttributeValue{"key": text("least/" + key)},
			ExpressionAttributeNames:  map[string]string{"#owner": "owner"},
			ExpressionAttributeValues: map[string]types.AttributeValue{":me": text(string(lockstore.NewOwner()))},
			UpdateExpression:          aws.String("SET #owner = :me"),
			ConditionExpression:       aws.String("attribute_not_exists(#owner)"),
		}
		_, err := client.UpdateItem(ctx, &in)
		fatal(err)
		in.UpdateExpression, in.ConditionExpression = aws.String("REMOVE #owner"), aws.String("#owner = :me")
		_, err = client.UpdateItem(ctx, &in)
		fatal(err)
	}
	store, err = dynamostore.New(client, table, dynamostore.Options{})
	fatal(err)
	contestants := []contestant{{"dynamostore", cycle(t, store)}, {"by hand", byHand}, {"least", least}}
	contest(1, 400, contestants...) // the server's compiler is busy at first
	times := contest(150, 10, contestants...)
	budget(t, "dynamostore : its two updates by hand", ratio(times[0], times[1]), 1.05, "x",
		fmt.Sprintf("%v : %v", micro(times[0]), micro(times[1])))
	note("  : the least lock of two updates", ratio(times[0], times[2]), "x", fmt.Sprintf("%v : %v", micro(times[0]), micro(times[2])))
}

// testStart compares the time from the start of a process to its first request
// for an invocation with that of a function without a lock.
func testStart(t *testing.T) {
	const runs = 120
	probes := []struct {
		name  string
		env   []string
		limit float64
	}{
		{"bare", nil, 0},
		{"redis", []string{"LOCK_URL=redis://127.0.0.1:6379"}, 1.25},
		{"dynamodb", []string{"LOCK_URL=dynamodb://locks"}, 1.55},
		{"both", []string{"LOCK_URL=dynamodb://locks"}, 1.75},
	}
	dir := t.TempDir()
	t.Chdir("..") // the probes belong to the product's module
	var contestants []contestant
	times := make([][]time.Duration, len(probes))
	for i, p := range probes {
		binary := filepath.Join(dir, p.name)
		if err := lambdatest.Build(t.Context(), "./internal/size/probe/"+p.name, binary); err != nil {
			t.Fatal(err)
		}
		contestants = append(contestants, contestant{p.name, func() {
			env, err := lambdatest.Start(t.Context(), lambdatest.Config{Binary: binary, Env: p.env})
			if err != nil {
				t.Fatal(err)
			}
			times[i] = append(times[i], env.InitDuration())
			if err := env.Close(); err != nil {
				t.Fatal(err)
			}
		}})
	}
	contest(runs, 1, contestants...)
	for i, p := range probes[1:] {
		budget(t, "start of a function: "+p.name+" : bare", ratio(times[i+1], times[0]), p.limit, "x",
			fmt.Sprintf("%v : %v", micro(times[i+1]), micro(times[0])))
	}
}
