package httpguard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

// site is a guarded handler over a memory store.
type site struct {
	http.Handler
	t     *testing.T
	store *lockstore.Store // without the faults
	fault func(storetest.Call) storetest.Fault
	guard *guard.Guard
	runs  int
	log   bytes.Buffer

	mu      sync.Mutex // a server calls on goroutines of its own
	reports []guard.Report
}

func newSite(t *testing.T, opt guard.Options) *site {
	t.Helper()
	s := &site{t: t, store: memstore.New(nil)}
	opt.Observe = func(_ context.Context, r guard.Report) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.reports = append(s.reports, r)
	}
	g, err := guard.New(storetest.NewFaulty(s.store, func(c storetest.Call) (f storetest.Fault) {
		if s.fault != nil {
			f = s.fault(c)
		}
		return f
	}).Store, opt)
	require.NoError(t, err)
	s.guard = g
	logTo(t, &s.log)
	return s
}

func logTo(t *testing.T, w io.Writer) {
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(w, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
}

func byPath(r *http.Request) (string, error) { return r.URL.Path, nil }

func (s *site) counted(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.runs++
		next(w, r)
	})
}

// wrapped is a site of Wrap, whose key is the path.
func wrapped(t *testing.T, opt Options, next http.HandlerFunc) *site {
	t.Helper()
	return patient(t, 0, opt, next)
}

// patient is a site of Wrap whose guard waits for the lock.
func patient(t *testing.T, wait time.Duration, opt Options, next http.HandlerFunc) *site {
	t.Helper()
	s := newSite(t, guard.Options{Wait: wait})
	middleware, err := Wrap(s.guard, byPath, opt)
	require.NoError(t, err)
	s.Handler = middleware(s.counted(next))
	return s
}

// onced is a site of Once. The lock of opt.Key is of the same guard, which waits then.
func onced(t *testing.T, inDoubt idempotency.Doubt, opt OnceOptions, next http.HandlerFunc) *site {
	t.Helper()
	s := newSite(t, guard.Options{Wait: map[bool]time.Duration{true: time.Minute}[opt.Key != nil]})
	if opt.Key != nil {
		opt.Lock = s.guard
	}
	o, err := idempotency.New(s.guard, idempotency.Options{InDoubt: inDoubt})
	require.NoError(t, err)
	if opt.Caller == nil {
		opt.Caller = AnyCaller
	}
	middleware, err := Once(o, opt)
	require.NoError(t, err)
	s.Handler = middleware(s.counted(next))
	return s
}

func (s *site) serve(r *http.Request) *http.Response {
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w.Result()
}

// post is a request with the key k.
func post(body string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/x", strings.NewReader(body))
	r.Header.Set("Idempotency-Key", "k")
	return r
}

func body(t *testing.T, r *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	return string(b)
}

// free checks that nobody holds a key, and that it was locked.
func (s *site) free(key string) {
	s.t.Helper()
	status, err := s.store.Inspect(context.Background(), key)
	require.NoError(s.t, err)
	require.Positive(s.t, status.Fence)
	require.Equal(s.t, lockstore.Free, status.State)
}

// outcome is that of the last run.
func (s *site) outcome() guard.Outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reports[len(s.reports)-1].Outcome
}

// Headers of middlewares outside stay, as with http.TimeoutHandler. Unlike there, cookies and Vary are added.
func TestHeadersFromOutside(t *testing.T) {
	s := wrapped(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header()["both"] = []string{"inside"} // as an operator may write it into a stored answer
		w.Header().Add("Vary", "Accept")
		http.SetCookie(w, &http.Cookie{Name: "b", Value: "2"})
		w.WriteHeader(http.StatusNoContent)
		w.Header().Set("Late", "x")
		w.WriteHeader(http.StatusOK)
	})
	w := httptest.NewRecorder()
	w.Header().Set("Request-Id", "7")
	w.Header().Set("Both", "outside")
	w.Header().Add("Vary", "Origin")
	http.SetCookie(w, &http.Cookie{Name: "a", Value: "1"})
	s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/x", nil))
	require.Equal(t, http.StatusNoContent, w.Code)
	require.Equal(t, http.Header{"Request-Id": {"7"}, "Both": {"inside"}, "Vary": {"Origin", "Accept"}, "Set-Cookie": {"a=1", "b=2"}}, w.Result().Header)
}

func TestAnswersThatCannotBeSent(t *testing.T) {
	for name, c := range map[string]struct {
		next http.HandlerFunc
		says string
	}{
		"more than MaxAnswerBytes": {func(w http.ResponseWriter, _ *http.Request) {
			_, err := io.WriteString(w, "12345678")
			require.NoError(t, err)
			_, err = io.WriteString(w, "9")
			require.ErrorContains(t, err, "raise MaxAnswerBytes")
			_, err = io.WriteString(w, "")
			require.Error(t, err, "nothing more")
		}, "more than 8 bytes"},
		"a Content-Length that is too large": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "3")
			_, _ = io.WriteString(w, "ab")
		}, "announced 3 bytes by Content-Length and written 2"},
		"a Content-Length that is too small": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1")
			_, _ = io.WriteString(w, "ab")
		}, "announced 1 bytes by Content-Length and written 2"},
		"a handler that aborts because Write fails": {func(w http.ResponseWriter, _ *http.Request) {
			_, err := io.WriteString(w, "123456789")
			require.Error(t, err)
			panic(http.ErrAbortHandler)
		}, "more than 8 bytes"},
		"another protocol": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusSwitchingProtocols) }, "status 101"},
	} {
		t.Run(name, func(t *testing.T) {
			s := wrapped(t, Options{MaxAnswerBytes: 8}, c.next)
			answer := s.serve(post(""))
			require.Equal(t, http.StatusInternalServerError, answer.StatusCode)
			require.Equal(t, "application/problem+json", answer.Header.Get("Content-Type"))
			require.Contains(t, body(t, answer), "The answer cannot be sent")
			require.Contains(t, s.log.String(), c.says)
			s.free("/x")

			// It is an answer 500 of the handler.
			for inDoubt, runs := range map[idempotency.Doubt]int{idempotency.AtLeastOnce: 2, idempotency.AtMostOnce: 1} {
				s := onced(t, inDoubt, OnceOptions{MaxAnswerBytes: 8}, c.next)
				first, second := s.serve(post("")), s.serve(post(""))
				require.Equal(t, http.StatusInternalServerError, first.StatusCode)
				require.Equal(t, http.StatusInternalServerError, second.StatusCode)
				require.Equal(t, body(t, first), body(t, second))
				require.Equal(t, runs == 1, second.Header.Get("Idempotent-Replayed") == "true")
				require.Equal(t, runs, s.runs)
			}
		})
	}
}

func TestNoStreams(t *testing.T) {
	s := wrapped(t, Options{}, func(w http.ResponseWriter, _ *http.Request) {
		_, ok := w.(http.Flusher)
		require.False(t, ok)
		err := http.NewResponseController(w).Flush()
		require.ErrorIs(t, err, http.ErrNotSupported)
		require.ErrorContains(t, err, "cannot be flushed; leave this handler out")
		_, _, err = http.NewResponseController(w).Hijack()
		require.ErrorIs(t, err, http.ErrNotSupported)
		require.ErrorContains(t, err, "cannot be hijacked; leave this handler out")
		require.ErrorIs(t, http.NewResponseController(w).SetReadDeadline(time.Now()), http.ErrNotSupported)
		require.ErrorIs(t, http.NewResponseController(w).SetWriteDeadline(time.Now()), http.ErrNotSupported)
		require.ErrorIs(t, http.NewResponseController(w).EnableFullDuplex(), http.ErrNotSupported)
		fmt.Fprint(w, "all the same")
	})
	require.Equal(t, "all the same", body(t, s.serve(post(""))))
}

func TestBodies(t *testing.T) {
	opt := OnceOptions{MaxBodyBytes: 8, Fingerprint: func(r *http.Request, b []byte) any {
		read, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		require.Equal(t, string(b), string(read))
		return string(b)
	}}
	s := onced(t, idempotency.AtMostOnce, opt, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	require.Equal(t, "12345678", body(t, s.serve(post("12345678"))))
	require.Equal(t, "12345678", body(t, s.serve(post("12345678"))))
	sent := len(s.reports)
	for status, r := range map[int]io.Reader{
		http.StatusRequestEntityTooLarge: strings.NewReader("123456789"),
		http.StatusBadRequest:            iotest.ErrReader(errors.New("reset")),
	} {
		request := post("")
		request.Body = io.NopCloser(r)
		answer := s.serve(request)
		require.Equal(t, status, answer.StatusCode)
		require.Equal(t, "application/problem+json", answer.Header.Get("Content-Type"))
	}
	request := post("1234")
	request.Body = http.MaxBytesReader(httptest.NewRecorder(), request.Body, 3)
	answer := s.serve(request)
	require.Equal(t, http.StatusRequestEntityTooLarge, answer.StatusCode)
	require.Contains(t, body(t, answer), "more than 3 bytes", "a bound outside")
	require.Equal(t, sent, len(s.reports), "the guard was not asked")
	require.Equal(t, 1, s.runs)
	request = post("")
	request.Body = nil // of a test of a handler
	request.Header.Set("Idempotency-Key", "another")
	require.Equal(t, http.StatusOK, s.serve(request).StatusCode)
}

// Two bodies that are no UTF-8 are two requests. The key of the lock inside may come from the body.
func TestBinaryBodiesAndAKeyFromTheBody(t *testing.T) {
	opt := OnceOptions{Key: func(r *http.Request) (string, error) {
		b, err := io.ReadAll(r.Body)
		return fmt.Sprintf("%x", b), err
	}}
	s := onced(t, idempotency.AtLeastOnce, opt, func(w http.ResponseWriter, r *http.Request) {
		lock, _ := LockOf(r.Context())
		b, _ := io.ReadAll(r.Body)
		_, _ = w.Write(append([]byte(lock.Key+" "), b...))
	})
	require.Equal(t, "fe \xfe", body(t, s.serve(post("\xfe"))))
	require.Equal(t, "fe \xfe", body(t, s.serve(post("\xfe"))))
	require.Equal(t, http.StatusUnprocessableEntity, s.serve(post("\xff")).StatusCode)
	require.Equal(t, 1, s.runs)
}

// A middleware outside has read the body, or a part of it: what is left cannot be compared, and does not run.
func TestABodyThatWasReadOutside(t *testing.T) {
	parses := func(r *http.Request) { _ = r.PostFormValue("token") }
	for name, c := range map[string]struct {
		outside  func(*http.Request)
		compares bool
	}{
		"nobody": {func(*http.Request) {}, true},
		"decoded": {func(r *http.Request) { // as a middleware that unpacks gzip does
			r.Header.Set("Content-Encoding", "gzip")
			r.ContentLength += 24
		}, true},
		"decoded, and a form": {func(r *http.Request) {
			parses(r)
			r.Header.Set("Content-Encoding", "gzip")
		}, false},
		"a form": {parses, false},
		"chunked": {func(r *http.Request) {
			r.ContentLength, r.TransferEncoding = -1, []string{"chunked"}
			parses(r)
		}, false},
		"a part": {func(r *http.Request) { _, _ = io.CopyN(io.Discard, r.Body, 1) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			request := func(body string) *http.Request {
				r := post(body)
				r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
				c.outside(r)
				return r
			}
			s := onced(t, idempotency.AtMostOnce, OnceOptions{}, func(http.ResponseWriter, *http.Request) {})
			var statuses []int
			for _, body := range []string{"cents=1", "cents=1", "cents=2"} {
				statuses = append(statuses, s.serve(request(body)).StatusCode)
			}
			if c.compares {
				require.Equal(t, []int{200, 200, 422}, statuses)
				require.Equal(t, 1, s.runs)
				return
			}
			require.Equal(t, []int{500, 500, 500}, statuses)
			require.Equal(t, 0, s.runs)
			require.Empty(t, s.reports, "the guard was not asked")
			require.Contains(t, s.log.String(), "set OnceOptions.Fingerprint")
			own := onced(t, idempotency.AtMostOnce, OnceOptions{Fingerprint: func(*http.Request, []byte) any { return 1 }}, func(http.ResponseWriter, *http.Request) {})
			require.Equal(t, http.StatusOK, own.serve(request("cents=1")).StatusCode)
		})
	}
}

// Each route has keys of its own. The operator's answer is in the form of docs/operations.md.
func TestRoutesAndResolve(t *testing.T) {
	page, err := os.ReadFile("../../docs/operations.md")
	require.NoError(t, err)
	found := regexp.MustCompile("`(\\{\"statusCode\".*?)`").FindSubmatch(page)
	require.NotNil(t, found)
	synctest.Test(t, func(t *testing.T) {
		var lock guard.Lock
		s := onced(t, idempotency.AtMostOnce, OnceOptions{}, func(_ http.ResponseWriter, r *http.Request) {
			lock, _ = LockOf(r.Context())
			if r.URL.Path == "/x" {
				panic(http.ErrAbortHandler)
			}
		})
		mux := http.NewServeMux()
		mux.Handle("POST /{name}", s.Handler)
		mux.Handle("POST /y", s.Handler)
		s.Handler = mux
		require.Panics(t, func() { s.serve(post("")) })
		require.Equal(t, "http/none/POST %2F{name}/any/k", lock.Key)
		<-time.After(2 * time.Minute)
		require.NoError(t, idempotency.ResolveEffect(t.Context(), s.store, lock.Key, lock.Fence, found[1], idempotency.Options{}))
		answer := s.serve(post(""))
		require.Equal(t, http.StatusCreated, answer.StatusCode)
		require.Equal(t, "application/json", answer.Header.Get("Content-Type"))
		require.Equal(t, `{"id": 7}`, body(t, answer))
		r := post("")
		r.URL.Path = "/y"
		require.Equal(t, http.StatusOK, s.serve(r).StatusCode)
		require.Equal(t, 2, s.runs)
	})
}

// With Wrap the client's end is the handler's.
func TestTheClientLeavesAPlainRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := patient(t, time.Minute, Options{}, func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			require.Equal(t, context.Canceled, context.Cause(r.Context()))
			<-time.After(5 * time.Minute) // longer than a lease: it is renewed
		})
		ctx1, leaveFirst := context.WithCancel(t.Context())
		ctx2, leaveSecond := context.WithCancel(t.Context())
		first, second := s.asks(post("").WithContext(ctx1)), s.asks(post("").WithContext(ctx2))
		leaveSecond()
		<-second
		require.Equal(t, guard.OutcomeDeadline, s.outcome(), "it waited, and its place is free")
		leaveFirst()
		<-first
		require.Equal(t, guard.OutcomeOK, s.outcome())
		require.Equal(t, 1, s.runs)
		s.free("/x")
	})
}

// A request with the header goes on without its client (see below), but not without time or lease.
func TestTheEndOfARequestWithAKey(t *testing.T) {
	lost := fmt.Errorf("a lock outside: %w", lockstore.ErrLost)
	for name, c := range map[string]struct {
		ctx  func(context.Context) context.Context
		want error // the cause of the end of the handler's context
	}{
		"deadline": {func(ctx context.Context) context.Context {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			context.AfterFunc(ctx, cancel)
			return ctx
		}, guard.ErrDeadline},
		"lock outside": {func(ctx context.Context) context.Context {
			ctx, cancel := context.WithCancelCause(ctx)
			time.AfterFunc(time.Second, func() { cancel(lost) })
			return ctx
		}, lost},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := onced(t, idempotency.AtMostOnce, OnceOptions{}, func(w http.ResponseWriter, r *http.Request) {
					<-r.Context().Done()
					require.Equal(t, c.want, context.Cause(r.Context()))
					fmt.Fprint(w, "done")
				})
				s.serve(post("").WithContext(c.ctx(t.Context())))
				again := s.serve(post(""))
				require.Equal(t, "done", body(t, again))
				require.Equal(t, "true", again.Header.Get("Idempotent-Replayed"))
				require.Equal(t, 1, s.runs)
			})
		})
	}
}

// A server cancels the context without a cause of its own, and that ends no request with a key.
func TestTheClientOfAServerLeaves(t *testing.T) {
	contexts, leave, handled := make(chan context.Context, 1), make(chan func(), 1), make(chan struct{})
	s := onced(t, idempotency.AtMostOnce, OnceOptions{}, func(w http.ResponseWriter, r *http.Request) {
		(<-leave)()
		outside := <-contexts
		<-outside.Done()
		require.Equal(t, context.Canceled, context.Cause(outside))
		require.NoError(t, r.Context().Err())
		fmt.Fprint(w, "done")
	})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(handled)
		contexts <- r.Context()
		s.ServeHTTP(w, r)
	}))
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	leave <- cancel
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+"/x", strings.NewReader("7"))
	require.NoError(t, err)
	request.Header.Set("Idempotency-Key", "k")
	answer, err := server.Client().Do(request)
	if err == nil {
		answer.Body.Close()
	}
	require.ErrorIs(t, err, context.Canceled)
	<-handled
	require.Equal(t, "done", body(t, s.serve(post("7"))))
	require.Equal(t, 1, s.runs)
}

func TestMistakes(t *testing.T) {
	s := newSite(t, guard.Options{})
	o, err := idempotency.New(s.guard, idempotency.Options{})
	require.NoError(t, err)
	wrap := func(g *guard.Guard, key func(*http.Request) (string, error), opt Options) error {
		_, err := Wrap(g, key, opt)
		return err
	}
	once := func(o *idempotency.Once, opt OnceOptions) error {
		_, err := Once(o, opt)
		return err
	}
	for want, err := range map[string]error{
		"guard is nil":                           wrap(nil, byPath, Options{}),
		"key function is nil":                    wrap(s.guard, nil, Options{}),
		"httpguard: MaxAnswerBytes is -1":        wrap(s.guard, byPath, Options{MaxAnswerBytes: -1}),
		"Timeout is -1s; want 0 (none) or more":  wrap(s.guard, byPath, Options{Timeout: -time.Second}),
		"Caller is nil":                          once(o, OnceOptions{}),
		"only one of":                            once(o, OnceOptions{Caller: AnyCaller, Key: byPath}),
		"Timeout is -1ns; want 0 (none) or more": once(o, OnceOptions{Caller: AnyCaller, Timeout: -1}),
		"MaxBodyBytes is -1":                     once(o, OnceOptions{Caller: AnyCaller, MaxBodyBytes: -1}),
		"MaxAnswerBytes is -2":                   once(o, OnceOptions{Caller: AnyCaller, MaxAnswerBytes: -2}),
	} {
		require.ErrorContains(t, err, want, "F51")
	}
	middleware, err := Wrap(s.guard, byPath, Options{})
	require.NoError(t, err)
	require.Panics(t, func() { middleware(nil) })
}
