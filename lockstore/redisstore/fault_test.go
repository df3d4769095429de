package redisstore

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

// onBoth runs a test on Redis and on Valkey, beside other such tests: it mostly waits.
func onBoth(t *testing.T, name string, test func(t *testing.T, program string)) {
	t.Parallel()
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

// While the server is down each call says so, with its cause, and go-redis prints nothing. The first call
// after the restart succeeds at once, also if the connections in the pool died while the process was frozen.
func TestServerIsDownForAWhile(t *testing.T) {
	redis.SetLogger(quiet{t})
	defer logging.Enable()
	failures := func(name string, s *lockstore.Store) {
		t.Run("F21 "+name, func(t *testing.T) {
			for range 25 { // more than the client has connections
				err := failure(s.Acquire(t.Context(), newRequest("k")))
				requireUnavailable(t, err, "connection refused")
				require.ErrorAs(t, err, new(*net.OpError))
				require.NotContains(t, err.Error(), "rediss://", "no server is there, so the scheme is not at fault")
			}
		})
	}
	server := testservers.Start(t, testservers.RedisServer)
	s, frozen := openStore(t, "redis://"+server.Addr), openStore(t, "redis://"+server.Addr)
	lockUnlock(t, s, "k")
	lockUnlock(t, frozen, "k")
	server.Kill()
	failures("down", s)
	failures("down, cluster", openStore(t, "redis://"+closedPort+"?cluster=true"))
	server.Restart()
	acquire(t, s, "k")
	start := time.Now()
	acquire(t, frozen, "F68 frozen")
	require.Less(t, time.Since(start), answerTimeout, "a new connection at once")
}

// quiet is a test in which go-redis prints nothing.
type quiet struct{ *testing.T }

func (q quiet) Printf(_ context.Context, format string, v ...any) {
	q.Errorf("go-redis prints "+format, v...)
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

// Whatever a replica has read, it answers no request: it may lag. The entries have every state, and are damaged, so the
// scripts return at every place where they do not write.
func TestAReplicaAnswersNothing(t *testing.T) {
	onBoth(t, "F80 replica", func(t *testing.T, program string) {
		ctx, addr := t.Context(), testservers.Start(t, program).Addr
		s, admin := openStore(t, "redis://"+addr), openClient(t, "redis://"+addr)
		loadScript(t, s)
		require.NoError(t, admin.RPush(ctx, DefaultPrefix+"list", "a").Err())
		keys := []string{"list", "gone"}
		sound, damaged, full, _ := entries(time.Now()) // one that is cut returns where a damaged one does
		for i, entry := range slices.Concat(sound, damaged, full) {
			keys = append(keys, fmt.Sprint(i))
			require.NoError(t, admin.Set(ctx, DefaultPrefix+fmt.Sprint(i), entry, time.Hour).Err())
		}
		stored := func() (all []string) {
			for _, key := range keys {
				all = append(all, admin.Dump(ctx, DefaultPrefix+key).Val())
			}
			return all
		}
		before := stored()

		require.NoError(t, admin.Do(ctx, "REPLICAOF", "127.0.0.1", "1").Err()) // nobody is there, so the server stays as it is
		for i, key := range keys {
			for j, r := range everyKind {
				if (i+j)%2 == 0 == (program == testservers.RedisServer) { // the script is the same on both
					continue
				}
				_, err := driverOf(s).Do(ctx, key, r)
				require.ErrorIs(t, err, lockstore.ErrUnavailable, "%+v of %q", r, before[i])
				requireUnavailable(t, err, "READONLY")
			}
		}
		requireUnavailable(t, s.List(ctx, "", func(lockstore.Page) error { t.Error("a page"); return nil }), "replica")
		requireUnavailable(t, failure(s.Extent(ctx)), "replica")
		require.NoError(t, storetest.AwaitTurn(ctx, s, "0", lockstore.NewOwner()), "a waiter asks again, and learns it then")

		require.NoError(t, admin.Do(ctx, "REPLICAOF", "NO", "ONE").Err())
		for _, key := range keys {
			_, _ = s.Inspect(ctx, key) // and the proof changes nothing on a primary
		}
		require.Equal(t, before, stored())
	})
}

// The primary grants a lease that its replica does not get, and fails. Then two owners
// hold the key for a while. The second fence is larger, and the old holder gets ErrLost.
func TestFailoverLosesALease(t *testing.T) {
	onBoth(t, "F34 failover", func(t *testing.T, program string) {
		primary := testservers.Start(t, program, "--repl-diskless-sync-delay", "0").Addr
		replica := testservers.Start(t, program, "--replicaof", strings.Replace(primary, ":", " ", 1)).Addr
		before, after, admin := openStore(t, "redis://"+primary), openStore(t, "redis://"+replica), openClient(t, "redis://"+replica).(*redis.Client)
		copied := acquire(t, before, "copied")
		require.Eventually(t, func() bool {
			return admin.Exists(t.Context(), DefaultPrefix+"copied").Val() == 1
		}, 30*time.Second, 20*time.Millisecond, "the replica follows")

		require.NoError(t, admin.Do(t.Context(), "REPLICAOF", "NO", "ONE").Err())
		lost := acquire(t, before, "lost")
		requireHeld(t, before, "lost")

		requireHeld(t, after, "copied")
		require.NoError(t, failure(after.Renew(t.Context(), copied, time.Minute)), "the replica has this lease")
		require.Greater(t, acquire(t, after, "lost").Fence, lost.Fence, "a resource can refuse the old holder's write")
		requireLost(t, after, lost)
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
	handed := [][]driver.Request{                                                            // of an owner that was handed the key, and somebody waits behind it
		{{Kind: driver.Acquire, TTL: time.Hour, Fence: 1}}, // it extends the lease
		{ask(driver.Acquire)}, {renew}, {ask(driver.Leave)}, {ask(driver.Abandon)}, {ask(driver.Release)}, {ask(driver.Revoke)},
		{ask(driver.MarkStarted), renew, ask(driver.Complete)}, // with MaxHolders 1
	}
	alone := [][]driver.Request{{sooner, renew, ask(driver.Release)}, {ask(driver.Abandon)}} // of one that holds the key, and nobody waits
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
			for i, requests := range slices.Concat(handed, alone) {
				if most > 1 && requests[0].Kind == driver.MarkStarted {
					continue
				}
				key := fmt.Sprint(i, most)
				configure(t, admin, "maxmemory", "0")
				owner, a := asks(key)
				require.NoError(t, d.PutAddress(ctx, key, owner, driver.HiddenBytes("token"), time.Hour))
				if i < len(handed) {
					first, lease := owner, a
					for range most - 1 {
						asks(key)
					}
					owner, a = asks(key)
					asks(key)
					configure(t, admin, "maxmemory", "1")
					require.NoError(t, failure(d.Do(ctx, key, driver.Request{Kind: driver.Release, Owner: first, Fence: lease.Fence})), "it hands the key over")
					status, err := s.Inspect(ctx, key)
					require.NoError(t, err)
					a.Fence = status.Fence
				}
				configure(t, admin, "maxmemory", "1")
				for _, r := range requests {
					r.Owner, r.MaxHolders = owner, most
					if r.Kind != driver.Acquire || r.Fence != 0 {
						r.Fence = a.Fence
					}
					got, err := d.Do(ctx, key, r)
					require.NoError(t, err, "%v, MaxHolders %d", r.Kind, most)
					require.Contains(t, []driver.Outcome{driver.Granted, driver.Done, driver.Holding}, got.Outcome, "%v, MaxHolders %d", r.Kind, most)
					require.True(t, got.Outcome != driver.Granted || got.TTL > driver.TurnTime)
				}
				if i >= len(handed) {
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

// A slot stays half moved. A request for one key is served all the same, and a request for two keys is not, see
// TestRequestsOfAWakeUp: each request of the store works, and a release hands the key over.
func TestSlotThatStaysOpen(t *testing.T) {
	onBoth(t, "F40 half moved", func(t *testing.T, program string) {
		const key, slot = "half", 551 // of the first node
		ctx, nodes := t.Context(), testservers.StartCluster(t, program)
		from, to := openClient(t, "redis://"+nodes[0].Addr).(*redis.Client), openClient(t, "redis://"+nodes[1].Addr).(*redis.Client)
		url := "redis://" + nodes[0].Addr + "?cluster=true"
		s, other := openStore(t, url), openStore(t, url)
		for _, anywhere := range []string{"a", "b", "c", "d", "e", "f"} { // connections to all nodes: on a busy machine a new one can take longer than a turn
			lockUnlock(t, s, anywhere)
			lockUnlock(t, other, anywhere)
		}
		lease := acquire(t, s, key)
		waiting := []lockstore.Request{queued(t, s, key), queued(t, s, key), queued(t, other, key), queued(t, s, key)}
		require.NoError(t, s.Release(ctx, lease))
		lease = handed(t, s, waiting[0]) // its note names the next one
		require.NoError(t, to.Do(ctx, "CLUSTER", "SETSLOT", slot, "IMPORTING", from.ClusterMyID(ctx).Val()).Err())
		require.NoError(t, from.Do(ctx, "CLUSTER", "SETSLOT", slot, "MIGRATING", to.ClusterMyID(ctx).Val()).Err())
		for i, req := range waiting[1:] {
			require.NotEmpty(t, lease.Hint)
			require.NoError(t, s.Release(ctx, lease), "release %d", i)
			lease = handed(t, s, req)
			var err error
			lease, err = s.Extend(ctx, lease, time.Minute, req.HolderInfo)
			require.NoError(t, err)
			if i == 0 { // the keys move, and the slot stays open
				host, port, _ := strings.Cut(nodes[1].Addr, ":")
				names := from.ClusterGetKeysInSlot(ctx, slot, 100).Val()
				require.NotEmpty(t, names)
				for _, name := range names {
					require.NoError(t, from.Migrate(ctx, host, port, name, 0, time.Second).Err())
				}
			}
		}
		require.NoError(t, s.Release(ctx, lease))
		lockUnlock(t, s, key)
		done := acquire(t, s, key)
		require.NoError(t, s.MarkStarted(ctx, done))
		require.NoError(t, s.Complete(ctx, done, []byte("result"), time.Minute))
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
		// An owner may be a part of the error that says that the server has forgotten its scripts.
		for _, owner := range []lockstore.Owner{"OWNER", "NO", "NOSCRIPT", "SCRIPT", "No", "matching", "-"} {
			req := newRequest("k" + string(owner))
			req.Owner = owner
			flush()
			lease, err := s.Acquire(t.Context(), req)
			require.NoError(t, err)
			require.EqualValues(t, 2, count.Load(), "EVALSHA, then EVAL once")
			flush()
			require.NoError(t, s.Release(t.Context(), lease))
			require.EqualValues(t, 2, count.Load())
			require.NoError(t, s.Release(t.Context(), lease))
			require.EqualValues(t, 3, count.Load(), "the server knows the script again")
		}
	})
}

// For a client that it cannot use, New returns an error with the reason, and never panics.
func TestClientsThatAreRefused(t *testing.T) {
	client := func(read, write time.Duration) *redis.Client {
		return redis.NewClient(&redis.Options{ReadTimeout: read, WriteTimeout: write})
	}
	cluster := func(read time.Duration) *redis.ClusterClient {
		return redis.NewClusterClient(&redis.ClusterOptions{ReadTimeout: read})
	}
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": closedPort}})
	defer ring.Close()
	type wrapped struct{ *redis.Client }
	good := client(0, 0)
	pipeliner, err := good.AutoPipeline()
	require.NoError(t, err)
	for says, all := range map[string][]redis.UniversalClient{
		"is nil, or was not made by go-redis":                                  {(*redis.Client)(nil), (*redis.ClusterClient)(nil), &redis.Client{}, &redis.ClusterClient{}},
		"is a <nil>; want a *redis.Client or *redis.ClusterClient, with hooks": {nil},
		"is a redisstore.wrapped; want":                                        {wrapped{good}},
		"is a *redis.Ring; want":                                               {ring},      // which moves a key to another server when one is down
		"is a *redis.AutoPipeliner; want":                                      {pipeliner}, // which writes commands after their context has ended
		"has no ReadTimeout or no WriteTimeout":                                {client(0, -1), client(-1, 0), cluster(-1)},
	} {
		for i, c := range all {
			s, err := New(c, Options{})
			require.ErrorIs(t, err, lockstore.ErrInvalid, "F51 %s %d", says, i)
			require.ErrorContains(t, err, "the client "+says)
			require.Nil(t, s)
		}
	}
	for _, c := range []redis.UniversalClient{good, client(1, 0), cluster(0)} {
		storeOn(t, c)
	}
}
