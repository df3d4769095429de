package schedule

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/lockstore"
)

func TestOnce(t *testing.T) {
	bubble("a trigger that comes again is skipped, however late", t, func(t *testing.T) {
		b := newBench(t, 0)
		o, err := idempotency.New(b.Guard, idempotency.Options{ResultTime: 48 * time.Hour})
		require.NoError(t, err)
		runs, own := 0, errors.New("own")
		var fails error
		work := Once(o, func(_ context.Context, day string) (idempotency.Call, error) {
			if day == "" {
				return idempotency.Call{}, own
			}
			return idempotency.NewCall("nightly", day), nil
		}, func(_ context.Context, lock guard.Lock, _ string) error {
			require.Equal(t, "nightly", lock.Key)
			runs++
			return fails
		})
		handle := Wrap(b.Guard, "nightly", work)
		out, err := handle.Handle(request("r-1"), []byte(`"monday"`))
		require.NoError(t, err)
		require.False(t, out.Skipped)
		<-time.After(40 * time.Hour)
		out, err = handle.Handle(request("r-1"), []byte(`"monday"`))
		require.NoError(t, err)
		require.True(t, out.Skipped)
		require.Equal(t, "r-1", out.Holder.ID, "the run that did the work")
		_, err = handle.Handle(request("r-2"), []byte(`"tuesday"`))
		require.NoError(t, err)
		require.Equal(t, 2, runs)

		fails = own
		_, err = handle.Handle(request("r-3"), []byte(`"wednesday"`))
		require.Equal(t, own, err)
		fails = &guard.LockBusy{Key: "another", State: lockstore.Held, Holder: lockstore.HolderInfo{ID: "r-9"}}
		_, err = handle.Handle(request("r-3"), []byte(`"wednesday"`))
		require.Equal(t, fails, err, "the work's own error")
		_, err = handle.Handle(request("r-3"), []byte(`""`))
		require.IsType(t, &guard.LockBadRequest{}, err)

		_, err = b.store.Acquire(context.Background(), lockstore.Request{Key: "nightly/thursday", Owner: "another", TTL: time.Minute, HolderInfo: lockstore.HolderInfo{ID: "r-4"}})
		require.NoError(t, err)
		out, err = handle.Handle(request("r-5"), []byte(`"thursday"`))
		require.NoError(t, err)
		require.Equal(t, Result{Skipped: true, Holder: lockstore.HolderInfo{ID: "r-4"}}, out)
		_, err = handle.Handle(request("r-4"), []byte(`"thursday"`))
		require.IsType(t, &guard.LockBusy{}, err, "an earlier try of this event")

		require.NoError(t, work(context.Background(), guard.Lock{Key: "nightly"}, "monday"), "also without Wrap")
		_, err = Wrap(b.Guard, "nightly", Once[string](o, nil, nil)).Handle(request("r-6"), []byte(`""`))
		require.ErrorContains(t, err, "work is nil")
	})
}
