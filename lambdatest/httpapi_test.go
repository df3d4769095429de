package lambdatest

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
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-lambda-go/lambda"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type httpFunction = func(context.Context, events.APIGatewayV2HTTPRequest) (events.APIGatewayV2HTTPResponse, error)

// lockRoutes are those of the lock service.
var lockRoutes = []string{"ANY /locks/{key+}", "ANY /openapi.json"}

// send writes a request as it is and reads the answer. A client of net/http
// would mend the path first.
func send(t *testing.T, f httpFunction, request string) (*http.Response, string) {
	t.Helper()
	server := httptest.NewServer(HTTPAPI{Routes: lockRoutes, Invoke: lambda.NewHandler(f).Invoke})
	t.Cleanup(server.Close)
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second))) // a server that waits for more fails the test
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
func seen(t *testing.T, request string) events.APIGatewayV2HTTPRequest {
	t.Helper()
	var text []byte
	r, body := send(t, func(_ context.Context, r events.APIGatewayV2HTTPRequest) (events.APIGatewayV2HTTPResponse, error) {
		var err error
		text, err = json.Marshal(r)
		return events.APIGatewayV2HTTPResponse{StatusCode: http.StatusTeapot, Headers: map[string]string{"X-Tea": "green"}, Body: "short"}, err
	}, request)
	require.Equal(t, http.StatusTeapot, r.StatusCode, body)
	require.Equal(t, "green", r.Header.Get("X-Tea"))
	require.Equal(t, "short", body)
	var event events.APIGatewayV2HTTPRequest
	require.NoError(t, json.Unmarshal(text, &event))
	return event
}

func TestHTTPEvent(t *testing.T) {
	e := seen(t, "PATCH /locks/a%2Fb/c?x=1&x=2 HTTP/1.1\r\nHost: locks.test\r\nX-Two: one\r\nUser-Agent: tester\r\nx-two: two, three\r\nContent-Length: 11\r\n\r\n{\"ttl\": 30}")
	assert.Equal(t, "2.0", e.Version)
	assert.Equal(t, map[string]string{"key": "a/b/c"}, e.PathParameters)
	assert.Equal(t, "/locks/a/b/c", e.RawPath)
	assert.Equal(t, "x=1&x=2", e.RawQueryString)
	assert.Equal(t, map[string]string{"x": "1,2"}, e.QueryStringParameters)
	assert.Equal(t, []string{"ANY /locks/{key+}", "ANY /locks/{key+}"}, []string{e.RouteKey, e.RequestContext.RouteKey})
	assert.Equal(t, map[string]string{"host": "locks.test", "x-two": "one,two, three", "user-agent": "tester", "content-length": "11"}, e.Headers)
	assert.Equal(t, `{"ttl": 30}`, e.Body)
	assert.False(t, e.IsBase64Encoded)
	at := e.RequestContext.HTTP
	assert.Equal(t, []string{"PATCH", "/locks/a/b/c", "HTTP/1.1", "127.0.0.1", "tester"}, []string{at.Method, at.Path, at.Protocol, at.SourceIP, at.UserAgent})
	assert.Nil(t, e.RequestContext.Authorizer, "everybody is anonymous")
	assert.NotEmpty(t, e.RequestContext.RequestID)
	assert.NotEqual(t, e.RequestContext.RequestID, seen(t, "GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n").RequestContext.RequestID)
}

func TestPaths(t *testing.T) {
	t.Run("F52 a path is decoded once and taken as it is", testPaths)
}

func testPaths(t *testing.T) {
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
	post := func(body string) events.APIGatewayV2HTTPRequest {
		return seen(t, fmt.Sprintf("PUT /locks/a HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
	}
	assert.Equal(t, "ü", post("ü").Body)
	e := post("\xff{}")
	assert.True(t, e.IsBase64Encoded)
	assert.Equal(t, "/3t9", e.Body)
	chunked := seen(t, "PUT /locks/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n{\"tt\r\n8\r\nl\": 30} \r\n0\r\n\r\n")
	assert.Equal(t, `{"ttl": 30} `, chunked.Body)
}

func TestRoutes(t *testing.T) {
	api := HTTPAPI{Routes: []string{"POST /accounts/{id}/withdrawals", "GET /accounts/{id}", "ANY /", "ANY /files/{folder}/{path+}"}}
	for request, want := range map[string]struct {
		route  string
		params map[string]string
	}{
		"POST /accounts/7/withdrawals":  {"POST /accounts/{id}/withdrawals", map[string]string{"id": "7"}},
		"GET /accounts/7":               {"GET /accounts/{id}", map[string]string{"id": "7"}},
		"PUT /":                         {"ANY /", nil},
		"GET /files/a/b/c":              {"ANY /files/{folder}/{path+}", map[string]string{"folder": "a", "path": "b/c"}},
		"GET /accounts/7/withdrawals":   {},
		"POST /accounts//withdrawals":   {},
		"POST /accounts/7/withdrawals/": {},
		"POST /accounts/7":              {},
		"GET /accounts/":                {},
		"GET /x/accounts/7":             {},
		"GET ":                          {},
	} {
		method, path, _ := strings.Cut(request, " ")
		route, params := api.route(method, path)
		assert.Equal(t, want.route, route, request)
		assert.Equal(t, want.params, params, request)
	}
}

func TestHTTPResponse(t *testing.T) {
	r, body := send(t, func(context.Context, events.APIGatewayV2HTTPRequest) (events.APIGatewayV2HTTPResponse, error) {
		return events.APIGatewayV2HTTPResponse{StatusCode: 201, Body: "/3t9", IsBase64Encoded: true, Cookies: []string{"a=1", "b=2"}}, nil
	}, "GET /locks/a HTTP/1.1\r\nHost: x\r\n\r\n")
	assert.Equal(t, 201, r.StatusCode)
	assert.Equal(t, "\xff{}", body)
	assert.Equal(t, []string{"a=1", "b=2"}, r.Header.Values("Set-Cookie"))
}

// The gateway reads no more than a function can get: a client that promises more
// is answered before it has sent everything.
func TestTooLongABodyIsNotReadToItsEnd(t *testing.T) {
	const most = 6 << 20 // "Invocation payload: 6 MB" (Lambda quotas)
	never := func(context.Context, events.APIGatewayV2HTTPRequest) (events.APIGatewayV2HTTPResponse, error) {
		t.Error("the function was asked")
		return events.APIGatewayV2HTTPResponse{}, nil
	}
	r, _ := send(t, never, fmt.Sprintf("PUT /locks/a HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", 1<<40, strings.Repeat("x", most+1)))
	assert.Equal(t, 413, r.StatusCode)
	e := seen(t, fmt.Sprintf("PUT /locks/a HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", most, strings.Repeat("x", most)))
	assert.Len(t, e.Body, most)
}

func TestRefusalsOfTheGateway(t *testing.T) {
	never := func(context.Context, events.APIGatewayV2HTTPRequest) (events.APIGatewayV2HTTPResponse, error) {
		t.Error("the function was asked")
		return events.APIGatewayV2HTTPResponse{}, nil
	}
	fails := func(context.Context, events.APIGatewayV2HTTPRequest) (events.APIGatewayV2HTTPResponse, error) {
		return events.APIGatewayV2HTTPResponse{}, errors.New("the reason is for the log")
	}
	badBase64 := func(context.Context, events.APIGatewayV2HTTPRequest) (events.APIGatewayV2HTTPResponse, error) {
		return events.APIGatewayV2HTTPResponse{StatusCode: 200, Body: "###", IsBase64Encoded: true}, nil
	}
	for _, c := range []struct {
		name, request string
		f             httpFunction
		status        int
	}{
		{"unknown path", "GET /lock/a HTTP/1.1\r\nHost: x\r\n\r\n", never, 404},
		{"no slash", "GET /locks HTTP/1.1\r\nHost: x\r\n\r\n", never, 404},
		{"two slashes", "GET //locks/a HTTP/1.1\r\nHost: x\r\n\r\n", never, 404},
		{"dots before", "GET /x/../locks/a HTTP/1.1\r\nHost: x\r\n\r\n", never, 404},
		{"F52 not UTF-8", "GET /locks/%FF HTTP/1.1\r\nHost: x\r\n\r\n", never, 400},
		{"half a chunk", "PUT /locks/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", never, 400},
		{"the function fails", "GET /locks/a HTTP/1.1\r\nHost: x\r\n\r\n", fails, 500},
		{"the function's body is no base64", "GET /locks/a HTTP/1.1\r\nHost: x\r\n\r\n", badBase64, 500},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, body := send(t, c.f, c.request)
			assert.Equal(t, c.status, r.StatusCode)
			assert.Equal(t, "application/json", r.Header.Get("Content-Type"))
			assert.JSONEq(t, fmt.Sprintf(`{"message": %q}`, http.StatusText(c.status)), body)
		})
	}
}

func TestContextEndsWhenTheClientHasGone(t *testing.T) {
	asked, ended := make(chan bool), make(chan error, 1)
	server := httptest.NewServer(HTTPAPI{Routes: lockRoutes, Invoke: func(ctx context.Context, _ []byte) ([]byte, error) {
		_, bounded := ctx.Deadline()
		asked <- bounded
		<-ctx.Done()
		ended <- ctx.Err()
		return nil, ctx.Err()
	}})
	defer server.Close()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	require.NoError(t, err)
	_, err = io.WriteString(conn, "PUT /locks/a HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
	require.NoError(t, err)
	require.True(t, <-asked, "it has a deadline, as a function does")
	require.NoError(t, conn.Close())
	require.ErrorIs(t, <-ended, context.Canceled)
}
