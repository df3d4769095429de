package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/golang-jwt/jwt/v5"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

var secret = []byte("a secret of at least thirty-two bytes")

func TestDeposits(t *testing.T) {
	server := miniredis.RunT(t)
	accounts := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1})
	now := time.Now()
	store := memstore.New(func() time.Time { return now })
	g, err := guard.New(store, guard.Options{})
	require.NoError(t, err)
	h := handler(g, secret, accounts)
	send := func(token, key, body string) (int, string) {
		r := httptest.NewRequest(http.MethodPost, "/deposits", strings.NewReader(body))
		r.Header.Set("Authorization", "Bearer "+token)
		r.Header.Set("Idempotency-Key", key)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	of := func(user string) string {
		text, err := token(secret, "token", user)
		require.NoError(t, err)
		return text
	}
	ann := of("ann")
	for _, c := range []struct {
		token, key, body string
		status           int
		answer           string
	}{
		{ann, "k1", `{"cents": 500}`, 201, `{"balance": 500}`},
		{ann, "k1", `{"cents": 500}`, 201, `{"balance": 500}`},
		{ann, "k1", `{"cents": 600}`, 422, "Another request"},
		{ann, "k2", `{"cents": 500}`, 201, `{"balance": 1000}`},
		{of("bob"), "k1", `{"cents": 7}`, 201, `{"balance": 7}`},
		{ann, "k3", `{"cents": 0}`, 400, "want"},
		{ann, "", `{"cents": 1}`, 400, "Idempotency-Key"},
	} {
		status, answer := send(c.token, c.key, c.body)
		require.Equal(t, c.status, status, answer)
		require.Contains(t, answer, c.answer)
	}
	require.Positive(t, server.HGet("balance:account/ann", "fence"))

	lease, err := store.Acquire(t.Context(), lockstore.Request{Key: "account/ann", Owner: lockstore.NewOwner(), TTL: time.Minute})
	require.NoError(t, err)
	status, answer := send(ann, "k4", `{"cents": 500}`)
	require.Equal(t, http.StatusConflict, status, answer)
	require.NoError(t, store.Release(t.Context(), lease))
	status, answer = send(ann, "k4", `{"cents": 500}`)
	require.Equal(t, http.StatusCreated, status, answer)

	server.HSet("balance:account/ann", "fence", "9000000000000000000")
	status, answer = send(ann, "k5", `{"cents": 500}`)
	require.Equal(t, http.StatusConflict, status, answer)
	require.Contains(t, answer, "written the account since")

	server.SetError("down")
	require.PanicsWithValue(t, http.ErrAbortHandler, func() { send(ann, "k6", `{"cents": 500}`) })
	now = now.Add(2 * time.Minute)
	status, answer = send(ann, "k6", `{"cents": 500}`)
	require.Equal(t, http.StatusInternalServerError, status)
	require.Contains(t, answer, "nobody knows")
}

func TestTokens(t *testing.T) {
	h := authenticated(secret, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		key, err := account(r)
		require.NoError(t, err)
		require.Equal(t, "account/ann", key)
	}))
	signed := func(method jwt.SigningMethod, key any, sub string, lasts time.Duration) string {
		claims := jwt.RegisteredClaims{Subject: sub, ExpiresAt: jwt.NewNumericDate(time.Now().Add(lasts))}
		text, err := jwt.NewWithClaims(method, claims).SignedString(key)
		require.NoError(t, err)
		return text
	}
	for name, c := range map[string]struct {
		token  string
		status int
	}{
		"good":           {signed(jwt.SigningMethodHS256, secret, "ann", time.Hour), 200},
		"none":           {"", 401},
		"another secret": {signed(jwt.SigningMethodHS256, []byte("another"), "ann", time.Hour), 401},
		"no signature":   {signed(jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, "ann", time.Hour), 401},
		"too old":        {signed(jwt.SigningMethodHS256, secret, "ann", -time.Hour), 401},
		"nobody":         {signed(jwt.SigningMethodHS256, secret, "", time.Hour), 401},
	} {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodPost, "/deposits", nil)
			r.Header.Set("Authorization", "Bearer "+c.token)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			require.Equal(t, c.status, w.Code)
		})
	}
	_, err := token(secret, "ann")
	require.ErrorContains(t, err, "token NAME")
	_, err = secretFrom("short")
	require.ErrorContains(t, err, "at least 32")
}
