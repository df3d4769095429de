package redisstore

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
)

// Each comparison of times in the scripts is exact to the microsecond.
func TestEdges(t *testing.T) {
	const ttl = time.Minute
	for _, phase := range []time.Duration{0, 123_456 * time.Microsecond} { // a bubble begins at a whole second
		held := func(t *testing.T, name string, at time.Duration, act func(*testing.T, *lockstore.Store, lockstore.Lease)) {
			t.Run(name+", "+phase.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s, m := miniStore(t)
					start := time.Now().Add(phase)
					m.SetTime(start)
					lease := acquire(t, s, "k")
					m.SetTime(start.Add(at))
					act(t, s, lease)
				})
			})
		}
		status := func(want lockstore.Status) func(*testing.T, *lockstore.Store, lockstore.Lease) {
			return func(t *testing.T, s *lockstore.Store, lease lockstore.Lease) {
				got, err := s.Inspect(t.Context(), "k")
				require.NoError(t, err, "Inspect")
				require.Equal(t, want.State, got.State, "the state of Inspect")
				require.Equal(t, want.Remaining, got.Remaining)
			}
		}
		heldFor := func(left time.Duration) func(*testing.T, *lockstore.Store, lockstore.Lease) {
			return func(t *testing.T, s *lockstore.Store, _ lockstore.Lease) {
				_, err := s.Acquire(t.Context(), newRequest("k"))
				var refused *lockstore.Refused
				require.ErrorAs(t, err, &refused, "want it held")
				require.Equal(t, left, refused.Remaining)
			}
		}
		held(t, "the last microsecond", ttl-time.Microsecond, heldFor(time.Microsecond))
		held(t, "the last microsecond, seen", ttl-time.Microsecond, status(lockstore.Status{State: lockstore.Held, Remaining: time.Microsecond}))
		held(t, "the last microsecond, renewed", ttl-time.Microsecond, func(t *testing.T, s *lockstore.Store, lease lockstore.Lease) {
			left, err := s.Renew(t.Context(), lease, ttl)
			require.NoError(t, err)
			require.Equal(t, ttl, left.TTL)
		})
		held(t, "the end", ttl, func(t *testing.T, s *lockstore.Store, lease lockstore.Lease) {
			require.Greater(t, acquire(t, s, "k").Fence, lease.Fence)
		})
		held(t, "the end, seen", ttl, status(lockstore.Status{}))
		held(t, "the end, renewed", ttl, func(t *testing.T, s *lockstore.Store, lease lockstore.Lease) { requireLost(t, s, lease) })

		// A state that begins in the future begins now.
		for _, back := range []time.Duration{time.Microsecond, time.Second, time.Hour} {
			held(t, "F19 back by "+back.String(), -back, heldFor(ttl))
			held(t, "F19 back by "+back.String()+", seen", -back, status(lockstore.Status{State: lockstore.Held, Remaining: ttl}))
			t.Run("F19 back by "+back.String()+", closed, "+phase.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s, m := miniStore(t)
					m.SetTime(time.Now().Add(phase))
					lease := acquire(t, s, "k")
					require.NoError(t, s.Complete(t.Context(), lease, nil, ttl))
					m.SetTime(time.Now().Add(phase - back))
					status(lockstore.Status{State: lockstore.Cooldown, Remaining: ttl})(t, s, lease)
				})
			})
		}
		held(t, "F19 back, and a shorter renewal", -time.Microsecond, func(t *testing.T, s *lockstore.Store, lease lockstore.Lease) {
			left, err := s.Renew(t.Context(), lease, ttl/2)
			require.NoError(t, err)
			require.Equal(t, ttl, left.TTL)
		})
	}
}
