package redisstore

import (
	"bufio"
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	resp "github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

// silentServer answers a greeting after a time, and never answers a request.
type silentServer struct {
	greeting time.Duration
	requests atomic.Int32
}

const silentAddr = "127.0.0.1:6379"

func (s *silentServer) dial(context.Context, string, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	server := resp.NewServerConn()
	server.SetPreHook(func(c *resp.Peer, name string, _ ...string) bool {
		switch name {
		case "HELLO":
			<-time.After(s.greeting)
		case "CLUSTER":
			c.WriteRaw("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:6379\r\n")
			return true
		case "EVALSHA", "EVAL", "INFO", "BLPOP":
			s.requests.Add(1)
			return true
		}
		return false // an unknown command
	})
	server.ServeConn(theirs)
	return ours, nil
}

// The server is silent. With every client, a call ends when its context is cancelled, and
// at its deadline. The error says whether the request may have been applied. A request
// that was not written by then is never written.
func TestCallsEndWithTheirContext(t *testing.T) {
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
	const limit = 200 * time.Millisecond
	ends := map[string]func() (context.Context, context.CancelFunc, error){
		"cancelled": func() (context.Context, context.CancelFunc, error) {
			ctx, cancel := context.WithCancel(context.Background())
			time.AfterFunc(limit, cancel)
			return ctx, cancel, context.Canceled
		},
		"cancelled long before the deadline": func() (context.Context, context.CancelFunc, error) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
			time.AfterFunc(limit, cancel)
			return ctx, cancel, context.Canceled
		},
		"deadline": func() (context.Context, context.CancelFunc, error) {
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			return ctx, cancel, context.DeadlineExceeded
		},
	}
	for clientName, client := range clients {
		for endName, end := range ends {
			// A write, a read, and what is no script. The others are sent as these are.
			for method, request := range map[string]func(context.Context, *lockstore.Store) error{
				"Acquire": func(ctx context.Context, s *lockstore.Store) error { return request(ctx, s, driver.Acquire) },
				"Inspect": func(ctx context.Context, s *lockstore.Store) error { return request(ctx, s, driver.Inspect) },
				"Check":   check,
			} {
				run := func(name string, greeting time.Duration, written bool) {
					t.Run("F28 F41 "+strings.Join([]string{clientName, endName, method, name}, "/"), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) {
							server := &silentServer{greeting: greeting}
							c := client(t, server.dial)
							defer c.Close()
							s := storeOn(t, c)
							require.Equal(t, strings.HasPrefix(clientName, "the package's"), driverOf(s).ends)
							ctx, cancel, cause := end()
							defer cancel()

							start := time.Now()
							err := request(ctx, s)
							require.Less(t, time.Since(start), limit+50*time.Millisecond, "the call goes on after its context")
							require.ErrorIs(t, err, cause)
							if written && method != "Check" {
								requireUnknown(t, err)
							} else {
								requireUnavailable(t, err, "")
							}
							before := server.requests.Load()
							require.Equal(t, written, before > 0)
							<-time.After(time.Hour)
							c.PoolStats()
							<-time.After(5 * time.Second) // a cluster's client reads its nodes again
							stats := c.PoolStats()
							require.Equal(t, stats.TotalConns, stats.IdleConns, "a connection is still in use")
							if method != "Check" { // Check changes nothing, so it may be sent late and twice
								require.Equal(t, before, server.requests.Load(), "written after the call has ended")
							}
						})
					})
				}
				run("no answer to the request", 0, true)
				run("a late answer to the greeting", limit+300*time.Millisecond, false)
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
		t.Run(what, func(t *testing.T) {
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
				require.Equal(t, 200*time.Millisecond, time.Since(start))
			})
		})
	}
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
