package casstore

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/clocktest"
	"github.com/lambdalock/lambdalock/lockstore"
)

// What has passed since the last known time of the service is what the clock shows that saw more. With less, the
// lease of a holder that died in the meantime would not be over.
func TestTheClockThatSawMoreDecides(t *testing.T) {
	const passes = time.Minute
	for name, c := range map[string]struct {
		mono, wall time.Duration
		want       error
	}{
		"no time":                             {0, 0, lockstore.ErrRefused},
		"both clocks":                         {passes, passes, nil},
		"F08 the monotonic clock stood still": {0, passes, nil},
		"F17 the wall clock was set back":     {passes, -time.Hour, nil},
		"F17 set back by as much as has passed meanwhile": {passes, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			kv := &single{}
			request := func() lockstore.Request {
				return lockstore.Request{Key: "k", Owner: lockstore.NewOwner(), TTL: 10 * time.Second}
			}
			_, err := lockstore.New("first", kv.driver(t)).Acquire(t.Context(), request())
			require.NoError(t, err)
			d := kv.driver(t)
			other := lockstore.New("other", d)
			_, err = other.Acquire(t.Context(), request())
			require.ErrorIs(t, err, lockstore.ErrRefused)

			kv.ahead = max(c.mono, c.wall)
			d.clock.at = clocktest.Ago(c.mono, c.wall)
			_, err = other.Acquire(t.Context(), request())
			require.ErrorIs(t, err, c.want)
		})
	}
}

// A process whose wall clock was set ahead, or whose monotonic clock stood still, moves no fence: neither that of a
// key that is released, nor that of a key whose entry is lost and which others had meanwhile. F15 F16
func TestFenceByClocksThatGoApart(t *testing.T) {
	const days = 10 * 24 * time.Hour
	for name, c := range map[string]struct{ mono, wall time.Duration }{
		"the wall clock was set ahead":     {0, days},
		"the wall clock was set back":      {0, -days},
		"the monotonic clock stood still":  {-days, 0},
		"it stood still for half the time": {0, time.Hour},
	} {
		for _, lost := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				kv := &single{}
				d := kv.driver(t)
				s := lockstore.New("casstore", d)
				request := lockstore.Request{Key: "k", Owner: lockstore.NewOwner(), TTL: 10 * time.Second}
				lease, err := s.Acquire(t.Context(), request)
				require.NoError(t, err)
				require.NoError(t, s.Release(t.Context(), lease))
				if lost {
					kv.entry = Entry{}
					d.forget("k")
				}
				d.clock.at = clocktest.Ago(c.mono, c.wall)
				if c.mono < 0 { // the service's time went on meanwhile
					d.clock.stamp, d.clock.at = d.clock.stamp.Add(-days), clocktest.Ago(0, days)
				}
				request.Owner = lockstore.NewOwner()
				next, err := s.Acquire(t.Context(), request)
				require.NoError(t, err)
				if !lost {
					require.Greater(t, next.Fence, lease.Fence)
				}
				require.WithinDuration(t, time.Now(), time.UnixMicro(int64(next.Fence)), time.Minute)
			})
		}
	}
}
