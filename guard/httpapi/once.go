package httpapi

import (
	"cmp"
	"context"
	"errors"
	"net/http"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/guard/internal/httpanswer"
)

// OnceOptions are the settings of Once.
type OnceOptions struct {
	// Caller says who sends the request, as authentication knows it and not as the
	// request claims: two callers may choose the same key. nil is Request.Caller: then a request
	// with the header is a 400 if the source does not know the caller. If every
	// caller may have the answers to every other caller, it is AnyCaller. An error is a 400.
	Caller func(context.Context, Request) (string, error)

	// Optional lets a request without the header run, and its answer is not stored.
	// Otherwise it is a 400.
	Optional bool

	// Fingerprint is what has to be the same in a repeat, beside its method and its path, see
	// idempotency.Call. nil is the query and the body.
	Fingerprint func(Request) any

	// Lock and Key are for a handler that also needs a lock: of an account, for example.
	// Then the handler runs under this lock and gets it. If it does not get the lock,
	// nothing was done, and the caller may send the same key again.
	Lock *guard.Guard
	Key  guard.KeyFunc[Request]
}

// AnyCaller treats all callers as one.
func AnyCaller(context.Context, Request) (string, error) { return "any", nil }

// Once returns a Lambda handler that runs next once for each Idempotency-Key, as
// draft-ietf-httpapi-idempotency-key-header describes it. The result of the work is the answer
// of next: a repeat gets its status, its headers and its body, without cookies, and the header
// Idempotent-Replayed: true. A repeat from another Origin does not get the headers of CORS. The key of the result is
// made of the API and its stage, the route, the caller and the header.
//
//	no header, two of them, or a key of more than 255 bytes   400
//	the first request with this key still runs                409  Retry-After
//	the stored answer is of another request on this route     422
//	the request does not accept the answer's Content-Encoding 406
//	the first answer is not there, or nobody knows it         500
//	everything else                                           as Wrap
//
// Answers with 408, 409, 425, 429 and 5xx are not stored: after these, next runs again. With
// idempotency.AtMostOnce a 5xx is stored, because it may have had its effect, and an error of next
// leaves the key in doubt. Only if the request had no effect, let next return a status that is
// not stored: the package cannot check this.
//
// The lock that next gets is that of OnceOptions.Key. Without one it is that of the result's
// key, and for a request without the header it is zero.
func Once(o *idempotency.Once, opt OnceOptions, next guard.Handler[Request, Response]) guard.Wrapped[Request, Response] {
	if opt.Fingerprint == nil {
		opt.Fingerprint = queryAndBody
	}
	if opt.Caller == nil {
		opt.Caller = authenticated
	}
	once := &httpanswer.Once[Request]{
		Package: "httpapi", Once: o,
		Caller: opt.Caller, Optional: opt.Optional, Lock: opt.Lock, LockKey: opt.Key,
		RequestHeader: func(in Request) http.Header { return in.Header },
		Scope:         func(in Request) (api, route string) { return cmp.Or(in.API, "none"), cmp.Or(in.Route, "none") },
		Fingerprint: func(in Request) (any, *httpanswer.Answer) {
			return []any{in.Method, in.URL.Path, in.URL.RawPath, opt.Fingerprint(in)}, nil
		},
	}
	if next != nil {
		once.Next = func(ctx context.Context, lock guard.Lock, in Request) (httpanswer.Answer, error) {
			out, err := next(ctx, lock, in)
			return httpanswer.Answer{Status: out.StatusCode, Header: out.Header, Body: out.Body}, err
		}
	}
	mistake := once.Check()
	return guard.WrapUnlocked(func(ctx context.Context, in Request) (Response, error) {
		if mistake != nil {
			return Response{}, mistake
		}
		answer, err := once.Handle(ctx, in)
		return response(answer).For(in), err
	})
}

func authenticated(_ context.Context, in Request) (string, error) {
	if in.Caller == "" {
		return "", errors.New("the caller is not known, so the request cannot have the header " + httpanswer.Header)
	}
	return in.Caller, nil
}

// queryAndBody is OnceOptions.Fingerprint where it is nil. As bytes, because JSON would make one text of several that are
// not UTF-8.
func queryAndBody(in Request) any { return [][]byte{[]byte(in.URL.RawQuery), in.Body} }
