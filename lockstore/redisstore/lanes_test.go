package redisstore

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/leasesim"
)

// fewConnections is a client of a miniredis.
func fewConnections(t *testing.T, n int) redis.UniversalClient {
	m := newMini(t)
	return openWith(t, mini, func(opt *redis.UniversalOptions) {
		dials(m)(opt)
		opt.PoolSize = n
	})
}

// The turn of a request, or its answer, comes at the moment at which its context ends. However often, no connection is
// lost: in the end as many requests are sent at once as there are connections, and half as many waits.
func TestNoConnectionIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const connections, takes = 4, 10 * time.Millisecond
		client := fewConnections(t, connections)
		var slow atomic.Bool
		var waits atomic.Int32
		client.AddHook(hook(func(cmd redis.Cmder) error {
			if cmd.Name() == "blpop" {
				waits.Add(1)
			} else if cmd.Name() == "evalsha" && slow.Load() {
				<-time.After(takes)
			}
			return nil
		}))
		s := storeOn(t, client)
		loadScript(t, s)
		lease := acquire(t, s, "k")
		req := queued(t, s, "k")
		slow.Store(true)
		atOnce := func(n int, do func(i int)) (took time.Duration) {
			began := time.Now()
			var all sync.WaitGroup
			for i := range n {
				all.Go(func() { do(i) })
			}
			all.Wait()
			return time.Since(began)
		}
		for round := range 60 {
			atOnce(10*connections, func(i int) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+(i/4+round)%5)*takes)
				defer cancel()
				switch i % 4 {
				case 0:
					_, _ = s.AwaitTurn(ctx, req, 0)
				case 1:
					_, _ = s.Inspect(ctx, "k")
				default: // these go first
					_, _ = s.Renew(ctx, lease, time.Minute)
				}
			})
		}
		require.Equal(t, takes, atOnce(connections, func(int) { _, err := s.Inspect(t.Context(), "k"); assert.NoError(t, err) }), "each has a connection")
		waits.Store(0)
		atOnce(connections, func(int) { _ = await(t, s, req) })
		require.EqualValues(t, connections/2, waits.Load(), "waits at the server")
		require.Empty(t, driverOf(s).wakeUps.pausing)
		stats := client.PoolStats()
		require.Equal(t, stats.TotalConns, stats.IdleConns)
	})
}

// Many runs of one process wait for a key that is held: 128 with a place in the queue, of which 5 have a connection to wait at the
// server, and 72 without a place. A run asks about once a second.
func TestRequestsOfIdleWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fewConnections(t, defaultConnections)
		s := storeOn(t, client)
		loadScript(t, s)
		acquire(t, s, "k")
		g, err := guard.New(s, guard.Options{Wait: 4 * time.Second})
		require.NoError(t, err)
		var all sync.WaitGroup
		for range 200 {
			all.Go(func() {
				_ = g.Do(t.Context(), "k", func(context.Context, guard.Lock) error { return nil }) // it is busy
			})
		}
		leasesim.Pass(2 * time.Second)
		sent := counted(client)
		leasesim.Pass(time.Second)
		t.Logf("%d requests in a second", sent.Load())
		assert.Less(t, sent.Load(), int32(700))
		all.Wait()
	})
}
