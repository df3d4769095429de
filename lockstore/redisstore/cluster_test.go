package redisstore

import (
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
)

// A slot moves to another node while a lock in it is held.
func TestSlotMigration(t *testing.T) {
	t.Parallel()
	onBoth(t, "F40 slot migration", func(t *testing.T, program string) {
		addrs := testservers.Cluster(t, program)
		ctx := t.Context()
		s := openStore(t, "redis://"+addrs[0]+"?cluster=true")
		const key = "{account}/7"
		at := DefaultPrefix + key
		lease := acquire(t, s, key) // the client knows the slots from here on

		slot, err := openClient(t, "redis://"+addrs[0]).ClusterKeySlot(ctx, at).Result()
		require.NoError(t, err)
		var from, to *redis.Client
		var fromID, toID string
		for _, addr := range addrs {
			node := openClient(t, "redis://"+addr).(*redis.Client)
			id := node.ClusterMyID(ctx).Val()
			if node.Exists(ctx, at).Val() == 1 {
				from, fromID = node, id
			} else {
				to, toID = node, id
			}
		}
		require.NotNil(t, from)

		// A client without cluster mode gets an error, and nothing is applied.
		wrong, err := New(to, Options{})
		require.NoError(t, err)
		_, err = wrong.Acquire(ctx, newRequest(key))
		requireUnavailable(t, err, "MOVED")
		require.ErrorContains(t, err, clusterAdvice)

		require.NoError(t, to.Do(ctx, "CLUSTER", "SETSLOT", slot, "IMPORTING", fromID).Err())
		require.NoError(t, from.Do(ctx, "CLUSTER", "SETSLOT", slot, "MIGRATING", toID).Err())
		requireHeld(t, s, key) // still on the old node
		host, port, _ := strings.Cut(to.Options().Addr, ":")
		require.NoError(t, from.Migrate(ctx, host, port, at, 0, answerTimeout).Err())
		requireHeld(t, s, key) // ASK
		_, err = s.Renew(ctx, lease, 2*newRequest(key).TTL)
		require.NoError(t, err)
		plain, err := New(from, Options{})
		require.NoError(t, err)
		_, err = plain.Renew(ctx, lease, newRequest(key).TTL)
		requireUnavailable(t, err, "ASK")

		for _, node := range []*redis.Client{to, from} {
			require.NoError(t, node.Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", toID).Err())
		}
		requireHeld(t, s, key) // MOVED
		require.NoError(t, s.Release(ctx, lease))
		require.Greater(t, acquire(t, s, key).Fence, lease.Fence)
	})
}

// The client of a cluster sends a request again when the reply is lost. Other owners have
// had the key meanwhile, so the entry does not know the lease any more. ErrLost would say
// that the lease was lost before the release.
func TestReleaseRepeatedByTheClient(t *testing.T) {
	for _, c := range []struct {
		name    string
		answers []string // to the scripts
		lost    bool
	}{
		{"F25 repeated", []string{"", "$1\r\nL\r\n"}, false},
		{"F25 repeated at a server that has restarted", []string{"", "-NOSCRIPT No matching script.\r\n", "$1\r\nL\r\n"}, false},
		{"F25 redirected at first", []string{"-ASK 1 SELF\r\n", "$1\r\nL\r\n"}, true},
		{"F25 not repeated", []string{"$1\r\nL\r\n"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var addr string
			var mu sync.Mutex // the client uses another connection for each attempt
			answers := c.answers
			addr = fakeServer(t, func(command []string) string {
				mu.Lock()
				defer mu.Unlock()
				host, port, _ := strings.Cut(addr, ":")
				switch strings.ToLower(command[0]) {
				case "cluster":
					return "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n" + host + "\r\n:" + port + "\r\n"
				case "evalsha", "eval":
					answer := strings.Replace(answers[0], "SELF", addr, 1)
					answers = answers[1:]
					return answer
				}
				return "+OK\r\n"
			})
			s := openStore(t, "redis://"+addr+"?cluster=true")
			err := s.Release(t.Context(), lockstore.Lease{Key: "k", Owner: lockstore.NewOwner(), Fence: 7})
			mu.Lock()
			require.Empty(t, answers)
			mu.Unlock()
			if c.lost {
				require.ErrorIs(t, err, lockstore.ErrLost)
			} else {
				requireUnknown(t, err)
			}
		})
	}
}
