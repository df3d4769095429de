package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

// What is held while a listing goes on is listed once, also when the server's table of keys
// grows and shrinks meanwhile, so that SCAN returns keys twice. Lists of those who wait are
// not listed: their names are made of secrets.
func TestListWhileKeysChange(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) *lockstore.Store{
		"one server": func(t *testing.T) *lockstore.Store { return openStore(t, "redis://"+testservers.Redis(t)) },
		"a cluster": func(t *testing.T) *lockstore.Store {
			return openStore(t, "redis://"+testservers.Cluster(t, testservers.RedisServer)[0]+"?cluster=true")
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			const keys = 600
			held := map[string]bool{}
			for i := range keys {
				key := fmt.Sprintf("list/%d", i)
				_, err := s.Acquire(t.Context(), lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: time.Hour})
				require.NoError(t, err)
				held[key] = true
			}
			waits := lockstore.NewOwner()
			require.NoError(t, driverOf(s).client.RPush(t.Context(), driverOf(s).list("waits", waits), "1").Err())

			ctx, stop := context.WithCancel(t.Context())
			var changing sync.WaitGroup
			changing.Go(func() {
				for i := 0; ctx.Err() == nil; i = (i + 1) % 20 {
					pipe := driverOf(s).client.Pipeline()
					for n := range 200 {
						if i < 10 {
							pipe.Set(ctx, fmt.Sprintf("other/%d/%d", i, n), "x", 0)
						} else {
							pipe.Del(ctx, fmt.Sprintf("other/%d/%d", i-10, n))
						}
					}
					_, _ = pipe.Exec(ctx)
				}
			})
			found, requests := map[string]int{}, 0
			err := s.List(t.Context(), "", func(p lockstore.Page) error {
				requests += p.Requests
				for _, status := range p.Keys {
					assert.Equal(t, lockstore.Held, status.State)
					found[status.Key]++
				}
				return nil
			})
			stop()
			changing.Wait()
			require.NoError(t, err)
			assert.Len(t, found, keys)
			for key, n := range found {
				assert.True(t, held[key], key)
				assert.Equal(t, 1, n, key)
			}
			assert.Greater(t, requests, keys)
			extent, err := s.Extent(t.Context())
			require.NoError(t, err)
			assert.GreaterOrEqual(t, extent.Entries, int64(keys))
		})
	}
}

// What a page says, on miniredis, which has the answers of a server without one.
func TestPageOfAList(t *testing.T) {
	m := miniredis.RunT(t)
	s := openStore(t, "redis://"+m.Addr())
	lease := acquire(t, s, "a/1")
	require.NoError(t, m.Set(driverOf(s).prefix+"a/2", "damaged"))
	require.NoError(t, m.Set(driverOf(s).prefix+"b", "damaged"))
	_, err := m.Lpush(driverOf(s).prefix+"a/3", "of another type")
	require.NoError(t, err)
	var pages []lockstore.Page
	require.NoError(t, s.List(t.Context(), "a/", func(p lockstore.Page) error {
		pages = append(pages, p)
		return nil
	}))
	require.Len(t, pages, 1)
	require.Equal(t, []int{2, 3, 1, 1}, []int{pages[0].Read, pages[0].Requests, pages[0].Damaged, len(pages[0].Keys)})
	require.Equal(t, []string{driverOf(s).prefix + "a/2"}, pages[0].DamagedNames)
	require.Equal(t, lease.Fence, pages[0].Keys[0].Fence)
	stop := errors.New("stop")
	require.Equal(t, stop, s.List(t.Context(), "", func(lockstore.Page) error { return stop }))
	extent, err := s.Extent(t.Context())
	require.NoError(t, err)
	require.Equal(t, int64(4), extent.Entries)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.Extent(ctx)
	for _, err := range []error{err, s.List(ctx, "", func(lockstore.Page) error { return nil })} {
		require.ErrorIs(t, err, lockstore.ErrUnavailable)
		require.ErrorIs(t, err, context.Canceled)
	}
	m.Close()
	_, err = s.Extent(t.Context())
	require.ErrorIs(t, err, lockstore.ErrUnavailable)
	require.ErrorIs(t, s.List(t.Context(), "", func(lockstore.Page) error { return nil }), lockstore.ErrUnavailable)
}

// Check says what to change.
func TestCheck(t *testing.T) {
	onBoth(t, "F50 check", func(t *testing.T, program string) {
		primary := testservers.Start(t, program, "--repl-diskless-sync-delay", "0", "--appendonly", "yes").Addr
		findings, err := openStore(t, "redis://"+primary).Check(t.Context())
		require.NoError(t, err)
		require.Empty(t, findings)

		u, err := url.Parse("redis://" + primary)
		require.NoError(t, err)
		replica := "redis://" + testservers.Start(t, program, "--replicaof", u.Hostname()+" "+u.Port(),
			"--maxmemory-policy", "allkeys-lfu").Addr
		findings, err = openStore(t, replica).Check(t.Context())
		require.NoError(t, err)
		require.Len(t, findings, 2)
		require.Contains(t, findings[0].Problem, "allkeys-lfu")
		require.Contains(t, findings[0].Fix, "noeviction")
		require.Contains(t, findings[1].Problem, "replica")

		admin := openClient(t, "redis://"+primary)
		require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "locker", "on", ">pw", "~*", "+evalsha").Err())
		_, err = openStore(t, "redis://locker:pw@"+primary).Check(t.Context())
		require.ErrorIs(t, err, lockstore.ErrUnavailable)
		require.ErrorContains(t, err, "NOPERM")
	})
}

// A restart of a server that keeps nothing, and has no replica, loses all leases.
func TestCheckOfWhatIsKept(t *testing.T) {
	onBoth(t, "F33 F50 nothing is kept", func(t *testing.T, program string) {
		primary := testservers.Start(t, program, "--repl-diskless-sync-delay", "0").Addr
		s := openStore(t, "redis://"+primary)
		findings, err := s.Check(t.Context())
		require.NoError(t, err)
		require.Len(t, findings, 1)
		require.Contains(t, findings[0].Problem, "no append-only file and no replica")
		require.Contains(t, findings[0].Fix, "appendonly")
		host, port, err := net.SplitHostPort(primary)
		require.NoError(t, err)
		testservers.Start(t, program, "--replicaof", host+" "+port)
		admin := openClient(t, "redis://"+primary)
		require.Eventually(t, func() bool {
			return strings.Contains(admin.Info(t.Context(), "replication").Val(), "connected_slaves:1")
		}, time.Minute, 10*time.Millisecond)
		findings, err = s.Check(t.Context())
		require.NoError(t, err)
		require.Empty(t, findings)
	})
}

func TestCheckOfTheVersion(t *testing.T) {
	for version, old := range map[string]bool{"6.2.14": true, "5.0.0": true, "7.0.0": false, "7.2.4": false, "10.0.1": false, "": false} {
		findings := findingsIn("redis_version:"+version+"\r\n", false)
		require.Equal(t, old, len(findings) == 1, version)
		if old {
			require.Contains(t, findings[0].Problem, "Redis "+version)
		}
	}
}

// cluster=true is missing in the URL.
func TestClusterIsForgotten(t *testing.T) {
	s := openStore(t, "redis://"+testservers.Redis(t, "--cluster-enabled", "yes", "--appendonly", "yes"))
	findings, err := s.Check(t.Context())
	require.NoError(t, err)
	require.Len(t, findings, 1)
	require.Contains(t, findings[0].Fix, "cluster=true")
}

const clusterAdvice = ": the server is in cluster mode; the URL needs cluster=true"

// The first request for a key of another node says it, too. The reverse mistake is told at every
// request.
func TestClusterIsForgottenAtFirstUse(t *testing.T) {
	const moved = "MOVED 3999 127.0.0.1:1"
	s := openStore(t, "redis://"+fakeServer(t, func([]string) string { return "-" + moved + "\r\n" }))
	for _, err := range everyRequest(t.Context(), s) {
		requireUnavailable(t, err, moved+clusterAdvice)
	}
	const disabled = "This instance has cluster support disabled: the server is not in cluster mode; remove cluster=true from the URL"
	s = openStore(t, "redis://"+testservers.Redis(t)+"?cluster=true")
	errs := everyRequest(t.Context(), s)
	_, errs["check"] = s.Check(t.Context())
	for _, err := range errs {
		requireUnavailable(t, err, disabled)
	}
}

func TestPoliciesOfACluster(t *testing.T) {
	t.Parallel()
	addrs := testservers.Cluster(t, testservers.ValkeyServer, "--appendonly", "yes")
	s := openStore(t, "redis://"+addrs[0]+"?cluster=true")
	for _, addr := range addrs[1:] {
		configure(t, openClient(t, "redis://"+addr), "maxmemory-policy", "volatile-ttl")
	}
	findings, err := s.Check(t.Context())
	require.NoError(t, err)
	require.Len(t, findings, 1, "F36 the same finding once")
	require.Contains(t, findings[0].Problem, "volatile-ttl")
}

// The users of deploy/cache.yaml may do what locking needs, and cannot stop the server.
func TestUsersOfTheCache(t *testing.T) {
	t.Parallel()
	template, err := os.ReadFile("../../deploy/cache.yaml")
	require.NoError(t, err)
	found := regexp.MustCompile(`(?m)^ *AccessString: (.*)$`).FindAllSubmatch(template, -1)
	require.Len(t, found, 2)
	onBoth(t, "F44 rights", func(t *testing.T, program string) {
		addrs := testservers.Cluster(t, program)
		for i, name := range []string{"locks", "operator"} {
			rights := []any{"ACL", "SETUSER", name, "reset", ">pw"}
			for _, rule := range strings.Fields(string(found[i][1])) {
				rights = append(rights, rule)
			}
			for _, addr := range addrs {
				require.NoError(t, openClient(t, "redis://"+addr).Do(t.Context(), rights...).Err())
			}
			s := openStore(t, (&url.URL{Scheme: "redis", User: url.UserPassword(name, "pw"), Host: addrs[0], RawQuery: "cluster=true"}).String())
			ctx := t.Context()
			for _, key := range []string{"a", "b", "c", "d", "e"} { // on different nodes
				lockUnlockKey(t, s, key)
				lease := acquire(t, s, key)
				waiting := queued(t, s, key)
				require.NoError(t, s.Release(ctx, lease))
				require.NoError(t, storetest.AwaitTurn(ctx, s, key, waiting.Owner))
				require.True(t, driverOf(s).wakeUps.mayBlock())
				require.NoError(t, s.Leave(ctx, key, lockstore.NewOwner()))
				require.NoError(t, s.Release(ctx, lockstore.Lease{Key: key, Owner: waiting.Owner}))
				lease = acquire(t, s, key)
				require.NoError(t, s.MarkStarted(ctx, lease))
				_, err := s.Revoke(ctx, lockstore.RevokeRequest{Key: key, Fence: lease.Fence})
				require.NoError(t, err)
				require.ErrorIs(t, s.ResolveNoEffect(ctx, key, lease.Fence), lockstore.ErrRefused)
				lease = acquire(t, s, key+"/completed/"+name)
				require.NoError(t, s.Complete(ctx, lease, []byte("result"), time.Minute))
			}
			_, checked := s.Check(ctx)
			listed := s.List(ctx, "", func(lockstore.Page) error { return nil })
			_, counted := s.Extent(ctx)
			for _, err := range []error{checked, listed, counted} {
				if name == "operator" {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, "NOPERM")
				}
			}
			for _, command := range [][]any{{"CLIENT", "PAUSE", "1"}, {"CLIENT", "KILL", "TYPE", "normal"}, {"CLIENT", "LIST"}, {"FLUSHALL"}, {"GET", "other"}} {
				err := driverOf(s).client.(*redis.ClusterClient).Do(ctx, command...).Err()
				require.ErrorContains(t, err, "NOPERM", command)
			}
			for _, key := range []string{"a", "b", "c", "d", "e"} { // for the next user
				require.NoError(t, openClient(t, "redis://"+addrs[0]+"?cluster=true").Del(ctx, driverOf(s).prefix+key).Err())
			}
		}
	})
}
