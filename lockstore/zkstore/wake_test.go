package zkstore

import (
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

// watch is a process's watch on the node, or nil.
func (s opened) watch(node string) chan struct{} {
	s.kv.watching.Lock()
	defer s.kv.watching.Unlock()
	return s.kv.watches[node]
}

// queued is the request of an owner that has a place and listens at this node, unless node is "".
func queued(t *testing.T, s opened, key, node string) (req lockstore.Request, at string, done <-chan error) {
	for req = newRequest(key); node != "" && s.kv.wakeUp(key, string(req.Owner)) != node; {
		req.Owner = lockstore.NewOwner()
	}
	req.JoinQueue = true
	_, err := s.Acquire(t.Context(), req)
	require.ErrorIs(t, err, lockstore.ErrRefused)
	ended := make(chan error, 1)
	go func() { ended <- storetest.AwaitTurn(t.Context(), s.Store, req.Key, req.Owner) }()
	at = s.kv.wakeUp(key, string(req.Owner))
	require.Eventually(t, func() bool { return s.watch(at) != nil }, 10*time.Second, time.Millisecond)
	return req, at, ended
}

// The write of a release also writes the node at which the first in the queue listens.
func testWakeUp(t *testing.T, addr string) {
	holder := openStore(t, "zookeeper://"+addr)

	for _, what := range []string{"new", "old"} { // it is made by the first wake-up
		t.Run("F59 a release wakes the first in the queue only, at a node that is "+what, func(t *testing.T) {
			_, lease := acquire(t, holder, "woken/"+what)
			s, last := openStore(t, "zookeeper://"+addr), openStore(t, "zookeeper://"+addr)
			first, _, woken := queued(t, s, lease.Key, holder.kv.wakes()+"/7")
			_, node, _ := queued(t, last, lease.Key, holder.kv.wakes()+"/8")
			require.NoError(t, holder.Release(t.Context(), lease))
			require.NoError(t, <-woken)
			_, err := s.Acquire(t.Context(), first)
			require.NoError(t, err)
			require.NotNil(t, last.watch(node))
		})
	}
	t.Run("waiters of a process share a watch", func(t *testing.T) {
		s := openStore(t, "zookeeper://"+addr)
		_, lease := acquire(t, holder, "shared")
		first, node, woken := queued(t, s, lease.Key, "")
		shared := s.watch(node)
		acquire(t, holder, "another")
		other, _, _ := queued(t, s, "another", node)
		require.Equal(t, shared, s.watch(node))
		require.NoError(t, holder.Release(t.Context(), lease))
		require.NoError(t, <-woken)
		_, err := s.Acquire(t.Context(), first)
		require.NoError(t, err)
		again, _, err := s.kv.Listen(t.Context(), other.Key, string(other.Owner))
		require.NoError(t, err)
		select {
		case <-again:
			t.Fatal("it has been woken before it listened again")
		default:
		}
	})
	t.Run("F60 a wake-up is lost", func(t *testing.T) {
		_, lease := acquire(t, holder, "lost")
		s := openStore(t, "zookeeper://"+addr)
		req, _, done := queued(t, s, lease.Key, "")
		// This KV wakes nobody.
		mute, err := casstore.New(struct{ casstore.KV }{holder.kv}, casstore.Options{})
		require.NoError(t, err)
		began := time.Now()
		require.NoError(t, mute.Release(t.Context(), lease))
		require.NoError(t, <-done)
		t.Logf("the waiter looked after %v", time.Since(began).Round(time.Millisecond))
		_, err = s.Acquire(t.Context(), req)
		require.NoError(t, err)
	})
	t.Run("F60 the user may not change the node of the wake-up", func(t *testing.T) {
		_, lease := acquire(t, holder, "denied")
		s := openStore(t, "zookeeper://"+addr)
		req, node, done := queued(t, s, lease.Key, holder.kv.wakes()+"/9")
		conn := openTable(t, addr)
		_, err := conn.Create(node, nil, 0, zk.WorldACL(zk.PermRead))
		require.NoError(t, err)
		require.NoError(t, <-done, "the new node wakes it")
		require.NoError(t, holder.Release(t.Context(), lease))
		_, err = s.Acquire(t.Context(), req)
		require.NoError(t, err)
	})
}

// A watch outlasts a connection. When the session ends, the owner that listens looks for itself.
func testSessionOfAListener(t *testing.T, addr string) {
	holder := openStore(t, "zookeeper://"+addr)
	open := func(t *testing.T, key string) (opened, *testservers.CutProxy, lockstore.Lease, <-chan struct{}) {
		p := testservers.Proxy(t, addr)
		s := openStore(t, "zookeeper://"+p.Addr)
		s.kv.timeout = time.Second
		_, lease := acquire(t, holder, key)
		req := newRequest(key)
		req.JoinQueue = true
		_, err := s.Acquire(t.Context(), req)
		require.ErrorIs(t, err, lockstore.ErrRefused)
		woken, _, err := s.kv.Listen(t.Context(), key, string(req.Owner))
		require.NoError(t, err)
		return s, p, lease, woken
	}
	t.Run("F46 the connection ends", func(t *testing.T) {
		_, p, lease, woken := open(t, "listens/flaps")
		p.Disconnect()
		require.NoError(t, holder.Release(t.Context(), lease))
		<-woken
	})
	t.Run("F46 the session ends", func(t *testing.T) {
		s, _, _, woken := open(t, "listens/expires")
		s.kv.client.close()
		<-woken
	})
}
