package cosmosstore

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore"
)

func request() lockstore.Request {
	return lockstore.Request{Key: string(lockstore.NewOwner()), Owner: lockstore.NewOwner(), TTL: 10 * time.Second, HolderInfo: lockstore.HolderInfo{Name: "test"}}
}

// TestAnswers is about answers that the service documents and the tests' server never gives.
func TestAnswers(t *testing.T) {
	corrupt, unavailable, conflict := lockstore.ErrCorrupt, lockstore.ErrUnavailable, casstore.ErrConflict
	ambiguous, absent := errors.New("no class"), error(nil)
	for answer, want := range map[string]struct{ read, create, replace error }{
		"400":      {corrupt, corrupt, corrupt},
		"401":      {unavailable, unavailable, unavailable},
		"403":      {unavailable, unavailable, unavailable},
		"403/3":    {unavailable, unavailable, unavailable}, // the region takes no writes
		"404":      {absent, corrupt, conflict},
		"404/1002": {ambiguous, corrupt, conflict}, // a replica that is behind
		"404/1003": {corrupt, corrupt, corrupt},
		"408":      {ambiguous, ambiguous, ambiguous},
		"409":      {conflict, conflict, conflict},
		"410/1000": {ambiguous, ambiguous, ambiguous},
		"412":      {conflict, conflict, conflict},
		"429/3200": {unavailable, unavailable, unavailable},
		"449":      {conflict, conflict, conflict},
		"500":      {ambiguous, ambiguous, ambiguous},
		"503":      {ambiguous, ambiguous, ambiguous},
	} {
		t.Run(answer, func(t *testing.T) {
			requests := 0
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				requests++
				status, substatus, _ := strings.Cut(answer, "/")
				if substatus != "" {
					w.Header().Set("x-ms-substatus", substatus)
				}
				code, err := strconv.Atoi(status)
				assert.NoError(t, err)
				w.WriteHeader(code)
			}))
			defer s.Close()
			k := testedKV(t, strings.TrimPrefix(s.URL, "http://"))
			check := func(what string, err, class error) {
				t.Helper()
				assert.Equal(t, class == absent, err == nil, what)
				for _, c := range []error{corrupt, unavailable, conflict} {
					assert.Equal(t, class == c, errors.Is(err, c), what)
				}
				if class == corrupt && strings.HasPrefix(answer, "404") {
					assert.ErrorContains(t, err, "container is wrong")
				}
			}
			_, _, err := k.Read(t.Context(), "k", true)
			check("read", err, want.read)
			_, err = k.Write(t.Context(), "k", nil, "")
			check("create", err, want.create)
			_, err = k.Write(t.Context(), "k", nil, "version")
			check("replace", err, want.replace)
			assert.Equal(t, 3, requests, "each request is sent once")
		})
	}
}

// No text shows the key, the owner or what a server has quoted.
func TestNothingShowsASecret(t *testing.T) {
	const key = "aHVudGVyMmh1bnRlcjJodW50ZXIy"
	quoting := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("x-ms-substatus", fmt.Sprint(r.Header))
		w.WriteHeader(http.StatusTeapot)
		fmt.Fprint(w, r.Header, string(body))
	}))
	defer quoting.Close()
	garbled := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprint(w, r.Header, string(body))
	}))
	defer garbled.Close()
	talking, err := net.Listen("tcp", "127.0.0.1:0") // answers what it was sent, and not HTTP
	require.NoError(t, err)
	defer talking.Close()
	go func() {
		for {
			conn, err := talking.Accept()
			if err != nil {
				return
			}
			if req, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
				_, _ = fmt.Fprintln(conn, req.Header)
			}
			_ = conn.Close()
		}
	}()
	shown := ""
	show := func(v any) { shown += fmt.Sprintf("%v %+v %#v %q\n", v, v, v, fmt.Sprint(v)) }
	req := request()
	for _, addr := range []string{quoting.URL, garbled.URL, talking.Addr().String(), "127.0.0.1:1"} {
		cfg := config(t, "db/locks", strings.TrimPrefix(addr, "http://"))
		cfg.Getenv = func(string) string { return key }
		s, err := open(t.Context(), cfg)
		require.NoError(t, err)
		_, err = s.Acquire(t.Context(), req)
		show(err)
		show(s.Release(t.Context(), lockstore.Lease{Key: "k", Owner: req.Owner, Fence: 1}))
		show(s.Leave(t.Context(), "k", req.Owner))
		_, err = s.Check(t.Context())
		show(err)
		show(s)
		show(*s)
		show(s.Driver())
		show(struct{ Inside any }{s})
	}
	require.Contains(t, shown, "HTTP 418")
	require.Contains(t, shown, "the answer is not HTTP")
	for _, secret := range []string{key, string(req.Owner), "hunter2", "104 117 110 116 101 114", "type%3Dmaster"} {
		require.NotContains(t, shown, secret)
	}
}
