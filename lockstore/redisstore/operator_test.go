package redisstore

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
)

// SCAN returns a key twice when the server's table of keys grows or shrinks meanwhile.
func TestKeyThatIsScannedTwice(t *testing.T) {
	bulk := func(text string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(text), text) }
	s := openStore(t, "redis://"+fakeServer(t, func(command []string) string {
		switch strings.Join(command[:min(2, len(command))], " ") {
		case "scan 0":
			return "*2\r\n" + bulk("5") + "*2\r\n" + bulk(DefaultPrefix+"a") + bulk(DefaultPrefix+"b")
		case "scan 5":
			return "*2\r\n" + bulk("0") + "*2\r\n" + bulk(DefaultPrefix+"b") + bulk(DefaultPrefix+"c")
		case "info":
			return bulk("role:master\r\n")
		}
		return bulk("H7 5 0 0 \n")
	}))
	var keys []string
	require.NoError(t, s.List(t.Context(), "", func(p lockstore.Page) error {
		for _, status := range p.Keys {
			keys = append(keys, status.Key)
		}
		return nil
	}))
	require.Equal(t, []string{"a", "b", "c"}, keys)
}

// What a page says, on miniredis, which has the answers of a server without one.
func TestPageOfAList(t *testing.T) {
	m := miniredis.RunT(t)
	s := openStore(t, "redis://"+m.Addr())
	lease := acquire(t, s, "a/1")
	require.NoError(t, m.Set(DefaultPrefix+"a/2", "damaged"))
	require.NoError(t, m.Set(DefaultPrefix+"b", "damaged"))
	_, err := m.Lpush(DefaultPrefix+"a/3", "of another type")
	require.NoError(t, err)
	var page lockstore.Page
	stop := errors.New("stop")
	require.Equal(t, stop, s.List(t.Context(), "a/", func(p lockstore.Page) error { page = p; return stop }))
	require.Equal(t, []int{1, 1}, []int{page.Damaged, len(page.Keys)})
	require.Equal(t, []string{DefaultPrefix + "a/2"}, page.DamagedNames)
	require.Equal(t, lease.Fence, page.Keys[0].Fence)
	extent, err := s.Extent(t.Context())
	require.NoError(t, err)
	require.Equal(t, int64(4), extent.Entries)

	m.Close()
	_, err = s.Extent(t.Context())
	require.ErrorIs(t, err, lockstore.ErrUnavailable)
	require.ErrorIs(t, s.List(t.Context(), "", func(lockstore.Page) error { return nil }), lockstore.ErrUnavailable)
}

// Check says what to change. A restart of a server that keeps nothing, and has no replica, loses all leases.
func TestCheck(t *testing.T) {
	onBoth(t, "F33 F50 check", func(t *testing.T, program string) {
		finds := func(url string, want ...string) {
			t.Helper()
			findings, err := openStore(t, url).Check(t.Context())
			require.NoError(t, err)
			require.Len(t, findings, len(want))
			for i, part := range want {
				require.Contains(t, findings[i].Problem+findings[i].Fix, part)
			}
		}
		primary := testservers.Start(t, program, "--repl-diskless-sync-delay", "0").Addr
		finds("redis://"+primary, "no append-only file and no replica")
		host, port, err := net.SplitHostPort(primary)
		require.NoError(t, err)
		finds("redis://"+testservers.Start(t, program, "--replicaof", host+" "+port, "--maxmemory-policy", "allkeys-lfu").Addr, "allkeys-lfu", "replica")
		admin := openClient(t, "redis://"+primary)
		require.Eventually(t, func() bool {
			return strings.Contains(admin.Info(t.Context(), "replication").Val(), "connected_slaves:1")
		}, time.Minute, 10*time.Millisecond)
		finds("redis://" + primary)
		finds("redis://"+testservers.Start(t, program, "--appendonly", "yes", "--cluster-enabled", "yes").Addr, "cluster=true")

		require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "locker", "on", ">pw", "~*", "+evalsha").Err())
		requireUnavailable(t, check(t.Context(), openStore(t, "redis://locker:pw@"+primary)), "NOPERM")
	})
	for version, old := range map[string]bool{"6.2.14": true, "7.0.0": false, "10.0.1": false, "": false} {
		require.Equal(t, old, len(findingsIn("redis_version:"+version+"\r\n", false)) == 1, version)
	}
}

// cluster=true is missing in the URL: the first request for a key of another node says so. The reverse mistake is told at
// every request.
func TestClusterIsForgotten(t *testing.T) {
	const moved = "MOVED 3999 127.0.0.1:1"
	s := openStore(t, "redis://"+fakeServer(t, func([]string) string { return "-" + moved + "\r\n" }))
	for _, err := range everyRequest(t.Context(), s) {
		requireUnavailable(t, err, moved+": the server is in cluster mode; the URL needs cluster=true")
	}
	s = openStore(t, "redis://"+testservers.Redis(t)+"?cluster=true")
	errs := everyRequest(t.Context(), s)
	errs["Check"] = check(t.Context(), s)
	for _, err := range errs {
		requireUnavailable(t, err, "This instance has cluster support disabled: the server is not in cluster mode; remove cluster=true from the URL")
	}
}

// Each finding comes once, also if several nodes of a cluster have it.
func testPolicies(t *testing.T, url string, addrs []string) {
	for _, addr := range addrs {
		configure(t, openClient(t, "redis://"+addr), "maxmemory-policy", "volatile-ttl")
	}
	findings, err := openStore(t, url).Check(t.Context())
	require.NoError(t, err)
	require.Len(t, findings, 2)
	require.Contains(t, findings[0].Problem, "no append-only file")
	require.Contains(t, findings[1].Problem, "volatile-ttl")
}

// The users of deploy/cache.yaml may do what locking needs, and cannot stop the server.
func testUsersOfTheCache(t *testing.T, addrs []string) {
	template, err := os.ReadFile("../../deploy/cache.yaml")
	require.NoError(t, err)
	found := regexp.MustCompile(`(?m)^ *AccessString: (.*)$`).FindAllSubmatch(template, -1)
	require.Len(t, found, 2)
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
			handed(t, s, waiting) // BLPOP is allowed
			require.NoError(t, s.Abandon(ctx, key, waiting.Owner))
		}
		for what, err := range everyRequest(ctx, s) {
			require.NotErrorIs(t, err, lockstore.ErrUnavailable, what)
		}
		_, counted := s.Extent(ctx)
		for _, err := range []error{check(ctx, s), s.List(ctx, "", func(lockstore.Page) error { return nil }), counted} {
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
	}
}
