package httpclient

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
)

// send sends a request. The error is that of Failed.
func send(ctx context.Context, c *http.Client, url string) error {
	ctx, sent := Begin(ctx)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("secret"))
	if err != nil {
		return err
	}
	resp, err := c.Do(req)
	if err != nil {
		return sent.Failed("a server", err)
	}
	defer resp.Body.Close()
	_, err = io.ReadAll(resp.Body)
	return err
}

// The error of a request says what became of it, and nothing that the server sent.
func TestPlain(t *testing.T) {
	answers := func(answers ...string) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, l.Close()) })
		go func() {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			for _, answer := range answers {
				if n, err := conn.Read(make([]byte, 4096)); n == 0 || err != nil {
					return
				}
				_, _ = io.WriteString(conn, answer)
			}
		}()
		return "http://" + l.Addr().String()
	}
	const whole = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
	for name, test := range map[string]struct {
		answers []string
		want    string
	}{
		"nothing":              {[]string{""}, "the connection ended before the answer"},
		"nothing, second":      {[]string{whole, ""}, "the connection ended before the answer"},
		"half a header":        {[]string{"HTTP/1.1 200 OK\r\nsecret: secr"}, "the connection ended within the answer"},
		"half a body":          {[]string{"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nsecret"}, "the connection ended within the answer"},
		"another protocol":     {[]string{"secret\r\n\r\n"}, "the answer is not HTTP"},
		"a header that is not": {[]string{"HTTP/1.1 200 OK\r\nsecret\r\n\r\n"}, "the answer is not HTTP"},
	} {
		t.Run(name, func(t *testing.T) {
			c, url := Client(ReplyTimeout), answers(test.answers...)
			defer c.CloseIdleConnections()
			for range test.answers[1:] {
				require.NoError(t, send(t.Context(), c, url))
			}
			require.EqualError(t, Plain(send(t.Context(), c, url)), test.want)
		})
	}
	t.Run("the caller cancels", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c := Client(ReplyTimeout)
		defer c.CloseIdleConnections()
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer l.Close()
		go func() {
			if conn, err := l.Accept(); err == nil {
				defer conn.Close()
				_, _ = conn.Read(make([]byte, 4096))
				cancel()
				_, _ = io.Copy(io.Discard, conn)
			}
		}()
		require.EqualError(t, Plain(send(ctx, c, "http://"+l.Addr().String())), "the caller has cancelled the request")
	})
}

// Nothing comes back: a call ends within 2 s, and with its context. It sends nothing later.
func TestSilence(t *testing.T) {
	var arrived atomic.Int64 // bytes
	silent := func() net.Conn {
		ours, theirs := net.Pipe()
		go func() {
			for b := make([]byte, 4096); ; {
				n, err := theirs.Read(b)
				if arrived.Add(int64(n)); err != nil {
					return
				}
			}
		}()
		return ours
	}
	for what, dial := range map[string]func(context.Context, string, string) (net.Conn, error){
		"no connection": func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		},
		"no connection in time": func(context.Context, string, string) (net.Conn, error) {
			<-time.After(3 * time.Second)
			return silent(), nil
		},
		"no answer": func(context.Context, string, string) (net.Conn, error) { return silent(), nil },
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := Client(ReplyTimeout)
				c.Transport.(*http.Transport).DialContext = dial
				for _, wait := range []time.Duration{time.Hour, 150 * time.Millisecond} {
					ctx, cancel := context.WithTimeout(t.Context(), wait)
					began := time.Now()
					err := send(ctx, c, "http://127.0.0.1:1")
					cancel()
					require.LessOrEqual(t, time.Since(began), min(wait, 2*time.Second))
					require.Equal(t, what != "no answer", errors.Is(err, lockstore.ErrUnavailable), "%v", err)
					sent := arrived.Load()
					require.Equal(t, what == "no answer", sent > 0)
					<-time.After(time.Minute)
					require.Equal(t, sent, arrived.Load(), "sent after the call had ended")
					c.CloseIdleConnections()
				}
				arrived.Store(0)
			})
		})
	}
}

// The server does not prove who it is: nothing is sent.
func TestCertificate(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a request was sent") }))
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	server.StartTLS()
	defer server.Close()
	c := Client(0)
	transport := c.Transport.(*http.Transport) // without time limits: a handshake on a busy machine may take longer
	c.Timeout, transport.TLSHandshakeTimeout, transport.DialContext = 0, 0, nil
	err := send(t.Context(), c, server.URL)
	require.ErrorIs(t, err, lockstore.ErrUnavailable)
	require.ErrorContains(t, Plain(err), "certificate")
}
