package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard/httpapi"
)

// send writes a request as it is and reads the answer. A client of net/http
// would mend the path first.
func send(t *testing.T, f Function, request string) (*http.Response, string) {
	t.Helper()
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = io.WriteString(conn, request)
	require.NoError(t, err)
	r, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	body, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	require.NoError(t, r.Body.Close())
	return r, string(body)
}

// seen is the event of a request, as a function gets it: through JSON.
func seen(t *testing.T, request string) httpapi.Request {
	t.Helper()
	var text []byte
	r, body := send(t, func(_ context.Context, r httpapi.Request) (httpapi.Response, error) {
		var err error
		text, err = json.Marshal(r)
		return httpapi.Response{StatusCode: http.StatusTeapot, Headers: map[string]string{"X-Tea": "green"}, Body: "short"}, err
	}, request)
	require.Equal(t, http.StatusTeapot, r.StatusCode, body)
	require.Equal(t, "green", r.Header.Get("X-Tea"))
	require.Equal(t, "short", body)
	var event httpapi.Request
	require.NoError(t, json.Unmarshal(text, &event))
	return event
}

func TestEvent(t *testing.T) {
	e := seen(t, "PATCH /locks/a%2Fb/c?x=1&x=2 HTTP/1.1\r\nHost: locks.test\r\nX-Two: one\r\nUser-Agent: tester\r\nx-two: two, three\r\nContent-Length: 11\r\n\r\n{\"ttl\": 30}")
	assert.Equal(t, "2.0", e.Version)
	assert.Equal(t, map[string]string{"key": "a/b/c"}, e.PathParameters)
	assert.Equal(t, "/locks/a/b/c", e.RawPath)
	assert.Equal(t, "x=1&x=2", e.RawQueryString)
	assert.Equal(t, map[string]string{"host": "locks.test", "x-two": "one,two, three", "user-agent": "tester", "content-length": "11"}, e.Headers)
	assert.Equal(t, `{"ttl": 30}`, e.Body)
	assert.False(t, e.IsBase64Encoded)
	at := e.RequestContext.HTTP
	assert.Equal(t, []string{"PATCH", "/locks/a/b/c", "HTTP/1.1", "127.0.0.1", "tester"}, []string{at.Method, at.Path, at.Protocol, at.SourceIP, at.UserAgent})
	assert.Nil(t, e.RequestContext.Authorizer, "everybody is anonymous")
	assert.NotEmpty(t, e.RequestContext.RequestID)
	assert.NotEqual(t, e.RequestContext.RequestID, seen(t, "GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n").RequestContext.RequestID)
}

func TestF52PathsAreDecodedOnceAndTakenAsTheyAre(t *testing.T) {
	for path, key := range map[string]string{
		"/locks/a/b":              "a/b",
		"/locks/a%2Fb":            "a/b",
		"/locks/a%252Fb":          "a%2Fb",
		"/locks/a//b":             "a//b",
		"/locks//a":               "/a",
		"/locks/a/":               "a/",
		"/locks/":                 "",
		"/locks/a/../b":           "a/../b",
		"/locks/%2e%2e/b":         "../b",
		"/locks/.":                ".",
		"/locks/a+b%20c":          "a+b c",
		"/locks/%C3%BC":           "ü",
		"/locks/a;v=1":            "a;v=1",
		"http://x/locks/absolute": "absolute",
	} {
		e := seen(t, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n")
		assert.Equal(t, key, e.PathParameters["key"], path)
	}
	assert.NotContains(t, seen(t, "GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n").PathParameters, "key")
}

func TestBodies(t *testing.T) {
	post := func(body string) httpapi.Request {
		return seen(t, fmt.Sprintf("PUT /locks/a HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
	}
	assert.Equal(t, "ü", post("ü").Body)
	e := post("\xff{}")
	assert.True(t, e.IsBase64Encoded)
	assert.Equal(t, "/3t9", e.Body)
	assert.Len(t, post(strings.Repeat("x", maxBody+1)).Body, maxBody, "no more of it is kept")
	chunked := seen(t, "PUT /locks/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n{\"tt\r\n8\r\nl\": 30} \r\n0\r\n\r\n")
	assert.Equal(t, `{"ttl": 30} `, chunked.Body)
}

// A client that promises more than is taken is answered before it has sent it.
func TestTooLongABodyIsNotReadToItsEnd(t *testing.T) {
	e := seen(t, fmt.Sprintf("PUT /locks/a HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", 1<<40, strings.Repeat("x", maxBody)))
	assert.Len(t, e.Body, maxBody)
}

func TestRefusalsOfItsOwn(t *testing.T) {
	never := func(context.Context, httpapi.Request) (httpapi.Response, error) {
		t.Error("the function was asked")
		return httpapi.Response{}, nil
	}
	fails := func(context.Context, httpapi.Request) (httpapi.Response, error) {
		return httpapi.Response{}, errors.New("the reason is for the log")
	}
	for _, c := range []struct {
		name, request string
		f             Function
		status        int
		code          string
	}{
		{"unknown path", "GET /lock/a HTTP/1.1\r\nHost: x\r\n\r\n", never, 404, "not-found"},
		{"no slash", "GET /locks HTTP/1.1\r\nHost: x\r\n\r\n", never, 404, "not-found"},
		{"two slashes", "GET //locks/a HTTP/1.1\r\nHost: x\r\n\r\n", never, 404, "not-found"},
		{"dots before", "GET /x/../locks/a HTTP/1.1\r\nHost: x\r\n\r\n", never, 404, "not-found"},
		{"F52 not UTF-8", "GET /locks/%FF HTTP/1.1\r\nHost: x\r\n\r\n", never, 400, "invalid"},
		{"half a chunk", "PUT /locks/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", never, 400, "invalid"},
		{"the function fails", "GET /locks/a HTTP/1.1\r\nHost: x\r\n\r\n", fails, 500, "internal"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, body := send(t, c.f, c.request)
			assert.Equal(t, c.status, r.StatusCode)
			assert.Equal(t, "application/problem+json", r.Header.Get("Content-Type"))
			assert.Equal(t, "no-store", r.Header.Get("Cache-Control"))
			var p struct {
				Type, Title, Detail, Code string
				Status                    int
			}
			require.NoError(t, json.Unmarshal([]byte(body), &p), body)
			assert.Equal(t, []any{"about:blank", http.StatusText(c.status), c.status, c.code}, []any{p.Type, p.Title, p.Status, p.Code})
			assert.NotContains(t, body, "the log")
		})
	}
}

func TestContextEndsWhenTheClientHasGone(t *testing.T) {
	asked, ended := make(chan bool), make(chan error, 1)
	server := httptest.NewServer(Function(func(ctx context.Context, _ httpapi.Request) (httpapi.Response, error) {
		_, bounded := ctx.Deadline()
		asked <- bounded
		<-ctx.Done()
		ended <- ctx.Err()
		return httpapi.Response{}, ctx.Err()
	}))
	defer server.Close()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	require.NoError(t, err)
	_, err = io.WriteString(conn, "PUT /locks/a HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
	require.NoError(t, err)
	require.True(t, <-asked, "it has a deadline, as a function does")
	require.NoError(t, conn.Close())
	require.ErrorIs(t, <-ended, context.Canceled)
}
