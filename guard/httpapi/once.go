package httpapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
)

// IdempotencyKey is the header of a request that names what is to be done once.
const IdempotencyKey = "Idempotency-Key"

// maxIdempotencyKey bounds the key in the header, in bytes.
const maxIdempotencyKey = 255

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
//	the key was sent with another request on this route       422
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
	mistake := opt.check(next)
	if err := o.Validate(); err != nil {
		mistake = err
	}
	if opt.Fingerprint == nil {
		opt.Fingerprint = queryAndBody
	}
	return guard.TakesOwnLocks(func(ctx context.Context, in Request) (Response, error) {
		if mistake != nil {
			return Response{}, mistake
		}
		key, err := idempotencyKey(in.Headers)
		if err == nil && key == "" && !opt.Optional {
			err = errors.New("the header " + IdempotencyKey + " is missing")
		}
		if err != nil {
			return NewProblem(http.StatusBadRequest, err.Error(), nil), nil
		}
		r := &request{opt: opt, in: in, next: next}
		if key == "" {
			_, err := r.work(ctx, guard.Lock{})
			return r.answered(idempotency.Unmarked(err))
		}
		caller, err := opt.Caller(ctx, in)
		if err == nil && caller == "" {
			err = errors.New("the caller has no name")
		}
		if err != nil {
			return NewProblem(http.StatusBadRequest, err.Error(), nil), nil
		}
		call := idempotency.NewCall("http", cmp.Or(in.RequestContext.APIID, "none"), cmp.Or(in.RouteKey, "none"), caller, key)
		call.Fingerprint = []any{in.RequestContext.HTTP.Method, in.RawPath, opt.Fingerprint(in)}
		result, replay, err := idempotency.Do(ctx, o, call, func(ctx context.Context, lock guard.Lock) (Response, error) {
			answer, err := r.work(ctx, lock)
			if err == nil {
				err = notStored(answer, o.InDoubt())
			}
			return withoutCookies(answer), err
		})
		if replay != nil {
			// What Prepare or an operator has stored may have cookies.
			return replayed(withoutCookies(result)), nil
		}
		return r.answered(err)
	})
}

func (opt OnceOptions) check(next guard.Handler[Request, Response]) error {
	switch {
	case next == nil:
		return errors.New("httpapi: the handler is nil")
	case opt.Caller == nil:
		return errors.New("httpapi: OnceOptions.Caller is nil; want a function, or AnyCaller")
	case (opt.Lock == nil) != (opt.Key == nil):
		return errors.New("httpapi: only one of OnceOptions.Lock and OnceOptions.Key is given")
	case opt.Lock != nil:
		return opt.Lock.Validate()
	}
	return nil
}

// request is one request whose work runs.
type request struct {
	opt  OnceOptions
	in   Request
	next guard.Handler[Request, Response]

	answer Response // of the handler
	own    error    // of the handler
	inner  error    // of the lock inside
}

// work runs the handler, under the lock of opt.Key if there is one.
func (r *request) work(ctx context.Context, lock guard.Lock) (Response, error) {
	if r.opt.Lock == nil {
		r.answer, r.own = r.next(ctx, lock, r.in)
		return r.answer, r.own
	}
	key, err := r.opt.Key(ctx, r.in)
	if err != nil {
		r.inner = &guard.LockInvalid{Key: key, Err: err}
		return Response{}, idempotency.NoEffect(r.inner)
	}
	started := false
	err = r.opt.Lock.Do(ctx, key, func(ctx context.Context, lock guard.Lock) error {
		started = true
		r.answer, r.own = r.next(ctx, lock, r.in)
		return r.own
	})
	// An error of the handler's may be of a type that == cannot compare.
	if lost, ok := err.(*guard.LockLost); !started || ok && !errors.Is(r.own, lost) {
		r.inner = err
	}
	if !started {
		err = idempotency.NoEffect(err)
	}
	return r.answer, err
}

// answered is what the caller of the first request gets.
func (r *request) answered(err error) (Response, error) {
	if r.inner != nil && err == r.inner {
		if answer, ok := Problem(err); ok {
			return answer, nil
		}
		return Response{}, err
	}
	if r.own != nil && errors.Is(r.own, err) {
		return r.answer, err
	}
	const of = "request with this " + IdempotencyKey
	switch e := err.(type) {
	case nil, *passing:
		return r.answer, nil
	case *guard.LockBusy:
		return tryAgain(http.StatusConflict, "A "+of+" is still being worked on. Try again.", retryAfter(e)), nil
	case *idempotency.RepeatMismatch:
		return NewProblem(http.StatusUnprocessableEntity, "Another "+of+" was sent before.", nil), nil
	case *idempotency.RepeatInDoubt:
		return NewProblem(http.StatusInternalServerError, "The first "+of+" was started, and nobody knows whether it was carried out.", nil), nil
	case *idempotency.RepeatNoAnswer:
		return NewProblem(http.StatusInternalServerError, "The first "+of+" was carried out, and its answer is not there to be sent again.", nil), nil
	}
	if answer, ok := Problem(err); ok {
		return answer, nil
	}
	return r.answer, err
}

// passing is the end of work whose answer only its own caller gets.
type passing struct{ status int }

func (e *passing) Error() string {
	return fmt.Sprintf("an answer with status %d is not stored", e.status)
}

// notStored returns an error for an answer after which the work may run again.
func notStored(answer Response, inDoubt idempotency.Doubt) error {
	switch status := answer.StatusCode; {
	case status == http.StatusRequestTimeout, status == http.StatusConflict, status == http.StatusTooEarly, status == http.StatusTooManyRequests:
		return idempotency.NoEffect(&passing{status})
	case status >= 500 && inDoubt == idempotency.AtLeastOnce:
		return &passing{status}
	}
	return nil
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

// idempotencyKey reads the header: text in quotes, or the text alone, which most clients
// send. It is "" if there is none.
func idempotencyKey(headers map[string]string) (key string, err error) {
	found := false
	for name, value := range headers {
		if !strings.EqualFold(name, IdempotencyKey) {
			continue
		}
		if found {
			return "", errors.New("the header " + IdempotencyKey + " is there more than once")
		}
		found = true
		if key, err = parseKey(strings.Trim(value, " \t")); err != nil {
			return "", err
		}
	}
	return key, nil
}

// parseKey reads a string as RFC 8941 has it, or a word without quotes.
func parseKey(value string) (string, error) {
	if len(value) > 2*maxIdempotencyKey+2 { // each character may be escaped
		return "", errLongKey()
	}
	var b strings.Builder
	inner, quoted := strings.CutPrefix(value, `"`)
	closed := !quoted
	for i := 0; i < len(inner); i++ {
		c := inner[i]
		switch {
		case c < ' ' || c > '~', !quoted && (c == ' ' || c == ',' || c == ';' || c == '"'):
			return "", errKey()
		case quoted && c == '"':
			if closed = i == len(inner)-1; !closed {
				return "", errKey()
			}
			continue
		case quoted && c == '\\':
			if i++; i == len(inner) || inner[i] != '"' && inner[i] != '\\' {
				return "", errKey()
			}
			c = inner[i]
		}
		b.WriteByte(c)
	}
	switch {
	case !closed || b.Len() == 0:
		return "", errKey()
	case b.Len() > maxIdempotencyKey:
		return "", errLongKey()
	}
	return b.String(), nil
}

func errKey() error {
	return errors.New("the header " + IdempotencyKey + ` is not one key: want one text in quotes, such as "8e03978e-40d5-43dd-bc93-6894a57f9324", or a word without spaces, commas and semicolons`)
}

func errLongKey() error {
	return fmt.Errorf("the header "+IdempotencyKey+" is too long; want a key of at most %d bytes", maxIdempotencyKey)
}
