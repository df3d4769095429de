package redisstore

import (
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

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
