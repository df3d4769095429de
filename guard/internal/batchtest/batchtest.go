// Package batchtest has what the tests of the adapters for batches share: a guard over a
// memory store with faults, and work that does what the text of its record says.
package batchtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

// Bench is a guard over a memory store with faults. Its holder has the id r-1.
type Bench struct {
	*guard.Guard
	Store *lockstore.Store                           // without the faults
	Fault func(storetest.Call) storetest.Fault       // nil makes none
	Do    func(ctx context.Context, id string) error // the work of a text that is a key alone; nil does nothing

	mu         sync.Mutex
	Asked, Ran []string // the keys of the acquires, the ids of the records that were begun
	Log        bytes.Buffer
}

// On is a subtest in virtual time, with a Bench. Its Log is what slog's default logger writes.
func On(name string, t *testing.T, opt guard.Options, f func(*testing.T, *Bench)) {
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := &Bench{Store: memstore.New(nil)}
			opt.HolderInfo = func(context.Context) lockstore.HolderInfo { return lockstore.HolderInfo{ID: "r-1"} }
			g, err := guard.New(storetest.NewFaulty(b.Store, b.plan).Store, opt)
			require.NoError(t, err)
			b.Guard = g
			before := slog.Default()
			slog.SetDefault(slog.New(slog.NewJSONHandler(&b.Log, nil)))
			defer slog.SetDefault(before)
			f(t, b)
		})
	})
}

func (b *Bench) plan(c storetest.Call) storetest.Fault {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.Kind == driver.Acquire {
		b.Asked = append(b.Asked, c.Key)
	}
	if b.Fault != nil {
		return b.Fault(c)
	}
	return storetest.Fault{}
}

// Fails lets requests of these kinds for the key fail, or for all keys if key is "".
func (b *Bench) Fails(key string, err error, kinds ...driver.Kind) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.Fault = func(c storetest.Call) (f storetest.Fault) {
		if (key == "" || c.Key == key) && slices.Contains(kinds, c.Kind) {
			f.Drop = err
		}
		return f
	}
}

// Key is the text up to the first space.
func Key(text string) (string, error) {
	key, _, _ := strings.Cut(text, " ")
	switch key {
	case "nokey":
		return "", errors.New("no account in the record")
	case "keypanic":
		panic("key boom")
	case "keyexit":
		runtime.Goexit()
	}
	return key, nil
}

// Work does what the text says after the key.
func (b *Bench) Work(ctx context.Context, lock guard.Lock, id, text string) error {
	b.mu.Lock()
	b.Ran = append(b.Ran, id)
	b.mu.Unlock()
	key, what, _ := strings.Cut(text, " ")
	if lock.Key != key || lock.Fence <= 0 {
		return errors.New("another lock than that of the record's key")
	}
	switch what {
	case "fail":
		return errors.New("own")
	case "panic":
		panic("boom")
	case "exit":
		runtime.Goexit()
	case "inner busy":
		return &guard.LockBusy{Key: "inner"}
	case "inner lost":
		return &guard.LockLost{Key: "inner"}
	case "nil pointer":
		return (*guard.LockLost)(nil)
	case "second":
		<-time.After(time.Second)
		return nil
	case "until":
		<-ctx.Done()
		return ctx.Err()
	}
	if b.Do != nil {
		return b.Do(ctx, id)
	}
	return nil
}

// Occupy lets another hold the key for an hour.
func (b *Bench) Occupy(t *testing.T, key string) {
	t.Helper()
	_, err := b.Store.Acquire(t.Context(), lockstore.Request{Key: key, Owner: "another", TTL: time.Hour})
	require.NoError(t, err)
}

// Free checks that nobody holds the keys, and that nobody waits for them.
func (b *Bench) Free(t *testing.T, keys ...string) {
	t.Helper()
	for _, key := range keys {
		status, err := b.Store.Inspect(t.Context(), key)
		require.NoError(t, err)
		require.Equal(t, lockstore.Free, status.State, key)
		require.Zero(t, status.Waiting, "places in the queue of %s", key)
	}
}

// Lines are the log's lines.
func (b *Bench) Lines(t *testing.T) (lines []map[string]any) {
	t.Helper()
	for text := range strings.Lines(b.Log.String()) {
		var line map[string]any
		require.NoError(t, json.Unmarshal([]byte(text), &line))
		lines = append(lines, line)
	}
	return lines
}
