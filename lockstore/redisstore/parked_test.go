package redisstore

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
)

// putAndTake stores an address of the key, twice, and takes it.
func putAndTake(t *testing.T, s *lockstore.Store, key string) {
	t.Helper()
	const owner = "OWNEROWNEROWNER"
	for _, address := range []string{"one", "two"} {
		require.NoError(t, driverOf(s).PutAddress(t.Context(), key, owner, driver.HiddenBytes(address), time.Hour))
	}
	for _, want := range []string{"two", ""} {
		address, err := driverOf(s).TakeAddress(t.Context(), key, owner)
		require.NoError(t, err)
		require.Equal(t, want, string(address))
	}
}

// The string of an address is in the slot of its key, is not listed, goes by itself, and is not mistaken for what another program has written.
func testAddress(t *testing.T, url string) {
	ctx := t.Context()
	s, admin := openStore(t, url), openClient(t, url)
	d := driverOf(s)
	const owner = "OWNEROWNEROWNER"
	for _, key := range []string{"a", "{a}", "{}a", "a{b}c"} {
		require.NoError(t, d.PutAddress(ctx, key, owner, driver.HiddenBytes("token"), time.Hour))
		name := d.list(key, owner) + addressEnd
		require.True(t, strings.HasPrefix(name, DefaultPrefix), "the rights of deploy/cache.yaml")
		require.NotContains(t, name, owner)
		stays, err := admin.PTTL(ctx, name).Result()
		require.NoError(t, err)
		require.InDelta(t, time.Hour, stays, float64(time.Minute))
		require.Equal(t, d.together(key), admin.ClusterKeySlot(ctx, name).Val() == admin.ClusterKeySlot(ctx, DefaultPrefix+key).Val())
		require.NoError(t, s.List(ctx, "", func(p lockstore.Page) error {
			require.Empty(t, p.Keys)
			require.Zero(t, p.Damaged)
			return nil
		}))
		address, err := d.TakeAddress(ctx, key, owner)
		require.NoError(t, err)
		require.Equal(t, "token", string(address))
		require.Zero(t, admin.Exists(ctx, name).Val())

		for _, write := range []func() error{
			func() error { return admin.Set(ctx, name, "foreign", 0).Err() },
			func() error { return admin.RPush(ctx, name, "foreign").Err() },
		} {
			require.NoError(t, admin.Del(ctx, name).Err())
			require.NoError(t, write())
			before := admin.Dump(ctx, name).Val()
			require.ErrorIs(t, d.PutAddress(ctx, key, owner, driver.HiddenBytes("token"), time.Hour), lockstore.ErrCorrupt)
			_, err := d.TakeAddress(ctx, key, owner)
			require.ErrorIs(t, err, lockstore.ErrCorrupt)
			require.Equal(t, before, admin.Dump(ctx, name).Val())
		}
		require.NoError(t, admin.Del(ctx, name).Err())
	}
}

// answering is a store whose server gives these answers; "" is none.
func answering(t *testing.T, answers ...string) *lockstore.Store {
	t.Helper()
	var mu sync.Mutex // the client uses another connection for each attempt
	addr := fakeServer(t, func(command []string) string {
		if !strings.EqualFold(command[0], "evalsha") {
			return "+OK\r\n"
		}
		mu.Lock()
		defer mu.Unlock()
		answer := answers[0]
		answers = answers[1:]
		return answer
	})
	return storeOn(t, retryingClient(t, addr))
}

// A request that was sent twice, so that its outcome is unknown, names the parked owners all the same.
func TestWakeBesideAnError(t *testing.T) {
	s := answering(t, "", "$10\r\nL\n\x02sleeper\r\n")
	a, err := s.Driver().Do(t.Context(), "k", driver.Request{Kind: driver.Release, Owner: "o", Fence: 7})
	requireUnknown(t, err)
	require.Equal(t, []driver.Owner{"sleeper"}, a.Wake)
}

// The client sends a request again whose reply was lost, and finds nothing.
func TestAddressWhoseReplyIsLost(t *testing.T) {
	s := answering(t, "", "$1\r\nA\r\n", "$1\r\nA\r\n")
	_, err := driverOf(s).TakeAddress(t.Context(), "k", "o")
	requireUnknown(t, err)
	address, err := driverOf(s).TakeAddress(t.Context(), "k", "o")
	require.NoError(t, err)
	require.Nil(t, address)
}
