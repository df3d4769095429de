package main

import (
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/functions/internal/accounts"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/httpapi"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
)

// TestEvents runs every event file against its expected answer.
func TestEvents(t *testing.T) {
	files, err := filepath.Glob("../../events/withdraw*.json")
	require.NoError(t, err)
	run := 0
	for _, file := range files {
		if strings.HasSuffix(file, ".out.json") {
			continue
		}
		run++
		t.Run(filepath.Base(file), func(t *testing.T) {
			in, err := os.ReadFile(file)
			require.NoError(t, err)
			want, err := os.ReadFile(strings.TrimSuffix(file, ".json") + ".out.json")
			require.NoError(t, err)
			var request httpapi.Request
			require.NoError(t, json.Unmarshal(in, &request))

			cfg := lockstore.Config{URL: &url.URL{Scheme: "redis", Host: miniredis.RunT(t).Addr()}, Getenv: func(string) string { return "" }}
			store, err := redisstore.Open(t.Context(), cfg)
			require.NoError(t, err)
			book, err := accounts.Open(cfg)
			require.NoError(t, err)
			require.NoError(t, book.Create(t.Context(), "7", 100_000))
			g, err := guard.New(store, guard.Options{})
			require.NoError(t, err)
			if strings.Contains(file, "busy") {
				_, err := store.Acquire(t.Context(), lockstore.Request{Key: accounts.Key("7"), Owner: lockstore.NewOwner(), TTL: time.Minute})
				require.NoError(t, err)
			}
			response, err := httpapi.Wrap(g, key, handle(book))(t.Context(), request)
			require.NoError(t, err)
			got, err := json.Marshal(response)
			require.NoError(t, err)
			assert.JSONEq(t, string(want), string(got))
		})
	}
	assert.Equal(t, 6, run, "event files")
}
