package redisstore

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
)

// miniStore is a store on a new miniredis, whose clock is the bubble's.
func miniStore(t *testing.T) (*Store, *miniredis.Miniredis) {
	m := miniredis.NewMiniRedis()
	t.Cleanup(m.Close)
	client := openDialer(t, "redis://127.0.0.1", func(context.Context, string, string) (net.Conn, error) { return m.Dial() })
	s, err := New(client, Options{})
	require.NoError(t, err)
	loadScripts(t, s)
	return s, m
}

// forward lets time pass for the bubble and for miniredis's keys, which have a time of
// their own.
func forward(m *miniredis.Miniredis, d time.Duration) {
	<-time.After(d)
	m.FastForward(d)
}

// The server keeps an entry until an hour after the end of its lease or closing,
// and drops it then.
func TestRetention(t *testing.T) {
	const long = 20 * time.Hour
	take := func(t *testing.T, s *Store, ttl time.Duration) lockstore.Lease {
		lease, err := s.Acquire(t.Context(), lockstore.Request{Key: "k", Owner: lockstore.NewOwner(), TTL: ttl})
		require.NoError(t, err)
		return lease
	}
	abandon := func(t *testing.T, s *Store) {
		require.NoError(t, s.Release(t.Context(), lockstore.Lease{Key: "k", Owner: lockstore.NewOwner()}))
	}
	for name, c := range map[string]struct {
		act  func(t *testing.T, s *Store, m *miniredis.Miniredis)
		want time.Duration // from the end of act, without the hour
	}{
		"an acquire": {func(t *testing.T, s *Store, m *miniredis.Miniredis) { take(t, s, time.Minute) }, time.Minute},
		"an acquire, rounded up to milliseconds": {func(t *testing.T, s *Store, m *miniredis.Miniredis) {
			take(t, s, time.Second+time.Nanosecond)
		}, time.Second + time.Millisecond},
		"the same acquire again": {func(t *testing.T, s *Store, m *miniredis.Miniredis) {
			req := newRequest("k")
			for range 2 {
				_, err := s.Acquire(t.Context(), req)
				require.NoError(t, err)
				forward(m, time.Second)
			}
		}, 58 * time.Second},
		"a release": {func(t *testing.T, s *Store, m *miniredis.Miniredis) {
			lease := take(t, s, time.Minute)
			forward(m, time.Second)
			require.NoError(t, s.Release(t.Context(), lease))
		}, 59 * time.Second},
		"a renewal": {func(t *testing.T, s *Store, m *miniredis.Miniredis) {
			lease := take(t, s, time.Minute)
			forward(m, time.Second)
			_, err := s.Renew(t.Context(), lease, long)
			require.NoError(t, err)
		}, long},
		"a renewal that would shorten the lease": {func(t *testing.T, s *Store, m *miniredis.Miniredis) {
			lease := take(t, s, long)
			forward(m, time.Second)
			_, err := s.Renew(t.Context(), lease, time.Minute)
			require.NoError(t, err)
		}, long - time.Second},
		"F19 a shorter renewal after the clock stepped back": {func(t *testing.T, s *Store, m *miniredis.Miniredis) {
			lease := take(t, s, long)
			m.SetTime(time.Now().Add(-time.Hour))
			left, err := s.Renew(t.Context(), lease, time.Minute)
			require.NoError(t, err)
			require.Equal(t, long, left)
		}, long},
		"a closing": {func(t *testing.T, s *Store, m *miniredis.Miniredis) {
			lease := take(t, s, time.Minute)
			forward(m, time.Second)
			require.NoError(t, s.ReleaseAfter(t.Context(), lease, long))
		}, long},
		"the mark of an abandoned owner": {func(t *testing.T, s *Store, m *miniredis.Miniredis) { abandon(t, s) }, 0},
		"the mark during another's lease": {func(t *testing.T, s *Store, m *miniredis.Miniredis) {
			take(t, s, long)
			forward(m, time.Second)
			abandon(t, s)
		}, long - time.Second},
		"the mark during a closing": {func(t *testing.T, s *Store, m *miniredis.Miniredis) {
			require.NoError(t, s.ReleaseAfter(t.Context(), take(t, s, time.Minute), long))
			abandon(t, s)
		}, long},
		"the mark after a release": {func(t *testing.T, s *Store, m *miniredis.Miniredis) {
			require.NoError(t, s.Release(t.Context(), take(t, s, time.Minute)))
			abandon(t, s)
		}, time.Minute},
		"the mark after the lease": {func(t *testing.T, s *Store, m *miniredis.Miniredis) {
			take(t, s, time.Minute)
			forward(m, 30*time.Minute)
			abandon(t, s)
		}, 0},
		"abandoned by its holder": {func(t *testing.T, s *Store, m *miniredis.Miniredis) {
			lease := take(t, s, time.Minute)
			require.NoError(t, s.Release(t.Context(), lockstore.Lease{Key: "k", Owner: lease.Owner}))
		}, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, m := miniStore(t)
				c.act(t, s, m)
				require.Equal(t, c.want+time.Hour, m.TTL(DefaultPrefix+"k"), "kept for")
			})
		})
	}
}

// Keys that are used once leave nothing behind: they are there until an hour after
// the end of their lease, and gone then.
func TestF79UsedKeysGo(t *testing.T) {
	keys := usedKeys(t)
	synctest.Test(t, func(t *testing.T) {
		s, m := miniStore(t)
		for i := range keys {
			use(t, s, i)
		}
		forward(m, newRequest("").TTL+time.Hour-time.Millisecond)
		require.Equal(t, keys, len(m.Keys()))
		forward(m, time.Millisecond)
		require.Zero(t, len(m.Keys()), "keys are left")
	})
}

// usedKeys is how many keys a test uses: KEYS, or few.
func usedKeys(t *testing.T) int {
	text := os.Getenv("KEYS")
	if text == "" {
		return 1000
	}
	keys, err := strconv.Atoi(text)
	require.NoError(t, err)
	return keys
}

// use acquires and releases a key as a function in Lambda does.
func use(t *testing.T, s *Store, i int) {
	lease, err := s.Acquire(t.Context(), lockstore.Request{
		Key: lockstore.Key("order", fmt.Sprintf("%08d", i)), Owner: lockstore.NewOwner(), TTL: time.Minute,
		Holder: lockstore.Holder{Name: "withdraw", ID: "8f5a1c52-3a3c-4c1e-9d3c-000000000000", Since: time.Now()},
	})
	require.NoError(t, err)
	require.NoError(t, s.Release(t.Context(), lease))
}

// TestMemoryOfUsedKeys measures what the server keeps of a key that was used once.
//
// KEYS=100000 go test ./lockstore/redisstore -run TestMemoryOfUsedKeys -v prints it
// for that many.
func TestMemoryOfUsedKeys(t *testing.T) {
	onBoth(t, func(t *testing.T, program string) {
		addr := testservers.Start(t, program).Addr
		s, admin := openStore(t, "redis://"+addr), openClient(t, "redis://"+addr)
		used := func() int {
			info, err := admin.Info(t.Context(), "memory").Result()
			require.NoError(t, err)
			bytes, err := strconv.Atoi(infoField(info, "used_memory"))
			require.NoError(t, err)
			return bytes
		}
		use(t, s, 0) // connections and scripts are there
		before, keys := used(), usedKeys(t)
		for i := range keys {
			use(t, s, i+1)
		}
		each := float64(used()-before) / float64(keys)
		one, err := admin.MemoryUsage(t.Context(), DefaultPrefix+"order/00000001").Result()
		require.NoError(t, err)
		t.Logf("%d keys, %.0f bytes of used_memory each; MEMORY USAGE of one %d", keys, each, one)
		require.LessOrEqual(t, one, int64(400))
		for i := range keys {
			left, err := admin.PTTL(t.Context(), DefaultPrefix+fmt.Sprintf("order/%08d", i+1)).Result()
			require.NoError(t, err)
			require.LessOrEqual(t, left, time.Hour+time.Minute)
			require.Greater(t, left, time.Hour, "without an end the server keeps it for ever")
		}
	})
}
