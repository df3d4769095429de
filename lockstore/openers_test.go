package lockstore_test

import (
	"context"
	"errors"
	"fmt"
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
	_, err = lockstore.Open(t.Context(), "redis://host", nil, openers...)
	require.ErrorIs(t, err, lockstore.ErrInvalid, "F51")
	assert.ErrorContains(t, err, "Getenv is nil")
}

// A URL prints itself with its password, and so would the struct around it. Package secrecytest looks for secrets in all that is printed.
func TestConfigShowsNoSecret(t *testing.T) {
	u, err := lockstore.ParseURL("redis://user:hunter2@host:6379/hunter2?x=hunter2")
	require.NoError(t, err)
	assert.Equal(t, "{redis://host:6379}", fmt.Sprintf("%+v", lockstore.Config{URL: u, Getenv: os.Getenv}))
	assert.Equal(t, "{no URL}", fmt.Sprint(lockstore.Config{}))
}
