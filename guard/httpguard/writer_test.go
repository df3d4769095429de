package httpguard

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
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
