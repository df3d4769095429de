package redisstore

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

func TestOpen(t *testing.T) {
	addr := testservers.Redis(t)
	for _, url := range []string{
		"redis://" + addr,
		"valkey://" + addr,
		"redis://" + addr + "/",
		"redis://" + addr + "/0",
		"redis://" + addr + "/3",
		"redis://" + addr + "?prefix=other:",
		"redis://" + addr + "?cluster=false",
	} {
		t.Run(url, func(t *testing.T) {
			store, err := lockstore.Open(t.Context(), url, os.Getenv, Opener)
			require.NoError(t, err)
			lockUnlock(t, store)
		})
	}
	keys := func(db int) []string {
		client := redis.NewClient(&redis.Options{Addr: addr, DB: db})
		defer client.Close()
		return client.Keys(t.Context(), "*").Val()
	}
	require.ElementsMatch(t, []string{"lambdalock:account/7", "other:account/7"}, keys(0))
	require.Equal(t, []string{"lambdalock:account/7"}, keys(3))
}

// Two locks are the same if prefix + key is the same text.
func TestPrefixAndKey(t *testing.T) {
	_, client, _ := fuzzStore(t)
	store := func(prefix string) *lockstore.Store {
		s, err := New(client, Options{Prefix: prefix})
		require.NoError(t, err)
		return s
	}
	acquire(t, store("shop:"), "eu:7")
	requireHeld(t, store("shop:eu:"), "7")
	acquire(t, store("shop-eu:"), "7")
	acquire(t, store("shop:"), "7")
	acquire(t, store(""), "7")
	requireHeld(t, store(DefaultPrefix), "7")
	require.ElementsMatch(t, []string{DefaultPrefix + "7", "shop-eu:7", "shop:7", "shop:eu:7"}, client.Keys(t.Context(), "*").Val(), "M29")
}

// Open makes no network call: a function's start must not depend on the cache.
func TestOpenDoesNotConnect(t *testing.T) {
	for _, url := range []string{"redis://192.0.2.1?plaintext=true", "rediss://no.such.host.test/1", "valkeys://[2001:db8::1]:7000?cluster=true"} {
		start := time.Now()
		store, err := lockstore.Open(t.Context(), url, os.Getenv, Opener)
		require.NoError(t, err)
		require.Less(t, time.Since(start), dialTimeout/2)
		require.NoError(t, driverOf(store).client.Close())
	}
}

func TestOpenRefusesBadURLs(t *testing.T) {
	for _, scheme := range Opener.Schemes {
		storetest.URLs(t, Opener, os.Getenv, scheme+"://localhost?prefix=p", "user", "port", "path")
	}
	for url, says := range map[string]string{
		"redis://user:s3cret@":                         "no host",
		"redis://user:s3cret@/0":                       "no host",
		"rediss://user:s3cret@host/s3cret":             "path",
		"rediss://user:s3cret@host/-1":                 "path",
		"rediss://user:s3cret@host/1/2":                "path",
		"rediss://user:s3cret@host?cluster=s3cret":     "cluster",
		"rediss://s3cret@host":                         "a user without a password",
		"rediss://s3cret:@host":                        "a user without a password",
		"rediss://user:s3cret@host/1?cluster=true":     "database 0 only",
		"rediss://user:s3cret@host?connections=s3cret": "connections",
		"rediss://user:s3cret@host?connections=1":      "2 to 1000",
		"rediss://user:s3cret@host?connections=1001":   "2 to 1000",
		"unix://user:s3cret@host":                      `"unix"`,
		"rediss://user:s3cret@host1:6379,host2:6379":   "several hosts",
	} {
		t.Run(url, func(t *testing.T) {
			_, err := lockstore.Open(t.Context(), url, os.Getenv, Opener)
			require.ErrorIs(t, err, lockstore.ErrInvalid)
			require.ErrorContains(t, err, says)
			require.NotContains(t, err.Error(), "s3cret")
		})
	}
	_, err := Open(t.Context(), lockstore.Config{})
	require.ErrorIs(t, err, lockstore.ErrInvalid)
	_, err = Open(t.Context(), config(t, "http://host"))
	require.ErrorContains(t, err, "scheme")
}

// A URL without TLS is only for this machine, or needs plaintext=true.
func TestOpenWithoutTLS(t *testing.T) {
	open := func(rawURL string) error {
		store, err := lockstore.Open(t.Context(), rawURL, os.Getenv, Opener)
		if err == nil {
			require.NoError(t, driverOf(store).client.Close())
		}
		return err
	}
	for _, host := range []string{
		"localhost", "LocalHost:7000", "redis.localhost", "127.0.0.1", "127.9.9.9:7000", "[::1]:7000", "[::ffff:127.0.0.1]",
		"host.docker.internal:6379",
	} {
		for _, scheme := range []string{"redis", "valkey", "rediss", "valkeys"} {
			require.NoError(t, open(scheme+"://user:s3cret@"+host), scheme+" "+host)
		}
	}
	for _, host := range []string{
		"cache", "redis:6379", "cache.example.com", "10.0.0.5", "192.168.1.2", "172.17.0.1", "0.0.0.0", "[::]", "[2001:db8::1]", "[fe80::1]", "128.0.0.1",
		"localhost.example.com", "notlocalhost", "127.0.0.1.example.com", "2130706433", "127.1", "localhost.", "docker.internal",
	} {
		for _, scheme := range []string{"redis", "valkey"} {
			err := open(scheme + "://user:s3cret@" + host)
			require.ErrorIs(t, err, lockstore.ErrInvalid, host)
			require.ErrorContains(t, err, "without TLS")
			require.ErrorContains(t, err, "want "+scheme+"s://, or plaintext=true")
			require.NotContains(t, err.Error(), "s3cret")
			require.ErrorContains(t, open(scheme+"://user:s3cret@"+host+"?plaintext=false"), "without TLS")
			require.NoError(t, open(scheme+"://user:s3cret@"+host+"?plaintext=true"), host)
			require.NoError(t, open(scheme+"s://user:s3cret@"+host), host)
		}
	}
	for rawURL, says := range map[string]string{
		"rediss://user:s3cret@cache?plaintext=true":   "has plaintext=true, but its scheme means TLS",
		"valkeys://user:s3cret@localhost?plaintext=1": "has plaintext=true, but its scheme means TLS",
		"redis://user:s3cret@cache?plaintext=s3cret":  "a parameter plaintext that is not true or false",
	} {
		err := open(rawURL)
		require.ErrorIs(t, err, lockstore.ErrInvalid)
		require.ErrorContains(t, err, says)
		require.NotContains(t, err.Error(), "s3cret")
	}
}

// Settings that a process needs after Lambda has frozen it.
func TestClientSettings(t *testing.T) {
	opt := openClient(t, "rediss://user:pw@host:7000/2").(*redis.Client).Options()
	require.Equal(t, "host:7000", opt.Addr)
	require.Equal(t, "user", opt.Username)
	require.Equal(t, "pw", opt.Password)
	require.Equal(t, 2, opt.DB)
	require.Zero(t, opt.MaxRetries)
	require.Equal(t, 1, opt.DialerRetries)
	require.True(t, opt.ContextTimeoutEnabled)
	require.Zero(t, opt.MinIdleConns)
	require.LessOrEqual(t, opt.ConnMaxIdleTime, time.Minute)
	require.Positive(t, opt.DialTimeout)
	require.Less(t, opt.DialTimeout, time.Second)
	for _, d := range []time.Duration{opt.ReadTimeout, opt.WriteTimeout} {
		require.Greater(t, d, maxBlock+silence, "a call ends its own waits")
		require.Less(t, d, 1500*time.Millisecond)
	}
	cluster := openClient(t, "rediss://host?cluster=true").(*redis.ClusterClient).Options()
	require.Equal(t, []string{"host:6379"}, cluster.Addrs)
	require.LessOrEqual(t, cluster.MaxRetries, 0)
	require.LessOrEqual(t, cluster.ConnMaxIdleTime, time.Minute)
}

// After the handshake a new connection sends only the lock's own command.
func TestHandshakeIsOneRequest(t *testing.T) {
	commands := make(chan string, 10)
	addr := fakeServer(t, func(command []string) string {
		commands <- strings.ToLower(command[0])
		return "$10\r\nI7 0 0 0 \n\r\n"
	})
	status, err := openStore(t, "redis://"+addr).Inspect(t.Context(), "k")
	require.NoError(t, err)
	require.EqualValues(t, 7, status.Fence)
	require.Equal(t, "evalsha", <-commands)
	require.Empty(t, commands)
}

// A request with MaxHolders 1 is the request without one.
func TestRequestOfOneHolder(t *testing.T) {
	commands := make(chan []string, 10)
	s := openStore(t, "redis://"+fakeServer(t, func(command []string) string {
		commands <- command
		return "-ERR no\r\n"
	}))
	send := func(most int, join bool) []string {
		_, err := s.Acquire(t.Context(), lockstore.Request{Key: "k", Owner: "o", TTL: time.Minute, MaxHolders: most, JoinQueue: join})
		require.Error(t, err)
		require.Len(t, commands, 1)
		return <-commands
	}
	for _, join := range []bool{false, true} {
		require.Equal(t, send(0, join), send(1, join))
		require.NotEqual(t, send(1, join), send(2, join))
	}
}

// A lease is not shorter than requested.
func TestMicrosRoundsUp(t *testing.T) {
	for d, want := range map[time.Duration]string{0: "0", 1: "1", time.Microsecond: "1", time.Microsecond + 1: "2", lockstore.MaxTTL: "86400000000"} {
		require.Equal(t, want, micros(d), "microseconds of %v", d)
	}
}
