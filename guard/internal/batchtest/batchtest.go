// Package batchtest has what the tests of the adapters for batches share: a guard over a
// memory store whose answers a test can change, and work that does what the text of its
// record says.
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
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// Store is a memory store that keeps the requests of its acquires.
type Store struct {
	*memstore.Store
	OnAcquire func(lockstore.Request) error // an error is the answer
	OnRelease func(lockstore.Lease) error   // an error is the answer

	mu    sync.Mutex
	asked []lockstore.Request
	gone  map[lockstore.Owner]bool
}

// Acquire is the memory store's unless OnAcquire has an error.
func (s *Store) Acquire(ctx context.Context, req lockstore.Request) (lockstore.Lease, error) {
	s.mu.Lock()
	s.asked = append(s.asked, req)
	s.mu.Unlock()
	if s.OnAcquire != nil {
		if err := s.OnAcquire(req); err != nil {
			return lockstore.Lease{}, err
		}
	}
	return s.Store.Acquire(ctx, req)
}

// Release is the memory store's unless OnRelease has an error or the lease has
// vanished.
func (s *Store) Release(ctx context.Context, lease lockstore.Lease) error {
	if s.OnRelease != nil {
		if err := s.OnRelease(lease); err != nil {
			return err
		}
	}
	s.mu.Lock()
	gone := s.gone[lease.Owner]
	s.mu.Unlock()
	if gone {
		return lockstore.ErrLost
	}
	return s.Store.Release(ctx, lease)
}

// Asked are the keys of the acquires in their order.
func (s *Store) Asked() (keys []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, req := range s.asked {
		keys = append(keys, req.Key)
	}
	return keys
}

// Owners is how many owners there were.
func (s *Store) Owners() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	owners := map[lockstore.Owner]bool{}
	for _, req := range s.asked {
		owners[req.Owner] = true
	}
	return len(owners)
}

// Vanish takes the key's lease away from its holder, as an operator can.
func (s *Store) Vanish(t *testing.T, key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, req := range s.asked {
		if req.Key == key {
			s.gone[req.Owner] = true
			assert.NoError(t, s.Store.Release(context.Background(), lockstore.Lease{Key: key, Owner: req.Owner}))
		}
	}
}

// Bench is a guard over a Store. Its holder has the id r-1.
type Bench struct {
	*guard.Guard
	Store *Store
	// Do is the work of a record whose text is a key alone.
	Do func(ctx context.Context, id, key string) error

	mu  sync.Mutex
	ran []string
	log bytes.Buffer
}

// New makes a Bench, and collects what slog's default logger writes.
func New(t *testing.T, opt guard.Options) *Bench {
	t.Helper()
	b := &Bench{Store: &Store{Store: memstore.New(nil), gone: map[lockstore.Owner]bool{}}}
	opt.Holder = func(context.Context) lockstore.HolderInfo { return lockstore.HolderInfo{ID: "r-1"} }
	var err error
	b.Guard, err = guard.New(b.Store, opt)
	require.NoError(t, err)
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewJSONHandler(&b.log, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	return b
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
	_, err := b.Store.Store.Acquire(t.Context(), lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: time.Hour})
	require.NoError(t, err)
}

// Waiting is how many wait for the key.
func (b *Bench) Waiting(t *testing.T, key string) int {
	t.Helper()
	status, err := b.Store.Inspect(context.Background(), key)
	require.NoError(t, err)
	return status.Waiting
}

// Free checks that nobody holds the keys, and that nobody waits for them.
func (b *Bench) Free(t *testing.T, keys ...string) {
	t.Helper()
	for _, key := range keys {
		status, err := b.Store.Inspect(context.Background(), key)
		require.NoError(t, err)
		require.False(t, status.Held, "%s is held", key)
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
