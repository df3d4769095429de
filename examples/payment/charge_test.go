package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/httpapi"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// hostile is a provider that charges whatever it has read, each time, and then answers as it likes.
type hostile struct {
	*httptest.Server
	charges atomic.Int32
}

func newHostile(t *testing.T, then func(net.Conn)) *hostile {
	h := &hostile{}
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadAll(r.Body); err != nil {
			return // the client has left before it has sent all
		}
		if r.URL.Path == "/warm/charges" {
			return
		}
		h.charges.Add(1)
		c, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			then(c)
			_ = c.Close()
		}
	}))
	t.Cleanup(h.Close)
	return h
}

// says writes one answer, and leaves the connection to be closed.
func says(status int, header string) func(net.Conn) {
	return writes(fmt.Sprintf("HTTP/1.1 %d Status\r\nContent-Length: 2\r\n%s\r\n{}", status, header))
}

func writes(text string) func(net.Conn) {
	return func(c net.Conn) { _, _ = io.WriteString(c, text) }
}

func port(t *testing.T) (closed string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return l.Addr().String()
}

// Whatever the provider does after a charge, there is no second one with this key: the answer is stored, or the key
// is in doubt.
func TestOneCharge(t *testing.T) {
	const good, twice = "HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}", "HTTP/1.1 402 Payment Required\r\nContent-Length: 2\r\n\r\n{}"
	type row struct {
		name   string
		then   func(net.Conn)
		warm   bool // the connection was used before
		hangs  bool // until the client leaves
		status int  // of the answer that is stored; 0: the key is in doubt
	}
	cases := []row{
		{name: "late", hangs: true, then: func(c net.Conn) { // its client has left, of which the connection knows
			_, _ = io.Copy(io.Discard, c)
			_, _ = io.WriteString(c, good)
		}},
		{name: "hangs in the middle of the answer", hangs: true, then: func(c net.Conn) {
			_, _ = io.WriteString(c, strings.TrimSuffix(good, "}"))
			_, _ = io.Copy(io.Discard, c)
		}},
		{name: "closes", then: writes("")},
		{name: "closes a connection that was used before", warm: true, then: writes("")},
		{name: "resets a connection that was used before", warm: true, then: func(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0) }},
		{name: "cuts the answer", then: writes(strings.TrimSuffix(good, "}"))},
		{name: "no HTTP", then: writes("220 mail ready\r\n\r\n")},
		{name: "answers twice", then: writes(good + twice), status: http.StatusCreated},
		{name: "sends on to a port that is closed", then: says(307, "Location: http://"+port(t)+"/\r\n")},
	}
	for _, status := range []int{101, 200, 201, 204, 299, 300, 302, 307, 308, 399, 400, 401, 402, 403, 404, 409, 421, 422, 423, 425, 429, 499, 500, 502, 503, 504, 599, 999} {
		c := row{name: fmt.Sprint("answers ", status), then: says(status, "Location: /charges\r\n")}
		if status/100 == 2 || status == 400 || status == 402 || status == 422 {
			c.status = status
		}
		cases = append(cases, c)
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			p := newHostile(t, c.then)
			u, err := url.Parse(p.URL)
			require.NoError(t, err)
			if c.warm {
				_, err := charge(t.Context(), u.JoinPath("warm"), "warm", []byte("{}"))
				require.NoError(t, err)
			}
			now := time.Now()
			store := memstore.New(func() time.Time { return now })
			g, err := guard.New(store, guard.Options{})
			require.NoError(t, err)
			h := handler(g, u)
			limit := 30 * time.Second
			if c.hangs {
				limit = 2 * time.Second
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			first, err := h.Handle(ctx, request("ann", "k1"))
			if c.status == 0 {
				require.Error(t, err)
			} else {
				require.NoError(t, err)
				require.Equal(t, c.status, first.StatusCode, first.Body)
			}
			require.EqualValues(t, 1, p.charges.Load())

			busy, err := h.Handle(t.Context(), request("ann", "k1")) // at once
			require.NoError(t, err)
			now = now.Add(time.Hour) // the lease has ended
			again, err := h.Handle(t.Context(), request("ann", "k1"))
			require.NoError(t, err)
			if c.status == 0 {
				require.Equal(t, http.StatusConflict, busy.StatusCode, busy.Body)
				require.Equal(t, http.StatusInternalServerError, again.StatusCode, again.Body)
			} else {
				require.Equal(t, first.Body, again.Body)
				require.Equal(t, c.status, again.StatusCode)
				require.Equal(t, "true", again.Header.Get("Idempotent-Replayed"))
			}
			require.EqualValues(t, 1, p.charges.Load())
		})
	}
}

// The event for lockctl local is a request of the first user.
func TestEvent(t *testing.T) {
	text, err := os.ReadFile("event.json")
	require.NoError(t, err)
	var event httpapi.Request
	require.NoError(t, json.Unmarshal(text, &event))
	p := newHostile(t, says(http.StatusCreated, ""))
	u, err := url.Parse(p.URL)
	require.NoError(t, err)
	g, err := guard.New(memstore.New(nil), guard.Options{})
	require.NoError(t, err)
	for range 2 {
		out, err := handler(g, u).Handle(t.Context(), event)
		require.NoError(t, err)
		require.Equal(t, http.StatusCreated, out.StatusCode, out.Body)
	}
	require.EqualValues(t, 1, p.charges.Load())
}
