// Package httpapi guards functions behind an API Gateway HTTP API (payload format 2.0)
// or a Lambda function URL.
//
// If the handler does not run, or loses its lock, the caller gets:
//
//	another owner holds the lock   409  Retry-After 1 to 5 seconds
//	the work is done               409  Retry-After until the key is free
//	the key is in doubt            409
//	the key cannot be locked       400
//	no time left                   503  Retry-After
//	store unavailable or unknown   503  Retry-After
//	lock lost while working        500  what was written may stand
//	foreign or corrupt entry       500
//
// Each body is a problem of RFC 9457 (application/problem+json). A caller never learns the
// holder of a lock or the reason of a 5xx; both are in the guard's
// report, which boot logs. (A guard of your own needs Options.Observe.) A caller learns
// the reason of a 400, also the text of the key function's error. So this text must be
// about the request and must not contain a secret. An error that the handler itself
// returns goes to Lambda as it is.
package httpapi

import (
	"context"
	"encoding/json"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/aws/aws-lambda-go/events"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
)

// Request and Response are those of an HTTP API and of a function URL, which
// has the same format.
type (
	Request  = events.APIGatewayV2HTTPRequest
	Response = events.APIGatewayV2HTTPResponse
)

// Wrap returns a Lambda handler that starts next only when it has the lock of key(request). Otherwise it answers with a problem. For mistakes in the program see package
// guard.
func Wrap(g *guard.Guard, key guard.KeyFunc[Request], next guard.Handler[Request, Response]) guard.Wrapped[Request, Response] {
	work := next
	if next != nil {
		work = func(ctx context.Context, lock guard.Lock, in Request) (Response, error) {
			out, err := next(ctx, lock, in)
			if err != nil {
				err = &workError{err}
			}
			return out, err
		}
	}
	guarded := guard.Wrap(g, key, work)
	return guard.TakesOwnLocks(func(ctx context.Context, in Request) (Response, error) {
		out, err := guarded.Handle(ctx, in)
		if own, ok := err.(*workError); ok {
			return out, own.error
		}
		if answer, ok := Problem(err); ok {
			return answer, nil
		}
		return out, err
	})
}

// workError marks an error that the handler returned, because this error may itself be
// that of another lock.
type workError struct{ error }

func (e *workError) Unwrap() error { return e.error }

// Problem returns the answer to a guard's error, or false if err is none.
func Problem(err error) (Response, bool) {
	switch e := err.(type) {
	case *guard.LockBusy:
		detail := "Another request is working on the same resource. Try again."
		switch e.State {
		case lockstore.InDoubt:
			detail = "Nobody knows whether an earlier request on the same resource was carried out. Somebody has to find out first."
		case lockstore.Completed, lockstore.Cooldown:
			detail = "The work on the same resource is done, and the resource stays closed for a while."
		case lockstore.Reserved:
			detail = "Other requests have waited longer for the same resource. Try again."
		}
		return tryAgain(http.StatusConflict, detail, retryAfter(e)), true
	case *guard.LockInvalid:
		detail := "The key cannot be locked."
		if e.Err != nil {
			detail = e.Err.Error()
		}
		return NewProblem(http.StatusBadRequest, detail, nil), true
	case *guard.LockDeadline:
		return tryAgain(http.StatusServiceUnavailable, "There was no time left to begin. Try again.", 1), true
	case *guard.LockStoreUnavailable:
		return tryAgain(http.StatusServiceUnavailable, "The lock service is unavailable, and the request was not begun. Try again.", 1), true
	case *guard.LockLost:
		return NewProblem(http.StatusInternalServerError, "The lock was lost while working. The request may have been carried out, fully or in part.", nil), true
	case *guard.LockCorrupt:
		return NewProblem(http.StatusInternalServerError, "The lock cannot be used, and the request was not begun.", nil), true
	}
	return Response{}, false
}

// retryAfter is after how many seconds a caller should ask again.
//
//	the work is done           until the key is free, rounded up
//	the key is in doubt        0: it does not become free by itself
//	otherwise                  1 to 5, at random, so that callers who were refused together
//	                           do not come back together. The longer the holder has had
//	                           the lock, by its own clock, the longer the time may be
//
// The rest of a lease would be too long, because most holders release early.
func retryAfter(busy *guard.LockBusy) int {
	switch busy.State {
	case lockstore.InDoubt:
		return 0
	case lockstore.Completed, lockstore.Cooldown:
		return max(1, int(math.Ceil(busy.Remaining.Seconds())))
	}
	longest := 1
	if since := busy.Holder.Since; !since.IsZero() {
		longest = int(min(max(time.Since(since), time.Second), 5*time.Second) / time.Second)
	}
	return 1 + rand.IntN(longest)
}

// tryAgain has no header if seconds is 0.
func tryAgain(status int, detail string, seconds int) Response {
	answer := NewProblem(status, detail, nil)
	if seconds > 0 {
		answer.Headers["Retry-After"] = strconv.Itoa(seconds)
	}
	return answer
}

// NewProblem returns an answer whose body is a problem of RFC 9457: the type
// "about:blank", the status and its name as the title, and the detail, a sentence for
// people. extra are further members, for programs; it may be nil. A value of extra that
// has no JSON form panics.
func NewProblem(status int, detail string, extra map[string]any) Response {
	members := map[string]any{"type": "about:blank", "title": http.StatusText(status), "status": status, "detail": detail}
	maps.Copy(members, extra)
	body, err := json.Marshal(members)
	if err != nil {
		panic(err)
	}
	return Response{StatusCode: status, Headers: map[string]string{"Content-Type": "application/problem+json"}, Body: string(body)}
}
