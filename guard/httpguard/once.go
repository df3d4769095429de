package httpguard

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/guard/internal/httpanswer"
	"github.com/lambdalock/lambdalock/internal/lib/tell"
)

// OnceOptions are the settings of Once.
type OnceOptions struct {
	// Caller says who sends the request, as authentication knows it and not as the request
	// claims: two callers may choose the same key. It must be given. If every caller may have the
	// answers to every other caller, it is AnyCaller. If several services share a lock table, put the
	// name of the service in front. An error is a 400. Caller must not read the body.
	Caller func(*http.Request) (string, error)

	// Optional lets a request without the header run, and its answer is not stored.
	// Otherwise it is a 400.
	Optional bool

	// Fingerprint is what has to be the same in a repeat, beside its method and its path, see
	// idempotency.Call. nil is the query and the body. With nil a request does not run, and its answer is a 500, if the body
	// is shorter than its Content-Length, or empty and of unknown length: then a middleware has read it, as one that parses a
	// form does, and body has only what is left.
	Fingerprint func(r *http.Request, body []byte) any

	// Lock and Key are for a handler that also needs a lock: of an account, for example.
	// Then the handler runs under this lock and gets it. If it does not get the lock,
	// nothing was done, and the caller may send the same key again. If the request has the header, Key may read
	// the body.
	Lock *guard.Guard
	Key  func(*http.Request) (string, error)

	// MaxBodyBytes bounds the body of a request that has the header, because it is kept in memory. A larger
	// body is a 413, before anything is sent to the store. 0 is 1 MiB.
	MaxBodyBytes int

	// MaxAnswerBytes bounds the body of an answer, which is kept in memory. 0 is 1 MiB. An answer of more than
	// MaxResultBytes of idempotency.Options (4 KiB by default) is sent, but not stored.
	MaxAnswerBytes int

	// Timeout is as in Options. The answer of the handler is stored for a repeat, also after it.
	Timeout time.Duration
}

// AnyCaller makes one caller of all.
func AnyCaller(*http.Request) (string, error) { return "any", nil }

// Once returns a middleware that runs a handler once for each Idempotency-Key. Answers, keys, and which
// answers are stored, are those of httpapi.Once: an answer 408, 409, 425, 429 or 5xx is not stored, and under
// idempotency.AtMostOnce a 5xx is. The route is http.Request.Pattern. If no http.ServeMux has matched the request
// before, it is "none": then a key that was sent to one path is a 422 on every other.
//
// A repeat does not get these headers of the first answer: cookies, trailers, Date, those of one connection, and those
// of CORS, if they allow another origin than that of the repeat. The handler gets its request without Accept-Encoding,
// because a repeat may accept less. So middlewares that compress, or answer for CORS, belong around this one.
//
// The lock that LockOf returns is that of OnceOptions.Key. Without one it is that of the result's key.
// An error is a mistake in the program. The middleware panics if it gets a nil handler.
func Once(o *idempotency.Once, opt OnceOptions) (func(http.Handler) http.Handler, error) {
	mistake := cmp.Or(setDefault("MaxAnswerBytes", &opt.MaxAnswerBytes), setDefault("MaxBodyBytes", &opt.MaxBodyBytes), checkTimeout(opt.Timeout))
	once := &httpanswer.Once[*request]{
		Package: "httpguard", Once: o, Optional: opt.Optional, Lock: opt.Lock,
		Next: func(ctx context.Context, lock guard.Lock, in *request) (httpanswer.Answer, error) {
			r, _ := in.with(ctx) // record has a copy of its own, and removes its files
			a, err := record(ctx, lock, opt.MaxAnswerBytes, in.next, r, in.client)
			return a, idempotency.NoEffect(err)
		},
		RequestHeader: func(in *request) http.Header { return in.r.Header },
		Scope:         func(in *request) (api, route string) { return "none", cmp.Or(in.r.Pattern, "none") },
		Fingerprint:   opt.fingerprint,
	}
	if opt.Caller != nil {
		once.Caller = func(_ context.Context, in *request) (string, error) { return ask(in.r, "no caller", opt.Caller) }
	}
	if opt.Key != nil {
		once.LockKey = func(ctx context.Context, in *request) (string, error) {
			r, end := in.with(ctx)
			defer end()
			return ask(r, "no key", opt.Key)
		}
	}
	if err := cmp.Or(mistake, once.Check()); err != nil {
		return nil, err
	}
	return func(next http.Handler) http.Handler {
		mustHandle(next)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := r.Context(), func(error) {}
			if len(r.Header.Values(httpanswer.Header)) > 0 {
				ctx, cancel = staying(ctx)
			}
			defer cancel(nil)
			serve(ctx, w, r.ProtoMajor, opt.Timeout, func(ctx context.Context, c *client) (httpanswer.Answer, error) {
				return once.Handle(ctx, &request{r: r, next: next, client: c})
			})
		})
	}, nil
}

type request struct {
	r      *http.Request
	next   http.Handler
	client *client

	body []byte // nil if it was not read
}

// with is own for a request of Once. If the body was read, it has the whole body, and asks for an
// answer that every repeat can read.
func (in *request) with(ctx context.Context) (r *http.Request, end func()) {
	r, end = own(ctx, in.r)
	if in.body != nil {
		r.Body = io.NopCloser(bytes.NewReader(in.body))
		r.Header = r.Header.Clone()
		r.Header.Del("Accept-Encoding")
	}
	return r, end
}

func (opt *OnceOptions) fingerprint(in *request) (any, *httpanswer.Answer) {
	body := []byte{}
	var err error
	if in.r.Body != nil {
		// Without the http.ResponseWriter, because after a Timeout it is not ours any more.
		body, err = io.ReadAll(http.MaxBytesReader(nil, in.r.Body, int64(opt.MaxBodyBytes)))
	}
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, httpanswer.Problem(http.StatusRequestEntityTooLarge, fmt.Sprintf("The body has more than %d bytes.", tooLarge.Limit), nil)
	}
	if err != nil {
		return nil, httpanswer.Problem(http.StatusBadRequest, "The body cannot be read.", nil)
	}
	in.body = body
	what := opt.Fingerprint
	if what == nil {
		// A body that a middleware has decoded has another length, and is not empty.
		decoded := in.r.Header.Get("Content-Encoding") != ""
		if len(body) == 0 && in.r.ContentLength != 0 || !decoded && int64(len(body)) < in.r.ContentLength {
			tell.Log(in.r.Context(), nil, slog.LevelError, "httpguard: a middleware around Once has read the body; let it put back what it has read, or set OnceOptions.Fingerprint",
				slog.String("route", in.r.Pattern), slog.Int("left", len(body)), slog.Int64("contentLength", in.r.ContentLength))
			return nil, httpanswer.Problem(http.StatusInternalServerError, "The body cannot be compared with that of an earlier request, and the request was not begun.", nil)
		}
		// As bytes, because JSON would make one text of several that are not UTF-8.
		what = func(r *http.Request, body []byte) any { return [][]byte{[]byte(r.URL.RawQuery), body} }
	}
	r, end := in.with(in.r.Context())
	defer end()
	return []any{in.r.Method, in.r.URL.EscapedPath(), what(r, body)}, nil
}

// staying returns a context that does not end when the client leaves. net/http cancels the request's context then, with
// no cause of its own. Every other end of ctx, such as a lock around this one that is lost, ends it.
func staying(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	return joined(context.WithoutCancel(ctx), ctx, nil, context.Canceled)
}
