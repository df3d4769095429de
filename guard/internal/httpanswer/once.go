package httpanswer

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/internal/lib/doonce"
)

// Once runs the handler of an adapter once for each Idempotency-Key. In is the adapter's request. All fields but Optional, Lock
// and LockKey must be given.
type Once[In any] struct {
	Package string // of the adapter, for errors
	Once    *idempotency.Once
	Next    guard.Handler[In, Answer]

	// As in OnceOptions of the adapter.
	Caller   func(context.Context, In) (string, error)
	Optional bool
	Lock     *guard.Guard
	LockKey  guard.KeyFunc[In]

	RequestHeader func(In) http.Header
	Scope         func(In) (api, route string) // "none" where there is none
	Fingerprint   func(In) (any, *Answer)      // with method and path
}

// Check finds mistakes in the program.
func (o *Once[In]) Check() error {
	if err := o.Once.Validate(); err != nil {
		return err
	}
	switch {
	case o.Next == nil:
		return errors.New(o.Package + ": the handler is nil")
	case o.Caller == nil:
		return errors.New(o.Package + ": OnceOptions.Caller is nil; want a function, or AnyCaller")
	case (o.Lock == nil) != (o.LockKey == nil):
		return errors.New(o.Package + ": only one of OnceOptions.Lock and OnceOptions.Key is given")
	case o.Lock.Coalesces():
		return errors.New(o.Package + ": OnceOptions.Lock has guard.Options.Coalesce (boot: LOCK_COALESCE); want none: each " + Header + " has an answer of its own")
	case o.Lock != nil:
		return o.Lock.Validate()
	}
	return nil
}

// Handle answers a request. An error is the handler's own.
func (o *Once[In]) Handle(ctx context.Context, in In) (Answer, error) {
	key, err := Key(o.RequestHeader(in).Values(Header))
	if err == nil && key == "" && !o.Optional {
		err = errors.New("the header " + Header + " is missing")
	}
	if err != nil {
		return badRequest(err), nil
	}
	r := &request[In]{Once: o, in: in}
	if key == "" {
		_, err := r.work(ctx, guard.Lock{})
		err, _ = doonce.Unmarked(err)
		return r.answered(err)
	}
	caller, err := o.Caller(ctx, in)
	if err == nil && caller == "" {
		err = errors.New("the caller has no name")
	}
	if err != nil {
		return badRequest(err), nil
	}
	api, route := o.Scope(in)
	call := idempotency.NewCall("http", api, route, caller, key)
	fingerprint, problem := o.Fingerprint(in)
	if problem != nil {
		return *problem, nil
	}
	call.Fingerprint = fingerprint
	result, replay, err := idempotency.Do(ctx, o.Once, call, func(ctx context.Context, lock guard.Lock) (Answer, error) {
		answer, err := r.work(ctx, lock)
		if err == nil {
			err = notStored(answer.Status, o.Once.InDoubt())
		}
		return answer.repeatable(), err
	})
	if replay != nil {
		result = result.repeatable() // what Prepare or an operator has stored may have cookies
		if p := Replay(o.RequestHeader(in), result.Header); p != nil {
			return *p, nil
		}
		return result, nil
	}
	return r.answered(err)
}

func badRequest(err error) Answer {
	return *Problem(http.StatusBadRequest, err.Error(), nil)
}

// request is one request whose work runs.
type request[In any] struct {
	*Once[In]
	in In

	answer Answer // of the handler
	own    error  // of the handler
	inner  error  // of the lock inside
}

// work runs the handler, under the lock of LockKey if there is one.
func (r *request[In]) work(ctx context.Context, lock guard.Lock) (answer Answer, err error) {
	if r.Lock == nil {
		r.answer, r.own = r.Next(ctx, lock, r.in)
		return r.answer, r.own
	}
	key, err := r.LockKey(ctx, r.in)
	if err != nil {
		r.inner = &guard.LockBadRequest{Key: key, Err: err}
		return answer, idempotency.NoEffect(r.inner)
	}
	started := false
	err = r.Lock.Do(ctx, key, func(ctx context.Context, lock guard.Lock) error {
		started = true
		r.answer, r.own = r.Next(ctx, lock, r.in)
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
func (r *request[In]) answered(err error) (answer Answer, own error) {
	if r.inner != nil && err == r.inner {
		if p := OfLock(err); p != nil {
			return *p, nil
		}
		return answer, err
	}
	if r.own != nil && errors.Is(r.own, err) {
		return r.answer, err
	}
	if _, ok := err.(*passing); ok {
		return r.answer, nil
	}
	if p := ofRepeat(err); p != nil {
		return *p, nil
	}
	return r.answer, err
}

// passing is the end of work whose answer only its own caller gets.
type passing struct{ status int }

func (e *passing) Error() string {
	return fmt.Sprintf("an answer with status %d is not stored", e.status)
}

// notStored returns an error for an answer after which the work may run again.
func notStored(status int, inDoubt idempotency.Doubt) error {
	switch {
	case status == http.StatusRequestTimeout, status == http.StatusConflict, status == http.StatusTooEarly, status == http.StatusTooManyRequests:
		return idempotency.NoEffect(&passing{status})
	case status >= 500 && inDoubt == idempotency.AtLeastOnce:
		return &passing{status}
	}
	return nil
}
