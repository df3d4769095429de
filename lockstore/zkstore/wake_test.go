package zkstore

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

// Whoever releases deletes the node of the first in the queue, and of nobody else.
func testWakeUp(t *testing.T, addr string) {
	nodes := openTable(t, addr)
	waits := func(key string) (opened, lockstore.Request, <-chan error) {
		s := openStore(t, "zookeeper://"+addr)
		req := newRequest(key)
		req.JoinQueue = true
		_, err := s.Acquire(t.Context(), req)
		require.ErrorIs(t, err, lockstore.ErrRefused)
		done := make(chan error, 1)
		go func() { done <- storetest.AwaitTurn(t.Context(), s.Store, req.Key, req.Owner) }()
		require.Eventually(t, func() bool { return exists(t, nodes, req) }, 10*time.Second, time.Millisecond)
		return s, req, done
	}
	holder := openStore(t, "zookeeper://"+addr)

	t.Run("F59 a release wakes the first in the queue only", func(t *testing.T) {
		_, lease := acquire(t, holder, "woken")
		s, first, woken := waits("woken")
		_, second, _ := waits("woken")
		require.NoError(t, holder.Release(t.Context(), lease))
		require.False(t, exists(t, nodes, first))
		require.True(t, exists(t, nodes, second))
		require.NoError(t, <-woken)
		_, err := s.Acquire(t.Context(), first)
		require.NoError(t, err)
	})
	t.Run("F60 of two owners that are handed the key one does not listen", func(t *testing.T) {
		_, lease := acquire(t, holder, "two")
		e, _, err := holder.kv.Read(t.Context(), lease.Key, true)
		require.NoError(t, err)
		s := openStore(t, "zookeeper://"+addr)
		woken, stop, err := s.kv.Listen(t.Context(), lease.Key, "listens")
		require.NoError(t, err)
		defer stop()
		e, err = holder.kv.WriteAndWake(t.Context(), lease.Key, append(e.Value, ' '), e.Version, []string{"nobody", "listens"})
		require.NoError(t, err)
		select {
		case <-woken:
		case <-time.After(10 * time.Second):
			t.Fatal("it is not woken")
		}
		now, _, err := holder.kv.Read(t.Context(), lease.Key, true)
		require.NoError(t, err)
		require.Equal(t, e.Version, now.Version)
	})
	t.Run("F60 a wake-up is lost", func(t *testing.T) {
		_, lease := acquire(t, holder, "lost")
		s, req, done := waits("lost")
		// This KV wakes nobody.
		mute, err := casstore.New(struct{ casstore.KV }{holder.kv}, casstore.Options{})
		require.NoError(t, err)
		began := time.Now()
		require.NoError(t, mute.Release(t.Context(), lease))
		require.NoError(t, <-done)
		t.Logf("the waiter looked after %v", time.Since(began).Round(time.Millisecond))
		_, err = s.Acquire(t.Context(), req)
		require.NoError(t, err)
		require.Eventually(t, func() bool { return !exists(t, nodes, req) }, 10*time.Second, time.Millisecond, "its node is left over")
	})
}

// An owner that was handed the key has a copy of the entry while it works.
func testCopyOfAHolder(t *testing.T, addr string) {
	// handOver hands the key over to an owner of a store of its own, and then another owner joins the queue.
	handOver := func(key string) (s opened, hold *sync.Mutex, lease lockstore.Lease, next lockstore.Request) {
		holder := openStore(t, "zookeeper://"+addr)
		_, old := acquire(t, holder, key)
		s, hold = openHoldable(t, addr)
		join := func(s opened) lockstore.Request {
			req := newRequest(key)
			req.JoinQueue = true
			_, err := s.Acquire(t.Context(), req)
			require.ErrorIs(t, err, lockstore.ErrRefused)
			return req
		}
		req := join(s)
		woken, stop, err := s.kv.Listen(t.Context(), key, string(req.Owner))
		require.NoError(t, err)
		defer stop()
		require.NoError(t, holder.Release(t.Context(), old))
		<-woken
		e, ok := s.kv.copies.of(key)
		require.True(t, ok, "the owner that woke up has a copy")
		next = join(holder)
		require.Eventually(t, func() bool {
			now, ok := s.kv.copies.of(key)
			return ok && now.Version != e.Version
		}, 10*time.Second, time.Millisecond, "the copy has the owner that joined")
		status, err := holder.Inspect(t.Context(), key)
		require.NoError(t, err)
		return s, hold, lockstore.Lease{Key: key, Owner: req.Owner, Fence: status.Holders[0].Fence}, next
	}
	handed := func(s opened, next lockstore.Request) {
		status, err := s.Inspect(t.Context(), next.Key)
		require.NoError(t, err)
		require.Equal(t, lockstore.Reserved, status.State)
		_, err = s.Acquire(t.Context(), next)
		require.NoError(t, err)
	}

	t.Run("a read needs no request", func(t *testing.T) {
		s, hold, lease, next := handOver("copy-read")
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		hold.Lock()
		_, _, err := s.kv.Read(ctx, lease.Key, false)
		hold.Unlock()
		require.NoError(t, err)
		require.NoError(t, s.Release(t.Context(), lease))
		_, ok := s.kv.copies.of(lease.Key)
		require.False(t, ok, "this process has written the entry")
		handed(s, next)
	})
	t.Run("F60 an old copy", func(t *testing.T) {
		s, _, lease, next := handOver("copy-old")
		old, ok := s.kv.copies.of(lease.Key)
		require.True(t, ok)
		other := openStore(t, "zookeeper://"+addr)
		require.NoError(t, other.Leave(t.Context(), next.Key, next.Owner))
		require.Eventually(t, func() bool {
			now, ok := s.kv.copies.of(lease.Key)
			return ok && now.Version != old.Version
		}, 10*time.Second, time.Millisecond)
		s.kv.copies.mu.Lock()
		s.kv.copies.all[lease.Key].entry = old
		s.kv.copies.mu.Unlock()
		require.NoError(t, s.Release(t.Context(), lease))
		status, err := other.Inspect(t.Context(), next.Key)
		require.NoError(t, err)
		require.Equal(t, lockstore.Free, status.State, "the owner that had left was handed the key")
	})
	t.Run("F08 it is too old when the process goes on after a freeze", func(t *testing.T) {
		s, _, lease, _ := handOver("copy-frozen")
		s.kv.copies.mu.Lock()
		s.kv.copies.all[lease.Key].until = time.Now().Round(0).Add(-time.Nanosecond)
		s.kv.copies.mu.Unlock()
		_, ok := s.kv.copies.of(lease.Key)
		require.False(t, ok)
		require.NoError(t, s.Release(t.Context(), lease))
	})
	t.Run("it ends after a turn", func(t *testing.T) {
		s, _, lease, _ := handOver("copy-ends")
		require.Eventually(t, func() bool {
			_, ok := s.kv.copies.of(lease.Key)
			return !ok
		}, 10*lockstore.Turn, time.Millisecond)
	})
}

// openHoldable opens a store whose connection delivers nothing while hold is locked.
func openHoldable(t *testing.T, addr string) (opened, *sync.Mutex) {
	s, hold := openStore(t, "zookeeper://"+addr), &sync.Mutex{}
	dial := s.kv.dial
	s.kv.dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		return holdable{conn, hold}, err
	}
	_, err := s.Inspect(t.Context(), "k") // makes the session
	require.NoError(t, err)
	return s, hold
}

// A call that listens ends early, and its request makes the node of a waiter nevertheless.
func testNoNodeOfAWaiterIsLeftOver(t *testing.T, addr string) {
	nodes := openTable(t, addr)
	acquire(t, openStore(t, "zookeeper://"+addr), "parents")
	gone := func(t *testing.T, s opened, req lockstore.Request, session int64) {
		require.Eventually(t, func() bool { return !exists(t, nodes, req) }, 10*time.Second, time.Millisecond, "its node is left over")
		require.Equal(t, session, s.kv.session.conn.SessionID(), "the end of the session deletes it, too")
	}
	t.Run("F46 the context ends", func(t *testing.T) {
		s, hold := openHoldable(t, addr)
		session, req := s.kv.session.conn.SessionID(), newRequest("k")
		ctx, cancel := context.WithCancel(t.Context())
		hold.Lock()
		ended := make(chan error, 1)
		go func() {
			_, _, err := s.kv.Listen(ctx, req.Key, string(req.Owner))
			ended <- err
		}()
		require.Eventually(t, func() bool { return exists(t, nodes, req) }, 10*time.Second, time.Millisecond)
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
		hold.Unlock()
		gone(t, s, req, session)
	})
	t.Run("F46 the connection ends", func(t *testing.T) {
		p := testservers.Proxy(t, addr)
		s, _ := openHoldable(t, p.Addr)
		session, req := s.kv.session.conn.SessionID(), newRequest("k")
		p.CutReplies(s.kv.waiter(req.Key, string(req.Owner)))
		_, _, err := s.kv.Listen(t.Context(), req.Key, string(req.Owner))
		p.Forward()
		require.Error(t, err)
		gone(t, s, req, session)
	})
}

// holdable is a connection that delivers nothing while hold is locked.
type holdable struct {
	net.Conn
	hold *sync.Mutex
}

func (c holdable) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.hold.Lock()
	defer c.hold.Unlock()
	return n, err
}

func exists(t *testing.T, nodes table, req lockstore.Request) bool {
	t.Helper()
	ok, _, err := nodes.Exists(nodes.waiter(req.Key, string(req.Owner)))
	require.NoError(t, err)
	return ok
}
