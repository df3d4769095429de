package redisstore

import (
	"fmt"
	"net"
	"strings"
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

// Whatever a replica has read, it answers no request: it may lag. The entries here have every
// state, so the scripts return at every place where they do not write.
func TestAReplicaAnswersNothing(t *testing.T) {
	onBoth(t, "F80 replica", func(t *testing.T, program string) {
		addr := testservers.Start(t, program).Addr
		s, admin := openStore(t, "redis://"+addr), openClient(t, "redis://"+addr)
		leases := map[string]lockstore.Lease{}
		for _, key := range []string{"held", "queue", "free", "abandoned", "revoked", "started", "completed", "cooldown", "gone", "expired", "doubt", "clock", "list", "text"} {
			leases[key] = acquire(t, s, key)
		}
		queued(t, s, "queue")
		require.NoError(t, s.Release(t.Context(), leases["free"]))
		require.NoError(t, s.Release(t.Context(), lockstore.Lease{Key: "abandoned", Owner: lockstore.NewOwner()}))
		_, err := s.Revoke(t.Context(), lockstore.RevokeRequest{Key: "revoked", Fence: leases["revoked"].Fence})
		require.NoError(t, err)
		require.NoError(t, s.MarkStarted(t.Context(), leases["started"]))
		require.NoError(t, s.Complete(t.Context(), leases["completed"], []byte("result"), time.Hour))
		require.NoError(t, s.Complete(t.Context(), leases["cooldown"], nil, time.Hour))
		entry := func(key, text string) {
			text = strings.NewReplacer("FENCE", fmt.Sprintf("%016d", leases[key].Fence), "OWNER", string(leases[key].Owner), "HOUR", fmt.Sprint(time.Now().Add(time.Hour).UnixMicro())).Replace(text)
			require.NoError(t, admin.Set(t.Context(), DefaultPrefix+key, text, time.Hour).Err())
		}
		entry("expired", "lambdalock2 H000FENCE OWNER 0\n1790000000000000 60000000 \n")
		entry("doubt", "lambdalock2 X000FENCE  0\n0000000000000000 0 \nOWNER FENCE 0 1 1790000000000000 60000000 s \n\n")
		entry("clock", "lambdalock2 H000FENCE OWNER 0\nHOUR 60000000 \n")
		require.NoError(t, admin.Del(t.Context(), DefaultPrefix+"gone", DefaultPrefix+"list").Err())
		require.NoError(t, admin.RPush(t.Context(), DefaultPrefix+"list", "a").Err())
		require.NoError(t, admin.Set(t.Context(), DefaultPrefix+"text", "hello", 0).Err())
		before := map[string]string{}
		for key := range leases {
			before[key] = admin.Dump(t.Context(), DefaultPrefix+key).Val()
		}

		require.NoError(t, admin.Do(t.Context(), nowhere...).Err())
		for key, lease := range leases {
			stranger := lockstore.Lease{Key: key, Owner: lockstore.NewOwner(), Fence: lease.Fence}
			for _, by := range []lockstore.Lease{lease, stranger} {
				ctx, what := t.Context(), fmt.Sprint(key, by.Owner == lease.Owner)
				for _, wait := range []bool{false, true} {
					req := newRequest(key)
					req.Owner, req.JoinQueue = by.Owner, wait
					_, err = s.Acquire(ctx, req)
					requireUnavailable(t, err, "READONLY")
				}
				for _, ttl := range []time.Duration{time.Second, time.Hour} {
					_, err = s.Renew(ctx, by, ttl)
					requireUnavailable(t, err, "READONLY")
				}
				for name, err := range map[string]error{
					"release":  s.Release(ctx, by),
					"abandon":  s.Release(ctx, lockstore.Lease{Key: key, Owner: by.Owner}),
					"leave":    s.Leave(ctx, key, by.Owner),
					"start":    s.MarkStarted(ctx, by),
					"complete": s.Complete(ctx, by, []byte("result"), time.Hour),
				} {
					require.ErrorContains(t, err, "READONLY", what+name)
					requireUnavailable(t, err, "READONLY")
				}
			}
			for _, now := range []bool{false, true} {
				_, err = s.Revoke(t.Context(), lockstore.RevokeRequest{Key: key, Fence: lease.Fence, OpenAtOnce: now})
				requireUnavailable(t, err, "READONLY")
			}
			requireUnavailable(t, s.ResolveNoEffect(t.Context(), key, lease.Fence), "READONLY")
			requireUnavailable(t, s.ResolveEffect(t.Context(), key, lease.Fence, nil, time.Hour), "READONLY")
			_, err = s.Inspect(t.Context(), key)
			requireUnavailable(t, err, "READONLY")
		}
		requireUnavailable(t, s.List(t.Context(), "", func(lockstore.Page) error { t.Error("a page"); return nil }), "replica")
		_, err = s.Extent(t.Context())
		requireUnavailable(t, err, "replica")
		require.NoError(t, storetest.AwaitTurn(t.Context(), s, "queue", lockstore.NewOwner()), "a waiter asks again, and learns it then")

		require.NoError(t, admin.Do(t.Context(), "REPLICAOF", "NO", "ONE").Err())
		for key := range leases {
			_, _ = s.Inspect(t.Context(), key) // and the proof changes nothing on a primary
			require.Equal(t, before[key], admin.Dump(t.Context(), DefaultPrefix+key).Val(), key)
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
		require.ErrorIs(t, after.Release(t.Context(), lost), lockstore.ErrLost)
		_, err = after.Renew(t.Context(), next, time.Minute)
		require.NoError(t, err, "the old holder's requests did not change the new lease")
	})
}
