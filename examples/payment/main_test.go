package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/httpapi"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// provider charges each of its own keys once. It can lose its answers.
type provider struct {
	charges map[string]int
	lose    bool
}

func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := r.Header.Get("Idempotency-Key")
	p.charges[id]++
	if p.lose {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, `{"charge": %q}`, id)
}

func request(user, key string) httpapi.Request {
	return httpapi.Request{
		Method: http.MethodPost, API: "a1", Route: "POST /payments", URL: url.URL{Path: "/payments"}, Caller: user,
		Body: []byte(`{"cents": 500}`), Header: http.Header{"Idempotency-Key": {key}},
	}
}

func TestPayment(t *testing.T) {
	p := &provider{charges: map[string]int{}}
	server := httptest.NewServer(p)
	defer server.Close()
	u, err := url.Parse(server.URL)
	require.NoError(t, err)
	now := time.Now()
	store := memstore.New(func() time.Time { return now })
	g, err := guard.New(store, guard.Options{})
	require.NoError(t, err)
	h := handler(g, u)
	send := func(h guard.Wrapped[httpapi.Request, httpapi.Response], user, key string) (httpapi.Response, error) {
		return h.Handle(t.Context(), request(user, key))
	}

	first, err := send(h, "ann", "k1")
	require.NoError(t, err)
	require.Equal(t, http.StatusCreated, first.StatusCode, "%s", first.Body)
	again, err := send(h, "ann", "k1")
	require.NoError(t, err)
	require.Equal(t, first.Body, again.Body)
	require.Len(t, p.charges, 1)
	_, err = send(h, "bob", "k1")
	require.NoError(t, err)
	require.Len(t, p.charges, 2, "another user's key")
	nobody, err := send(h, "", "k1")
	require.NoError(t, err)
	require.Equal(t, http.StatusBadRequest, nobody.StatusCode)

	// Nothing listens there, so nothing was charged, and the same key works later.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	gone := &url.URL{Scheme: "http", Host: l.Addr().String()}
	require.NoError(t, l.Close())
	unreached, err := send(handler(g, gone), "ann", "k2")
	require.NoError(t, err)
	require.Equal(t, http.StatusConflict, unreached.StatusCode)
	later, err := send(h, "ann", "k2")
	require.NoError(t, err)
	require.Equal(t, http.StatusCreated, later.StatusCode)

	// The answer is lost. An operator finds the charge by the key in doubt, and gives its answer.
	p.lose = true
	_, err = send(h, "ann", "k3")
	require.Error(t, err)
	p.lose = false
	key := idempotency.NewCall("http", "a1", "POST /payments", "ann", "k3").Key
	status, err := store.Inspect(t.Context(), key)
	require.NoError(t, err)
	require.Equal(t, lockstore.Held, status.State)
	now = now.Add(status.Remaining)
	doubt, err := send(h, "ann", "k3")
	require.NoError(t, err)
	require.Equal(t, http.StatusInternalServerError, doubt.StatusCode)
	require.Equal(t, 1, p.charges[reference(key)])
	result := fmt.Appendf(nil, `{"statusCode": 201, "body": "{\"charge\": \"%s\"}"}`, reference(key))
	require.NoError(t, idempotency.ResolveEffect(t.Context(), store, key, status.Fence, result, idempotency.Options{}))
	resolved, err := send(h, "ann", "k3")
	require.NoError(t, err)
	require.Equal(t, http.StatusCreated, resolved.StatusCode)
	require.Equal(t, 1, p.charges[reference(key)])
}

// No connection is there before the function's time is over: nothing was charged, and the key is not in doubt.
func TestNoConnectionInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}}
		defer func() {
			client.CloseIdleConnections() // ends the dials
			client.Transport = nil
		}()
		g, err := guard.New(memstore.New(nil), guard.Options{})
		require.NoError(t, err)
		h := handler(g, &url.URL{Scheme: "http", Host: "provider"})
		for range 2 {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			out, err := h.Handle(ctx, request("ann", "k1"))
			cancel()
			require.NoError(t, err)
			require.Equal(t, http.StatusConflict, out.StatusCode, "%s", out.Body)
			require.Contains(t, string(out.Body), "nothing was charged")
		}
	})
}
