package once

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

func TestSkip(t *testing.T) {
	store := memstore.New(nil)
	g, err := guard.New(store, guard.Options{})
	require.NoError(t, err)
	o, err := idempotency.New(g, idempotency.Options{})
	require.NoError(t, err)
	runs := 0
	var own error
	work := Work(o, func(_ context.Context, key string) (idempotency.Call, error) { return idempotency.Call{Key: key}, nil },
		func(context.Context, guard.Lock, string) error { runs++; return own })
	try := func(key string) (*Skip, error) {
		skip := new(Skip)
		return skip, work(skip.Watch(t.Context()), guard.Lock{}, key)
	}

	first, err := try("k")
	require.NoError(t, err)
	require.Nil(t, first.Done())
	again, err := try("k")
	require.NoError(t, err)
	require.NotNil(t, again.Done())
	require.NoError(t, work(t.Context(), guard.Lock{}, "k"), "without Watch")
	require.Equal(t, 1, runs)

	_, err = store.Acquire(t.Context(), lockstore.Request{Key: "busy", Owner: lockstore.NewOwner(), TTL: time.Minute})
	require.NoError(t, err)
	busy, err := try("busy")
	require.IsType(t, &guard.LockBusy{}, err)
	require.True(t, busy.IsBusy(err))
	require.False(t, busy.IsBusy(&guard.LockBusy{Key: "busy"}), "another error")
	require.Nil(t, busy.Done())

	own = &guard.LockBusy{Key: "inner"}
	inner, err := try("inner")
	require.Equal(t, own, err)
	require.False(t, inner.IsBusy(err), "the work's own error")
	for _, err := range []error{nil, (*guard.LockBusy)(nil)} {
		require.False(t, inner.IsBusy(err))
	}
	require.Equal(t, 2, runs)
}
