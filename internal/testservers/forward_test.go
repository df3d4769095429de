package testservers

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestForward has answers that begin before the end of the request was read.
func TestForward(t *testing.T) {
	const size, rest = 64 << 10, 100
	var end chan struct{} // closed when the end of the request was read
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := io.CopyN(io.Discard, r.Body, size)
		assert.NoError(t, err)
		_, err = io.WriteString(w, strings.Repeat("a", size))
		assert.NoError(t, err)
		assert.NoError(t, http.NewResponseController(w).Flush())
		<-end
		for range rest { // slowly, for a transport that closes the connection
			_, _ = io.WriteString(w, "z")
			_ = http.NewResponseController(w).Flush()
		}
	}))
	t.Cleanup(server.Close)
	forward := Forward(t, server.URL)
	rewrite := forward.Rewrite
	begun := make(chan struct{}, 1)
	forward.Rewrite = func(r *httputil.ProxyRequest) {
		rewrite(r)
		r.Out.Body = &lateEnd{ReadCloser: r.Out.Body, left: size, begun: begun, end: end}
	}
	proxy := httptest.NewServer(forward)
	t.Cleanup(proxy.Close)
	for range 5 {
		end = make(chan struct{})
		resp, err := proxy.Client().Post(proxy.URL, "text/plain", strings.NewReader(strings.Repeat("a", size)))
		require.NoError(t, err)
		begun <- struct{}{}
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err, "the proxy has lost an answer")
		require.Len(t, body, size+rest)
		require.NoError(t, resp.Body.Close())
	}
}

// lateEnd gives the end of a body only when the answer has begun.
type lateEnd struct {
	io.ReadCloser
	left  int
	begun <-chan struct{}
	end   chan<- struct{}
}

func (l *lateEnd) Read(p []byte) (int, error) {
	if l.left > 0 {
		n, err := io.LimitReader(l.ReadCloser, int64(l.left)).Read(p)
		l.left -= n
		return n, err
	}
	<-l.begun
	defer close(l.end)
	return l.ReadCloser.Read(p)
}
