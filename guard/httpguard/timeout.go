package httpguard

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/internal/httpanswer"
	"github.com/lambdalock/lambdalock/internal/lib/tell"
)

func checkTimeout(d time.Duration) error {
	if d < 0 {
		return fmt.Errorf("httpguard: Timeout is %v; want 0 (none) or more", d)
	}
	return nil
}

// serve sends the answer of handle, or a problem if there is none after the timeout (0 is no bound). Then handle goes on.
// The context of handle does not end when the client leaves, because it holds the lock until the handler has returned.
func serve(ctx context.Context, w http.ResponseWriter, protoMajor int, timeout time.Duration, handle func(context.Context, *client) (httpanswer.Answer, error)) {
	waits, end := ctx, func() {}
	if timeout > 0 {
		waits, end = context.WithTimeoutCause(ctx, timeout, guard.ErrDeadline)
	}
	defer end()
	holds, cancel := staying(ctx)
	c := &client{Context: waits, cancel: cancel}
	stop := context.AfterFunc(waits, func() { c.leave() })
	run := func() httpanswer.Answer {
		defer cancel(nil)
		defer stop()
		return handled(handle(holds, c))
	}
	if timeout == 0 {
		send(w, run())
		return
	}
	answers := make(chan func() httpanswer.Answer, 1)
	go func() {
		last := func() httpanswer.Answer { panic(http.ErrAbortHandler) } // after runtime.Goexit
		defer func() {
			if v := recover(); v != nil {
				if v != http.ErrAbortHandler { // as a server does, which would log another goroutine
					tell.Log(ctx, nil, slog.LevelError, "handler panicked", slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
				}
				last = func() httpanswer.Answer { panic(v) }
			}
			answers <- last
		}()
		a := run()
		last = func() httpanswer.Answer { return a }
	}()
	select {
	case last := <-answers:
		send(w, last())
		return
	case <-waits.Done():
	}
	// Nobody waits if the client has left, or a lock around this one is lost. A middleware around this one would release
	// its lock.
	if _, inside := LockOf(ctx); inside || context.Cause(waits) != guard.ErrDeadline {
		send(w, (<-answers)())
		return
	}
	p := httpanswer.OfLock(&guard.LockNoTime{})
	if c.leave() == begun {
		p = httpanswer.Problem(http.StatusServiceUnavailable, "The request was begun, and takes longer than this server waits for it. It may be carried out, fully or in part.", nil)
	}
	if protoMajor == 1 { // HTTP/2 would end the whole connection
		p.Header.Set("Connection", "close") // otherwise net/http waits for the body first, which the handler may be reading
	}
	send(w, *p)
}

// client is the context of one who waits for an answer.
type client struct {
	context.Context
	cancel context.CancelCauseFunc // of the context that holds the lock
	state  atomic.Int32
}

const (
	waiting = iota
	begun   // the handler
	left    // before the handler began
)

// leave ends the wait for the lock. It changes nothing after the handler has begun.
func (c *client) leave() (state int32) {
	if c.state.CompareAndSwap(waiting, left) {
		c.cancel(context.Cause(c))
	}
	return c.state.Load()
}

// begin returns the context of the handler: lock, until the client waits no longer. It is an error if that is so already.
func (c *client) begin(lock context.Context, key string) (context.Context, context.CancelCauseFunc, error) {
	if !c.state.CompareAndSwap(waiting, begun) {
		return nil, nil, &guard.LockNoTime{Key: key, Err: context.Cause(c)}
	}
	ctx, cancel := joined(lock, c, guard.ErrDeadline, guard.ErrDeadline)
	return &work{ctx, lock}, cancel, nil
}

// joined returns a context that ends with ctx, at the deadline of other with the cause late, and when other is cancelled, but not with the
// cause except.
func joined(ctx, other context.Context, late, except error) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	end := func() {}
	if deadline, ok := other.Deadline(); ok {
		ctx, end = context.WithDeadlineCause(ctx, deadline, late)
	}
	stop := context.AfterFunc(other, func() {
		if cause := context.Cause(other); cause != except {
			cancel(cause)
		}
	})
	return ctx, func(cause error) {
		stop()
		cancel(cause)
		end()
	}
}

// work is the context of a handler. It asks the lock's context, which reads the clocks: after a freeze no timer has done
// so yet.
type work struct {
	context.Context
	lock context.Context
}

func (w *work) Err() error {
	if err := w.lock.Err(); err != nil {
		return err
	}
	return w.Context.Err()
}

func (w *work) Done() <-chan struct{} {
	w.lock.Done()
	return w.Context.Done()
}
