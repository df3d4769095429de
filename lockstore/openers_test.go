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

func TestOpenersOpen(t *testing.T) {
	store := memstore.New(nil)
	var got lockstore.Config
	openers := lockstore.Openers{
		"memory": func(_ context.Context, c lockstore.Config) (lockstore.Store, error) {
			got = c
			return store, nil
		},
	}
	getenv := func(name string) string { return "value of " + name }
	opened, err := openers.Open(t.Context(), "MEMORY://user@host/table?a=1", getenv)
	require.NoError(t, err)
	assert.Same(t, store, opened)
	assert.Equal(t, "memory", got.URL.Scheme)
	assert.Equal(t, "host", got.URL.Host)
	assert.Equal(t, "/table", got.URL.Path)
	assert.Equal(t, "value of X", got.Getenv("X"))

	cause := errors.New("no table")
	openers["memory"] = func(context.Context, lockstore.Config) (lockstore.Store, error) { return nil, cause }
	_, err = openers.Open(t.Context(), "memory://", getenv)
	assert.Same(t, cause, err, "the opener's own error stays as it is")
}

func TestOpenersErrorsNeverShowASecret(t *testing.T) {
	openers := lockstore.Openers{
		"redis":    func(context.Context, lockstore.Config) (lockstore.Store, error) { return nil, nil },
		"dynamodb": func(context.Context, lockstore.Config) (lockstore.Store, error) { return nil, nil },
		"nothing":  nil,
	}
	for _, raw := range []string{
		"",
		"hunter2",
		"hunter2@host",
		"user:hunter2@host:6379",
		"hunter2:6379",
		"redis:hunter2",
		"://hunter2",
		"redis ://:hunter2@host",
		"redis://:hunter2@host:port",
		"redis://:hunter2%zz@host",
		"redis://user:hunter2@[::1",
		"redis\x00://:hunter2@host",
		"unknown://user:hunter2@host/hunter2?password=hunter2#hunter2",
		"nothing://:hunter2@host",
		"/hunter2",
	} {
		_, err := openers.Open(t.Context(), raw, nil)
		require.ErrorIs(t, err, lockstore.ErrInvalid, raw)
		assert.NotContains(t, err.Error(), lockstore.ErrInvalid.Error(), raw)
		assert.NotContains(t, err.Error(), "hunter2", raw)
		assert.ErrorContains(t, err, "dynamodb, nothing, redis", "it lists what is linked, in order")
	}
	_, err := openers.Open(t.Context(), "zookeeper://host", nil)
	assert.ErrorContains(t, err, `no store for the scheme "zookeeper"`)

	_, err = lockstore.Openers{}.Open(t.Context(), "redis://host", nil)
	require.ErrorIs(t, err, lockstore.ErrInvalid)
}

func TestNothingToOpenFromF51(t *testing.T) {
	openers := lockstore.Openers{"memory": func(context.Context, lockstore.Config) (lockstore.Store, error) {
		t.Error("opened")
		return nil, nil
	}}
	_, err := openers.Open(t.Context(), "memory://", nil)
	require.ErrorIs(t, err, lockstore.ErrInvalid)
	require.ErrorContains(t, err, "Getenv is nil")
	_, err = lockstore.Config{}.Params("a")
	require.ErrorIs(t, err, lockstore.ErrInvalid)
	require.ErrorContains(t, err, "URL is nil")
	_, err = lockstore.Openers(nil).Open(t.Context(), "memory://", os.Getenv)
	require.ErrorIs(t, err, lockstore.ErrInvalid)
}

func TestParseURL(t *testing.T) {
	u, err := lockstore.ParseURL("rediss://user:pass@host:6379/2?pool=3")
	require.NoError(t, err)
	assert.Equal(t, "host:6379", u.Host)
	u, err = lockstore.ParseURL("memory:")
	require.NoError(t, err)
	assert.Equal(t, "memory", u.Scheme)
}

func TestConfigParams(t *testing.T) {
	config := func(raw string) lockstore.Config {
		u, err := lockstore.ParseURL(raw)
		require.NoError(t, err)
		return lockstore.Config{URL: u}
	}
	params, err := config("redis://host?pool=3&name=a%20b&empty=").Params("name", "pool", "empty", "other")
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"pool": "3", "name": "a b", "empty": ""}, params)

	params, err = config("redis://host").Params("pool")
	require.NoError(t, err)
	assert.Empty(t, params)

	for raw, says := range map[string]string{
		"redis://host?pol=hunter2":           `unknown parameter "pol"; known: name, pool`,
		"redis://host?Pool=hunter2":          `unknown parameter "Pool"`,
		"redis://host?pool=hunter2&pool=3":   `parameter "pool" twice`,
		"redis://host?pool=hunter2%zz":       "parameters of the redis URL cannot be read",
		"redis://host?pool=1;name=hunter2":   "parameters of the redis URL cannot be read",
		"redis://:hunter2@host/hunter2?zz=1": `unknown parameter "zz"`,
	} {
		_, err := config(raw).Params("name", "pool")
		require.ErrorIs(t, err, lockstore.ErrInvalid, raw)
		assert.NotContains(t, err.Error(), lockstore.ErrInvalid.Error(), raw)
		assert.ErrorContains(t, err, says)
		assert.NotContains(t, err.Error(), "hunter2", raw)
	}
}

// A URL prints itself with its password, and so would the struct around it (M40).
func TestConfigShowsNoSecret(t *testing.T) {
	u, err := lockstore.ParseURL("redis://user:hunter2@host:6379/hunter2?x=hunter2#hunter2")
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
