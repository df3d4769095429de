package httpguard

import (
	"bufio"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard/idempotency"
)

// around are the middlewares whose first answer has to be that of the handler.
func around(t *testing.T) map[string]func(http.HandlerFunc) *site {
	return map[string]func(http.HandlerFunc) *site{
		"Wrap":          func(h http.HandlerFunc) *site { return wrapped(t, Options{}, h) },
		"Wrap, Timeout": func(h http.HandlerFunc) *site { return wrapped(t, Options{Timeout: time.Hour}, h) },
		"Once":          func(h http.HandlerFunc) *site { return onced(t, idempotency.AtMostOnce, OnceOptions{}, h) },
	}
}

// fetched is what a client gets.
type fetched struct {
	Status          int
	Header, Trailer http.Header
	Body            string
	Err             string
}

// fetch sends a request with a key to a real server.
func fetch(t *testing.T, h http.Handler, method string, header http.Header) fetched {
	t.Helper()
	server := httptest.NewUnstartedServer(h)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.Start()
	defer server.Close()
	r, err := http.NewRequestWithContext(t.Context(), method, server.URL+"/x", strings.NewReader("body"))
	require.NoError(t, err)
	r.Header = header.Clone()
	r.Header.Set("Idempotency-Key", "k")
	answer, err := server.Client().Transport.RoundTrip(r)
	if err != nil {
		return fetched{Err: err.Error()}
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	answer.Header.Del("Date")
	return fetched{Status: answer.StatusCode, Header: answer.Header, Trailer: answer.Trailer, Body: string(b)}
}

// A client sees no middleware, and a repeat gets the answer again.
func TestTheHandlersAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		method string // "" is POST
		next   http.HandlerFunc
	}{
		"nothing":           {next: func(http.ResponseWriter, *http.Request) {}},
		"two statuses":      {next: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(201); w.WriteHeader(404) }},
		"a status too late": {next: func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "x"); w.WriteHeader(404) }},
		"early hints": {next: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Link", "</s.css>; rel=preload")
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusProcessing)
			w.WriteHeader(http.StatusContinue)
			w.WriteHeader(201)
			fmt.Fprint(w, "made")
		}},
		"early hints without an answer": {next: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusEarlyHints) }},
		"204 with a body": {next: func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(204)
			n, err := io.WriteString(w, "x")
			require.Equal(t, http.ErrBodyNotAllowed, err)
			require.Equal(t, 0, n)
			_, err = io.WriteString(w, "")
			require.NoError(t, err)
		}},
		"304 with a length": {next: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "5")
			w.WriteHeader(304)
			_, err := io.WriteString(w, "x")
			require.Equal(t, http.ErrBodyNotAllowed, err)
		}},
		"a length": {next: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1")
			fmt.Fprint(w, "x")
		}},
		"a length of words": {next: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "one")
			fmt.Fprint(w, "x")
		}},
		"HEAD":             {"HEAD", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "5") }},
		"HEAD with a body": {"HEAD", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "x") }},
		"trailers": {next: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "sum, Other")
			w.Header().Add("Trailer", "None")
			fmt.Fprint(w, "x")
			w.Header().Set("Sum", "1")
			w.Header()["Other"] = []string{"2", "3"}
			w.Header().Set(http.TrailerPrefix+"Late", "4")
		}},
		"a trailer that is a header, too": {next: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(http.TrailerPrefix+"Sum", "1")
			fmt.Fprint(w, "x")
		}},
		"http.ServeContent": {"GET", func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, "a.txt", time.Time{}, strings.NewReader("content"))
		}},
	} {
		method := c.method
		if method == "" {
			method = "POST"
		}
		want := fetch(t, c.next, method, http.Header{})
		require.Empty(t, want.Err)
		for of, middleware := range around(t) {
			t.Run(name+"/"+of, func(t *testing.T) {
				s := middleware(c.next)
				require.Equal(t, want, fetch(t, s, method, http.Header{}))
				if strings.HasPrefix(of, "Once") {
					again := fetch(t, s, method, http.Header{})
					require.Equal(t, "true", again.Header.Get("Idempotent-Replayed"))
					require.Equal(t, 1, s.runs)
					require.Equal(t, want.Status, again.Status)
					require.Equal(t, want.Body, again.Body)
					require.Empty(t, again.Trailer)
				}
				require.Empty(t, s.log.String())
			})
		}
	}
}

// upstream is a server that answers each connection with a text.
func upstream(t *testing.T, text string) *url.URL {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				if r, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
					_, _ = io.Copy(io.Discard, r.Body) // otherwise Close would reset the connection
					_, _ = io.WriteString(conn, text)
				}
			}()
		}
	}()
	return &url.URL{Scheme: "http", Host: listener.Addr().String()}
}

// What comes from another server in parts that the middleware does not send ends no answer.
func TestReverseProxy(t *testing.T) {
	const made = "HTTP/1.1 201 Created\r\nContent-Length: 4\r\n\r\nmade"
	for name, c := range map[string]struct {
		answer string
		status int
		body   string
	}{
		"early hints":      {"HTTP/1.1 103 Early Hints\r\nLink: </s.css>; rel=preload\r\n\r\n" + made, 201, "made"},
		"a trailer":        {"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\nTrailer: Sum\r\n\r\n4\r\nmade\r\n0\r\nSum: 1\r\n\r\n", 201, "made"},
		"events, flushed":  {"HTTP/1.1 201 Created\r\nContent-Type: text/event-stream\r\n\r\nmade", 201, "made"},
		"too large":        {"HTTP/1.1 201 Created\r\nContent-Length: 2000000\r\n\r\n" + strings.Repeat("x", 2000000), 500, "cannot be sent"},
		"another protocol": {"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", 502, ""},
		"half an answer":   {"HTTP/1.1 201 Created\r\nContent-Length: 5\r\n\r\nmade", 0, ""},
	} {
		for of, middleware := range around(t) {
			t.Run(name+"/"+of, func(t *testing.T) {
				proxy := httputil.NewSingleHostReverseProxy(upstream(t, c.answer))
				proxy.ErrorLog = log.New(io.Discard, "", 0)
				header := http.Header{}
				if c.status == 502 {
					header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {"x"}}
				}
				got := fetch(t, middleware(proxy.ServeHTTP), "POST", header)
				require.Equal(t, c.status, got.Status, got)
				require.Contains(t, got.Body, c.body)
				require.Equal(t, c.status == 0, got.Err != "", "the proxy aborts, and so does the server: %v", got)
			})
		}
	}
}

// An operator or a handler may write the name of a header in any case.
func TestWhatARepeatGets(t *testing.T) {
	const page = "https://a.example"
	header := http.Header{
		"set-cookie": {"a=b"}, "SET-COOKIE": {"c=d"}, "Set-Cookie2": {"e=f"},
		"Connection": {"close"}, "keep-alive": {"timeout=5"}, "Upgrade": {"h2c"}, "Date": {"Sat, 28 Nov 2026 08:00:00 GMT"}, "age": {"7"}, "Content-Length": {"1"},
		"Vary": {"Origin"}, "Content-Type": {"text/html"}, "X-Mine": {"1", "2"},
	}
	stays := http.Header{"Vary": {"Origin"}, "Content-Type": {"text/html"}, "X-Mine": {"1", "2"}, "Idempotent-Replayed": {"true"}}
	cors := http.Header{"Access-Control-Allow-Credentials": {"true"}, "Access-Control-Expose-Headers": {"X-Mine"}}
	for _, allowed := range []string{"", "*", page} {
		for _, origin := range []string{"", page, "https://b.example"} {
			of := fmt.Sprintf("allowed %q, origin %q", allowed, origin)
			request := func() *http.Request {
				r := post("")
				r.Header["Origin"] = []string{origin}
				return r
			}
			want := stays.Clone()
			for name, values := range cors {
				header[name] = values
				if allowed != page || origin == page {
					want[name] = values
				}
			}
			delete(header, "Access-Control-Allow-Origin")
			if allowed != "" {
				header.Set("Access-Control-Allow-Origin", allowed)
				if allowed == "*" || origin == page {
					want.Set("Access-Control-Allow-Origin", allowed)
				}
			}
			s := onced(t, idempotency.AtMostOnce, OnceOptions{}, func(w http.ResponseWriter, _ *http.Request) {
				for name, values := range header {
					w.Header()[name] = values
				}
				fmt.Fprint(w, "x")
			})
			s.serve(request())
			require.Equal(t, want, s.serve(request()).Header, of)

		}
	}
}

// The first client's Accept-Encoding does not matter for the second.
func TestARepeatThatTakesNoGzip(t *testing.T) {
	var seen []string
	h := func(w http.ResponseWriter, r *http.Request) {
		seen = append(seen, r.Header.Get("Accept-Encoding"))
		fmt.Fprint(w, r.Header.Get("A"))
	}
	request := func(key string) *http.Request {
		r := post("")
		r.Header.Set("Idempotency-Key", key)
		r.Header.Set("Accept-Encoding", "gzip")
		r.Header.Set("A", "b")
		return r
	}
	r := request("k")
	require.Equal(t, "b", body(t, onced(t, idempotency.AtLeastOnce, OnceOptions{}, h).serve(r)))
	require.Equal(t, "gzip", r.Header.Get("Accept-Encoding"), "a middleware around this one may compress")
	r = request("")
	r.Header.Del("Idempotency-Key")
	onced(t, idempotency.AtLeastOnce, OnceOptions{Optional: true}, h).serve(r)
	wrapped(t, Options{}, h).serve(request("k"))
	require.Equal(t, []string{"", "gzip", "gzip"}, seen, "an answer that is not stored may be compressed")
}
