package httpapi

import (
	"cmp"
	"context"
	"maps"
	"strings"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/guard/internal/httpanswer"
)

// IdempotencyKey is the header of a request that names what is to be done once.
const IdempotencyKey = httpanswer.Header

// OnceOptions are the settings of Once.
type OnceOptions struct {
	// Caller says who sends the request, as authentication knows it and not as the
	// request claims: two callers may choose the same key. It must be given. If every
	// caller may have the answers to every other caller, it is AnyCaller. An error is a 400.
	Caller func(context.Context, Request) (string, error)

	// Optional lets a request without the header run, and its answer is not stored.
	// Otherwise it is a 400.
	Optional bool

	// Fingerprint is what makes a request a repeat, beside its method and its path, see
	// idempotency.Call. nil is the query and the body.
	Fingerprint func(Request) any

	// Lock and Key are for a handler that also needs a lock: of an account, for example.
	// Then the handler runs under this lock and gets it. If it does not get the lock,
	// nothing was done, and the caller may send the same key again.
	Lock *guard.Guard
	Key  guard.KeyFunc[Request]
}

// AnyCaller makes one caller of all.
func AnyCaller(context.Context, Request) (string, error) { return "any", nil }

// Once returns a Lambda handler that runs next once for each Idempotency-Key, as
// draft-ietf-httpapi-idempotency-key-header describes it. The result of the work is the answer
// of next: a repeat gets its status, its headers and its body, without cookies, and the header
// Idempotent-Replayed: true. The key of the result is made of the API, its route, the caller
// and the header.
//
//	no header, two of them, or a key of more than 255 bytes   400
//	the first request with this key still runs                409  Retry-After
//	the stored answer is of another request on this route     422
//	the first answer is not there, or nobody knows it         500
//	everything else                                           as Wrap
//
// Answers with 408, 409, 425, 429 and 5xx are not stored: after these, next runs again. With
// idempotency.AtMostOnce a 5xx is stored, because it may have had its effect, and an error of next
// leaves the key in doubt. Let next return a status that is not stored only if the request had
// no effect: the package cannot check this.
//
// The lock that next gets is that of OnceOptions.Key. Without one it is that of the result's
// key, and for a request without the header it is zero.
func Once(o *idempotency.Once, opt OnceOptions, next guard.Handler[Request, Response]) guard.Wrapped[Request, Response] {
	if opt.Fingerprint == nil {
		opt.Fingerprint = queryAndBody
	}
	once := &httpanswer.Once[Request, Response]{
		Package: "httpapi", Once: o, Next: next,
		Caller: opt.Caller, Optional: opt.Optional, Lock: opt.Lock, LockKey: opt.Key,
		Key: func(in Request) (string, error) { return idempotencyKey(in.Headers) },
		Scope: func(in Request) (api, route string) {
			return cmp.Or(in.RequestContext.APIID, "none"), cmp.Or(in.RouteKey, "none")
		},
		Fingerprint: func(in Request) (any, *httpanswer.Problem) {
			return []any{in.RequestContext.HTTP.Method, in.RawPath, opt.Fingerprint(in)}, nil
		},
		Answer:         response,
		Status:         func(answer Response) int { return answer.StatusCode },
		WithoutCookies: withoutCookies,
		Replayed:       replayed,
	}
	mistake := once.Check()
	return guard.TakesOwnLocks(func(ctx context.Context, in Request) (Response, error) {
		if mistake != nil {
			return Response{}, mistake
		}
		return once.Handle(ctx, in)
	})
}

// withoutCookies is an answer without what belongs to one session.
func withoutCookies(answer Response) Response {
	answer.Cookies = nil
	isCookie := func(name string) bool { return strings.EqualFold(name, "Set-Cookie") }
	answer.Headers = maps.Clone(answer.Headers)
	maps.DeleteFunc(answer.Headers, func(name, _ string) bool { return isCookie(name) })
	answer.MultiValueHeaders = maps.Clone(answer.MultiValueHeaders)
	maps.DeleteFunc(answer.MultiValueHeaders, func(name string, _ []string) bool { return isCookie(name) })
	return answer
}

// replayed marks the answer of an earlier request.
func replayed(answer Response) Response {
	if answer.Headers == nil {
		answer.Headers = map[string]string{}
	}
	answer.Headers["Idempotent-Replayed"] = "true"
	return answer
}

// queryAndBody is OnceOptions.Fingerprint where it is nil.
func queryAndBody(in Request) any { return []string{in.RawQueryString, in.Body} }

// idempotencyKey reads the header, in whatever case its name is.
func idempotencyKey(headers map[string]string) (string, error) {
	var values []string
	for name, value := range headers {
		if strings.EqualFold(name, IdempotencyKey) {
			values = append(values, value)
		}
	}
	return httpanswer.Key(values)
}
