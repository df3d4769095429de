package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lambdatest"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
)

func TestHandle(t *testing.T) {
	accounts := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	g, err := guard.New(memstore.New(nil), guard.Options{})
	require.NoError(t, err)
	handler := guard.Wrap(g, key, handle(accounts))
	for _, want := range []int{500, 1000} {
		balance, err := handler.Handle(t.Context(), Deposit{"7", 500})
		require.NoError(t, err)
		require.Equal(t, want, balance)
	}
	_, err = handle(accounts)(t.Context(), guard.Lock{Key: "account/7", Fence: 1}, Deposit{"7", 500})
	require.ErrorIs(t, err, lockstore.ErrLost, "the fence of an earlier lease")
}

// The binary that is deployed, and what its caller sees when the lock is busy.
func TestBusy(t *testing.T) {
	event, err := os.ReadFile("event.json")
	require.NoError(t, err)
	binary := filepath.Join(t.TempDir(), "bootstrap")
	require.NoError(t, lambdatest.Build(t.Context(), ".", binary))
	url := "redis://" + miniredis.RunT(t).Addr()
	e, err := lambdatest.Start(t.Context(), lambdatest.Config{Binary: binary, Timeout: 10 * time.Second, Env: []string{"LOCK_URL=" + url, "ACCOUNTS_URL=" + url}})
	require.NoError(t, err)
	defer func() { require.NoError(t, e.Close()) }()
	store, err := lockstore.Open(t.Context(), url, os.Getenv, redisstore.Opener)
	require.NoError(t, err)

	lease, err := store.Acquire(t.Context(), lockstore.Request{Key: "account/7", Owner: lockstore.NewOwner(), TTL: time.Minute, HolderInfo: lockstore.HolderInfo{Name: "deposit", ID: "4f1c"}})
	require.NoError(t, err)
	r, err := e.Invoke(t.Context(), event)
	require.NoError(t, err)
	require.Equal(t, "LockBusy", r.ErrorType)
	require.Regexp(t, `^lock "account/7" is busy: held by deposit \(4f1c\)`, r.ErrorMessage)

	require.NoError(t, store.Release(t.Context(), lease))
	r, err = e.Invoke(t.Context(), event)
	require.NoError(t, err)
	require.Empty(t, r.ErrorType, r.ErrorMessage)
	var balance int
	require.NoError(t, json.Unmarshal(r.Payload, &balance))
	require.Equal(t, 500, balance)
}
