package redisstore

import (
	"context"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

func TestOpen(t *testing.T) {
	addr := testservers.Redis(t)
	for _, url := range []string{addr, addr + "/", addr + "/0", addr + "/3", addr + "?prefix=other:", addr + "?cluster=false"} {
		for _, scheme := range []string{"redis://", "valkey://"} {
			store, err := lockstore.Open(t.Context(), scheme+url, os.Getenv, Opener)
			require.NoError(t, err)
			lockUnlock(t, store, "account/7")
		}
	}
	for db, want := range map[string][]string{"/0": {"lambdalock:account/7", "other:account/7"}, "/3": {"lambdalock:account/7"}} {
		require.ElementsMatch(t, want, openClient(t, "redis://"+addr+db).Keys(t.Context(), "*").Val())
	}
}

// Close of a store that an opener made ends its connections. A client given to New stays its caller's.
func TestClose(t *testing.T) {
	addr := testservers.Redis(t)
	admin, client := openClient(t, "redis://"+addr), openClient(t, "redis://"+addr)
	connections := func() int { return strings.Count(admin.ClientList(t.Context()).Val(), "\n") }
	s := storeOn(t, client)
	lockUnlock(t, s, "k")
	require.NoError(t, s.Close())
	lockUnlock(t, s, "k")
	require.Equal(t, 2, connections())
	require.NoError(t, client.Close())

	for _, url := range []string{"redis://" + addr, "redis://" + closedPort + "?cluster=true"} {
		s, err := lockstore.Open(t.Context(), url, os.Getenv, Opener)
		require.NoError(t, err)
		before := failure(s.Inspect(t.Context(), "k"))
		require.NotErrorIs(t, before, redis.ErrClosed)
		require.NoError(t, s.Close())
		require.Eventually(t, func() bool { return connections() == 1 }, 10*time.Second, 10*time.Millisecond)
		err = failure(s.Inspect(t.Context(), "k"))
		requireUnavailable(t, err, "")
		require.ErrorIs(t, err, redis.ErrClosed)
	}
}

// Open makes no network call: a function's start must not depend on the cache.
func TestOpenDoesNotConnect(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer server.Close()
	require.NoError(t, failure(lockstore.Open(t.Context(), "redis://"+server.Addr().String(), os.Getenv, Opener)))
	require.NoError(t, server.(*net.TCPListener).SetDeadline(time.Now().Add(50*time.Millisecond)))
	require.ErrorIs(t, failure(server.Accept()), os.ErrDeadlineExceeded, "nobody has connected")
}

func TestURLs(t *testing.T) {
	for _, scheme := range Opener.Schemes {
		storetest.URLs(t, Opener, os.Getenv, scheme+"://localhost?prefix=p", "user", "port", "path")
	}
	const plain = "is without TLS and its host is not this machine; want "
	for url, says := range map[string]string{
		"rediss://no.such.host.test/1": "", "valkeys://[2001:db8::1]:7000?cluster=true": "", "redis://192.0.2.1?plaintext=true": "",
		"redis://user:s3cret@localhost": "", "valkey://user:s3cret@[::1]:7000": "", "redis://user:s3cret@host.docker.internal:6379": "", // see TestIsThisMachine
		"redis://user:s3cret@":                              "no host",
		"rediss://user:s3cret@host/s3cret":                  "path",
		"rediss://user:s3cret@host/1/2":                     "path",
		"rediss://user:s3cret@host?cluster=s3cret":          "cluster",
		"rediss://s3cret@host":                              "a user without a password",
		"rediss://user:s3cret@host/1?cluster=true":          "database 0 only",
		"rediss://user:s3cret@host?connections=s3cret":      "connections",
		"rediss://user:s3cret@host?connections=1":           "2 to 1000",
		"rediss://user:s3cret@host?connections=1001":        "2 to 1000",
		"unix://user:s3cret@host":                           `"unix"`,
		"rediss://user:s3cret@host?plaintext=true":          "has plaintext=true, but its scheme means TLS",
		"redis://user:s3cret@host?plaintext=s3cret":         "a parameter plaintext that is not true or false",
		"rediss://user:s3cret@host1:6379,host2:6379":        "several hosts",
		"redis://user:s3cret@cache.example.com":             plain + "rediss://, or plaintext=true",
		"valkey://user:s3cret@10.0.0.5:6379":                plain + "valkeys://, or plaintext=true",
		"redis://user:s3cret@[2001:db8::1]?plaintext=false": plain + "rediss://, or plaintext=true",
	} {
		_, err := lockstore.Open(t.Context(), url, os.Getenv, Opener)
		if says == "" {
			require.NoError(t, err, url)
			continue
		}
		require.ErrorIs(t, err, lockstore.ErrInvalid, url)
		require.ErrorContains(t, err, says)
		require.NotContains(t, err.Error(), "s3cret")
	}
	require.ErrorIs(t, failure(open(t.Context(), lockstore.Config{})), lockstore.ErrInvalid)
	require.ErrorContains(t, failure(open(t.Context(), config(t, "http://host"))), "scheme")
}

// Lambda may have frozen the process: what was idle meanwhile is not used, and the guard decides on repeats, not the client.
func TestClientSettings(t *testing.T) {
	opt := openClient(t, "rediss://user:pw@host:7000/2").(*redis.Client).Options()
	require.Equal(t, []any{"host:7000", "user", "pw", 2}, []any{opt.Addr, opt.Username, opt.Password, opt.DB})
	cluster := openClient(t, "rediss://host?cluster=true").(*redis.ClusterClient).Options()
	require.Equal(t, []string{"host:6379"}, cluster.Addrs)
	require.LessOrEqual(t, max(opt.MaxRetries, cluster.MaxRetries), 0)
	require.LessOrEqual(t, max(opt.ConnMaxIdleTime, cluster.ConnMaxIdleTime), time.Minute)
	require.Greater(t, min(opt.ReadTimeout, opt.WriteTimeout), maxBlock+silence, "a call ends its own waits")

	// "An IAM authenticated connection will automatically be disconnected after 12 hours" (Amazon ElastiCache, Authenticating
	// with IAM): the client ends each one long before.
	client, err := ClientWithCredentials(config(t, "rediss://host"), func(context.Context) (string, string, error) { return "", "", nil })
	require.NoError(t, err)
	defer client.Close()
	lifetime := client.(*redis.Client).Options().ConnMaxLifetime
	require.Positive(t, lifetime)
	require.LessOrEqual(t, lifetime, 6*time.Hour)
}

// A cluster's client sends a request of its user once, unless a node refuses it: a write may be one that counts twice.
func TestClusterClientSendsOnce(t *testing.T) {
	const script = "return redis.call('INCR', KEYS[1])"
	eval := func(ctx context.Context, c redis.Cmdable) error { return c.Eval(ctx, script, []string{"k"}).Err() }
	both := func(p redis.Pipeliner) error {
		p.Eval(t.Context(), script, []string{"k"})
		p.Eval(t.Context(), script, []string{"other"})
		return nil
	}
	const moved, ask = "-MOVED 1 SELF\r\n", "-ASK 1 SELF\r\n"
	for name, c := range map[string]struct {
		do      func(context.Context, redis.Cmdable) error
		answers []string // to the scripts; "" ends the connection
		applied int      // how many of them ran
		want    error
	}{
		"F25 lost":                 {eval, []string{""}, 1, io.EOF},
		"F25 F40 moved, then lost": {eval, []string{moved, ""}, 1, io.EOF},
		"F25 F40 asked, then lost": {eval, []string{ask, ""}, 1, io.EOF},
		"F40 moved":                {eval, []string{moved, ":1\r\n"}, 1, nil},
		"F40 asked":                {eval, []string{ask, ":1\r\n"}, 1, nil},
		"F25 lost in a pipeline":   {func(ctx context.Context, c redis.Cmdable) error { return failure(c.Pipelined(ctx, both)) }, []string{":1\r\n", ""}, 2, io.EOF},
		"F40 moved in a pipeline":  {func(ctx context.Context, c redis.Cmdable) error { return failure(c.Pipelined(ctx, both)) }, []string{":1\r\n", moved, ":1\r\n"}, 2, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var sent, applied atomic.Int32
			addr := fakeCluster(t, func(command []string) string {
				if command[0] != "eval" {
					return "+OK\r\n"
				}
				answer := ""
				if n := int(sent.Add(1)); n <= len(c.answers) {
					answer = c.answers[n-1]
				}
				if !strings.HasPrefix(answer, "-") {
					applied.Add(1)
				}
				return answer
			})
			require.ErrorIs(t, c.do(t.Context(), openClient(t, "redis://"+addr+"?cluster=true")), c.want)
			require.EqualValues(t, len(c.answers), sent.Load())
			require.EqualValues(t, c.applied, applied.Load())
		})
	}
}

// The client asks for the password when it makes a connection.
func TestClientWithCredentials(t *testing.T) {
	addr := testservers.Redis(t)
	admin := openClient(t, "redis://"+addr)
	require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "locks", "on", ">token-1", "~lambdalock:*",
		"+evalsha", "+eval", "+get", "+set", "+setrange", "+pexpire", "+time").Err())

	asked, password := 0, "token-1"
	client, err := ClientWithCredentials(config(t, "redis://ignored:ignored@"+addr), func(context.Context) (string, string, error) {
		asked++
		return "locks", password, nil
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	store := storeOn(t, client)
	lockUnlock(t, store, "k")
	require.Equal(t, 1, asked, "once for each connection")

	require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "locks", "resetpass", ">token-2").Err())
	require.NoError(t, admin.Do(t.Context(), "CLIENT", "KILL", "USER", "locks").Err())
	use := func() error { return failure(store.Inspect(t.Context(), "k")) }
	require.Eventually(t, func() bool { return use() != nil }, 5*time.Second, 10*time.Millisecond)
	require.ErrorIs(t, use(), lockstore.ErrUnavailable, "F71 a refused token is neither a lock nor busy")
	password = "token-2"
	require.Eventually(t, func() bool { return use() == nil }, 5*time.Second, 10*time.Millisecond)
}

// A credentials function can limit its own time, sees its caller's deadline and values, and
// ends with its caller.
func TestCredentialsHaveTheCallersContext(t *testing.T) {
	type name struct{}
	for limit, want := range map[time.Duration]time.Duration{time.Second: time.Second, time.Hour: 3 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), name{}, "the caller"), 3*time.Second)
			defer cancel()
			m := newMini(t)
			s := storeOn(t, openWith(t, mini, func(opt *redis.UniversalOptions) {
				dials(m)(opt)
				opt.CredentialsProviderContext = func(got context.Context) (string, string, error) {
					want, _ := ctx.Deadline()
					deadline, _ := got.Deadline()
					require.True(t, want.Equal(deadline), "%v, %v", want, deadline)
					require.Equal(t, "the caller", got.Value(name{}))
					own, cancel := context.WithTimeout(got, limit)
					defer cancel()
					<-own.Done() // a service that hangs
					return "", "", own.Err()
				}
			}))
			began := time.Now()
			_, err := s.Acquire(ctx, newRequest("k"))
			require.ErrorIs(t, err, lockstore.ErrUnavailable)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Equal(t, want, time.Since(began))
		})
	}
}

// After a call nothing of it stays in memory, and a hook that goes on can limit its time: the context has the caller's deadline.
func TestAHookThatGoesOnAfterTheCall(t *testing.T) {
	s, _, _ := stillStore(t)
	var late *callContext
	driverOf(s).client.AddHook(hook(func(ctx context.Context, _ redis.Cmder) error {
		late = ctx.Value(callKey{}).(*callContext)
		return nil
	}))
	require.NoError(t, failure(s.Inspect(context.Background(), "k")))
	_, limited := late.Deadline()
	require.False(t, limited)
	calls.Lock()
	defer calls.Unlock()
	for _, call := range calls.by {
		require.NotSame(t, late, call)
	}
}
