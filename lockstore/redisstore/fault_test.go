package redisstore

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
)

// onBoth runs a test on Redis and on Valkey, side by side: such a test mostly waits.
func onBoth(t *testing.T, name string, test func(t *testing.T, program string)) {
	for _, program := range []string{testservers.RedisServer, testservers.ValkeyServer} {
		t.Run(name+", "+program, func(t *testing.T) {
			t.Parallel()
			test(t, program)
		})
	}
}

func acquire(t *testing.T, s *lockstore.Store, key string) lockstore.Lease {
	t.Helper()
	lease, err := s.Acquire(t.Context(), newRequest(key))
	require.NoError(t, err)
	return lease
}

func requireLost(t *testing.T, s *lockstore.Store, lease lockstore.Lease) {
	t.Helper()
	require.ErrorIs(t, failure(s.Renew(t.Context(), lease, time.Minute)), lockstore.ErrLost)
}

func requireHeld(t *testing.T, s *lockstore.Store, key string) {
	t.Helper()
	require.ErrorIs(t, failure(s.Acquire(t.Context(), newRequest(key))), lockstore.ErrRefused)
}

func TestServerCannotBeReached(t *testing.T) {
	t.Run("F21 refused", func(t *testing.T) {
		_, err := openStore(t, "redis://"+closedPort).Acquire(t.Context(), newRequest("k"))
		requireUnavailable(t, err, "connection refused")
		var op *net.OpError
		require.ErrorAs(t, err, &op, "the cause is kept")
		require.NotContains(t, err.Error(), "rediss://", "no server is there, so the scheme is not at fault")
	})
	t.Run("F21 the connection ends in the handshake", func(t *testing.T) {
		s := openStore(t, "redis://"+testservers.Proxy(t, closedPort).Addr)
		requireUnavailable(t, failure(s.Acquire(t.Context(), newRequest("k"))), "")
	})
	t.Run("F21 the handshake takes longer than the context", func(t *testing.T) {
		p := testservers.Proxy(t, testservers.Redis(t))
		p.Swallow()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		start := time.Now()
		_, err := openStore(t, "redis://"+p.Addr).Acquire(ctx, newRequest("k"))
		requireUnavailable(t, err, "")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Less(t, time.Since(start), answerTimeout/2)
	})
}

// While the server is down each call says so, and go-redis prints nothing. The first call
// after the restart succeeds at once, also if the connections in the pool died while the process was frozen.
func TestServerIsDownForAWhile(t *testing.T) {
	lines := &printed{}
	redis.SetLogger(lines)
	defer logging.Enable()
	failures := func(name string, s *lockstore.Store) {
		t.Run("F21 "+name, func(t *testing.T) {
			for range 25 { // more than the client has connections
				requireUnavailable(t, failure(s.Acquire(t.Context(), newRequest("k"))), "connection refused")
			}
		})
	}
	server := testservers.Start(t, testservers.RedisServer)
	s, frozen := openStore(t, "redis://"+server.Addr), openStore(t, "redis://"+server.Addr)
	lockUnlock(t, s)
	lockUnlock(t, frozen)
	server.Kill()
	failures("down", s)
	failures("down, cluster", openStore(t, "redis://"+closedPort+"?cluster=true"))
	server.Restart()
	acquire(t, s, "k")
	start := time.Now()
	acquire(t, frozen, "F68 frozen")
	require.Less(t, time.Since(start), answerTimeout, "a new connection at once")
	require.Empty(t, lines.all)
}

// printed is what go-redis prints.
type printed struct {
	mu  sync.Mutex
	all []string
}

func (p *printed) Printf(_ context.Context, format string, v ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = append(p.all, fmt.Sprintf(format, v...))
}

func TestRestart(t *testing.T) {
	onBoth(t, "F33 F35 restart", func(t *testing.T, program string) {
		server := testservers.Start(t, program)
		s := openStore(t, "redis://"+server.Addr)
		old := acquire(t, s, "k")
		server.Restart()
		requireLost(t, s, old)
		require.Greater(t, acquire(t, s, "k").Fence, old.Fence)
		requireLost(t, s, old)

		server = testservers.Start(t, program, "--appendonly", "yes")
		s = openStore(t, "redis://"+server.Addr)
		old = acquire(t, s, "k")
		server.Restart()
		requireHeld(t, s, "k")
		require.NoError(t, s.Release(t.Context(), old))
		server.Restart()
		require.Greater(t, acquire(t, s, "k").Fence, old.Fence)
	})
}

func configure(t *testing.T, client redis.UniversalClient, name, value string) {
	t.Helper()
	require.NoError(t, client.ConfigSet(t.Context(), name, value).Err())
}

// Who holds the key, or was handed it, can do everything on a server that is out of memory. Who asks for a key gets
// a clear refusal. What ended there is kept for an hour.
func TestOutOfMemory(t *testing.T) {
	ask := func(kind driver.Kind) driver.Request {
		return driver.Request{Kind: kind, TTL: time.Hour, Result: driver.HiddenBytes("result"), AtOnce: true}
	}
	renew, sooner := ask(driver.Renew), driver.Request{Kind: driver.Renew, TTL: time.Minute} // the entry keeps its length
	cases := []struct {
		name      string
		alone     bool             // the owner holds the key, and nobody waits; or it was handed the key, and somebody waits behind it
		exclusive bool             // only with MaxHolders 1
		requests  []driver.Request // of the owner
	}{
		{"extend", false, false, []driver.Request{{Kind: driver.Acquire, TTL: time.Hour, Fence: 1}}},
		{"ask as before the hand-over", false, false, []driver.Request{ask(driver.Acquire)}},
		{"renew", false, false, []driver.Request{renew}},
		{"leave, being handed the key", false, false, []driver.Request{ask(driver.Leave)}},
		{"abandon", false, false, []driver.Request{ask(driver.Abandon)}},
		{"release", false, false, []driver.Request{ask(driver.Release)}},
		{"start and complete", false, true, []driver.Request{ask(driver.MarkStarted), renew, ask(driver.Complete)}},
		{"revoke", false, false, []driver.Request{ask(driver.Revoke)}},
		{"renew for longer, and release", true, false, []driver.Request{sooner, renew, ask(driver.Release)}},
		{"abandon", true, false, []driver.Request{ask(driver.Abandon)}},
	}
	onBoth(t, "F37 out of memory", func(t *testing.T, program string) {
		url := "redis://" + testservers.Start(t, program).Addr
		s, admin, ctx := openStore(t, url), openClient(t, url), t.Context()
		d := driverOf(s)
		for _, most := range []int{1, 3} {
			asks := func(key string) (driver.Owner, driver.Answer) {
				owner := lockstore.NewOwner()
				a, err := d.Do(ctx, key, driver.Request{Kind: driver.Acquire, Owner: owner, TTL: time.Minute, MaxHolders: most, Join: true})
				require.NoError(t, err)
				return owner, a
			}
			for i, c := range cases {
				key := fmt.Sprint(c.name, i, most)
				configure(t, admin, "maxmemory", "0")
				owner, a := asks(key)
				require.NoError(t, d.PutAddress(ctx, key, owner, driver.HiddenBytes("token"), time.Hour))
				if !c.alone {
					first, lease := owner, a
					for range most - 1 {
						asks(key)
					}
					owner, a = asks(key)
					asks(key)
					configure(t, admin, "maxmemory", "1")
					_, err := d.Do(ctx, key, driver.Request{Kind: driver.Release, Owner: first, Fence: lease.Fence})
					require.NoError(t, err, "it hands the key over")
					status, err := s.Inspect(ctx, key)
					require.NoError(t, err)
					a.Fence = status.Fence
				}
				configure(t, admin, "maxmemory", "1")
				for _, r := range c.requests {
					if c.exclusive && most > 1 {
						continue
					}
					r.Owner, r.MaxHolders = owner, most
					if r.Kind != driver.Acquire || r.Fence != 0 {
						r.Fence = a.Fence
					}
					got, err := d.Do(ctx, key, r)
					require.NoError(t, err, "%s, MaxHolders %d", c.name, most)
					require.Contains(t, []driver.Outcome{driver.Granted, driver.Done, driver.Holding}, got.Outcome, "%s, MaxHolders %d", c.name, most)
					require.True(t, got.Outcome != driver.Granted || got.TTL > driver.TurnTime)
				}
				if c.alone {
					require.InDelta(t, time.Hour, admin.PTTL(ctx, DefaultPrefix+key).Val(), float64(30*time.Second), key)
				}
			}
			key := fmt.Sprint("newcomers", most)
			configure(t, admin, "maxmemory", "0")
			owner, _ := asks(key)
			for range most - 1 {
				asks(key)
			}
			require.NoError(t, d.PutAddress(ctx, key, owner, driver.HiddenBytes("token"), time.Hour))
			configure(t, admin, "maxmemory", "1")
			const says = "not applied: lock store is unavailable: OOM command not allowed when used memory > 'maxmemory'"
			requireUnavailable(t, failure(s.Acquire(ctx, newRequest(key+"/new"))), says)
			requireUnavailable(t, s.Abandon(ctx, key+"/new", lockstore.NewOwner()), says) // it would make a new entry
			_, refused := asks(key)
			require.Equal(t, driver.Refused, refused.Outcome)
			require.Zero(t, refused.Position, "there is no memory for a place")
			requireUnavailable(t, d.PutAddress(ctx, key, owner, driver.HiddenBytes("another"), time.Hour), "OOM")
			address, err := d.TakeAddress(ctx, key, owner)
			require.NoError(t, err)
			require.Equal(t, "token", string(address))
		}
	})
}

// openSlot lets the slot of a key, named as the server knows it, be half moved: MIGRATING at its node and IMPORTING at the next
// one. move moves the keys that are there to the new node, and the slot stays open.
func openSlot(t *testing.T, nodes []*testservers.Server, name string) (move func()) {
	ctx, from := context.Background(), 0
	var clients []*redis.Client
	for _, n := range nodes {
		clients = append(clients, openClient(t, "redis://"+n.Addr).(*redis.Client))
	}
	slot := clients[0].ClusterKeySlot(ctx, name).Val()
	for i, c := range clients {
		if err := c.Exists(ctx, name).Err(); err == nil { // the others answer MOVED
			from = i
		}
	}
	to := (from + 1) % len(nodes)
	id := func(node int) string { return clients[node].ClusterMyID(ctx).Val() }
	require.NoError(t, clients[to].Do(ctx, "CLUSTER", "SETSLOT", slot, "IMPORTING", id(from)).Err())
	require.NoError(t, clients[from].Do(ctx, "CLUSTER", "SETSLOT", slot, "MIGRATING", id(to)).Err())
	return func() {
		host, port, err := net.SplitHostPort(nodes[to].Addr)
		require.NoError(t, err)
		for _, k := range clients[from].ClusterGetKeysInSlot(ctx, int(slot), 100).Val() {
			require.NoError(t, clients[from].Migrate(ctx, host, port, k, 0, time.Second).Err())
		}
	}
}

// A slot stays half moved. A request for one key is served all the same, and a request for two keys is not, see
// TestRequestsOfAWakeUp: each request of the store works, and a release hands the key over within its guard's second.
func TestSlotThatStaysOpen(t *testing.T) {
	onBoth(t, "F40 half moved", func(t *testing.T, program string) {
		nodes := testservers.StartCluster(t, program)
		url := "redis://" + nodes[0].Addr + "?cluster=true"
		s, other := openStore(t, url), openStore(t, url)
		lease := acquire(t, s, "hot")
		waiting := []lockstore.Request{queued(t, s, "hot"), queued(t, s, "hot"), queued(t, other, "hot"), queued(t, s, "hot")}
		require.NoError(t, s.Release(t.Context(), lease))
		lease = handed(t, s, waiting[0]) // its note names the next one
		move := openSlot(t, nodes, DefaultPrefix+"hot")
		for i, req := range waiting[1:] {
			require.NotEmpty(t, lease.Hint)
			began := time.Now()
			require.NoError(t, s.Release(t.Context(), lease), "release %d", i)
			require.Less(t, time.Since(began), time.Second)
			lease = handed(t, s, req)
			var err error
			lease, err = s.Extend(t.Context(), lease, time.Minute, req.HolderInfo)
			require.NoError(t, err)
			if i == 0 {
				move()
			}
		}
		require.NoError(t, s.Release(t.Context(), lease))
		lockUnlockKey(t, s, "hot")
		done := acquire(t, s, "hot")
		require.NoError(t, s.MarkStarted(t.Context(), done))
		require.NoError(t, s.Complete(t.Context(), done, []byte("result"), time.Minute))
	})
}

func TestScriptFlush(t *testing.T) {
	onBoth(t, "F39 script flush", func(t *testing.T, program string) {
		addr := testservers.Start(t, program).Addr
		s, admin := openStore(t, "redis://"+addr), openClient(t, "redis://"+addr)
		count := counted(driverOf(s).client)
		flush := func() {
			require.NoError(t, admin.ScriptFlush(t.Context()).Err())
			count.Store(0)
		}
		acquire(t, s, "other") // by a new connection
		flush()
		lease := acquire(t, s, "k")
		require.EqualValues(t, 2, count.Load(), "EVALSHA, then EVAL once")
		flush()
		require.NoError(t, s.Release(t.Context(), lease))
		require.EqualValues(t, 2, count.Load())
		require.NoError(t, s.Release(t.Context(), lease))
		require.EqualValues(t, 3, count.Load(), "the server knows the script again")
	})
}

// For a client that it cannot use, New returns an error with the reason, and never panics.
func TestClientsThatAreRefused(t *testing.T) {
	client := func(opt redis.Options) *redis.Client {
		opt.Addr = closedPort
		c := redis.NewClient(&opt)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	cluster := func(opt redis.ClusterOptions) *redis.ClusterClient {
		opt.Addrs = []string{closedPort}
		c := redis.NewClusterClient(&opt)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": closedPort}})
	defer ring.Close()
	type wrapped struct{ *redis.Client }
	good, goodCluster := client(redis.Options{}), cluster(redis.ClusterOptions{})
	pipeliner, err := good.AutoPipeline()
	require.NoError(t, err)
	for says, all := range map[string][]redis.UniversalClient{
		"is nil, or was not made by go-redis":                                  {(*redis.Client)(nil), (*redis.ClusterClient)(nil), &redis.Client{}, &redis.ClusterClient{}},
		"is a <nil>; want a *redis.Client or *redis.ClusterClient, with hooks": {nil},
		"is a redisstore.wrapped; want":                                        {wrapped{good}},
		"is a *redis.Ring; want":                                               {ring},      // which moves a key to another server when one is down
		"is a *redis.AutoPipeliner; want":                                      {pipeliner}, // which writes commands after their context has ended
		"has no ReadTimeout or no WriteTimeout":                                {client(redis.Options{WriteTimeout: -1}), client(redis.Options{ReadTimeout: -1}), cluster(redis.ClusterOptions{ReadTimeout: -1})},
	} {
		for i, c := range all {
			s, err := New(c, Options{})
			require.ErrorIs(t, err, lockstore.ErrInvalid, "F51 %s %d", says, i)
			require.ErrorContains(t, err, "the client "+says)
			require.Nil(t, s)
		}
	}
	for _, c := range []redis.UniversalClient{good, client(redis.Options{ReadTimeout: 1}), goodCluster} {
		storeOn(t, c)
	}
}
