package zkstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
)

func newRequest(key string) lockstore.Request {
	return lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: time.Minute}
}

// failure is the error of a call.
func failure[T any](_ T, err error) error { return err }

func acquire(t *testing.T, s opened, key string) (lockstore.Request, lockstore.Lease) {
	t.Helper()
	req := newRequest(key)
	lease, err := s.Acquire(t.Context(), req)
	require.NoError(t, err)
	return req, lease
}

// repeat makes calls of at most five seconds until one succeeds, as the guard does. Each failure has to be
// of an unknown outcome or of one that was not applied.
func repeat(t *testing.T, call func(context.Context) error) {
	t.Helper()
	for late := time.Now().Add(time.Minute); ; {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		err := call(ctx)
		cancel()
		if err == nil {
			return
		}
		for _, wrong := range []error{lockstore.ErrLost, lockstore.ErrRefused, lockstore.ErrCorrupt, lockstore.ErrInvalid} {
			require.NotErrorIs(t, err, wrong)
		}
		require.True(t, time.Now().Before(late), "%v", err)
	}
}

// lasts wants the lease to last: it is renewed, refused to others, and released.
func lasts(t *testing.T, s, other opened, req lockstore.Request, lease lockstore.Lease) {
	t.Helper()
	repeat(t, func(ctx context.Context) error {
		_, err := s.Renew(ctx, lease, time.Minute)
		return err
	})
	repeat(t, func(ctx context.Context) error {
		again, err := s.Acquire(ctx, req)
		if err == nil {
			require.Equal(t, lease.Fence, again.Fence)
		}
		return err
	})
	repeat(t, func(ctx context.Context) error {
		_, err := other.Acquire(ctx, newRequest(req.Key))
		if errors.Is(err, lockstore.ErrRefused) {
			return nil
		}
		return fmt.Errorf("want the key held: %v", err)
	})
	repeat(t, func(ctx context.Context) error { return s.Release(ctx, lease) })
	nextReq := newRequest(req.Key) // one owner for all tries: one of them may be applied without an answer
	repeat(t, func(ctx context.Context) error {
		next, err := other.Acquire(ctx, nextReq)
		if errors.Is(err, lockstore.ErrRefused) {
			// A refusal may rest on an older read. The lease would last longer than repeat does.
			return fmt.Errorf("want the key free: %v", err)
		}
		if err == nil {
			require.Greater(t, next.Fence, lease.Fence)
		}
		return err
	})
}

// Package histories, in module verify, kills the leader while many hold keys.
func testMajority(t *testing.T, e *testservers.Ensemble) {
	open := func() opened { return openStore(t, "zookeeper://"+e.Addrs()) }
	t.Run("F46 there is no majority", func(t *testing.T) {
		s, other := open(), open()
		req, lease := acquire(t, s, "majority")
		_, err := other.Inspect(t.Context(), req.Key)
		require.NoError(t, err)
		e.Servers[0].Kill()
		e.Servers[1].Kill()
		repeat(t, func(ctx context.Context) error { // until the last server has noticed it
			_, err := s.Renew(ctx, lease, time.Minute)
			if errors.Is(err, lockstore.ErrUnavailable) {
				return nil
			}
			return fmt.Errorf("want no majority: %v", err)
		})
		for range 3 {
			_, err := other.Acquire(t.Context(), newRequest("another"))
			require.ErrorIs(t, err, lockstore.ErrUnavailable)
			t.Log(err)
		}
		e.Servers[0].Restart()
		e.Servers[1].Restart()
		lasts(t, s, other, req, lease)
	})
}

func testSession(t *testing.T, addr string) {
	open := func(t *testing.T) (opened, *testservers.CutProxy) {
		p := testservers.Proxy(t, addr)
		return openStore(t, "zookeeper://"+p.Addr), p
	}
	other := openStore(t, "zookeeper://"+addr)

	t.Run("F46 it expires under a holder", func(t *testing.T) {
		s, p := open(t)
		s.kv.timeout = time.Second
		req, lease := acquire(t, s, "session/expires")
		before := s.kv.session.conn.SessionID()
		p.Swallow()
		require.Eventually(t, func() bool { return s.kv.session.conn.SessionID() == before && !s.kv.session.isReady() }, time.Minute, 10*time.Millisecond)
		<-time.After(2 * time.Second) // the server's clock of the session goes on
		p.Forward()
		p.Disconnect()
		lasts(t, s, other, req, lease)
		require.NotEqual(t, before, s.kv.session.conn.SessionID(), "the session was to expire")
	})
	t.Run("F46 connections end under a holder", func(t *testing.T) {
		s, p := open(t)
		req, lease := acquire(t, s, "session/flaps")
		before := s.kv.session.conn.SessionID()
		for range 3 {
			p.Disconnect()
			repeat(t, func(ctx context.Context) error {
				_, err := s.Renew(ctx, lease, time.Minute)
				return err
			})
		}
		require.Equal(t, before, s.kv.session.conn.SessionID())
		lasts(t, s, other, req, lease)
	})
	t.Run("F68 a process was frozen for longer than its session lasts", func(t *testing.T) {
		s, p := open(t)
		req, lease := acquire(t, s, "session/frozen")
		before := s.kv.session.conn.SessionID()
		p.Swallow() // nobody tells the client that the connection is dead
		s.kv.session.heard.Store(time.Now().Add(-time.Hour).UnixNano())
		p.Forward()
		_, err := s.Renew(t.Context(), lease, time.Minute)
		require.NoError(t, err)
		require.NotEqual(t, before, s.kv.session.conn.SessionID())
		lasts(t, s, other, req, lease)
	})
}

func (s *session) isReady() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.connected
}

// F47: the store writes no node that it would have to look for.
func testLostReply(t *testing.T, addr string) {
	nodes, p := openTable(t, addr), testservers.Proxy(t, addr)
	s := openStore(t, "zookeeper://"+p.Addr)
	acquire(t, s, "first") // makes the parents
	t.Run("F47 a node is created and the reply is lost", func(t *testing.T) {
		p.CutReplies(entryMark)
		req := newRequest("created")
		_, err := s.Acquire(t.Context(), req)
		require.Error(t, err)
		require.NotErrorIs(t, err, lockstore.ErrUnavailable)
		require.Equal(t, 1, p.Cuts())
		p.Forward()
		lease, err := s.Acquire(t.Context(), req)
		require.NoError(t, err)
		children, stat, err := nodes.Children(nodes.lock("created"))
		require.NoError(t, err)
		require.Len(t, children, 1)
		require.Equal(t, stat.Czxid, stat.Pzxid, "the child was made with the node")
		require.NoError(t, s.Release(t.Context(), lease))
	})
	t.Run("F47 a node is created after the caller has gone", func(t *testing.T) {
		// The request of an acquire whose context has ended arrives after the abandon.
		other := openStore(t, "zookeeper://"+addr)
		req := newRequest("late")
		require.NoError(t, other.Abandon(t.Context(), req.Key, req.Owner))
		_, err := s.kv.Write(t.Context(), req.Key, []byte("late"), "")
		require.Error(t, err, "there is a node already")
		_, err = s.Acquire(t.Context(), req)
		require.ErrorIs(t, err, lockstore.ErrLost)
	})
}

// A call without a session ends when its context does, and after 1.5 s at most.
func TestNoSession(t *testing.T) {
	for what, dial := range map[string]dialFunc{
		"F22 no connection": func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		},
		"F22 silent": func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, theirs) }()
			return ours, nil
		},
		"F21 a server that closes at once": func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			return ours, theirs.Close()
		},
		"F21 refused": func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("connection refused") },
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := openStore(t, "zookeeper://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3")
				s.kv.dial, s.kv.limits = dial, usual
				for _, wait := range []time.Duration{time.Hour, time.Hour, 100 * time.Millisecond} {
					ctx, cancel := context.WithTimeout(t.Context(), wait)
					began := time.Now()
					_, err := s.Acquire(ctx, newRequest("k"))
					cancel()
					require.ErrorIs(t, err, lockstore.ErrUnavailable)
					require.LessOrEqual(t, time.Since(began), min(wait, 1500*time.Millisecond))
					if what == "F21 refused" {
						require.ErrorContains(t, err, ": connection refused", "also when the call's context ends first")
					}
				}
			})
		})
	}
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	quiet, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, quiet.Close()) })
	for what, url := range map[string]string{
		"F21 refused":                        "zookeeper://" + closedPort,
		"F21 another kind of server":         "zookeeper://" + answering(t, "HTTP/1.1 400 Bad Request\r\n\r\n"),
		"F21 no such host":                   "zookeeper://no-such-host.invalid?tls=false",
		"F21 TLS at a server that is silent": "zookeeper://" + quiet.Addr().String() + "?tls=true",
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := openStore(t, url)
			s.kv.limits = usual
			for range 3 {
				_, err := s.Acquire(t.Context(), newRequest("k")) // TestNoSession says how long it may take
				require.ErrorIs(t, err, lockstore.ErrUnavailable)
				require.NotErrorIs(t, err, context.DeadlineExceeded, "the caller's context has no end")
				t.Log(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer cancel()
			for _, err := range []error{
				failure(s.Check(t.Context())), s.List(t.Context(), "", nil), failure(s.Extent(t.Context())), failure(s.Inspect(ctx, "k")),
			} {
				require.ErrorIs(t, err, lockstore.ErrUnavailable)
			}
		})
	}
}

// answering is a server that answers each connection with a text, and closes it.
func answering(t *testing.T, text string) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, text)
			_ = conn.Close()
		}
	}()
	return l.Addr().String()
}

func testClosedStore(t *testing.T, addr string) {
	s := openStore(t, "zookeeper://"+addr)
	_, lease := acquire(t, s, "closed")
	s.Close()
	s.Close()
	require.ErrorIs(t, s.Release(t.Context(), lease), lockstore.ErrUnavailable)
	require.ErrorIs(t, s.List(t.Context(), "", nil), lockstore.ErrUnavailable)
}

func testCredentials(t *testing.T, addr string) {
	const user, password = "locks", "a-secret:with-a-colon"
	s := openAs(t, "zookeeper://"+addr+"/private/locks", user+":"+password)
	_, lease := acquire(t, s, "private")
	findings, err := s.Check(t.Context())
	require.NoError(t, err)
	require.Empty(t, findings)
	for what, auth := range map[string]string{"F25 no credentials": "", "F25 another password": user + ":another", "F25 another user": "somebody:" + password} {
		t.Run(what, func(t *testing.T) {
			stranger := openAs(t, "zookeeper://"+addr+"/private/locks", auth)
			for name, err := range map[string]error{
				"Acquire": failure(stranger.Acquire(t.Context(), newRequest("private"))),
				"new key": failure(stranger.Acquire(t.Context(), newRequest("another"))),
				"Release": stranger.Release(t.Context(), lease),
				"Inspect": failure(stranger.Inspect(t.Context(), "private")),
				"Check":   failure(stranger.Check(t.Context())),
				"List":    stranger.List(t.Context(), "", nil),
				"Revoke":  failure(stranger.Revoke(t.Context(), lockstore.RevokeRequest{Key: "private", Fence: lease.Fence})),
			} {
				require.ErrorIs(t, err, lockstore.ErrUnavailable, name)
				require.NotContains(t, err.Error(), password)
				require.ErrorContains(t, err, authVariable, name)
			}
		})
	}
	require.NoError(t, s.Release(t.Context(), lease))
	t.Run("a new session sends them again", func(t *testing.T) {
		s.kv.session.heard.Store(1)
		_, lease := acquire(t, s, "private")
		require.NoError(t, s.Release(t.Context(), lease))
	})
	t.Run("F50 everybody may change the locks", func(t *testing.T) {
		open := openStore(t, "zookeeper://"+addr+"/open")
		findings, err := open.Check(t.Context())
		require.NoError(t, err)
		require.Empty(t, findings, "there are no nodes yet")
		acquire(t, open, "k")
		findings, err = open.Check(t.Context())
		require.NoError(t, err)
		require.Len(t, findings, 1)
		require.Contains(t, findings[0].Problem, "everybody")
	})
	require.Len(t, findingsIn(zk.DigestACL(zk.PermAll, "u", "p"), &zk.Stat{NumChildren: manyKeys + 1}, "/p", true), 1)
	require.Empty(t, findingsIn(zk.WorldACL(zk.PermRead), &zk.Stat{NumChildren: manyKeys}, "/p", true))
}

// An administrator has made the prefix for the user, who may create nothing beside it.
func TestClosedRoot(t *testing.T) {
	addr := testservers.ZooKeeper(t).Addr
	nodes := openTable(t, addr)
	const user, password = "locks", "a-secret"
	_, err := nodes.Create("/closed", nil, 0, zk.DigestACL(zk.PermAll, user, password))
	require.NoError(t, err)
	_, err = nodes.SetACL("/", zk.WorldACL(zk.PermRead), anyVersion)
	require.NoError(t, err)
	t.Run("the prefix is there", func(t *testing.T) {
		s := openAs(t, "zookeeper://"+addr+"/closed", user+":"+password)
		_, lease := acquire(t, s, "k")
		require.NoError(t, s.Release(t.Context(), lease))
	})
	t.Run("the prefix is missing", func(t *testing.T) {
		_, err := openAs(t, "zookeeper://"+addr+"/missing", user+":"+password).Acquire(t.Context(), newRequest("k"))
		require.ErrorIs(t, err, lockstore.ErrUnavailable)
		require.ErrorContains(t, err, authVariable)
	})
}

// A server whose sessions last longer than the client asks for gets pings less often.
func TestLongSession(t *testing.T) {
	addr := testservers.ZooKeeper(t, "minSessionTimeout=60000", "maxSessionTimeout=60000").Addr
	s := openStore(t, "zookeeper://"+addr)
	_, lease := acquire(t, s, "k")
	before := s.kv.session
	before.heard.Store(time.Now().Add(-20 * time.Second).UnixNano())
	_, err := s.Renew(t.Context(), lease, time.Minute)
	require.NoError(t, err)
	require.True(t, before == s.kv.session, "a healthy session was left")
}

// An operator has deleted the child of a lock's node. No write can tell this node from
// another one of the same name.
func testNodeWithoutItsChild(t *testing.T, addr string) {
	nodes := openTable(t, addr)
	s := openStore(t, "zookeeper://"+addr)
	req, lease := acquire(t, s, "childless")
	nodes.deleteBirth(t, "childless")
	before := nodes.data(t, "childless")
	t.Run("F53 it is refused and left alone", func(t *testing.T) {
		_, err := s.Renew(t.Context(), lease, time.Minute)
		require.ErrorIs(t, err, lockstore.ErrCorrupt)
		require.ErrorIs(t, s.Release(t.Context(), lease), lockstore.ErrCorrupt)
		_, err = s.Acquire(t.Context(), req)
		require.ErrorIs(t, err, lockstore.ErrCorrupt)
		t.Log(err)
		require.Equal(t, before, nodes.data(t, "childless"))
	})
}
