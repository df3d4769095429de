package guard

import (
	"context"
	"errors"
	"io"
	"reflect"
)

// KeyFunc returns the key of the lock for an event, or for one record of a batch. An
// error means that the event has no key; then the work does not run.
type KeyFunc[In any] func(ctx context.Context, in In) (string, error)

// Handler is a Lambda handler that also gets the lock under which it runs.
type Handler[In, Out any] func(ctx context.Context, lock Lock, in In) (Out, error)

// Work is a handler without a result. Adapters run it for an event, or for one record of
// a batch.
type Work[In any] func(ctx context.Context, lock Lock, in In) error

// Wrapped is a Lambda handler whose work runs under a lock. Only [Wrap], [WrapUnlocked] and the
// packages below make one. So a handler without a lock gets to boot.Start only if somebody writes
// WrapUnlocked. Handle of the zero value returns an error.
type Wrapped[In, Out any] struct {
	handle func(context.Context, In) (Out, error)
}

// Handle runs the handler with its locks. It is for code that takes a function.
func (w Wrapped[In, Out]) Handle(ctx context.Context, in In) (Out, error) {
	if w.handle == nil {
		var none Out
		return none, errNoHandler
	}
	return w.handle(ctx, in)
}

// WrapUnlocked makes a Wrapped of a handler that calls Do or Acquire itself. It adds no lock: only
// the handler itself makes sure that it holds one. It is for adapters, and for handlers whose
// key is known only in the middle of the work. If handler is nil, every call is an error.
func WrapUnlocked[In, Out any](handler func(context.Context, In) (Out, error)) Wrapped[In, Out] {
	return Wrapped[In, Out]{handler}
}

// Wrap returns a Lambda handler that starts next only when it has the lock of key(in). It answers as
// Do does. If key returns an error, next does not run and the error is a *LockBadRequest.
//
// Mistakes in the program are plain errors of every invocation, see the package's
// documentation. One of them is an Out that is an io.Reader: Lambda would read it after
// the lock is released. If Out is any and next returns an io.Reader, the error is the same,
// but next has run.
func Wrap[In, Out any](g *Guard, key KeyFunc[In], next Handler[In, Out]) Wrapped[In, Out] {
	var none Out
	mistake := g.Validate()
	switch {
	case mistake != nil:
	case key == nil:
		mistake = errors.New("guard: the key function is nil")
	case next == nil:
		mistake = errNoHandler
	case reflect.TypeFor[Out]().Implements(reflect.TypeFor[io.Reader]()):
		mistake = errStream
	}
	return WrapUnlocked(func(ctx context.Context, in In) (out Out, err error) {
		if mistake != nil {
			return none, mistake
		}
		k, err := key(ctx, in)
		if err != nil {
			return none, &LockBadRequest{k, err}
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
	})
}

var (
	errNoHandler = errors.New("guard: the handler is nil, or no Wrap has made it")
	errStream    = errors.New("guard: the handler's result is an io.Reader, which Lambda would read after the lock is released")
)

// WithoutFence makes a Handler of a plain handler, which does not use the fence. If such a
// holder stalls past its lease, nothing refuses its late write. A search for WithoutFence
// finds the handlers that accept this.
func WithoutFence[In, Out any](next func(context.Context, In) (Out, error)) Handler[In, Out] {
	if next == nil {
		return nil
	}
	return func(ctx context.Context, _ Lock, in In) (Out, error) { return next(ctx, in) }
}
