package redisstore

import (
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
)

// The primary grants a lease, and dies before its replica gets the lease. Then two owners
// hold the key for a while. The second fence is larger, and the old holder gets ErrLost.
func TestFailoverLosesALease(t *testing.T) {
	onBoth(t, "F34 failover", func(t *testing.T, program string) {
		primary := testservers.Start(t, program, "--repl-diskless-sync-delay", "0")
		link := testservers.Proxy(t, primary.Addr)
		host, port, err := net.SplitHostPort(link.Addr)
		require.NoError(t, err)
		replica := testservers.Start(t, program, "--replicaof", host+" "+port).Addr

		before := openStore(t, "redis://"+primary.Addr)
		copied := acquire(t, before, "copied")
		after := openStore(t, "redis://"+replica)
		require.Eventually(t, func() bool {
			return driverOf(after).client.Exists(t.Context(), DefaultPrefix+"copied").Val() == 1
		}, 30*time.Second, 20*time.Millisecond, "the replica follows")

		link.Swallow()
		lost := acquire(t, before, "lost")
		requireHeld(t, before, "lost")
		primary.Kill()
		admin := openClient(t, "redis://"+replica).(*redis.Client)
		require.NoError(t, admin.Do(t.Context(), "REPLICAOF", "NO", "ONE").Err())

		requireHeld(t, after, "copied")
		_, err = after.Renew(t.Context(), copied, time.Minute)
		require.NoError(t, err, "the replica has this lease")
		next := acquire(t, after, "lost")
		require.Greater(t, next.Fence, lost.Fence, "a resource can refuse the old holder's write")
		requireLost(t, after, lost)
		require.ErrorIs(t, after.Release(t.Context(), lost), lockstore.ErrLost)
		_, err = after.Renew(t.Context(), next, time.Minute)
		require.NoError(t, err, "the old holder's requests did not change the new lease")
	})
}
