package redisstore

import (
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
)

// Check says what to change. TestEviction has the eviction policies.
func TestCheck(t *testing.T) {
	onBoth(t, "F50 check", func(t *testing.T, program string) {
		primary := testservers.Start(t, program, "--repl-diskless-sync-delay", "0").Addr
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
		require.Contains(t, findings[1].Problem, "replica")

		admin := openClient(t, "redis://"+primary)
		require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "locker", "on", ">pw", "~*", "+evalsha").Err())
		_, err = openStore(t, "redis://locker:pw@"+primary).Check(t.Context())
		require.ErrorIs(t, err, lockstore.ErrUnavailable)
		require.ErrorContains(t, err, "NOPERM")
	})
}

func TestPoliciesOfACluster(t *testing.T) {
	addrs := testservers.Cluster(t, testservers.ValkeyServer)
	s := openStore(t, "redis://"+addrs[0]+"?cluster=true")
	for _, addr := range addrs[1:] {
		configure(t, openClient(t, "redis://"+addr), "maxmemory-policy", "volatile-ttl")
	}
	findings, err := s.Check(t.Context())
	require.NoError(t, err)
	require.Len(t, findings, 1, "F36 the same finding once")
	require.Contains(t, findings[0].Problem, "volatile-ttl")
}
