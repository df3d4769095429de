package lockstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// opener opens each of the schemes as the store or the error.
func opener(store *lockstore.Store, err error, schemes ...string) lockstore.SchemeOpener {
	return lockstore.SchemeOpener{Schemes: schemes, Open: func(context.Context, lockstore.Config) (*lockstore.Store, error) { return store, err }}
}

func TestOpen(t *testing.T) {
	store := memstore.New(nil)
	var got lockstore.Config
	memory := lockstore.SchemeOpener{Schemes: []string{"ram", "memory"}, Open: func(_ context.Context, c lockstore.Config) (*lockstore.Store, error) {
		got = c
		return store, nil
	}}
	getenv := func(name string) string { return "value of " + name }
	cause := errors.New("no table")
	broken := opener(nil, cause, "broken")
	opened, err := lockstore.Open(t.Context(), "MEMORY://user@host/table?a=1", getenv, broken, memory)
	require.NoError(t, err)
	assert.Same(t, store, opened)
	assert.Equal(t, "memory", got.URL.Scheme)
	assert.Equal(t, "host", got.URL.Host)
	assert.Equal(t, "/table", got.URL.Path)
	assert.Equal(t, "value of X", got.Getenv("X"))

	_, err = lockstore.Open(t.Context(), "broken://", getenv, broken, memory)
	assert.Same(t, cause, err, "the opener's own error stays as it is")
}

func TestOpenRefusesMistakesInTheOpeners(t *testing.T) {
	redis := opener(memstore.New(nil), nil, "redis", "valkey")
	for says, openers := range map[string][]lockstore.SchemeOpener{
		"there is no opener":                                  nil,
		`two openers have the scheme "valkey"`:                {redis, opener(memstore.New(nil), nil, "memory", "valkey")},
		`two openers have the scheme "memory"`:                {opener(memstore.New(nil), nil, "memory", "memory")},
		"opener number 2 has no scheme or no func; want both": {redis, {Schemes: []string{"memory"}}},
		"opener number 1 has no scheme or no func; want both": {opener(memstore.New(nil), nil)},
	} {
		_, err := lockstore.Open(t.Context(), "redis://host", os.Getenv, openers...)
		require.ErrorIs(t, err, lockstore.ErrInvalid, says)
		require.ErrorContains(t, err, says)
	}
}

func TestOpenNeverShowsASecret(t *testing.T) {
	openers := []lockstore.SchemeOpener{opener(nil, nil, "redis"), opener(nil, nil, "dynamodb", "nothing")}
	for _, raw := range []string{
		"",
		"hunter2",
		"user:hunter2@host:6379",
		"://hunter2",
		"redis ://:hunter2@host",
		"redis://:hunter2@host:port",
		"redis://user:20#hunter2@host",
		"redis://:hunter2%zz@host",
		"redis://user:hunter2@[::1",
		"redis\x00://:hunter2@host",
		"unknown://user:hunter2@host/hunter2?password=hunter2#hunter2",
	} {
		_, err := lockstore.Open(t.Context(), raw, nil, openers...)
		require.ErrorIs(t, err, lockstore.ErrInvalid, raw)
		assert.NotContains(t, err.Error(), lockstore.ErrInvalid.Error(), raw)
		assert.NotContains(t, err.Error(), "hunter2", raw)
		assert.ErrorContains(t, err, "dynamodb, nothing, redis", "it lists what is linked, in order")
	}
	_, err := lockstore.Open(t.Context(), "zookeeper://host", nil, openers...)
	assert.ErrorContains(t, err, `no store for the scheme "zookeeper"`)
}

func TestNothingToOpenFrom(t *testing.T) {
	_, noGetenv := lockstore.Open(t.Context(), "memory://", nil, opener(memstore.New(nil), nil, "memory"))
	_, noURL := lockstore.Config{}.Params(lockstore.URLParts{Want: "a://"})
	for says, err := range map[string]error{"Getenv is nil": noGetenv, "URL is nil": noURL} {
		require.ErrorIs(t, err, lockstore.ErrInvalid, "F51")
		require.ErrorContains(t, err, says)
	}
}

func TestConfigParams(t *testing.T) {
	config := func(raw string) lockstore.Config {
		u, err := lockstore.ParseURL(raw)
		require.NoError(t, err)
		return lockstore.Config{URL: u}
	}
	uses := lockstore.URLParts{Want: "redis://HOST", User: true, Host: true, Params: []string{"name", "pool"}}
	params, err := config("redis://u:%3F%2F%40%25%23@host/?pool=3&name=a%20b%26%2B%23%40").Params(uses)
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"pool": "3", "name": "a b&+#@"}, params)

	others := uses
	others.OtherParams = true
	params, err = config("redis://host?x=hunter2&pool=3&y=").Params(others)
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"pool": "3"}, params)
	_, err = config("redis://host?x=hunter2&x=3").Params(others)
	require.ErrorContains(t, err, "parameter number 2 twice")

	for raw, says := range map[string]string{
		"redis://host?pol=hunter2":         "unknown parameter number 1 (write & in a value as %26); known: name, pool; want redis://HOST",
		"redis://host?pool=hunter2&pool=3": "parameter pool twice",
		"redis://host?name=":               "parameter name without a value",
		"redis://host?pool=1;name=hunter2": "write + as %2B, ; as %3B",
		"redis://host?name=hunter2+a":      "its parameter name; write + as %2B",
		"redis://:hunter2@host/hunter2":    "has a path",
	} {
		_, err := config(raw).Params(uses)
		require.ErrorIs(t, err, lockstore.ErrInvalid, raw)
		assert.NotContains(t, err.Error(), lockstore.ErrInvalid.Error(), raw)
		assert.ErrorContains(t, err, says)
		assert.NotContains(t, err.Error(), "hunter2", raw)
	}
}

// A URL prints itself with its password, and so would the struct around it.
func TestConfigShowsNoSecret(t *testing.T) {
	u, err := lockstore.ParseURL("redis://user:hunter2@host:6379/hunter2?x=hunter2")
	require.NoError(t, err)
	config := lockstore.Config{URL: u, Getenv: os.Getenv}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		assert.Equal(t, "{redis://host:6379}", fmt.Sprintf(verb, config), verb)
		assert.NotContains(t, fmt.Sprintf(verb, struct{ C any }{&config}), "hunter2", verb)
	}
	var b bytes.Buffer
	slog.New(slog.NewTextHandler(&b, nil)).Info("m", "config", config)
	slog.New(slog.NewJSONHandler(&b, nil)).Info("m", "config", config)
	assert.NotContains(t, b.String(), "hunter2")
	assert.Equal(t, "{no URL}", fmt.Sprint(lockstore.Config{}))
}

func TestIsThisMachine(t *testing.T) {
	for _, host := range []string{"localhost", "LocalHost", "redis.localhost", "127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "host.docker.internal"} {
		assert.True(t, lockstore.IsThisMachine(host), host)
	}
	for _, host := range []string{
		"", "cache", "cache.example.com", "10.0.0.5", "172.17.0.1", "0.0.0.0", "::", "2001:db8::1", "fe80::1", "128.0.0.1",
		"localhost.example.com", "notlocalhost", "127.0.0.1.example.com", "2130706433", "127.1", "localhost.", "docker.internal",
	} {
		assert.False(t, lockstore.IsThisMachine(host), host)
	}
}

func TestParseEndpoint(t *testing.T) {
	for _, raw := range []string{"http://127.0.0.1:8000", "https://host", "http://[::1]:1/"} {
		u, err := lockstore.ParseEndpoint(raw)
		require.NoError(t, err, raw)
		assert.Equal(t, raw, u.String())
	}
	for raw, says := range map[string]string{
		"hunter2://host": "another scheme", "http://": "no host", "http://user:hunter2@host": "a user or a password", "http://host/hunter2": "a path", "http://host?hunter2=1": "unknown parameter",
		"http://host:65536": "1 to 65535", "http://host#hunter2": "%23", "127.0.0.1": "SCHEME://",
	} {
		_, err := lockstore.ParseEndpoint(raw)
		require.ErrorIs(t, err, lockstore.ErrInvalid, raw)
		assert.ErrorContains(t, err, says)
		assert.NotContains(t, err.Error(), "hunter2")
	}
}
