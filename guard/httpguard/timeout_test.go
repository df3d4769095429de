package httpguard

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

// timed is an answer, and after how long it came.
type timed struct {
	*http.Response
	after time.Duration
}

// asks sends a request, and receives its answer from the channel.
func (s *site) asks(r *http.Request) <-chan timed {
	answers, began := make(chan timed, 1), time.Now()
	go func() { answers <- timed{s.serve(r), time.Since(began)} }()
	synctest.Wait()
	return answers
}

const (
	takesLonger = "takes longer than this server waits"
	notBegun    = "no time left to begin"
)

// tooLate checks that a client got a 503 after a second, the Timeout.
func tooLate(t *testing.T, a timed, says string) {
	t.Helper()
	require.Equal(t, http.StatusServiceUnavailable, a.StatusCode)
	require.Equal(t, time.Second, a.after)
	require.Equal(t, "application/problem+json", a.Header.Get("Content-Type"))
	require.Contains(t, body(t, a.Response), says)
}

// inside puts the handler of a site under the lock "account", too.
func (s *site) inside() *site {
	wrap, err := Wrap(s.guard, func(*http.Request) (string, error) { return "account", nil }, Options{})
	require.NoError(s.t, err)
	s.Handler = wrap(s.Handler)
	return s
}

// Nobody works beside a handler that its client has given up.
func TestTimeoutOfAHandlerThatDoesNotAskItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := patient(t, time.Minute, Options{Timeout: time.Second}, func(http.ResponseWriter, *http.Request) { <-time.After(5 * time.Minute) })
		first := s.asks(post(""))
		second := s.asks(post(""))
		tooLate(t, <-first, takesLonger)
		tooLate(t, <-second, notBegun)
		for range 4 { // longer than the lease
			<-time.After(time.Minute - time.Second)
			tooLate(t, <-s.asks(post("")), notBegun)
		}
		require.Equal(t, 1, s.runs, "no other began, now or later")
		<-time.After(time.Minute)
		require.Equal(t, 1, s.runs)
		require.Equal(t, guard.OutcomeOK, s.outcome())
		require.Equal(t, 5*time.Minute, s.reports[len(s.reports)-1].HoldTime)
		s.free("/x")
	})
}

func TestTimeoutEndsTheHandlersContext(t *testing.T) {
	for _, once := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			next := func(w http.ResponseWriter, r *http.Request) {
				began := time.Now()
				<-r.Context().Done()
				require.Equal(t, time.Second, time.Since(began))
				require.Equal(t, context.DeadlineExceeded, r.Context().Err())
				require.Equal(t, guard.ErrDeadline, context.Cause(r.Context()))
				<-time.After(time.Millisecond)
				fmt.Fprint(w, "late")
			}
			s := wrapped(t, Options{Timeout: time.Second}, next)
			if once {
				s = onced(t, idempotency.AtMostOnce, OnceOptions{Timeout: time.Second}, next)
			}
			tooLate(t, <-s.asks(post("")), takesLonger)
			if !once {
				<-time.After(time.Second)
				s.free("/x")
				return
			}
			require.Equal(t, http.StatusConflict, s.serve(post("")).StatusCode, "still at work")
			<-time.After(time.Second)
			again := s.serve(post(""))
			require.Equal(t, "late", body(t, again))
			require.Equal(t, "true", again.Header.Get("Idempotent-Replayed"))
			require.Equal(t, 1, s.runs)
		})
	}
}

// A lock inside that is busy until the Timeout: nothing was done, so no key is in doubt.
func TestTimeoutWhileALockInsideIsBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := onced(t, idempotency.AtMostOnce, OnceOptions{Key: byPath, Timeout: time.Second}, func(http.ResponseWriter, *http.Request) {})
		require.NoError(t, s.guard.Do(t.Context(), "/x", func(context.Context, guard.Lock) error {
			tooLate(t, <-s.asks(post("")), notBegun)
			return nil
		}))
		synctest.Wait()
		require.Equal(t, 0, s.runs)
		require.Equal(t, http.StatusOK, s.serve(post("")).StatusCode)
		require.Equal(t, 1, s.runs)
	})
}

// A middleware inside another one must not return before the handler does: the lock around it would be released.
func TestATimeoutInsideAnotherLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := onced(t, idempotency.AtMostOnce, OnceOptions{Timeout: time.Second}, func(w http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			<-time.After(time.Minute)
			fmt.Fprint(w, "done")
		}).inside()
		first := s.asks(post(""))
		<-time.After(30 * time.Second)
		r := post("")
		r.Header.Set("Idempotency-Key", "another")
		require.Equal(t, http.StatusConflict, s.serve(r).StatusCode)
		answer := <-first
		require.Equal(t, "done", body(t, answer.Response))
		require.Equal(t, 61*time.Second, answer.after)
		require.Equal(t, 1, s.runs)
	})
}

// The lock around a request with a key is held when the client has left, too.
func TestTheClientLeavesARequestWithAKeyInsideAnotherLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := onced(t, idempotency.AtMostOnce, OnceOptions{}, func(w http.ResponseWriter, r *http.Request) {
			<-time.After(5 * time.Minute)
			require.NoError(t, r.Context().Err())
			fmt.Fprint(w, "done")
		}).inside()
		ctx, leave := context.WithCancel(t.Context())
		first := s.asks(post("").WithContext(ctx))
		leave()
		<-time.After(4 * time.Minute)
		status, err := s.store.Inspect(t.Context(), "account")
		require.NoError(t, err)
		require.Equal(t, lockstore.Held, status.State)
		<-first
		for _, r := range s.reports {
			require.Equal(t, guard.OutcomeOK, r.Outcome)
		}
		require.Equal(t, "done", body(t, s.serve(post(""))))
		require.Equal(t, 1, s.runs)
	})
}

// frozen is the context of a lock after a freeze: it notices only when it is asked that the lock is lost.
type frozen struct {
	context.Context
	lose func()
}

func (f *frozen) Err() error {
	f.lose()
	return f.Context.Err()
}

func (f *frozen) Done() <-chan struct{} {
	f.lose()
	return f.Context.Done()
}

func TestTheHandlersContextAsksTheLock(t *testing.T) {
	for name, ask := range map[string]func(context.Context) bool{
		"Err":  func(ctx context.Context) bool { return ctx.Err() != nil },
		"Done": func(ctx context.Context) bool { <-context.WithValue(ctx, lockKey{}, 1).Done(); return true },
	} {
		t.Run(name, func(t *testing.T) {
			lock, lose := context.WithCancel(t.Context())
			f := &frozen{lock, func() {}}
			ctx, release, err := (&client{Context: t.Context()}).begin(f, "k")
			require.NoError(t, err)
			defer release(nil)
			require.NoError(t, ctx.Err())
			f.lose = lose
			require.True(t, ask(ctx))
		})
	}
}

// The Timeout ends at the moment at which the handler begins: either it works, or its key is free.
func TestTheTimeoutEndsWhenTheHandlerBegins(t *testing.T) {
	for range 100 {
		synctest.Test(t, func(t *testing.T) {
			s := onced(t, idempotency.AtMostOnce, OnceOptions{Timeout: time.Second}, func(http.ResponseWriter, *http.Request) {})
			s.fault = func(c storetest.Call) (f storetest.Fault) {
				if c.Kind == driver.MarkStarted {
					f.After = time.Second
				}
				return f
			}
			<-s.asks(post(""))
			<-time.After(time.Minute)
			status, err := s.store.Inspect(t.Context(), "http/none/none/any/k")
			require.NoError(t, err)
			require.Positive(t, status.Fence)
			require.Equal(t, s.runs == 1, status.State == lockstore.Completed, "%v after %d runs", status.State, s.runs)
			require.Equal(t, s.runs == 0, status.State == lockstore.Free, "%v after %d runs", status.State, s.runs)
		})
	}
}

// A panic goes on to the server, with and without a Timeout, and the lock is free. Nobody waits for the last ones.
func TestPanics(t *testing.T) {
	for name, c := range map[string]struct {
		fails func()
		want  any
	}{
		"F04 http.ErrAbortHandler": {func() { panic(http.ErrAbortHandler) }, http.ErrAbortHandler},
		"F04 another panic":        {func() { panic("boom") }, "boom"},
		"F04 an invalid status":    {func() { new(recorder).WriteHeader(0) }, "httpguard: invalid WriteHeader code 0"},
		"F04 Goexit":               {runtime.Goexit, http.ErrAbortHandler},
	} {
		for _, timeout := range []time.Duration{0, time.Second, time.Millisecond} {
			if timeout == 0 && name == "F04 Goexit" {
				continue // it ends the goroutine of the server
			}
			t.Run(fmt.Sprint(name, ", ", timeout), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := wrapped(t, Options{Timeout: timeout}, func(http.ResponseWriter, *http.Request) {
						<-time.After(10 * time.Millisecond)
						c.fails()
					})
					if timeout == time.Millisecond {
						require.Equal(t, http.StatusServiceUnavailable, s.serve(post("")).StatusCode)
						<-time.After(time.Second)
						synctest.Wait()
					} else {
						require.PanicsWithValue(t, c.want, func() { s.serve(post("")) })
					}
					s.free("/x")
					require.Equal(t, guard.OutcomePanic, s.outcome())
					if c.want != http.ErrAbortHandler && timeout > 0 {
						require.Contains(t, s.log.String(), "handler panicked")
						require.Contains(t, s.log.String(), "TestPanics", "the handler's stack")
					} else {
						require.Empty(t, s.log.String())
					}
				})
			})
		}
	}
}

// A server sends the 503 while the handler works, and not only when it returns.
func TestTimeoutOfAServer(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		end, ended := make(chan struct{}), make(chan string, 2) // the address of the connection
		s := wrapped(t, Options{Timeout: 50 * time.Millisecond}, func(_ http.ResponseWriter, r *http.Request) {
			<-end
			ended <- r.RemoteAddr
		})
		server := httptest.NewUnstartedServer(s)
		server.EnableHTTP2 = http2
		server.StartTLS()
		defer server.Close()
		answer, err := server.Client().Post(server.URL+"/x", "text/plain", strings.NewReader("body"))
		require.NoError(t, err)
		require.Equal(t, http2, answer.ProtoMajor == 2)
		require.Equal(t, http.StatusServiceUnavailable, answer.StatusCode)
		require.Contains(t, body(t, answer), takesLonger)
		answer.Body.Close()
		status, err := s.store.Inspect(t.Context(), "/x")
		require.NoError(t, err)
		require.Equal(t, lockstore.Held, status.State)
		close(end)
		first := <-ended
		answer, err = server.Client().Get(server.URL + "/y")
		require.NoError(t, err)
		answer.Body.Close()
		require.Equal(t, http2, first == <-ended, "a connection of HTTP/2 has other requests")
	}
}

// A client that does not send its whole body gets its answer, and holds no lock.
func TestTimeoutOfABodyThatDoesNotCome(t *testing.T) {
	ended := make(chan error, 1)
	s := wrapped(t, Options{Timeout: 50 * time.Millisecond}, func(_ http.ResponseWriter, r *http.Request) {
		_, err := io.ReadAll(r.Body)
		ended <- err
	})
	server := httptest.NewServer(s)
	defer server.Close()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	fmt.Fprint(conn, "POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf")
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusServiceUnavailable, answer.StatusCode)
	require.Contains(t, body(t, answer), takesLonger)
	require.True(t, answer.Close)
	require.Error(t, <-ended, "the handler's read has ended, too")
}

// The answer is there, and the store is not: it waits for a minute, or until the Timeout. Then the client comes again.
func TestTheStoreIsDownAfterTheWork(t *testing.T) {
	for timeout, waits := range map[time.Duration]time.Duration{0: time.Minute, time.Second: time.Second} {
		for _, inDoubt := range []idempotency.Doubt{idempotency.AtLeastOnce, idempotency.AtMostOnce} {
			synctest.Test(t, func(t *testing.T) {
				back := time.Now().Add(timeout * 10)
				s := onced(t, inDoubt, OnceOptions{Timeout: timeout}, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "charged") })
				s.fault = func(c storetest.Call) (f storetest.Fault) {
					if c.Kind == driver.Complete && (timeout == 0 || time.Now().Before(back)) {
						f.Drop = lockstore.ErrUnavailable
					}
					return f
				}
				ctx, leave := context.WithCancelCause(t.Context())
				time.AfterFunc(waits/2, func() { leave(nil) }) // also without a client
				answer := <-s.asks(post("").WithContext(ctx))
				require.LessOrEqual(t, answer.after, waits)
				require.Greater(t, answer.after, waits-2*time.Second)
				if timeout == 0 {
					require.Equal(t, "charged", body(t, answer.Response))
					return
				}
				tooLate(t, answer, takesLonger)
				<-time.After(time.Minute)
				again := s.serve(post(""))
				require.Equal(t, "charged", body(t, again))
				require.Equal(t, "true", again.Header.Get("Idempotent-Replayed"))
			})
		}
	}
}

func TestWriteProblem(t *testing.T) {
	w := httptest.NewRecorder()
	require.False(t, WriteProblem(w, nil))
	require.False(t, WriteProblem(w, errors.New("own")))
	require.Equal(t, http.Header{}, w.Header())
	require.True(t, WriteProblem(w, &guard.LockBusy{Key: "k", State: lockstore.Held}))
	require.Equal(t, http.StatusConflict, w.Code)
	require.Equal(t, http.Header{"Content-Type": {"application/problem+json"}, "Retry-After": {"1"}}, w.Header())
}
