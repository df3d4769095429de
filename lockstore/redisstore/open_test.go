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
	_, err := Open(t.Context(), lockstore.Config{})
	require.ErrorIs(t, err, lockstore.ErrInvalid)
	_, err = Open(t.Context(), config(t, "http://host"))
	require.ErrorContains(t, err, "scheme")
}

// A URL without TLS is only for this machine, see TestIsThisMachine, or needs plaintext=true.
func TestOpenWithoutTLS(t *testing.T) {
	open := func(rawURL string) error {
		store, err := lockstore.Open(t.Context(), rawURL, os.Getenv, Opener)
		if err == nil {
			require.NoError(t, driverOf(store).client.Close())
		}
		return err
	}
	for _, scheme := range []string{"redis", "valkey"} {
		for _, host := range []string{"localhost", "[::1]:7000", "host.docker.internal:6379"} {
			require.NoError(t, open(scheme+"://user:s3cret@"+host))
			require.NoError(t, open(scheme+"s://user:s3cret@"+host))
		}
		for _, host := range []string{"cache.example.com", "10.0.0.5:6379", "[2001:db8::1]"} {
			for _, params := range []string{"", "?plaintext=false"} {
				err := open(scheme + "://user:s3cret@" + host + params)
				require.ErrorIs(t, err, lockstore.ErrInvalid, host)
				require.ErrorContains(t, err, "without TLS")
				require.ErrorContains(t, err, "want "+scheme+"s://, or plaintext=true")
				require.NotContains(t, err.Error(), "s3cret")
			}
			require.NoError(t, open(scheme+"://user:s3cret@"+host+"?plaintext=true"))
			require.NoError(t, open(scheme+"s://user:s3cret@"+host))
		}
	}
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
