package sqsbatch

import (
	"errors"
	"fmt"
	"runtime/debug"
)

// panicked is a panic as an error.
type panicked struct {
	value any
	stack []byte
}

func (p *panicked) Error() string { return fmt.Sprintf("panic: %v", p.value) }

var errExited = errors.New("it called runtime.Goexit")

// call is f(), on a goroutine of its own: what ends the goroutine of one message
// must not end the others.
func call(f func() error) error {
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
