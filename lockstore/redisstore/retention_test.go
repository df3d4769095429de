package redisstore

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
)

// miniStore is a store on a new miniredis in virtual time.
func miniStore(t *testing.T) (*lockstore.Store, *miniredis.Miniredis) {
	m := miniredis.NewMiniRedis()
	t.Cleanup(m.Close)
	client := openDialer(t, "redis://127.0.0.1", func(context.Context, string, string) (net.Conn, error) { return m.Dial() })
	s, err := New(client, Options{})
	require.NoError(t, err)
	loadScripts(t, s)
	return s, m
}

// forward lets time pass for the bubble and for the keys of miniredis.
func forward(m *miniredis.Miniredis, d time.Duration) {
	<-time.After(d)
	m.FastForward(d)
}

// The server deletes an entry an hour after the end of its lease or cooldown.
func TestRetention(t *testing.T) {
	const long = 20 * time.Hour
	take := func(t *testing.T, s *lockstore.Store, ttl time.Duration) lockstore.Lease {
		lease, err := s.Acquire(t.Context(), lockstore.Request{Key: "k", Owner: lockstore.NewOwner(), TTL: ttl})
		require.NoError(t, err)
		return lease
	}
	abandon := func(t *testing.T, s *lockstore.Store) {
		require.NoError(t, s.Release(t.Context(), lockstore.Lease{Key: "k", Owner: lockstore.NewOwner()}))
	}
	for name, c := range map[string]struct {
		act  func(t *testing.T, s *lockstore.Store, m *miniredis.Miniredis)
		want time.Duration // from the end of act, without the hour
	}{
		"an acquire": {func(t *testing.T, s *lockstore.Store, m *miniredis.Miniredis) { take(t, s, time.Minute) }, time.Minute},
		"an acquire, rounded up to milliseconds": {func(t *testing.T, s *lockstore.Store, m *miniredis.Miniredis) {
			take(t, s, time.Second+time.Nanosecond)
		}, time.Second + time.Millisecond},
		"the same acquire again": {func(t *testing.T, s *lockstore.Store, m *miniredis.Miniredis) {
			req := newRequest("k")
			for range 2 {
				_, err := s.Acquire(t.Context(), req)
				require.NoError(t, err)
				forward(m, time.Second)
			}
		}, 58 * time.Second},
		"F79 a release": {func(t *testing.T, s *lockstore.Store, m *miniredis.Miniredis) {
			lease := take(t, s, time.Minute)
			forward(m, time.Second)
			require.NoError(t, s.Release(t.Context(), lease))
		}, 59 * time.Second},
		"a renewal": {func(t *testing.T, s *lockstore.Store, m *miniredis.Miniredis) {
			lease := take(t, s, time.Minute)
			forward(m, time.Second)
			_, err := s.Renew(t.Context(), lease, long)
			require.NoError(t, err)
		}, long},
		"a renewal that would shorten the lease": {func(t *testing.T, s *lockstore.Store, m *miniredis.Miniredis) {
			lease := take(t, s, long)
			forward(m, time.Second)
			_, err := s.Renew(t.Context(), lease, time.Minute)
			require.NoError(t, err)
		}, long},
		"F19 a shorter renewal after the clock stepped back": {func(t *testing.T, s *lockstore.Store, m *miniredis.Miniredis) {
			lease := take(t, s, long)
			m.SetTime(time.Now().Add(-time.Hour))
			left, err := s.Renew(t.Context(), lease, time.Minute)
			require.NoError(t, err)
			require.Equal(t, long, left.TTL)
		}, long},
		"a cooldown": {func(t *testing.T, s *lockstore.Store, m *miniredis.Miniredis) {
			lease := take(t, s, time.Minute)
			forward(m, time.Second)
			require.NoError(t, s.Complete(t.Context(), lease, nil, long))
		}, long},
		"a result for a month": {func(t *testing.T, s *lockstore.Store, m *miniredis.Miniredis) {
			require.NoError(t, s.Complete(t.Context(), take(t, s, time.Minute), []byte("result"), lockstore.MaxResultTime))
			abandon(t, s)
		}, lockstore.MaxResultTime},
		"a start": {func(t *testing.T, s *lockstore.Store, m *miniredis.Miniredis) {
			require.NoError(t, s.MarkStarted(t.Context(), take(t, s, time.Minute)))
			abandon(t, s)
		}, lockstore.StartedFor},
		"a renewal after a start": {func(t *testing.T, s *lockstore.Store, m *miniredis.Miniredis) {
			lease := take(t, s, time.Minute)
			require.NoError(t, s.MarkStarted(t.Context(), lease))
			_, err := s.Renew(t.Context(), lease, long)
			require.NoError(t, err)
		}, lockstore.StartedFor},
		"a release after a start": {func(t *testing.T, s *lockstore.Store, m *miniredis.Miniredis) {
			lease := take(t, s, time.Minute)
			require.NoError(t, s.MarkStarted(t.Context(), lease))
			require.NoError(t, s.Release(t.Context(), lease))
		}, 0},
		"an abandon of a new key": {func(t *testing.T, s *lockstore.Store, m *miniredis.Miniredis) { abandon(t, s) }, 0},
		"an abandon during another owner's lease": {func(t *testing.T, s *lockstore.Store, m *miniredis.Miniredis) {
			take(t, s, long)
			forward(m, time.Second)
			abandon(t, s)
		}, long - time.Second},
		"an abandon during a cooldown": {func(t *testing.T, s *lockstore.Store, m *miniredis.Miniredis) {
			require.NoError(t, s.Complete(t.Context(), take(t, s, time.Minute), nil, long))
			abandon(t, s)
		}, long},
		"an abandon after a release": {func(t *testing.T, s *lockstore.Store, m *miniredis.Miniredis) {
			require.NoError(t, s.Release(t.Context(), take(t, s, time.Minute)))
			abandon(t, s)
		}, 0},
		"an abandon after the lease": {func(t *testing.T, s *lockstore.Store, m *miniredis.Miniredis) {
			take(t, s, time.Minute)
			forward(m, 30*time.Minute)
			abandon(t, s)
		}, 0},
		"an abandon by the holder": {func(t *testing.T, s *lockstore.Store, m *miniredis.Miniredis) {
			lease := take(t, s, time.Minute)
			require.NoError(t, s.Release(t.Context(), lockstore.Lease{Key: "k", Owner: lease.Owner}))
		}, 0},
		"a release with a hand-over": {func(t *testing.T, s *lockstore.Store, m *miniredis.Miniredis) {
			lease := take(t, s, long)
			queued(t, s, "k")
			forward(m, time.Second) // what comes in the microsecond of the grant is decided by other lines
			require.NoError(t, s.Release(t.Context(), lease))
		}, lockstore.Turn},
		"an acquire that extends a hand-over": {func(t *testing.T, s *lockstore.Store, m *miniredis.Miniredis) {
			lease := take(t, s, time.Minute)
			req := queued(t, s, "k")
			forward(m, time.Second)
			require.NoError(t, s.Release(t.Context(), lease))
			req.TTL = long
			_, err := s.Acquire(t.Context(), req)
			require.NoError(t, err)
		}, long},
		"one that leaves from behind the first": {func(t *testing.T, s *lockstore.Store, m *miniredis.Miniredis) {
			take(t, s, long)
			queued(t, s, "k")
			require.NoError(t, s.Leave(t.Context(), "k", queued(t, s, "k").Owner))
		}, long},
		"an abandon long after a cooldown": {func(t *testing.T, s *lockstore.Store, m *miniredis.Miniredis) {
			require.NoError(t, s.Complete(t.Context(), take(t, s, time.Minute), nil, time.Minute))
			<-time.After(2 * time.Hour) // as if the server were late with the deletion
			abandon(t, s)
		}, 0},
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
