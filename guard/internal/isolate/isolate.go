// Package isolate runs the function of one record, so that a panic or runtime.Goexit in
// the function ends this record only and not the whole batch.
package isolate

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
)

// Run calls f on a goroutine of its own, and returns when this goroutine has ended. A
// panic or runtime.Goexit in f is an error.
func Run(f func() error) error {
	err := errExited
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer func() {
			if v := recover(); v != nil {
				err = &panicked{v, debug.Stack()}
			}
		}()
		err = f()
	}()
	<-ended
	return err
}

// Attrs returns err for a log line. If err is or wraps a panic, the stack is in it. An
// error of the caller's may be a nil pointer whose methods panic, which must not end the
// batch.
func Attrs(err error) (attrs []slog.Attr) {
	attrs = append(attrs, slog.String("error", fmt.Sprint(err)))
	defer func() { _ = recover() }()
	if p, ok := errors.AsType[*panicked](err); ok {
		attrs = append(attrs, slog.String("stack", string(p.stack)))
	}
	return attrs
}

type panicked struct {
	value any
	stack []byte
}

func (p *panicked) Error() string { return fmt.Sprintf("panic: %v", p.value) }

var errExited = errors.New("it called runtime.Goexit")
