package rest

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
	send := func(ctx context.Context, c *http.Client, url string) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("secret"))
		require.NoError(t, err)
		resp, err := c.Do(req)
		if err == nil {
			defer resp.Body.Close()
			_, err = io.ReadAll(resp.Body)
		}
		return err
	}
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
