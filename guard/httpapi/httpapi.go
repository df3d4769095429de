// Package httpapi guards functions behind an API Gateway HTTP API (payload
// format 2.0) or a Lambda function URL.
//
// What the caller gets when the work does not run, or its lock is lost:
//
//	lock held by another           409  Retry-After 1 to 5 seconds
//	key cannot be locked           400
//	no time left                   503  Retry-After
//	store unavailable or unknown   503  Retry-After
//	lock lost while working        500  what was written may stand
//	foreign or corrupt entry       500
//
// Each body is a problem of RFC 9457 (application/problem+json). The holder of
// a lock is never named to a caller, and neither is the reason of a 5xx: both
// are in the function's log. The reason of a 400 is shown, what the key function
// said included: it is to judge the request alone, and to name no secret. An
// error that the handler itself returns goes to Lambda as it is.
package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/aws/aws-lambda-go/events"

	"github.com/lambdalock/lambdalock/guard"
)

// Request and Response are those of an HTTP API and of a function URL, which
// has the same format.
type (
	Request  = events.APIGatewayV2HTTPRequest
	Response = events.APIGatewayV2HTTPResponse
)

// Wrap runs next only while the lock of key(request) is held, and answers in
// HTTP's words when it is not.
func Wrap(g *guard.Guard, key func(context.Context, Request) (string, error), next guard.Handler[Request, Response]) func(context.Context, Request) (Response, error) {
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
	return func(ctx context.Context, in Request) (Response, error) {
		out, err := guarded(ctx, in)
		if own, ok := err.(*workError); ok {
			return out, own.error
		}
		if answer, ok := Problem(err); ok {
			return answer, nil
		}
		return out, err
	}
}

// workError marks what the handler returned, which may itself be the error of
// another lock.
type workError struct{ error }

func (e *workError) Unwrap() error { return e.error }

// Problem is the answer to a guard's error, or false when err is not one.
func Problem(err error) (Response, bool) {
	switch e := err.(type) {
	case *guard.LockBusy:
		return problem(http.StatusConflict, "Another request is working on the same resource. Try again.", retryAfter(e)), true
	case *guard.LockInvalid:
		detail := "The key cannot be locked."
		if e.Err != nil {
			detail = e.Err.Error()
		}
		return problem(http.StatusBadRequest, detail, 0), true
	case *guard.LockDeadline:
		return problem(http.StatusServiceUnavailable, "There was no time left to begin. Try again.", 1), true
	case *guard.LockStoreUnavailable:
		return problem(http.StatusServiceUnavailable, "The lock service is unavailable, and the request was not begun. Try again.", 1), true
	case *guard.LockLost:
		return problem(http.StatusInternalServerError, "The lock was lost while working. The request may have been carried out, fully or in part.", 0), true
	case *guard.LockCorrupt:
		return problem(http.StatusInternalServerError, "The lock cannot be used, and the request was not begun.", 0), true
	}
	return Response{}, false
}

// retryAfter is 1 to 5 seconds: the longer the present holder has been at it,
// the longer the caller should stay away. What the lease has left would be far
// too long, because most holders release early. The holder's clock is only a
// hint here.
func retryAfter(busy *guard.LockBusy) int {
	if busy.Holder.Since.IsZero() {
		return 1
	}
	return int(min(max(time.Since(busy.Holder.Since), time.Second), 5*time.Second) / time.Second)
}

func problem(status int, detail string, retryAfter int) Response {
	body, err := json.Marshal(struct {
		Type   string `json:"type"`
		Title  string `json:"title"`
		Status int    `json:"status"`
		Detail string `json:"detail"`
	}{"about:blank", http.StatusText(status), status, detail})
	if err != nil {
		panic(err) // strings and an int always have a JSON form
	}
	headers := map[string]string{"Content-Type": "application/problem+json"}
	if retryAfter > 0 {
		headers["Retry-After"] = strconv.Itoa(retryAfter)
	}
	return Response{StatusCode: status, Headers: headers, Body: string(body)}
}
