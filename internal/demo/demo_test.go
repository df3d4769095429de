package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lambdalock/lambdalock/internal/testservers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// small is a demo that is large enough to lose updates without a lock.
func small(t *testing.T, lockURL string) settings {
	return settings{
		lockURL:      lockURL,
		getenv:       func(string) string { return "" },
		root:         filepath.Join("..", ".."),
		picture:      filepath.Join(t.TempDir(), "made", "timeline.svg"),
		environments: 6,
		invocations:  36,
	}
}

// TestRun is the whole demo as make run calls it.
func TestRun(t *testing.T) {
	var b bytes.Buffer
	set := small(t, "")
	require.NoError(t, run(testContext(t), set, &screen{out: &b}))
	assert.Contains(t, b.String(), "36 withdrawals of 5.00 from one account of 360.00,\n6 Lambda environments at once, on an embedded Redis.\n")
	assert.Contains(t, b.String(), "36 of 36            36 of 36")
	assert.Regexp(t, `\nThe work alone takes \d+\.\d s when it runs one after the other\.\n`, b.String())
	assert.NotContains(t, b.String(), "nothing was lost")
	assert.NotContains(t, b.String(), "\x1b")
	for line := range strings.Lines(b.String()) {
		if !strings.Contains(line, set.picture) {
			assert.LessOrEqual(t, len(line), 81, line)
		}
	}
	svg, err := os.ReadFile(set.picture)
	require.NoError(t, err)
	assert.GreaterOrEqual(t, bytes.Count(svg, []byte("<title>env ")), 2*36)
}

// TestEveryStore runs both halves on real servers. Without the lock updates are
// lost, so the test would see a lock that does nothing.
func TestEveryStore(t *testing.T) {
	dir := t.TempDir()
	var once sync.Once
	var built binaries
	for name, open := range map[string]func(t *testing.T) string{
		"redis":  func(t *testing.T) string { return "redis://" + testservers.Redis(t) },
		"valkey": func(t *testing.T) string { return "valkey://" + testservers.Valkey(t) },
		"cluster": func(t *testing.T) string {
			return "redis://" + testservers.Cluster(t, testservers.RedisServer)[0] + "?cluster=true"
		},
		"DynamoDB Local": func(t *testing.T) string {
			return "dynamodb://locks?region=us-east-1&endpoint=" + testservers.DynamoDB(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := testContext(t)
			set := small(t, open(t))
			out := &screen{out: t.Output()}
			once.Do(func() {
				var err error
				built, err = build(ctx, set.root, dir, out)
				require.NoError(t, err)
			})
			event, err := readEvent(filepath.Join(set.root, "events", "withdraw.json"))
			require.NoError(t, err)
			p, err := openPlace(ctx, set.lockURL, set.getenv)
			require.NoError(t, err)
			defer p.close()
			d := driver{settings: set, place: p, event: event, binaries: built, out: out}

			without, err := d.half(ctx, "without a lock", built.unguarded)
			require.NoError(t, err)
			assert.Empty(t, without.failure)
			assert.Equal(t, set.invocations, without.succeeded)
			assert.Positive(t, without.lost())
			assert.Positive(t, without.overlaps)

			with, err := d.half(ctx, "with lambdalock", built.withdraw)
			require.NoError(t, err)
			assert.NoError(t, with.verdict())
			assert.Equal(t, set.invocations, with.succeeded)
			assert.Zero(t, with.lost())
			assert.Zero(t, with.overlaps)
			for i := 1; i < len(with.sections); i++ {
				assert.Greater(t, with.sections[i].fence, with.sections[i-1].fence, "fences grow from grant to grant")
			}
			if name == "redis" {
				requireLeft(t, set.lockURL)
			}
			t.Logf("%d lost and %d overlaps without, wait p50 %v p99 %v with", without.lost(), without.overlaps, with.percentile(50), with.percentile(99))
		})
	}
}

// requireLeft wants on the server what leftBehind says.
func requireLeft(t *testing.T, url string) {
	opt, err := redis.ParseURL(url)
	require.NoError(t, err)
	client := redis.NewClient(opt)
	defer client.Close()
	keys, err := client.Keys(t.Context(), "*").Result()
	require.NoError(t, err)
	slices.Sort(keys)
	require.Len(t, keys, 3)
	for i, prefix := range []string{"account:demo-", "account:demo-", "lambdalock:account/demo-"} {
		assert.True(t, strings.HasPrefix(keys[i], prefix), keys[i])
	}
	ttl, err := client.TTL(t.Context(), keys[2]).Result()
	require.NoError(t, err)
	assert.InDelta(t, 1, ttl.Hours(), 0.1)
}

func TestRunSaysWhatIsWrong(t *testing.T) {
	for lockURL, want := range map[string]string{
		"nonsense":              "LOCK_URL: lockstore: the store's URL cannot be read",
		"redis://:hunter2@[::1": "LOCK_URL: lockstore: the store's URL cannot be read",
		"etcd://host":           `LOCK_URL: lockstore: no store for the scheme "etcd"; linked here: dynamodb, redis, rediss, valkey, valkeys`,
		"redis://127.0.0.1:1":   "no account can be opened on redis://127.0.0.1:1",
		"redis://127.0.0.1?x=y": `LOCK_URL: lockstore: the redis URL has the unknown parameter "x"`,
		"dynamodb://x":          "LOCK_URL: dynamostore: the table name",
		"dynamodb://locks?endpoint=http://127.0.0.1:1": "the tables cannot be made on http://127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused",
	} {
		err := run(testContext(t), small(t, lockURL), &screen{out: &bytes.Buffer{}})
		require.ErrorContains(t, err, want, lockURL)
		assert.NotContains(t, err.Error(), "hunter2")
		assert.NotContains(t, err.Error(), "\n")
	}
	set := small(t, "")
	set.root = t.TempDir()
	require.ErrorContains(t, run(testContext(t), set, &screen{out: &bytes.Buffer{}}), "run the demo in the repository's root")
}

// TestInterrupted: a Ctrl-C in the middle ends the demo at once, and goleak
// sees whatever would be left.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(testContext(t))
	set := small(t, "")
	set.invocations = 100_000
	out := &screen{terminal: true, out: writerFunc(func(b []byte) {
		if strings.Contains(string(b), "without a lock: 5 of") {
			cancel()
		}
	})}
	require.ErrorIs(t, run(ctx, set, out), context.Canceled)
	_, err := os.Stat(set.picture)
	require.ErrorIs(t, err, os.ErrNotExist)
}

type writerFunc func([]byte)

func (f writerFunc) Write(b []byte) (int, error) { f(b); return len(b), nil }

func TestEvent(t *testing.T) {
	e, err := readEvent(filepath.Join("..", "..", "events", "withdraw.json"))
	require.NoError(t, err)
	assert.EqualValues(t, 500, e.amount)
	text, err := e.with("demo-1", "w-9")
	require.NoError(t, err)
	for _, want := range []string{`"rawPath":"/accounts/demo-1/withdrawals"`, `"pathParameters":{"id":"demo-1"}`, `{\"id\": \"w-9\", \"amount\": 500}`, `"version":"2.0"`} {
		assert.Contains(t, string(text), want)
	}

	file := filepath.Join(t.TempDir(), "event.json")
	for _, bad := range []string{"", "{}", `{"body": "{}"}`, `{"body": 1}`} {
		require.NoError(t, os.WriteFile(file, []byte(bad), 0o600))
		_, err := readEvent(file)
		require.ErrorContains(t, err, file, fmt.Sprintf("%q", bad))
	}
}

func TestTablesAreMadeOnlyHere(t *testing.T) {
	for endpoint, local := range map[string]bool{
		"http://127.0.0.1:8000": true, "http://localhost:8000": true, "http://[::1]:8000": true,
		"": false, "https://dynamodb.eu-central-1.amazonaws.com": false, "http://localhost.example.com": false, "http://192.168.1.2:8000": false, ":": false,
	} {
		assert.Equal(t, local, isLocal(endpoint), endpoint)
	}
}

func TestRealDynamoGetsTheCallersCredentials(t *testing.T) {
	const sentence = "LOCK_URL names DynamoDB on AWS: set AWS_REGION and export credentials (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY); " +
		"the tables locks (key S) and locks-accounts (account S) must exist"
	id, secret := "AWS_ACCESS_KEY_ID=mine", "AWS_SECRET_ACCESS_KEY=hunter2"
	region, other := "AWS_REGION=eu-central-1", "AWS_DEFAULT_REGION=eu-central-1"
	for _, c := range []struct {
		lockURL string
		env     []string
		want    []string // of the functions' environment, after the URLs; nil: the sentence
	}{
		{"dynamodb://locks", nil, nil},
		{"dynamodb://locks", []string{id, secret}, nil},
		{"dynamodb://locks?region=eu-central-1", nil, nil},
		{"dynamodb://locks", []string{region, id}, nil},
		{"dynamodb://locks", []string{region, secret}, nil},
		{"dynamodb://locks", []string{region, id, secret}, []string{region, other, id, secret}},
		{"dynamodb://locks", []string{other, id, secret}, []string{region, other, id, secret}},
		{"dynamodb://locks?region=eu-central-1", []string{id, secret, "AWS_SESSION_TOKEN=t"}, []string{id, secret, "AWS_SESSION_TOKEN=t"}},
	} {
		getenv := func(name string) string {
			for _, v := range c.env {
				if value, ok := strings.CutPrefix(v, name+"="); ok {
					return value
				}
			}
			return ""
		}
		p, err := openPlace(testContext(t), c.lockURL, getenv)
		if c.want == nil {
			require.EqualError(t, err, sentence, "%v", c)
			continue
		}
		require.NoError(t, err, "%v", c)
		accounts := strings.Replace(c.lockURL, "//locks", "//locks-accounts", 1)
		assert.Equal(t, append([]string{"LOCK_URL=" + c.lockURL, "ACCOUNTS_URL=" + accounts}, c.want...), p.env)
	}
	_, err := openPlace(testContext(t), "dynamodb://locks?endpoint=http://192.168.1.2:8000", func(string) string { return "" })
	require.ErrorContains(t, err, "names DynamoDB behind a remote endpoint: set AWS_REGION")
}

// TestTablesThatAreNotThere: where no tables are made, the demo says in one
// short line what is missing. 0.0.0.0 reaches this machine and is none of the
// addresses that stand for it.
func TestTablesThatAreNotThere(t *testing.T) {
	set := small(t, "dynamodb://locks?region=us-east-1&endpoint="+strings.Replace(testservers.DynamoDB(t), "127.0.0.1", "0.0.0.0", 1))
	set.getenv = functionEnv
	err := run(testContext(t), set, &screen{out: &bytes.Buffer{}})
	require.ErrorContains(t, err, "ResourceNotFoundException: Cannot do operations on a non-existent table; the tables locks (key S) and locks-accounts (account S) must exist")
	assert.NotContains(t, err.Error(), "operation error")
	assert.NotContains(t, err.Error(), "RequestID")
}

func TestShorten(t *testing.T) {
	for text, want := range map[string]string{
		"plain": "plain",
		`account "a": operation error DynamoDB: UpdateItem, https response error StatusCode: 400, RequestID: 55feab0a-8d86, ResourceNotFoundException: no table`:                                                            `account "a": ResourceNotFoundException: no table`,
		`operation error DynamoDB: UpdateItem, exceeded maximum number of attempts, 3, https response error StatusCode: 0, RequestID: , request send failed, Post "http://h:1/": dial tcp h:1: connect: connection refused`: "dial tcp h:1: connect: connection refused",
		"operation error DynamoDB: GetItem, get identity: no credentials": "get identity: no credentials",
	} {
		assert.Equal(t, want, shorten(text))
	}
}
