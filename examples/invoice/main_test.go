package main

import (
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

func TestInvoice(t *testing.T) {
	t.Setenv("FOLDER", t.TempDir())
	rows = redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	g, err := guard.New(memstore.New(nil), guard.Options{})
	require.NoError(t, err)
	number, err := guard.Wrap(g, key, guard.WithoutFence(invoice)).Handle(t.Context(), Order{"acme", "one desk"})
	require.NoError(t, err)
	require.Equal(t, 1, number)
}

// The binary that is deployed, and what its caller sees when the lock is busy.
func TestBusy(t *testing.T) {
	event, err := os.ReadFile("event.json")
	require.NoError(t, err)
	binary := filepath.Join(t.TempDir(), "bootstrap")
	require.NoError(t, lambdatest.Build(t.Context(), ".", binary))
	url, folder := "redis://"+miniredis.RunT(t).Addr(), t.TempDir()
	e, err := lambdatest.Start(t.Context(), lambdatest.Config{Binary: binary, Timeout: 10 * time.Second,
		Env: []string{"LOCK_URL=" + url, "ROWS_URL=" + url, "FOLDER=" + folder}})
	require.NoError(t, err)
	defer func() { require.NoError(t, e.Close()) }()
	store, err := lockstore.Open(t.Context(), url, os.Getenv, redisstore.Opener)
	require.NoError(t, err)

	lease, err := store.Acquire(t.Context(), lockstore.Request{Key: "invoices/acme", Owner: lockstore.NewOwner(), TTL: time.Minute, HolderInfo: lockstore.HolderInfo{Name: "invoice", ID: "4f1c"}})
	require.NoError(t, err)
	r, err := e.Invoke(t.Context(), event)
	require.NoError(t, err)
	require.Equal(t, "LockBusy", r.ErrorType)
	require.Regexp(t, `^lock "invoices/acme" is busy: held by invoice \(4f1c\)`, r.ErrorMessage)

	require.NoError(t, store.Release(t.Context(), lease))
	r, err = e.Invoke(t.Context(), event)
	require.NoError(t, err)
	require.Empty(t, r.ErrorType, r.ErrorMessage)
	require.Equal(t, "1", string(r.Payload))
	require.FileExists(t, filepath.Join(folder, "acme-1.txt"))
}
