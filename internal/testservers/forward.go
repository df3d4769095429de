package testservers

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"testing"
	"testing/iotest"
	"time"
)

// Forward returns a handler that sends each request on to the HTTP server endpoint, for a test
// that stands between a client and a real server. It loses no request of its own.
func Forward(t testing.TB, endpoint string) *httputil.ReverseProxy {
	t.Helper()
	// The servers close a connection that was idle for 5 s or 30 s. Whoever sends a write on it
	// at that moment cannot know whether it was applied.
	transport := &http.Transport{MaxIdleConnsPerHost: 64, IdleConnTimeout: 3 * time.Second}
	t.Cleanup(transport.CloseIdleConnections)
	target, err := url.Parse(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	return &httputil.ReverseProxy{
		Transport: transport,
		// net/http closes the body that it has received when the answer begins. A transport that
		// has sent the whole of it, and has not yet read its end, takes that for an error and
		// closes the connection within the answer. So the body is read first.
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			if r.In.Body == nil {
				return
			}
			body, err := io.ReadAll(r.In.Body)
			r.Out.Body = io.NopCloser(bytes.NewReader(body))
			if err != nil { // the client is gone
				r.Out.Body = io.NopCloser(iotest.ErrReader(err))
			}
		},
	}
}
