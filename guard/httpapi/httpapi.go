// Package httpapi guards functions behind every HTTP source of Lambda. Each becomes the same [Request], and gets its answer
// in its own form:
//
//	HTTP API, payload format 1.0 and 2.0
//	REST API with proxy integration
//	function URL
//	Application Load Balancer, with and without multi-value headers
//	VPC Lattice, event version 1 and 2
//
// An event of anything else, such as a batch of SQS, is an error, and nothing runs: an answer of status 400 would be a
// success for SQS, and the messages would be lost.
//
// Who sends a request is known only as far as the source has authenticated it, see Request.Caller. A load balancer that
// authenticates users adds the header X-Amzn-Oidc-Identity. One that does not authenticate passes on a client's header
// of that name. So Caller is empty behind a load balancer. A function that wants the user checks the signature
// and the signer of X-Amzn-Oidc-Data.
//
// If the handler does not run, or loses its lock, the caller gets:
//
//	another owner holds the lock   409  Retry-After 1 to 5 seconds
//	another request covers it      409  see guard.Options.Coalesce; the code is "covered"
//	the work is done               409  Retry-After until the key is free
//	the key is in doubt            409  the code is "in-doubt"
//	the key cannot be locked       400
//	no Idempotency-Key             400  if the guard has guard.Options.Coalesce: the header is the event's id
//	no time left                   503  Retry-After
//	store unavailable or unknown   503  Retry-After
//	lock lost while working        500  what was written may stand
//	foreign or corrupt entry       500
//
// Each body is a problem of RFC 9457 (application/problem+json), some with the member code, for programs. A caller never learns the
// holder of a lock or the reason of a 5xx; both are in the guard's
// report, which boot logs. (A guard of your own needs Options.Observe.) A caller learns
// the reason of a 400, also the text of the key function's error. So this text must be
// about the request and must not contain a secret. An error that the handler itself
// returns goes to Lambda as it is.
package httpapi

import (
	"context"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/internal/httpanswer"
)

// Wrap returns a Lambda handler that starts next only when it has the lock of key(request). Otherwise it answers with a problem. For mistakes in the program see package
// guard.
func Wrap(g *guard.Guard, key guard.KeyFunc[Request], next guard.Handler[Request, Response]) guard.Wrapped[Request, Response] {
	return guard.WrapUnlocked(func(ctx context.Context, in Request) (out Response, err error) {
		var own error // the handler's, which may itself be that of another lock
		work := next
		if next != nil {
			work = func(ctx context.Context, lock guard.Lock, in Request) (out Response, err error) {
				out, own = next(ctx, lock, in)
				return out, own
			}
		}
		id, noID := httpanswer.EventID(g, in.Header)
		if noID != nil {
			err = &guard.LockBadRequest{Err: noID}
		} else {
			out, err = guard.Wrap(g, key, work).Handle(guard.WithEventID(ctx, id), in)
		}
		// After the handler only the loss of its lock is an error of the guard. Two pointers can be compared, and not each own error.
		if _, lost := err.(*guard.LockLost); own != nil && (!lost || err == own) {
			return out.For(in), own
		}
		if answer, ok := Problem(err); ok {
			return answer.For(in), nil
		}
		return out.For(in), err
	})
}

// Problem returns the answer to a guard's error, or false for other errors.
func Problem(err error) (Response, bool) {
	p := httpanswer.OfLock(err)
	if p == nil {
		return Response{}, false
	}
	return response(*p), true
}

func response(a httpanswer.Answer) Response {
	return Response{StatusCode: a.Status, Header: a.Header, Body: a.Body}
}

// NewProblem returns an answer whose body is a problem of RFC 9457: the type
// "about:blank", the status and its name as the title, and the detail, a sentence for
// people. extra are further members, for programs; it may be nil. A value of extra that
// has no JSON form panics.
func NewProblem(status int, detail string, extra map[string]any) Response {
	return response(*httpanswer.Problem(status, detail, extra))
}
