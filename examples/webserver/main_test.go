package main

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
)

func TestDeposits(t *testing.T) {
	server := miniredis.RunT(t)
	accounts := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1})
	now := time.Now()
	store := memstore.New(func() time.Time { return now })
	g, err := guard.New(store, guard.Options{})
	require.NoError(t, err)
	h := handler(g, "secret", accounts)
	password := "secret"
	send := func(user, key, body string) (int, string) {
		r := httptest.NewRequest(http.MethodPost, "/deposits", strings.NewReader(body))
		r.SetBasicAuth(user, password)
		r.Header.Set("Idempotency-Key", key)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	for _, c := range []struct {
		user, key, body string
		status          int
		answer          string
	}{
		{"ann", "k1", `{"cents": 500}`, 201, `{"balance": 500}`},
		{"ann", "k1", `{"cents": 500}`, 201, `{"balance": 500}`},
		{"ann", "k1", `{"cents": 600}`, 422, "Another request"},
		{"ann", "k2", `{"cents": 500}`, 201, `{"balance": 1000}`},
		{"bob", "k1", `{"cents": 7}`, 201, `{"balance": 7}`},
		{"ann", "k3", `{"cents": 0}`, 400, "want"},
		{"ann", "", `{"cents": 1}`, 400, "Idempotency-Key"},
		{"", "k1", `{"cents": 500}`, 401, "want a user"},
	} {
		status, answer := send(c.user, c.key, c.body)
		require.Equal(t, c.status, status, answer)
		require.Contains(t, answer, c.answer)
	}
	require.Positive(t, server.HGet("balance:account/ann", "fence"))

	lease, err := store.Acquire(t.Context(), lockstore.Request{Key: "account/ann", Owner: lockstore.NewOwner(), TTL: time.Minute})
	require.NoError(t, err)
	status, answer := send("ann", "k4", `{"cents": 500}`)
	require.Equal(t, http.StatusConflict, status, answer)
	require.NoError(t, store.Release(t.Context(), lease))
	status, answer = send("ann", "k4", `{"cents": 500}`)
	require.Equal(t, http.StatusCreated, status, answer)

	server.HSet("balance:account/ann", "fence", "9000000000000000000")
	status, answer = send("ann", "k5", `{"cents": 500}`)
	require.Equal(t, http.StatusConflict, status, answer)
	require.Contains(t, answer, "written the account since")

	// Nothing listens there, so nothing was added, and the same key works later.
	gone := miniredis.RunT(t)
	unreached, err := redisstore.Client(lockstore.Config{URL: &url.URL{Scheme: "redis", Host: gone.Addr()}, Getenv: func(string) string { return "" }})
	require.NoError(t, err)
	gone.Close()
	reached := h
	h = handler(g, "secret", unreached)
	status, answer = send("ann", "k6", `{"cents": 500}`)
	require.Equal(t, http.StatusConflict, status, answer)
	require.Contains(t, answer, "cannot be reached")
	h = reached
	server.HSet("balance:account/ann", "fence", "1")
	status, answer = send("ann", "k6", `{"cents": 500}`)
	require.Equal(t, http.StatusCreated, status, answer)

	server.SetError("down")
	require.PanicsWithValue(t, http.ErrAbortHandler, func() { send("ann", "k7", `{"cents": 500}`) })
	now = now.Add(2 * time.Minute)
	status, answer = send("ann", "k7", `{"cents": 500}`)
	require.Equal(t, http.StatusInternalServerError, status)
	require.Contains(t, answer, "nobody knows")

	password = "another"
	status, _ = send("ann", "k1", `{"cents": 500}`)
	require.Equal(t, http.StatusUnauthorized, status)
}
