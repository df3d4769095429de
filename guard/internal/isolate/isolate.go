// Package apart runs one record's function so that a panic or runtime.Goexit in
// it ends that record only and not its batch.
package isolate

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
)

// Run is f(), on a goroutine of its own that has ended when Run returns. A panic
// or runtime.Goexit in f is an error.
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

// Attrs are err for a log line, with the stack of the panic that it is or wraps.
// An error of the caller's may be a nil pointer whose methods panic: that must
// not end the batch.
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
