// Package batchtest has what the tests of the adapters for batches share: a guard over a
// memory store with faults, and work that does what the text of its record says.
package batchtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

// Bench is a guard over a memory store, with faults. Its holder has the id r-1.
type Bench struct {
	*guard.Guard
	Store *lockstore.Store // without the faults
	// Fault is what happens to one request of the guard; nil makes no faults.
	Fault func(storetest.Call) storetest.Fault
	// Do is the work of a record whose text is a key alone.
	Do func(ctx context.Context, id, key string) error

	mu       sync.Mutex
	acquires []storetest.Call
	gone     map[lockstore.Owner]bool
	ran      []string
	log      bytes.Buffer
}

// New makes a Bench, and collects what slog's default logger writes.
func New(t *testing.T, opt guard.Options) *Bench {
	t.Helper()
	b := &Bench{Store: memstore.New(nil), gone: map[lockstore.Owner]bool{}}
	opt.HolderInfo = func(context.Context) lockstore.HolderInfo { return lockstore.HolderInfo{ID: "r-1"} }
	var err error
	b.Guard, err = guard.New(storetest.NewFaulty(b.Store, b.plan).Store, opt)
	require.NoError(t, err)
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewJSONHandler(&b.log, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	return b
}

func (b *Bench) plan(c storetest.Call) storetest.Fault {
	b.mu.Lock()
	if c.Kind == driver.Acquire {
		b.acquires = append(b.acquires, c)
	}
	gone := b.gone[c.Owner]
	b.mu.Unlock()
	switch {
	case gone && c.Kind == driver.Release:
		return storetest.Fault{Drop: lockstore.ErrLost}
	case b.Fault != nil:
		return b.Fault(c)
	}
	return storetest.Fault{}
}

// Fails is a Bench.Fault: the error of each request of this kind for the key, or for all keys
// if key is "".
func Fails(kind driver.Kind, key string, err error) func(storetest.Call) storetest.Fault {
	return func(c storetest.Call) (f storetest.Fault) {
		if c.Kind == kind && (key == "" || key == c.Key) {
			f.Drop = err
		}
		return f
	}
}

// Asked are the keys of the acquires in their order.
func (b *Bench) Asked() (keys []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.acquires {
		keys = append(keys, c.Key)
	}
	return keys
}

// Vanish takes the key's lease away from its holder, as a failover of a store can.
func (b *Bench) Vanish(t *testing.T, key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.acquires {
		if c.Key == key {
			b.gone[c.Owner] = true
			assert.NoError(t, b.Store.Abandon(context.Background(), key, c.Owner))
		}
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
	b.ran = append(b.ran, id)
	b.mu.Unlock()
	key, what, _ := strings.Cut(text, " ")
	if lock.Key != key || lock.Fence <= 0 {
		return fmt.Errorf("lock is %v for the key %q", lock, key)
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
	case "until":
		<-ctx.Done()
		return ctx.Err()
	}
	if b.Do != nil {
		return b.Do(ctx, id, key)
	}
	return nil
}

// Ran are the ids of the records whose work began, in that order.
func (b *Bench) Ran() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ran
}

// Occupy lets another hold the key for an hour.
func (b *Bench) Occupy(t *testing.T, key string) {
	t.Helper()
	_, err := b.Store.Acquire(t.Context(), lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: time.Hour})
	require.NoError(t, err)
}

// Free checks that nobody holds the keys, and that nobody waits for them.
func (b *Bench) Free(t *testing.T, keys ...string) {
	t.Helper()
	for _, key := range keys {
		status, err := b.Store.Inspect(context.Background(), key)
		require.NoError(t, err)
		require.Equal(t, lockstore.Free, status.State, key)
		require.Zero(t, status.Waiting, "places in the queue of %s", key)
	}
}

// Lines are the log's lines.
func (b *Bench) Lines(t *testing.T) (lines []map[string]any) {
	t.Helper()
	for text := range strings.Lines(b.log.String()) {
		var line map[string]any
		require.NoError(t, json.Unmarshal([]byte(text), &line))
		lines = append(lines, line)
	}
	return lines
}

// Bubble is a subtest in virtual time.
func Bubble(name string, t *testing.T, f func(*testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}
