package redisstore

import (
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
)

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
