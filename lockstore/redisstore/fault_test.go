package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/assert"
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
	check := func(t *testing.T, s *lockstore.Store, cause string) {
		start := time.Now()
		for _, err := range everyRequest(t.Context(), s) {
			t.Log(err)
			requireUnavailable(t, err, cause)
			var op *net.OpError
			require.ErrorAs(t, err, &op, "the cause is kept")
			require.NotContains(t, err.Error(), "rediss://", "no server is there, so the scheme is not at fault")
		}
		require.Less(t, time.Since(start), 6*dialTimeout)
	}
	t.Run("F21 refused", func(t *testing.T) {
		check(t, openStore(t, "redis://"+closedPort), "connection refused")
	})
	t.Run("F21 no such host", func(t *testing.T) {
		nowhere := closedPort
		resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", nowhere)
		}}
		check(t, storeOn(t, dialerClient(t, "redis://cache.test?plaintext=true", (&net.Dialer{Resolver: resolver, Timeout: dialTimeout}).DialContext)), "lookup cache.test")
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
// after the restart succeeds.
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
	s := openStore(t, "redis://"+server.Addr)
	lockUnlock(t, s)
	server.Kill()
	failures("down", s)
	failures("down, cluster", openStore(t, "redis://"+closedPort+"?cluster=true"))
	server.Restart()
	acquire(t, s, "k")
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

// A request that was not written was certainly not applied.
func TestCutBeforeTheRequest(t *testing.T) {
	t.Run("F22 no connection is free", func(t *testing.T) {
		client := openWith(t, "redis://"+testservers.Redis(t), func(opt *redis.UniversalOptions) { opt.PoolSize = 1 })
		done := make(chan error, 1)
		go func() { done <- client.BLPop(context.Background(), time.Second, "nothing").Err() }()
		require.Eventually(t, func() bool {
			stats := client.PoolStats()
			return stats.TotalConns == 1 && stats.IdleConns == 0
		}, 5*time.Second, time.Millisecond)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := storeOn(t, client).Acquire(ctx, newRequest("k"))
		requireUnavailable(t, err, "")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, <-done, redis.Nil)
	})
	t.Run("F22 the connection is cut while the request is on its way", func(t *testing.T) {
		addr := testservers.Redis(t)
		p := testservers.Proxy(t, addr)
		s := openStore(t, "redis://"+p.Addr)
		lockUnlock(t, s)
		p.CutRequests("evalsha")
		req := newRequest("k")
		_, err := s.Acquire(t.Context(), req)
		require.Positive(t, p.Cuts())
		requireUnknown(t, err) // the client cannot tell this from a lost reply
		p.Forward()
		_, err = s.Acquire(t.Context(), req)
		require.NoError(t, err)
	})
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

func TestEviction(t *testing.T) {
	onBoth(t, "F36 eviction", func(t *testing.T, program string) {
		addr := testservers.Start(t, program, "--maxmemory-policy", "volatile-lru", "--appendonly", "yes").Addr
		s, admin := openStore(t, "redis://"+addr), openClient(t, "redis://"+addr)
		old := acquire(t, s, "k")
		configure(t, admin, "maxmemory", "1")
		require.Eventually(t, func() bool { return admin.Exists(t.Context(), DefaultPrefix+"k").Val() == 0 },
			5*time.Second, time.Millisecond, "the live lock is evicted")
		requireLost(t, s, old)
		configure(t, admin, "maxmemory", "0")
		require.Greater(t, acquire(t, s, "k").Fence, old.Fence)
	})
}

// Who holds the key, or was handed it, can do everything on a server that is out of memory. Who asks for a key gets
// a clear refusal. What ended there is kept for an hour.
func TestOutOfMemory(t *testing.T) {
	onBoth(t, "F37 out of memory", func(t *testing.T, program string) {
		url := "redis://" + testservers.Start(t, program).Addr
		s, admin := openStore(t, url), openClient(t, url)
		ctx := t.Context()
		abandon := func(lease lockstore.Lease) error { return s.Abandon(ctx, lease.Key, lease.Owner) }
		full := func(lease lockstore.Lease, err error) error {
			assert.True(t, err != nil || lease.TTL > lockstore.TurnTime)
			return err
		}
		ended := func(key string) {
			assert.InDelta(t, time.Hour, admin.PTTL(ctx, DefaultPrefix+key).Val(), float64(30*time.Second), key)
		}
		for _, most := range []int{1, 3} {
			request := func(key string) lockstore.Request {
				req := newRequest(key)
				req.MaxHolders, req.JoinQueue = most, true
				return req
			}
			handOver := func(key string) lockstore.Lease { // to this one; somebody waits behind it
				var leases []lockstore.Lease
				for range most {
					lease, err := s.Acquire(ctx, request(key))
					require.NoError(t, err)
					leases = append(leases, lease)
				}
				waiting := []lockstore.Request{request(key), request(key)}
				for _, req := range waiting {
					require.ErrorIs(t, failure(s.Acquire(ctx, req)), lockstore.ErrRefused)
				}
				configure(t, admin, "maxmemory", "1")
				require.NoError(t, s.Release(ctx, leases[0]), "it hands the key over")
				status, err := s.Inspect(ctx, key)
				require.NoError(t, err)
				return lockstore.Lease{Key: key, Owner: waiting[0].Owner, Fence: status.Fence}
			}
			lone := func(key string) lockstore.Lease { // it holds the key, and nobody waits
				req := request(key)
				lease, err := s.Acquire(ctx, req)
				require.NoError(t, err)
				require.NoError(t, driverOf(s).PutAddress(ctx, key, req.Owner, driver.HiddenBytes("token"), time.Hour))
				configure(t, admin, "maxmemory", "1")
				return lease
			}
			for name, c := range map[string]struct {
				from func(key string) lockstore.Lease
				do   func(lockstore.Lease) error
			}{
				"extend what was handed over": {handOver, func(lease lockstore.Lease) error {
					return full(s.Extend(ctx, lease, time.Minute, lockstore.HolderInfo{}))
				}},
				"ask as before the hand-over": {handOver, func(lease lockstore.Lease) error {
					req := request(lease.Key)
					req.Owner = lease.Owner
					return full(s.Acquire(ctx, req))
				}},
				"renew what was handed over": {handOver, func(lease lockstore.Lease) error { return failure(s.Renew(ctx, lease, time.Hour)) }},
				"leave, being handed the key": {handOver, func(lease lockstore.Lease) error {
					require.ErrorAs(t, s.Leave(ctx, lease.Key, lease.Owner), new(*lockstore.StillHolds))
					return nil
				}},
				"abandon what was handed over": {handOver, abandon},
				"release what was handed over": {handOver, func(lease lockstore.Lease) error { return s.Release(ctx, lease) }},
				"start and complete": {handOver, func(lease lockstore.Lease) error {
					if most > 1 {
						return nil // it needs a lease with MaxHolders 1
					}
					require.NoError(t, s.MarkStarted(ctx, lease))
					require.NoError(t, failure(s.Renew(ctx, lease, time.Hour)))
					return s.Complete(ctx, lease, []byte("result"), time.Hour)
				}},
				"revoke": {handOver, func(lease lockstore.Lease) error {
					return failure(s.Revoke(ctx, lockstore.RevokeRequest{Key: lease.Key, Fence: lease.Fence, OpenAtOnce: true}))
				}},
				"newcomers": {handOver, func(lease lockstore.Lease) error {
					const says = "not applied: lock store is unavailable: OOM command not allowed when used memory > 'maxmemory'"
					requireUnavailable(t, failure(s.Acquire(ctx, request(lease.Key+"/new"))), says)
					requireUnavailable(t, s.Abandon(ctx, lease.Key+"/new", lockstore.NewOwner()), says) // it would make a new entry
					_, err := s.Acquire(ctx, request(lease.Key))
					refused, ok := errors.AsType[*lockstore.Refused](err)
					require.True(t, ok, err)
					require.Zero(t, refused.QueuePosition, "there is no memory for a place")
					return nil
				}},
				"renew for longer, and release": {lone, func(lease lockstore.Lease) error {
					for _, ttl := range []time.Duration{time.Minute, time.Hour} { // the entry keeps its length, and does not
						require.NoError(t, failure(s.Renew(ctx, lease, ttl)))
					}
					require.NoError(t, s.Release(ctx, lease))
					ended(lease.Key)
					requireUnavailable(t, failure(s.Acquire(ctx, newRequest(lease.Key))), "OOM")
					return nil
				}},
				"abandon": {lone, func(lease lockstore.Lease) error {
					defer ended(lease.Key)
					return abandon(lease)
				}},
				"take an address, and put none": {lone, func(lease lockstore.Lease) error {
					requireUnavailable(t, driverOf(s).PutAddress(ctx, lease.Key, lease.Owner, driver.HiddenBytes("token"), time.Hour), "OOM")
					address, err := driverOf(s).TakeAddress(ctx, lease.Key, lease.Owner)
					require.Equal(t, "token", string(address))
					return err
				}},
			} {
				configure(t, admin, "maxmemory", "0")
				assert.NoError(t, c.do(c.from(fmt.Sprint(name, most))), "%s, MaxHolders %d", name, most)
			}
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

// The server pauses for longer than the lease.
func TestClientPause(t *testing.T) {
	addr := testservers.Redis(t)
	s, admin := openStore(t, "redis://"+addr), openClient(t, "redis://"+addr)
	req := newRequest("k")
	req.TTL = lockstore.MinTTL
	lease, err := s.Acquire(t.Context(), req)
	require.NoError(t, err)
	require.NoError(t, admin.Do(t.Context(), "CLIENT", "PAUSE", "2000").Err())
	requireUnknown(t, failure(s.Renew(t.Context(), lease, time.Minute)))
	require.Eventually(t, func() bool {
		return errors.Is(failure(s.Renew(t.Context(), lease, time.Minute)), lockstore.ErrLost)
	}, 10*time.Second, 10*time.Millisecond, "F41 the renewals waited and came too late")
	require.Greater(t, acquire(t, s, "k").Fence, lease.Fence)
}

// Clients of other types.
type (
	wrapped        struct{ redis.UniversalClient }
	wrappedClient  struct{ *redis.Client }
	wrappedCluster struct{ *redis.ClusterClient }
)

// For a client that it cannot use, New returns an error with the reason, and never panics.
func TestClientsThatAreRefused(t *testing.T) {
	const nowhere = "127.0.0.1:1"
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": nowhere}})
	defer ring.Close()
	client := func(opt redis.Options) *redis.Client {
		opt.Addr = nowhere
		c := redis.NewClient(&opt)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	cluster := func(opt redis.ClusterOptions) *redis.ClusterClient {
		opt.Addrs = []string{nowhere}
		c := redis.NewClusterClient(&opt)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	real, goodCluster := client(redis.Options{}), cluster(redis.ClusterOptions{})
	pipeliner, err := real.AutoPipeline()
	require.NoError(t, err)
	for says, all := range map[string][]redis.UniversalClient{
		"is nil": {nil, (*redis.Client)(nil), (*redis.ClusterClient)(nil), (*redis.Ring)(nil), (*wrapped)(nil)},
		"is a redisstore.wrapped; want a *redis.Client or *redis.ClusterClient, with hooks": {wrapped{real}},
		"is a *redisstore.wrapped; want":       {&wrapped{real}},
		"is a redisstore.wrappedClient; want":  {wrappedClient{real}},
		"is a redisstore.wrappedCluster; want": {wrappedCluster{goodCluster}},
		"is a *redis.Ring; want":               {ring},
		"is a *redis.AutoPipeliner; want":      {pipeliner},
		"was not made by go-redis":             {&redis.Client{}, &redis.ClusterClient{}},
		"has no WriteTimeout":                  {client(redis.Options{WriteTimeout: -1})},
		"has no ReadTimeout":                   {client(redis.Options{ReadTimeout: -1}), client(redis.Options{ReadTimeout: -2}), cluster(redis.ClusterOptions{ReadTimeout: -1})},
	} {
		for i, c := range all {
			s, err := New(c, Options{})
			require.ErrorIs(t, err, lockstore.ErrInvalid, "F51 %s %d", says, i)
			require.ErrorContains(t, err, "the client "+says)
			require.Nil(t, s)
		}
	}
	for _, good := range []redis.UniversalClient{real, client(redis.Options{ReadTimeout: 1}), goodCluster} {
		_, err := New(good, Options{})
		require.NoError(t, err)
	}
}

// A store whose client is closed.
func TestClosedClient(t *testing.T) {
	for _, params := range []string{"", "?cluster=true"} {
		client := openClient(t, "redis://"+testservers.Redis(t)+params)
		s := storeOn(t, client)
		require.NoError(t, client.Close())
		for _, err := range everyRequest(t.Context(), s) {
			requireUnavailable(t, err, "closed")
		}
		require.ErrorIs(t, check(t.Context(), s), lockstore.ErrUnavailable)
	}
}

// The connections in the pool died while the process was frozen.
func TestDeadConnectionsInThePool(t *testing.T) {
	onBoth(t, "F68 dead connections", func(t *testing.T, program string) {
		server := testservers.Start(t, program)
		s := openStore(t, "redis://"+server.Addr)
		lockUnlock(t, s)
		server.Restart()
		start := time.Now()
		acquire(t, s, "k")
		require.Less(t, time.Since(start), answerTimeout, "a new connection at once")
	})
}
