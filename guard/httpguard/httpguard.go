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
//	Timeout is over, and the handler at work        503  the request may have been carried out
//
// An error of the key function or of OnceOptions.Caller is a 400, and the caller gets its text. The
// error is logged, too. So check who the caller is before, in a middleware around this one that
// answers 401.
//
// # The handler's answer
//
// The middleware keeps the answer until the handler has returned and the lock is released: only then it is
// known that the lock was not lost. So some things cannot work:
//
//	Flush, Hijack, and the other methods of      an error that matches http.ErrNotSupported; the
//	http.ResponseController                      handler can still answer. w is no http.Flusher
//	status 100 and 102 to 199                    is left out
//	status 101                                   500
//	more than MaxAnswerBytes                     500, and Write returns an error
//	another Content-Length than was written      500
//
// Such a 500 counts as an answer of the handler, and the reason is logged to [slog.Default].
//
// A handler that streams needs no middleware: it calls guard.Guard.Do around the stream. Then
// it must cope with a lock that is lost in the middle. [WriteProblem] answers if it does not get the lock.
//
// # When the client leaves
//
// With Wrap the request's context ends as usual when the client leaves. While it waits for the lock, the
// handler then never runs. While it works, it may stop early. The lock is held until it returns.
//
// With Once a request that has the header goes on, because its answer is for the repeat: the handler's context
// ends with its lease, with a deadline of the request's context, or when the context is cancelled with a cause
// of its own (context.WithCancelCause), and not with the plain context.Canceled of a client that left.
// A lock of guard.Guard.Do around Once is not renewed any more then, and the handler's context ends when
// this lock is lost. That of Wrap around Once, and OnceOptions.Lock, are renewed.
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
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/internal/httpanswer"
	"github.com/lambdalock/lambdalock/internal/lib/tell"
)

// Options are the settings of Wrap; the zero value is good for most servers.
type Options struct {
	// MaxAnswerBytes bounds the body of an answer, which is kept in memory. 0 is 1 MiB.
	MaxAnswerBytes int

	// Timeout is how long a client waits for the answer, from when the middleware gets the request. 0 is no bound.
	// After it the handler's context ends with the cause guard.ErrDeadline, the body cannot be read any more, nor the
	// files of a form that a middleware outside has parsed, and the client gets a 503. The lock is held until the handler has returned, also if this client has left, but
	// at most for guard.Options.MaxHold. If the handler has not begun by then, it does not begin. http.Server.Shutdown
	// does not wait for such a handler. A panic is logged twice: with the stack of the handler, and by the server.
	//
	// Inside another middleware of this package the client waits until the handler returns: so give the Timeout to the
	// outermost one. Do not use a Timeout inside the work of guard.Guard.Do.
	Timeout time.Duration
}

const defaultMaxBytes = 1 << 20

// setDefault sets a bound of bytes that is 0.
func setDefault(name string, bytes *int) error {
	if *bytes < 0 {
		return fmt.Errorf("httpguard: %s is %d; want 0 (%d) or more", name, *bytes, defaultMaxBytes)
	}
	*bytes = cmp.Or(*bytes, defaultMaxBytes)
	return nil
}

// Wrap returns a middleware that starts a handler only when it has the lock of key(request). Otherwise it
// answers with a problem of RFC 9457. The handler finds its lock with LockOf. An error is a mistake
// in the program. The middleware panics if it gets a nil handler.
//
// The lock is released when the handler returns, whatever the handler has left running. So do not put
// http.TimeoutHandler inside: it returns while the work goes on, and the next request works beside it. Set
// Options.Timeout in its place.
//
// What key reads of the body is gone for the handler, unless key sets r.Body anew.
func Wrap(g *guard.Guard, key func(*http.Request) (string, error), opt Options) (func(http.Handler) http.Handler, error) {
	if err := cmp.Or(g.Validate(), setDefault("MaxAnswerBytes", &opt.MaxAnswerBytes), checkTimeout(opt.Timeout)); err != nil {
		return nil, err
	}
	if key == nil {
		return nil, errors.New("httpguard: the key function is nil")
	}
	return func(next http.Handler) http.Handler {
		mustHandle(next)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			in, end := own(r.Context(), r)
			serve(r.Context(), w, r.ProtoMajor, opt.Timeout, func(ctx context.Context, c *client) (a httpanswer.Answer, err error) {
				defer end()
				var id string
				k, err := ask(in, "no key", func(r *http.Request) (k string, err error) {
					if id, err = httpanswer.EventID(g, r.Header); err != nil {
						return "", err
					}
					return key(r)
				})
				if err != nil {
					return a, &guard.LockBadRequest{Key: k, Err: err}
				}
				err = g.Do(guard.WithEventID(ctx, id), k, func(ctx context.Context, lock guard.Lock) (err error) {
					a, err = record(ctx, lock, opt.MaxAnswerBytes, next, in, c)
					return err
				})
				return a, err
			})
		})
	}, nil
}

// WriteProblem answers with the problem that Wrap would answer with after this error of the guard. It returns false, and
// writes nothing, if err is none. It is for a handler that calls guard.Guard.Do itself, and has not begun its answer.
func WriteProblem(w http.ResponseWriter, err error) bool {
	p := httpanswer.OfLock(err)
	if p != nil {
		send(w, *p)
	}
	return p != nil
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

// own returns a copy of the request for functions of the program's, which may run longer than the request of a server.
// The end removes the files of a form that they have parsed: net/http does so only for the request that it has made.
func own(ctx context.Context, r *http.Request) (in *http.Request, end func()) {
	in, before := r.WithContext(ctx), r.MultipartForm
	return in, func() {
		if form := in.MultipartForm; form != nil && form != before {
			_ = form.RemoveAll()
		}
	}
}

type lockKey struct{}

// LockOf returns the lock under which the handler runs that has this context. It is false where there is
// none: outside of Wrap and Once, and in a request without the header under OnceOptions.Optional.
func LockOf(ctx context.Context) (guard.Lock, bool) {
	lock, ok := ctx.Value(lockKey{}).(guard.Lock)
	return lock, ok
}
