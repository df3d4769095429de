package redisstore

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
)

// The client asks for the password when it makes a connection.
func TestClientWithCredentials(t *testing.T) {
	addr := testservers.Redis(t)
	admin := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { _ = admin.Close() })
	require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "locks", "on", ">token-1", "~lambdalock:*",
		"+evalsha", "+eval", "+get", "+set", "+setrange", "+pexpire", "+time").Err())

	u, err := lockstore.ParseURL("redis://ignored:ignored@" + addr)
	require.NoError(t, err)
	asked, password := 0, "token-1"
	client, err := ClientWithCredentials(lockstore.Config{URL: u}, func(context.Context) (string, string, error) {
		asked++
		return "locks", password, nil
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	store, err := New(client, Options{})
	require.NoError(t, err)

	cycle := func() error {
		lease, err := store.Acquire(t.Context(), lockstore.Request{Key: "k", Owner: lockstore.NewOwner(), TTL: time.Minute})
		if err != nil {
			return err
		}
		return store.Release(t.Context(), lease)
	}
	require.NoError(t, cycle())
	require.NoError(t, cycle())
	require.Equal(t, 1, asked, "once for each connection")

	require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "locks", "resetpass", ">token-2").Err())
	require.NoError(t, admin.Do(t.Context(), "CLIENT", "KILL", "USER", "locks").Err())
	require.Eventually(t, func() bool { return cycle() != nil }, 5*time.Second, 10*time.Millisecond)
	err = cycle()
	require.ErrorIs(t, err, lockstore.ErrUnavailable, "F71 a refused token is neither a lock nor busy")
	password = "token-2"
	require.Eventually(t, func() bool { return cycle() == nil }, 5*time.Second, 10*time.Millisecond)
}
