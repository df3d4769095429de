package redisstore

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/leasesim"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/internal/watchdog"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
	"github.com/lambdalock/lambdalock/lockstore/storetest/golden"
)

func TestMain(m *testing.M) {
	watchdog.Start()
	m.Run()
}

// TestConformanceVirtualTime runs the suite with the real client on miniredis, in virtual time, while the tests on real servers wait.
func TestConformanceVirtualTime(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		h := openMini(t)
		if verifyrecord.WithRaceDetector { // each sequence has the same races
			h.Sequences = 20
		}
		return h
	}, synctest.Test)
}

// TestRuleBook compares the store on miniredis with the rule book by random requests.
//
// VERIFY_SEED=17 VERIFY_SEEDS=1 go test ./lockstore/redisstore -run TestRuleBook
// replays one seed.
func TestRuleBook(t *testing.T) {
	leasesim.RuleBook(t, "random requests over miniredis and to the rule book", 1, 3000,
		map[string]func(*testing.T) storetest.Harness{"miniredis": openMini})
}

// Each request with another one, from many states of a key.
func TestPairs(t *testing.T) {
	leasesim.Pairs(t, "pairs of requests over miniredis and to the rule book", openMini)
}

func TestRuleBookOnServers(t *testing.T) {
	on := func(start func(testing.TB, ...string) string, rights ...any) func(*testing.T) storetest.Harness {
		return func(t *testing.T) storetest.Harness {
			client := openClient(t, "redis://"+start(t))
			if len(rights) > 0 {
				require.NoError(t, client.Do(t.Context(), append([]any{"ACL", "SETUSER", "default"}, rights...)...).Err())
			}
			return harness(t, client, client)
		}
	}
	leasesim.RuleBookOnServers(t, "random requests to Redis and Valkey and to the rule book", 1000, map[string]func(*testing.T) storetest.Harness{
		"Redis": on(testservers.Redis), "Valkey": on(testservers.Valkey),
		"Redis, where no script may write in place": on(testservers.Redis, "-setrange"),
	})
}

func TestGoldenEntries(t *testing.T) {
	golden.Run(t, func(t *testing.T) golden.Storage {
		m := newMini(t)
		return golden.Storage{
			Parks: true,
			Open:  func() *lockstore.Store { return storeOn(t, openWith(t, mini, dials(m))) },
			Read: func() string {
				entry, err := m.Get(DefaultPrefix + golden.Key)
				require.NoError(t, err)
				return entry
			},
			Write: func(text string) { require.NoError(t, m.Set(DefaultPrefix+golden.Key, text)) },
		}
	})
}

func TestOnServers(t *testing.T) {
	onBoth(t, "one server", func(t *testing.T, program string) {
		conformance(t, testservers.Start(t, program).Addr, "")
	})
}

// What makes no faults of a server shares one cluster: to start its nodes takes seconds.
func TestOnClusters(t *testing.T) {
	onBoth(t, "cluster", func(t *testing.T, program string) {
		addrs := testservers.Cluster(t, program)
		url := "redis://" + addrs[0] + "?cluster=true"
		t.Run("slots", func(t *testing.T) { testSlots(t, url) })
		t.Run("address", func(t *testing.T) { testAddress(t, url) })
		t.Run("requests of a wake-up", func(t *testing.T) { testRequestsOfAWakeUp(t, url) })
		t.Run("F36 policies", func(t *testing.T) {
			for _, addr := range addrs[1:] {
				configure(t, openClient(t, "redis://"+addr), "maxmemory-policy", "volatile-ttl")
			}
			finds(t, url, "no append-only file", "volatile-ttl") // once, also if several nodes have it
		})
		t.Run("F44 rights", func(t *testing.T) { testUsersOfTheCache(t, addrs) })
		conformance(t, addrs[1], "?cluster=true")
	})
}

// conformance runs the suite on a real server. Each case has its own client and its own
// keys.
func conformance(t *testing.T, addr, params string) {
	direct := openClient(t, "redis://"+addr+params)
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		var lose atomic.Bool
		var delay storetest.Delayer
		client := dialerClient(t, "redis://"+addr+params, func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			return &lossyConn{Conn: delay.Conn(conn, isScript), lose: &lose}, err
		})
		h := harness(t, client, direct)
		h.Delay = delay.Delay
		h.LoseReplies = switched(&lose)
		h.Unreachable = func(t *testing.T) *lockstore.Store {
			return openStore(t, "redis://"+closedPort+params)
		}
		return h
	}, storetest.Parallel)
}

// harness is the common part for real servers and miniredis. The suite changes entries
// through direct.
func harness(t *testing.T, client, direct redis.UniversalClient) storetest.Harness {
	store, count := storeOn(t, client), counted(client)
	loadScript(t, store)

	ctx := context.Background()
	at := func(key string) string { return DefaultPrefix + key }
	change := func(f func(string) string) func(*testing.T, string) {
		return func(t *testing.T, key string) {
			entry, err := direct.Get(ctx, at(key)).Result()
			require.NoError(t, err)
			require.NoError(t, direct.Set(ctx, at(key), f(entry), redis.KeepTTL).Err())
		}
	}
	// A completed key has its result in place of the queue.
	queue := func(f func(string) string) func(*testing.T, string) {
		return change(func(e string) string {
			if e[12] == 'K' {
				return e
			}
			return e[:lastLine(e)] + f(e[lastLine(e):])
		})
	}
	number := func(places string) func(*testing.T, string) {
		return change(func(e string) string { return e[:13] + places + e[16:] })
	}
	return storetest.Harness{
		Parks:    true,
		Store:    store,
		Marks:    marks,
		Places:   places,
		Requests: func() int { return int(count.Load()) },
		Delete:   func(t *testing.T, key string) { require.NoError(t, direct.Del(ctx, at(key)).Err()) },
		Snapshot: func(t *testing.T, key string) func() {
			entry, err := direct.Get(ctx, at(key)).Result()
			require.NoError(t, err)
			return func() { require.NoError(t, direct.Set(ctx, at(key), entry, time.Hour).Err()) }
		},
		Dump: func(t *testing.T, key string) string { return direct.Dump(ctx, at(key)).String() },
		// FuzzEntry and TestEntriesOnRealServers have more values.
		Foreign: map[string]func(*testing.T, string){
			"list":         func(t *testing.T, key string) { require.NoError(t, direct.RPush(ctx, at(key), "a").Err()) },
			"plain string": func(t *testing.T, key string) { require.NoError(t, direct.Set(ctx, at(key), "hello", 0).Err()) },
		},
		// TestEntriesOnRealServers has more of these.
		Corrupt: map[string]func(*testing.T, string){
			"cut in the numbers": change(func(e string) string { return e[:50] }),
			"a later format":     change(func(e string) string { return strings.Replace(e, "lambdalock3", "lambdalock4", 1) }),
			"unknown state":      change(func(e string) string { return e[:12] + "Y" + e[13:] }),
		},
		DamageQueue: map[string]func(*testing.T, string){
			"cut short":    queue(func(q string) string { return q[:max(0, len(q)-1)] }),
			"one is empty": queue(func(q string) string { return " " + q }),
			"another line": queue(func(q string) string { return q + "\n" }),
			"a text":       queue(func(string) string { return "me" }),
			"other places": queue(func(q string) string { return q + " me 7\n " }),
			"gone":         queue(func(string) string { return "" }),
			"no number":    number("000"),
			"a large one":  number("999"),
		},
	}
}

// How many places a queue has, and how many owners that have ended an entry remembers.
const (
	places = 128
	marks  = 8
)

// lastLine is where the queue of an entry begins.
func lastLine(entry string) int { return strings.LastIndexByte(entry, '\n') + 1 }

// mini is the URL of every miniredis.
const mini = "redis://127.0.0.1"

func newMini(t testing.TB) *miniredis.Miniredis {
	m := miniredis.NewMiniRedis()
	t.Cleanup(m.Close)
	return m
}

// dials lets a client use a miniredis without a network.
func dials(m *miniredis.Miniredis) func(*redis.UniversalOptions) {
	return func(opt *redis.UniversalOptions) {
		opt.Dialer = func(context.Context, string, string) (net.Conn, error) { return m.Dial() }
		manyConnections(opt)
	}
}

// openMini opens the store on a new miniredis inside a synctest bubble.
func openMini(t *testing.T) storetest.Harness {
	m := newMini(t)
	var lose, hangs atomic.Bool
	var delay storetest.Delayer
	client := dialerClient(t, mini, func(context.Context, string, string) (net.Conn, error) {
		conn, err := m.Dial()
		return &lossyConn{Conn: delay.Conn(conn, isScript), lose: &lose, hangs: &hangs}, err
	})
	h := harness(t, client, openWith(t, mini, dials(m)))

	// The clock of miniredis stands still after SetTime, so a shifted clock is set again
	// after each sleep.
	var shift atomic.Int64
	h.Sleep = func(d time.Duration) {
		<-time.After(d)
		if s := shift.Load(); s != 0 {
			m.SetTime(time.Now().Add(time.Duration(s)))
		}
	}
	h.ShiftClock = func(t *testing.T, d time.Duration) {
		shift.Store(int64(d))
		m.SetTime(time.Now().Add(d))
	}
	h.Delay = delay.Delay
	h.LoseReplies, h.Hang = switched(&lose), switched(&hangs)
	h.Unreachable = func(t *testing.T) *lockstore.Store {
		return storeOn(t, dialerClient(t, mini, func(_ context.Context, network, _ string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Net: network, Err: fmt.Errorf("connection refused")}
		}))
	}
	return h
}

// switched turns a fault of the network on, until restore.
func switched(on *atomic.Bool) func(*testing.T) (restore func()) {
	return func(*testing.T) func() {
		on.Store(true)
		return func() { on.Store(false) }
	}
}

// lossyConn loses the replies to scripts while lose is true. The server applies the script,
// and then the connection ends. While hangs is true, what is sent gets lost, and the connection stays open.
type lossyConn struct {
	net.Conn
	lose, hangs *atomic.Bool
	cut         bool
}

func isScript(b []byte) bool { return bytes.Contains(b, []byte("evalsha")) }

func (c *lossyConn) Write(b []byte) (int, error) {
	if c.hangs != nil && c.hangs.Load() {
		return len(b), nil
	}
	c.cut = c.lose.Load() && isScript(b)
	return c.Conn.Write(b)
}

func (c *lossyConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.cut && err == nil {
		c.Conn.Close()
		return 0, io.EOF
	}
	return n, err
}

// hook is asked before each command of a client, and may refuse it.
type hook func(context.Context, redis.Cmder) error

func (h hook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if err := h(ctx, cmd); err != nil {
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

func (h hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// counted counts the commands that the client sends from now on.
func counted(client redis.UniversalClient) *atomic.Int32 {
	n := &atomic.Int32{}
	client.AddHook(hook(func(context.Context, redis.Cmder) error { n.Add(1); return nil }))
	return n
}

// loadScript loads the script into the server, so that each call is one request. On a busy machine the first connection can take longer than
// the client waits for it.
func loadScript(t testing.TB, s *lockstore.Store) {
	var err error
	for range 10 {
		if err = driverOf(s).client.ScriptLoad(context.Background(), script().source.(string)).Err(); err == nil {
			return
		}
	}
	require.NoError(t, err)
}

func config(t testing.TB, rawURL string) lockstore.Config {
	u, err := url.Parse(rawURL)
	require.NoError(t, err)
	return lockstore.Config{URL: u}
}

func openClient(t testing.TB, rawURL string) redis.UniversalClient {
	return openWith(t, rawURL, func(*redis.UniversalOptions) {})
}

// openWith is openClient with other settings.
func openWith(t testing.TB, rawURL string, change func(*redis.UniversalOptions)) redis.UniversalClient {
	opt, err := options(config(t, rawURL))
	require.NoError(t, err)
	change(opt)
	client := newClient(opt)
	t.Cleanup(func() { _ = client.Close() }) // a test may have closed it
	return client
}

// dialerClient is openClient with the test's own dialer.
func dialerClient(t testing.TB, rawURL string, dial dialFunc) redis.UniversalClient {
	return openWith(t, rawURL, func(opt *redis.UniversalOptions) {
		opt.Dialer = dial
		manyConnections(opt)
	})
}

// manyConnections is for clients in synctest bubbles. All clients of the process share the timers of callers that waited for a
// connection. A timer from outside a bubble panics inside it, so no caller may wait.
func manyConnections(opt *redis.UniversalOptions) { opt.PoolSize = 1000 }

func storeOn(t testing.TB, client redis.UniversalClient) *lockstore.Store {
	s, err := New(client, Options{})
	require.NoError(t, err)
	return s
}

func openStore(t testing.TB, rawURL string) *lockstore.Store {
	return storeOn(t, openClient(t, rawURL))
}

func driverOf(s *lockstore.Store) *server { return s.Driver().(*server) }

// closedPort is an address where no server listens. A port that was free a moment ago may be the one of
// another test's server now.
const closedPort = "127.0.0.1:1"
