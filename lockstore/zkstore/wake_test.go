package zkstore

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
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
		require.Eventually(t, func() bool { return exists(t, nodes, req) }, time.Minute, time.Millisecond)
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
		woken, _, stop, err := s.kv.Listen(t.Context(), lease.Key, "listens", time.Now())
		require.NoError(t, err)
		defer stop()
		e, err = holder.kv.WriteAndWake(t.Context(), lease.Key, append(e.Value, ' '), e.Version, map[string]string{"nobody": "", "listens": ""})
		require.NoError(t, err)
		select {
		case <-woken:
		case <-time.After(time.Minute):
			t.Fatal("it is not woken")
		}
		now, _, err := holder.kv.Read(t.Context(), lease.Key, true)
		require.NoError(t, err)
		require.Equal(t, e.Version, now.Version)
	})
	t.Run("F60 the node of an owner may not be deleted", func(t *testing.T) {
		s := openStore(t, "zookeeper://"+addr+"/limited")
		_, lease := acquire(t, s, "k")
		_, err := nodes.SetACL("/limited/waiters", zk.WorldACL(zk.PermAll&^zk.PermDelete), anyVersion)
		require.NoError(t, err)
		_, _, stop, err := s.kv.Listen(t.Context(), lease.Key, "listens", time.Now())
		require.NoError(t, err)
		defer stop()
		e, _, err := s.kv.Read(t.Context(), lease.Key, true)
		require.NoError(t, err)
		_, err = s.kv.WriteAndWake(t.Context(), lease.Key, append(e.Value, ' '), e.Version, map[string]string{"listens": ""})
		require.NoError(t, err)
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
		require.Eventually(t, func() bool { return !exists(t, nodes, req) }, time.Minute, time.Millisecond, "its node is left over")
	})
}

// A call that listens ends early, and its request makes the node of a waiter nevertheless.
func testNoNodeOfAWaiterIsLeftOver(t *testing.T, addr string) {
	nodes := openTable(t, addr)
	acquire(t, openStore(t, "zookeeper://"+addr), "parents")
	open := func(t *testing.T, via string) (opened, *sync.Mutex) {
		s, hold := openStore(t, "zookeeper://"+via), &sync.Mutex{}
		dial := s.kv.dial
		s.kv.dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			return holdable{conn, hold}, err
		}
		_, err := s.Inspect(t.Context(), "k") // makes the session
		require.NoError(t, err)
		return s, hold
	}
	gone := func(t *testing.T, req lockstore.Request) {
		require.Eventually(t, func() bool { return !exists(t, nodes, req) }, time.Minute, time.Millisecond, "its node is left over")
	}
	t.Run("F46 the context ends", func(t *testing.T) {
		s, hold := open(t, addr)
		session, req := s.kv.session, newRequest("k")
		ctx, cancel := context.WithCancel(t.Context())
		hold.Lock()
		ended := make(chan error, 1)
		go func() {
			_, _, _, err := s.kv.Listen(ctx, req.Key, string(req.Owner), time.Now())
			ended <- err
		}()
		require.Eventually(t, func() bool { return exists(t, nodes, req) }, time.Minute, time.Millisecond)
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
		hold.Unlock()
		gone(t, req)
		require.True(t, session == s.kv.session, "the end of the session deletes it, too")
	})
	t.Run("F46 the connection ends", func(t *testing.T) {
		p := testservers.Proxy(t, addr)
		s, _ := open(t, p.Addr)
		req := newRequest("k")
		p.CutReplies(s.kv.waiter(req.Key, string(req.Owner)))
		_, _, _, err := s.kv.Listen(t.Context(), req.Key, string(req.Owner), time.Now())
		p.Forward()
		require.Error(t, err)
		gone(t, req)
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
