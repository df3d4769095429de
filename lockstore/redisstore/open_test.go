package redisstore

import (
	"context"
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
	s, _, _ := stillStore(t)
	client := driverOf(s).client
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

// Open makes no network call: a function's start must not depend on the cache. A URL without TLS is only for this machine,
// see TestIsThisMachine, or needs plaintext=true.
func TestOpenDoesNotConnect(t *testing.T) {
	for url, without := range map[string]bool{ // TLS at another machine
		"rediss://no.such.host.test/1": false, "valkeys://[2001:db8::1]:7000?cluster=true": false, "redis://192.0.2.1?plaintext=true": false,
		"redis://user:s3cret@localhost": false, "valkey://user:s3cret@[::1]:7000": false, "redis://user:s3cret@host.docker.internal:6379": false,
		"redis://user:s3cret@cache.example.com": true, "valkey://user:s3cret@10.0.0.5:6379": true, "redis://user:s3cret@[2001:db8::1]?plaintext=false": true,
	} {
		start := time.Now()
		store, err := lockstore.Open(t.Context(), url, os.Getenv, Opener)
		require.Less(t, time.Since(start), dialTimeout/2)
		if !without {
			require.NoError(t, err)
			require.NoError(t, driverOf(store).client.Close())
			continue
		}
		require.ErrorIs(t, err, lockstore.ErrInvalid, url)
		scheme, _, _ := strings.Cut(url, ":")
		require.ErrorContains(t, err, "is without TLS and its host is not this machine; want "+scheme+"s://, or plaintext=true")
		require.NotContains(t, err.Error(), "s3cret")
	}
}

func TestOpenRefusesBadURLs(t *testing.T) {
	for _, scheme := range Opener.Schemes {
		storetest.URLs(t, Opener, os.Getenv, scheme+"://localhost?prefix=p", "user", "port", "path")
	}
	for url, says := range map[string]string{
		"redis://user:s3cret@":                         "no host",
		"rediss://user:s3cret@host/s3cret":             "path",
		"rediss://user:s3cret@host/1/2":                "path",
		"rediss://user:s3cret@host?cluster=s3cret":     "cluster",
		"rediss://s3cret@host":                         "a user without a password",
		"rediss://user:s3cret@host/1?cluster=true":     "database 0 only",
		"rediss://user:s3cret@host?connections=s3cret": "connections",
		"rediss://user:s3cret@host?connections=1":      "2 to 1000",
		"rediss://user:s3cret@host?connections=1001":   "2 to 1000",
		"unix://user:s3cret@host":                      `"unix"`,
		"rediss://user:s3cret@host?plaintext=true":     "has plaintext=true, but its scheme means TLS",
		"redis://user:s3cret@host?plaintext=s3cret":    "a parameter plaintext that is not true or false",
		"rediss://user:s3cret@host1:6379,host2:6379":   "several hosts",
	} {
		t.Run(url, func(t *testing.T) {
			_, err := lockstore.Open(t.Context(), url, os.Getenv, Opener)
			require.ErrorIs(t, err, lockstore.ErrInvalid)
			require.ErrorContains(t, err, says)
			require.NotContains(t, err.Error(), "s3cret")
		})
	}
	_, err := open(t.Context(), lockstore.Config{})
	require.ErrorIs(t, err, lockstore.ErrInvalid)
	_, err = open(t.Context(), config(t, "http://host"))
	require.ErrorContains(t, err, "scheme")
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

// A lease is not shorter than requested.
func TestMicrosRoundsUp(t *testing.T) {
	for d, want := range map[time.Duration]string{0: "0", 1: "1", time.Microsecond: "1", time.Microsecond + 1: "2", lockstore.MaxTTL: "86400000000"} {
		require.Equal(t, want, micros(d), "microseconds of %v", d)
	}
}
