package redisstore

import (
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

// nowhere is a primary that does not exist. A server that follows it stays as it is.
var nowhere = []any{"REPLICAOF", "127.0.0.1", "1"}

// Whatever a replica has read, it answers no request: it may lag. The entries have every state, and are damaged, so the
// scripts return at every place where they do not write.
func TestAReplicaAnswersNothing(t *testing.T) {
	onBoth(t, "F80 replica", func(t *testing.T, program string) {
		ctx, addr := t.Context(), testservers.Start(t, program).Addr
		s, admin := openStore(t, "redis://"+addr), openClient(t, "redis://"+addr)
		loadScript(t, s)
		require.NoError(t, admin.RPush(ctx, DefaultPrefix+"list", "a").Err())
		entryOf := map[string]string{"list": "is no entry", "gone": ""}
		sound, damaged, full, _ := entries(time.Now()) // one that is cut returns where a damaged one does
		for i, entry := range slices.Concat(sound, damaged, full) {
			key := fmt.Sprint(i)
			entryOf[key] = entry
			require.NoError(t, admin.Set(ctx, DefaultPrefix+key, entry, time.Hour).Err())
		}
		before := map[string]string{} // as the server stores them
		for key := range entryOf {
			before[key] = admin.Dump(ctx, DefaultPrefix+key).Val()
		}

		require.NoError(t, admin.Do(ctx, nowhere...).Err())
		for key, entry := range entryOf {
			for _, r := range everyKind {
				_, err := driverOf(s).Do(ctx, key, r)
				require.ErrorIs(t, err, lockstore.ErrUnavailable, "%+v of %q", r, entry)
				requireUnavailable(t, err, "READONLY")
			}
		}
		requireUnavailable(t, s.List(ctx, "", func(lockstore.Page) error { t.Error("a page"); return nil }), "replica")
		_, err := s.Extent(ctx)
		requireUnavailable(t, err, "replica")
		require.NoError(t, storetest.AwaitTurn(ctx, s, "0", lockstore.NewOwner()), "a waiter asks again, and learns it then")

		require.NoError(t, admin.Do(ctx, "REPLICAOF", "NO", "ONE").Err())
		for key := range entryOf {
			_, _ = s.Inspect(ctx, key) // and the proof changes nothing on a primary
			require.Equal(t, before[key], admin.Dump(ctx, DefaultPrefix+key).Val(), key)
		}
	})
}

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
	})
}
