// Package beside lets calls of libraries that do not heed a context end with one.
package beside

import (
	"context"
	"time"
)

// Do runs f in another goroutine and returns what f returns. If ctx ends before, Do returns its error, and f goes on.
// A panic of f panics in the caller.
func Do[T any](ctx context.Context, f func() (T, error)) (T, error) { return DoFor(ctx, 0, f) }

// DoFor is Do for an f whose answer still counts so long after the end of ctx.
func DoFor[T any](ctx context.Context, grace time.Duration, f func() (T, error)) (T, error) {
	if ctx.Done() == nil {
		return f()
	}
	type result struct {
		value    T
		err      error
		panicked any
	}
	done := make(chan result, 1)
	go func() {
		var r result
		defer func() {
			r.panicked = recover()
			done <- r
		}()
		r.value, r.err = f()
	}()
	var r result
	select {
	case r = <-done:
	case <-ctx.Done():
		r.err = ctx.Err()
		select {
		case r = <-done:
		case <-time.After(grace):
		}
	}
	if r.panicked != nil {
		panic(r.panicked)
	}
	return r.value, r.err
}
