package redisstore

import (
	"bufio"
	"context"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	resp "github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

const silentAddr = "127.0.0.1:6379"

// The server answers a greeting after a time, and never answers a request. With every client, a call ends when its context is cancelled, and
// at its deadline. The error says whether the request may have been applied. A request
// that was not written by then is never written.
func TestCallsEndWithTheirContext(t *testing.T) {
	const limit = 200 * time.Millisecond
	clients := map[string]func(*testing.T, dialFunc) redis.UniversalClient{
		"the package's client": func(t *testing.T, d dialFunc) redis.UniversalClient { return dialerClient(t, "redis://"+silentAddr, d) },
		"the package's cluster client": func(t *testing.T, d dialFunc) redis.UniversalClient {
			return dialerClient(t, "redis://"+silentAddr+"?cluster=true", d)
		},
		"a client with go-redis's settings": func(t *testing.T, d dialFunc) redis.UniversalClient {
			return redis.NewClient(&redis.Options{Addr: silentAddr, Dialer: d, PoolSize: 1000})
		},
		"a cluster client with go-redis's settings": func(t *testing.T, d dialFunc) redis.UniversalClient {
			return redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{silentAddr}, Dialer: d, PoolSize: 1000, DisableRoutingPolicies: true})
		},
	}
	// A write, a read, a wait for a turn, and what only lists or checks. The others are sent as these are.
	requests := map[string]func(context.Context, *lockstore.Store) error{
		"Acquire": func(ctx context.Context, s *lockstore.Store) error { return request(ctx, s, driver.Acquire) },
		"Inspect": func(ctx context.Context, s *lockstore.Store) error { return request(ctx, s, driver.Inspect) },
		"Check":   check,
		"AwaitTurn": func(ctx context.Context, s *lockstore.Store) error {
			return storetest.AwaitTurn(ctx, s, "k", lockstore.NewOwner())
		},
	}
	ends := map[string]time.Duration{"cancelled": 0, "cancelled long before the deadline": time.Hour, "deadline": limit}
	greetings := map[string]time.Duration{"no answer to the request": 0, "a late answer to the greeting": limit + 300*time.Millisecond}
	run := func(t *testing.T, client, method, end, answer string) {
		var sent atomic.Int32
		greeting, deadline, written := greetings[answer], ends[end], greetings[answer] == 0
		c := clients[client](t, func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			server := resp.NewServerConn()
			server.SetPreHook(func(c *resp.Peer, name string, _ ...string) bool {
				switch name {
				case "HELLO":
					<-time.After(greeting)
				case "CLUSTER":
					c.WriteRaw("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:6379\r\n")
					return true
				case "EVALSHA", "EVAL", "INFO", "BLPOP":
					sent.Add(1)
					return true
				}
				return false // an unknown command
			})
			server.ServeConn(theirs)
			return ours, nil
		})
		defer c.Close()
		s := storeOn(t, c)
		require.Equal(t, strings.HasPrefix(client, "the package's"), driverOf(s).ends)
		ctx, cancel := context.WithCancel(context.Background())
		if deadline > 0 {
			ctx, cancel = context.WithTimeout(ctx, deadline)
		}
		defer cancel()
		cause := context.DeadlineExceeded
		if deadline != limit {
			cause = context.Canceled
			time.AfterFunc(limit, cancel)
		}

		start := time.Now()
		err := requests[method](ctx, s)
		require.Less(t, time.Since(start), limit+50*time.Millisecond, "the call goes on after its context")
		require.ErrorIs(t, err, cause)
		if method == "AwaitTurn" {
			requireNoOther(t, err, lockstore.ErrUnavailable)
		} else if written && method != "Check" {
			requireUnknown(t, err)
		} else {
			requireUnavailable(t, err, "")
		}
		before := sent.Load()
		require.Equal(t, written, before > 0)
		<-time.After(time.Hour)
		c.PoolStats()
		<-time.After(5 * time.Second) // a cluster's client reads its nodes again
		stats := c.PoolStats()
		require.Equal(t, stats.TotalConns, stats.IdleConns, "a connection is still in use")
		if method != "Check" { // Check changes nothing, so it may be sent late and twice
			require.Equal(t, before, sent.Load(), "written after the call has ended")
		}
	}
	for client := range clients {
		for method := range requests {
			for end := range ends {
				for answer := range greetings {
					t.Run("F28 F41 "+strings.Join([]string{client, end, method, answer}, "/"), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) { run(t, client, method, end, answer) })
					})
				}
			}
		}
	}
}

// A server that reads nothing any more: also a command that is not written yet ends with its call.
func TestCallsEndWhileTheyWrite(t *testing.T) {
	for what, request := range map[string]func(context.Context, *lockstore.Store) error{
		"Acquire": func(ctx context.Context, s *lockstore.Store) error { return request(ctx, s, driver.Acquire) },
		"AwaitTurn": func(ctx context.Context, s *lockstore.Store) error {
			return storetest.AwaitTurn(ctx, s, "k", lockstore.NewOwner())
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := dialerClient(t, "redis://"+silentAddr, func(context.Context, string, string) (net.Conn, error) {
				ours, theirs := net.Pipe()
				go func() {
					for all := bufio.NewScanner(theirs); all.Scan() && all.Text() != "ping"; {
						if all.Text() == "hello" {
							_, _ = theirs.Write([]byte("-ERR unknown command 'hello'\r\n"))
						}
					}
					_, _ = theirs.Write([]byte("+PONG\r\n"))
				}()
				return ours, nil
			})
			require.NoError(t, c.Ping(t.Context()).Err())
			s := storeOn(t, c)
			ctx, cancel := context.WithCancel(t.Context())
			defer time.AfterFunc(200*time.Millisecond, cancel).Stop()
			start := time.Now()
			require.Error(t, request(ctx, s))
			require.Equal(t, 200*time.Millisecond, time.Since(start), what)
		})
	}
}

// A call and a command of the user may have the deadline of one context. The end of the call does not reach the command.
func TestACommandWithTheDeadlineOfACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := dialerClient(t, "redis://"+silentAddr, func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			server := resp.NewServerConn()
			server.SetPreHook(func(_ *resp.Peer, name string, _ ...string) bool { return name == "EVALSHA" || name == "GET" })
			server.ServeConn(theirs)
			return ours, nil
		})
		s := storeOn(t, client)
		parent, end := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer end()
		child, cancel := context.WithCancel(parent)
		defer time.AfterFunc(100*time.Millisecond, cancel).Stop()
		began := time.Now()
		var both sync.WaitGroup
		both.Go(func() {
			assert.ErrorIs(t, request(child, s, driver.Acquire), context.Canceled)
			assert.Equal(t, 100*time.Millisecond, time.Since(began), "the call")
		})
		synctest.Wait() // the call has its connection
		both.Go(func() {
			assert.Error(t, client.Get(parent, "row").Err())
			assert.Equal(t, 500*time.Millisecond, time.Since(began), "the command")
		})
		both.Wait()
	})
}

// A call that has returned does not change the connection of the next call.
func TestAReturnedCallHasNoConnection(t *testing.T) {
	var without, first, next callContext
	stop := without.begin(t.Context(), answerTimeout)
	without.forget()
	require.True(t, stop())

	used := &conn{}
	first.conn.Store(used)
	used.user = &next
	first.forget()
	require.Same(t, &next, used.user, "another call uses the connection now")
	used.user = &first
	first.forget()
	require.Nil(t, used.user)
}

// The turn of a request, or its answer, comes at the moment at which its context ends. However often, no connection is
// lost: in the end as many requests are sent at once as there are connections, and half as many waits.
func TestNoConnectionIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const connections, takes = 4, 10 * time.Millisecond
		client := fewConnections(t, connections)
		var slow atomic.Bool
		var waits atomic.Int32
		client.AddHook(hook(func(_ context.Context, cmd redis.Cmder) error {
			if cmd.Name() == "blpop" {
				waits.Add(1)
			} else if cmd.Name() == "evalsha" && slow.Load() {
				<-time.After(takes)
			}
			return nil
		}))
		s := storeOn(t, client)
		loadScript(t, s)
		lease := acquire(t, s, "k")
		req := queued(t, s, "k")
		slow.Store(true)
		atOnce := func(n int, do func(i int)) (took time.Duration) {
			began := time.Now()
			var all sync.WaitGroup
			for i := range n {
				all.Go(func() { do(i) })
			}
			all.Wait()
			return time.Since(began)
		}
		for round := range 15 {
			atOnce(10*connections, func(i int) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+(i/4+round)%5)*takes)
				defer cancel()
				switch i % 4 {
				case 0:
					_, _ = s.AwaitTurn(ctx, req, 0)
				case 1:
					_, _ = s.Inspect(ctx, "k")
				default: // these go first
					_, _ = s.Renew(ctx, lease, time.Minute)
				}
			})
		}
		require.Equal(t, takes, atOnce(connections, func(int) { _, err := s.Inspect(t.Context(), "k"); assert.NoError(t, err) }), "each has a connection")
		waits.Store(0)
		atOnce(connections, func(int) { _ = await(t, s, req) })
		require.EqualValues(t, connections/2, waits.Load(), "waits at the server")
		require.Empty(t, driverOf(s).wakeUps.pausing)
		stats := client.PoolStats()
		require.Equal(t, stats.TotalConns, stats.IdleConns)
	})
}
