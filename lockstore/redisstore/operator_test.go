package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
)

// What is held while a listing goes on is listed once, also when the server's table of keys
// grows and shrinks meanwhile, so that SCAN returns keys twice. Lists of those who wait are
// not listed: their names are made of secrets.
func TestListWhileKeysChange(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) *lockstore.Store{
		"one server": func(t *testing.T) *lockstore.Store { return openStore(t, "redis://"+testservers.Redis(t)) },
		"a cluster": func(t *testing.T) *lockstore.Store {
			return openStore(t, "redis://"+testservers.Cluster(t, testservers.RedisServer)[0]+"?cluster=true")
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			const keys = 600
			held := map[string]bool{}
			for i := range keys {
				key := fmt.Sprintf("list/%d", i)
				_, err := s.Acquire(t.Context(), lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: time.Hour})
				require.NoError(t, err)
				held[key] = true
			}
			waits := lockstore.NewOwner()
			require.NoError(t, driverOf(s).client.RPush(t.Context(), driverOf(s).list("waits", waits), "1").Err())

			ctx, stop := context.WithCancel(t.Context())
			var changing sync.WaitGroup
			changing.Go(func() {
				for i := 0; ctx.Err() == nil; i = (i + 1) % 20 {
					pipe := driverOf(s).client.Pipeline()
					for n := range 200 {
						if i < 10 {
							pipe.Set(ctx, fmt.Sprintf("other/%d/%d", i, n), "x", 0)
						} else {
							pipe.Del(ctx, fmt.Sprintf("other/%d/%d", i-10, n))
						}
					}
					_, _ = pipe.Exec(ctx)
				}
			})
			found, requests := map[string]int{}, 0
			err := s.List(t.Context(), "", func(p lockstore.Page) error {
				requests += p.Requests
				for _, status := range p.Keys {
					assert.Equal(t, lockstore.Held, status.State)
					found[status.Key]++
				}
				return nil
			})
			stop()
			changing.Wait()
			require.NoError(t, err)
			assert.Len(t, found, keys)
			for key, n := range found {
				assert.True(t, held[key], key)
				assert.Equal(t, 1, n, key)
			}
			assert.Greater(t, requests, keys)
			extent, err := s.Extent(t.Context())
			require.NoError(t, err)
			assert.GreaterOrEqual(t, extent.Entries, int64(keys))
		})
	}
}

// What a page says, on miniredis, which has the answers of a server without one.
func TestPageOfAList(t *testing.T) {
	m := miniredis.RunT(t)
	s := openStore(t, "redis://"+m.Addr())
	lease := acquire(t, s, "a/1")
	require.NoError(t, m.Set(driverOf(s).prefix+"a/2", "damaged"))
	require.NoError(t, m.Set(driverOf(s).prefix+"b", "damaged"))
	_, err := m.Lpush(driverOf(s).prefix+"a/3", "of another type")
	require.NoError(t, err)
	var pages []lockstore.Page
	require.NoError(t, s.List(t.Context(), "a/", func(p lockstore.Page) error {
		pages = append(pages, p)
		return nil
	}))
	require.Len(t, pages, 1)
	require.Equal(t, []int{2, 3, 1, 1}, []int{pages[0].Read, pages[0].Requests, pages[0].Damaged, len(pages[0].Keys)})
	require.Equal(t, []string{driverOf(s).prefix + "a/2"}, pages[0].DamagedNames)
	require.Equal(t, lease.Fence, pages[0].Keys[0].Fence)
	stop := errors.New("stop")
	require.Equal(t, stop, s.List(t.Context(), "", func(lockstore.Page) error { return stop }))
	extent, err := s.Extent(t.Context())
	require.NoError(t, err)
	require.Equal(t, int64(4), extent.Entries)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.Extent(ctx)
	for _, err := range []error{err, s.List(ctx, "", func(lockstore.Page) error { return nil })} {
		require.ErrorIs(t, err, lockstore.ErrUnavailable)
		require.ErrorIs(t, err, context.Canceled)
	}
	m.Close()
	_, err = s.Extent(t.Context())
	require.ErrorIs(t, err, lockstore.ErrUnavailable)
	require.ErrorIs(t, s.List(t.Context(), "", func(lockstore.Page) error { return nil }), lockstore.ErrUnavailable)
}
