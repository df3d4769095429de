package casstore

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/clocktest"
	"github.com/lambdalock/lambdalock/lockstore"
)

// ahead is a KV whose clock is ahead of this process's.
type ahead struct {
	*single
	by time.Duration
}

func (a *ahead) Read(ctx context.Context, key string, fresh bool) (Entry, time.Time, error) {
	e, now, err := a.single.Read(ctx, key, fresh)
	if !fresh {
		return e, time.Time{}, err
	}
	return e, now.Add(a.by), err
}

func (a *ahead) Write(ctx context.Context, key string, value []byte, ifVersion string) (Entry, error) {
	e, err := a.single.Write(ctx, key, value, ifVersion)
	if err == nil {
		e.WrittenAt = e.WrittenAt.Add(a.by)
		a.entry = e
	}
	return e, err
}

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
			kv := &ahead{single: &single{}}
			request := func() lockstore.Request {
				return lockstore.Request{Key: "k", Owner: lockstore.NewOwner(), TTL: 10 * time.Second}
			}
			_, err := kv.open(t).Acquire(t.Context(), request())
			require.NoError(t, err)
			d, err := newStore(kv, Options{})
			require.NoError(t, err)
			other := lockstore.New("other", d)
			_, err = other.Acquire(t.Context(), request())
			require.ErrorIs(t, err, lockstore.ErrRefused)

			kv.by = max(c.mono, c.wall)
			d.clock.at = clocktest.Ago(c.mono, c.wall)
			_, err = other.Acquire(t.Context(), request())
			require.ErrorIs(t, err, c.want)
		})
	}
}
