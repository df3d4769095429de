package guard

import (
	"context"
	"errors"
	"io"
)

// Handler is a Lambda handler that also gets the lock it runs under.
type Handler[In, Out any] func(ctx context.Context, lock Lock, in In) (Out, error)

// Wrap returns a plain Lambda handler that runs next only while the lock of
// key(in) is held. It answers as Do does; if key returns an error, next does
// not run and the error is a *LockInvalid.
//
// An Out that is an io.Reader would be streamed after the lock is released, so
// it is refused. So are nil arguments: such mistakes in the program are plain
// errors of every invocation.
func Wrap[In, Out any](g *Guard, key func(context.Context, In) (string, error), next Handler[In, Out]) func(context.Context, In) (Out, error) {
	var wrong error
	var none Out
	switch _, streams := any(none).(io.Reader); {
	case key == nil:
		wrong = errors.New("guard: the key function is nil")
	case next == nil:
		wrong = errors.New("guard: the handler is nil")
	case streams:
		wrong = errStream
	}
	return func(ctx context.Context, in In) (out Out, err error) {
		if wrong != nil {
			return none, wrong
		}
		k, err := key(ctx, in)
		if err != nil {
			return none, &LockInvalid{k, err}
		}
		err = g.Do(ctx, k, func(ctx context.Context, lock Lock) error {
			var err error
			out, err = next(ctx, lock, in)
			if _, streams := any(out).(io.Reader); streams && err == nil {
				out, err = none, errStream
			}
			return err
		})
		return out, err
	}
}

var errStream = errors.New("guard: the handler's result is an io.Reader, which would be read after the lock is released")

// Unfenced makes a Handler of a plain handler that does not use the fence. A
// holder that stalls past its lease can then still write: search for Unfenced
// to find the handlers that accept this.
func Unfenced[In, Out any](next func(context.Context, In) (Out, error)) Handler[In, Out] {
	if next == nil {
		return nil
	}
	return func(ctx context.Context, _ Lock, in In) (Out, error) { return next(ctx, in) }
}
