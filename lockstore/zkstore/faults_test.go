package zkstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
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
func lasts(t *testing.T, s, other opened, lease lockstore.Lease) {
	t.Helper()
	next := newRequest(lease.Key) // one owner for all tries: one of them may be applied without an answer
	repeat(t, func(ctx context.Context) error { return failure(s.Renew(ctx, lease, time.Minute)) })
	repeat(t, func(ctx context.Context) error {
		if _, err := other.Acquire(ctx, next); !errors.Is(err, lockstore.ErrRefused) {
			return fmt.Errorf("want the key held: %v", err)
		}
		return nil
	})
	repeat(t, func(ctx context.Context) error { return s.Release(ctx, lease) })
	repeat(t, func(ctx context.Context) error {
		granted, err := other.Acquire(ctx, next)
		if errors.Is(err, lockstore.ErrRefused) {
			// A refusal may rest on an older read. The lease would last longer than repeat does.
			return fmt.Errorf("want the key free: %v", err)
		}
		require.True(t, err != nil || granted.Fence > lease.Fence)
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
		lasts(t, s, other, lease)
	})
}

// The connection of a holder ends, or is dead and nobody tells its client.
func testSession(t *testing.T, addr string) {
	other := openStore(t, "zookeeper://"+addr)
	for what, end := range map[string]func(t *testing.T, s opened, p *testservers.CutProxy){
		"F46 the connection ends": func(_ *testing.T, _ opened, p *testservers.CutProxy) { p.Disconnect() },
		"F46 the server is silent until the session expires": func(t *testing.T, s opened, p *testservers.CutProxy) {
			p.Swallow()
			<-s.kv.session.over.Done()
			<-time.After(2 * time.Second) // the server's clock of the session goes on
			p.Forward()
		},
		"F68 a process was frozen for longer than its session lasts": func(t *testing.T, s opened, _ *testservers.CutProxy) {
			// A reply that was under way sets the time again.
			for before := s.kv.session; before == s.kv.session && t.Context().Err() == nil; {
				s.kv.session.heard.Store(time.Now().Add(-time.Hour).UnixNano())
				_ = failure(s.Inspect(t.Context(), "k"))
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := testservers.Proxy(t, addr)
			s := openStore(t, "zookeeper://"+p.Addr)
			s.kv.timeout = time.Second
			_, lease := acquire(t, s, what)
			for range 2 {
				before := s.kv.session
				end(t, s, p)
				repeat(t, func(ctx context.Context) error { return failure(s.Renew(ctx, lease, time.Minute)) })
				require.False(t, before == s.kv.session, "the session goes on")
			}
			lasts(t, s, other, lease)
		})
	}
}

// F47: a node is created and the reply is lost. The store writes no node that it would have to look for.
func testLostReply(t *testing.T, addr string) {
	nodes, p := openTable(t, addr), testservers.Proxy(t, addr)
	s := openStore(t, "zookeeper://"+p.Addr)
	acquire(t, s, "first") // makes the parents
	p.CutReplies(entryMark)
	req := newRequest("F47")
	_, err := s.Acquire(t.Context(), req)
	require.Error(t, err)
	require.NotErrorIs(t, err, lockstore.ErrUnavailable)
	require.Equal(t, 1, p.Cuts())
	p.Forward()
	lease, err := s.Acquire(t.Context(), req)
	require.NoError(t, err)
	children, stat, err := nodes.Children(nodes.lock(req.Key))
	require.NoError(t, err)
	require.Len(t, children, 1)
	require.Equal(t, stat.Czxid, stat.Pzxid, "the child was made with the node")
	require.NoError(t, s.Release(t.Context(), lease))
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
		"F21 another kind of server": func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go func() {
				_, _ = theirs.Read(make([]byte, 1024))
				_, _ = io.WriteString(theirs, "HTTP/1.1 400 Bad Request\r\n\r\n")
				_ = theirs.Close()
			}()
			return ours, nil
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
					require.Equal(t, time.Since(began) >= wait, errors.Is(err, context.DeadlineExceeded), "the end of a dial is not that of the caller's context")
					if what == "F21 refused" {
						require.ErrorContains(t, err, ": connection refused", "also when the call's context ends first")
					}
				}
				for _, err := range []error{
					failure(s.Check(t.Context())), s.List(t.Context(), "", nil), failure(s.Extent(t.Context())), failure(s.Inspect(t.Context(), "k")),
				} {
					require.ErrorIs(t, err, lockstore.ErrUnavailable)
				}
				<-time.After(time.Minute) // the sessions have ended
			})
		})
	}
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
	t.Run("a server refuses them, and goes on", func(t *testing.T) {
		s, once := openAs(t, "zookeeper://"+addr+"/private/locks", user+":"+password), new(sync.Once)
		dial := s.kv.dial
		s.kv.dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			return refusing{conn, once}, err
		}
		require.ErrorContains(t, failure(s.Inspect(t.Context(), "private")), "the credentials: ")
		require.NoError(t, failure(s.Inspect(t.Context(), "private")), "the next request makes a session")
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
	require.Len(t, findingsIn(zk.DigestACL(zk.PermAll, "u", "p"), &zk.Stat{NumChildren: manyKeys + 1}, "/p"), 1)
	require.Empty(t, findingsIn(zk.WorldACL(zk.PermRead), &zk.Stat{NumChildren: manyKeys}, "/p"))
}

// refusing are connections. The first answer without more than its header refuses what was asked.
type refusing struct {
	net.Conn
	once *sync.Once
}

func (c refusing) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n == 16 { // a header ends with the error
		c.once.Do(func() { copy(b[12:], "\xff\xff\xff\x8d") }) // AUTHFAILED
	}
	return n, err
}

// The store of the first user makes the node that two prefixes share, for this user alone. The error of the second one says where.
func testTwoUsersBelowANode(t *testing.T, addr string) {
	acquire(t, openAs(t, "zookeeper://"+addr+"/teams/a", "a:a-secret"), "k")
	second := openAs(t, "zookeeper://"+addr+"/teams/b", "b:b-secret")
	for range 2 {
		err := failure(second.Acquire(t.Context(), newRequest("k")))
		require.ErrorIs(t, err, lockstore.ErrUnavailable)
		require.ErrorContains(t, err, "level 2 of their path cannot be made; the ACL of level 1 says who may")
		require.NotContains(t, err.Error(), "teams")
	}
	administrator := openTable(t, addr)
	require.NoError(t, administrator.AddAuth("digest", []byte("a:a-secret")))
	acl := append(zk.DigestACL(zk.PermAll, "a", "a-secret"), zk.DigestACL(zk.PermCreate, "b", "b-secret")...)
	require.NoError(t, failure(administrator.SetACL("/teams", acl, anyVersion)))
	acquire(t, second, "k")
}

// An administrator has made the prefix for the user, who may create nothing beside it.
func TestClosedRoot(t *testing.T) {
	addr := testservers.ZooKeeper(t, "minSessionTimeout=60000", "maxSessionTimeout=60000").Addr
	nodes := openTable(t, addr)
	const user, password = "locks", "a-secret"
	_, err := nodes.Create("/closed", nil, 0, zk.DigestACL(zk.PermAll, user, password))
	require.NoError(t, err)
	_, err = nodes.SetACL("/", zk.WorldACL(zk.PermRead), anyVersion)
	require.NoError(t, err)
	t.Run("the prefix is there", func(t *testing.T) {
		s := openAs(t, "zookeeper://"+addr+"/closed", user+":"+password)
		_, lease := acquire(t, s, "k")
		// This server's sessions last longer than the client asks for. Such a one gets pings less often.
		before := s.kv.session
		s.kv.timeout = time.Second
		before.heard.Store(time.Now().Add(-20 * time.Second).UnixNano())
		require.NoError(t, s.Release(t.Context(), lease))
		require.True(t, before == s.kv.session, "a healthy session was left")
	})
	t.Run("the prefix is missing", func(t *testing.T) {
		_, err := openAs(t, "zookeeper://"+addr+"/missing", user+":"+password).Acquire(t.Context(), newRequest("k"))
		require.ErrorIs(t, err, lockstore.ErrUnavailable)
		require.ErrorContains(t, err, authVariable)
	})
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
