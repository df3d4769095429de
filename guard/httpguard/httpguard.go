// Package httpguard guards handlers of net/http: those of a server, of a function behind Lambda Web
// Adapter, and of the routers that take a middleware func(http.Handler) http.Handler (chi, and echo by
// echo.WrapMiddleware) or an http.Handler (gin by gin.WrapH). [Wrap] takes a lock. [Once] does the work
// once for each Idempotency-Key.
//
// A caller whose request does not run, or loses its lock, gets the same answers as from package httpapi.
// These come besides:
//
//	Once: the body is larger than MaxBodyBytes      413
//	Once: the body cannot be read                   400
//	Once: a middleware around has read the body     500
//	the handler's answer cannot be sent, see below  500  the request may have been carried out
//
// An error of the key function or of OnceOptions.Caller is a 400, and the caller gets its text. The
// error is logged, too. So check who the caller is before, in a middleware around this one that
// answers 401.
//
// # The handler's answer
//
// The middleware keeps the answer until the handler has returned and the lock is released: only then it is
// known that the lock was not lost. So some things cannot work, and an error says what to do instead:
//
//	more than MaxAnswerBytes              Write returns an error
//	Flush, Hijack                         http.ResponseController returns an error that matches
//	                                      http.ErrNotSupported; w is no http.Flusher
//	trailers, and statuses 100 to 199     the log has the error
//
// An answer of more than MaxAnswerBytes, with trailers, or after a status below 200 is not sent. It counts as an
// answer of the handler with status 500, and the reason is logged to [slog.Default]. After a Flush or
// a Hijack that was refused, the handler can still answer.
//
// A handler that streams needs no middleware: it calls guard.Guard.Do around the stream. Then
// it must cope with a lock that is lost in the middle.
//
// # When the client leaves
//
// With Wrap the request's context ends as usual when the client leaves. While it waits for the lock, the
// handler then never runs. While it works, it may stop early. The lock is released when it returns, and not
// renewed meanwhile.
//
// With Once a request that has the header goes on, because its answer is for the repeat: the handler's context
// ends with its lease, with a deadline of the request's context, or when the context is cancelled with a cause
// of its own (context.WithCancelCause), and not with the plain context.Canceled of a client that left.
// A lock of Wrap or guard.Guard.Do around Once is not renewed any more then, and the handler's context ends when
// this lock is lost. OnceOptions.Lock is renewed.
//
// # Panics
//
// A panic of the handler, also http.ErrAbortHandler, releases the lock and goes on to the server, which closes the
// connection. Nothing of the answer is sent or stored. Under idempotency.AtMostOnce the key is in doubt
// then. So a handler that does not know whether it had its effect panics with http.ErrAbortHandler.
//
// # Settings
//
// A plain server gives its requests no deadline: guard.Options.MaxHold bounds the work, 15 minutes by
// default. Behind Lambda Web Adapter set it (boot: LOCK_MAX_HOLD) below the timeout of the function. With Wrap
// the handler reads the body under the lock, so give the server a ReadTimeout.
package httpguard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/internal/httpanswer"
	"github.com/lambdalock/lambdalock/internal/tell"
)

// Options are the settings of Wrap; the zero value is good for most servers.
type Options struct {
	// MaxAnswerBytes bounds the body of an answer, which is kept in memory. 0 is 1 MiB.
	MaxAnswerBytes int
}

const defaultMaxBytes = 1 << 20

// atMost is a bound of bytes.
func atMost(name string, bytes int) (int, error) {
	switch {
	case bytes < 0:
		return 0, fmt.Errorf("httpguard: %s is %d; want 0 (%d) or more", name, bytes, defaultMaxBytes)
	case bytes == 0:
		return defaultMaxBytes, nil
	}
	return bytes, nil
}

// Wrap returns a middleware that starts a handler only when it has the lock of key(request). Otherwise it
// answers with a problem of RFC 9457. The handler finds its lock with LockOf. An error is a mistake
// in the program. The middleware panics if it gets a nil handler.
//
// What key reads of the body is gone for the handler, unless key sets r.Body anew.
func Wrap(g *guard.Guard, key func(*http.Request) (string, error), opt Options) (func(http.Handler) http.Handler, error) {
	if err := g.Validate(); err != nil {
		return nil, err
	}
	if key == nil {
		return nil, errors.New("httpguard: the key function is nil")
	}
	maxAnswer, err := atMost("MaxAnswerBytes", opt.MaxAnswerBytes)
	if err != nil {
		return nil, err
	}
	return func(next http.Handler) http.Handler {
		mustHandle(next)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var a answer
			k, err := ask(r, "no key", key)
			if err != nil {
				err = &guard.LockInvalid{Key: k, Err: err}
			} else {
				err = g.Do(r.Context(), k, func(ctx context.Context, lock guard.Lock) error {
					a = record(ctx, lock, maxAnswer, next, r)
					return nil
				})
			}
			if p, ok := httpanswer.OfLock(err); ok {
				a, err = problem(p), nil
			}
			a.send(w, err)
		})
	}, nil
}

func mustHandle(next http.Handler) {
	if next == nil {
		panic("httpguard: the handler is nil")
	}
}

// ask calls a function of the program's. It logs the error: a request that gets no key makes no report of the guard.
func ask(r *http.Request, what string, f func(*http.Request) (string, error)) (string, error) {
	answer, err := f(r)
	if err != nil {
		tell.Log(r.Context(), nil, slog.LevelInfo, what, slog.String("route", r.Pattern), slog.String("error", err.Error()))
	}
	return answer, err
}

type lockKey struct{}

// LockOf returns the lock under which the handler runs that has this context. It is false where there is
// none: outside of Wrap and Once, and in a request without the header under OnceOptions.Optional.
func LockOf(ctx context.Context) (guard.Lock, bool) {
	lock, ok := ctx.Value(lockKey{}).(guard.Lock)
	return lock, ok
}
