// Package apart runs one record's function so that a panic or runtime.Goexit in
// it ends that record only and not its batch.
package apart

import (
	"errors"
	"fmt"
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

// Stack is that of the panic which err is or wraps, or "".
func Stack(err error) string {
	if p, ok := errors.AsType[*panicked](err); ok {
		return string(p.stack)
	}
	return ""
}

type panicked struct {
	value any
	stack []byte
}

func (p *panicked) Error() string { return fmt.Sprintf("panic: %v", p.value) }

var errExited = errors.New("it called runtime.Goexit")
