package httpguard

import (
	"cmp"
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

// fetched is what a client gets.
type fetched struct {
	Status          int
	Header, Trailer http.Header
	Body            string
}

// fetch sends a request with a key to a real server.
func fetch(t *testing.T, h http.Handler, method string) fetched {
	t.Helper()
	server := httptest.NewUnstartedServer(h)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.Start()
	defer server.Close()
	r, err := http.NewRequestWithContext(t.Context(), method, server.URL+"/x", strings.NewReader("body"))
	require.NoError(t, err)
	r.Header.Set("Idempotency-Key", "k")
	answer, err := server.Client().Transport.RoundTrip(r)
	require.NoError(t, err)
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	answer.Header.Del("Date")
	return fetched{answer.StatusCode, answer.Header, answer.Trailer, string(b)}
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
		method := cmp.Or(c.method, "POST")
		want := fetch(t, c.next, method)
		for of, s := range map[string]*site{
			"Wrap":          wrapped(t, Options{}, c.next),
			"Wrap, Timeout": wrapped(t, Options{Timeout: time.Hour}, c.next),
			"Once":          onced(t, idempotency.AtMostOnce, OnceOptions{}, c.next),
		} {
			t.Run(name+"/"+of, func(t *testing.T) {
				logTo(t, &s.log)
				require.Equal(t, want, fetch(t, s, method))
				if of == "Once" {
					again := fetch(t, s, method)
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
	h := func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Header.Get("Idempotency-Key"), ", ", r.Header.Get("Accept-Encoding"))
	}
	r := post("")
	r.Header.Set("Accept-Encoding", "gzip")
	s := onced(t, idempotency.AtLeastOnce, OnceOptions{Optional: true}, h)
	require.Equal(t, "k, ", body(t, s.serve(r)))
	require.Equal(t, "gzip", r.Header.Get("Accept-Encoding"), "a middleware around this one may compress")
	require.Equal(t, "k, gzip", body(t, wrapped(t, Options{}, h).serve(r)), "an answer that is not stored may be compressed")
	r.Header.Del("Idempotency-Key")
	require.Equal(t, ", gzip", body(t, s.serve(r)))
}
