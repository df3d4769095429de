// Package tell calls functions that only tell people something: hooks and loggers. One that hangs, panics or calls
// runtime.Goexit costs its caller some time at most: the caller may hold a lease.
package tell

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// Most is how long a caller waits, if its own time allows that.
const Most = time.Second

// mostCalls is how many calls there may be at once. When so many hang, further ones are left out.
const mostCalls = 1000

var (
	calls   atomic.Int64 // that have not returned
	leftOut atomic.Int64 // that were not made since the last one that was
)

// Call is one call, on a goroutine of its own.
type Call struct {
	what string
	done chan struct{}
}

// Start begins a call; what names the function. Its panic is told on standard error.
func Start(what string, f func()) *Call {
	c := &Call{what, make(chan struct{})}
	if calls.Add(1) > mostCalls {
		calls.Add(-1)
		leftOut.Add(1)
		close(c.done)
		return c
	}
	go func() {
		returned := false
		defer func() {
			defer calls.Add(-1)
			defer close(c.done)
			if n := leftOut.Swap(0); n > 0 {
				stderr("%d calls of hooks and loggers were left out, because %d had not returned", n, mostCalls)
			}
			if p := recover(); p != nil {
				stderr("%s panicked: %v\n%s", what, p, debug.Stack())
			} else if !returned {
				stderr("%s called runtime.Goexit", what)
			}
		}()
		f()
		returned = true
	}()
	return c
}

// Wait waits until the call has ended, but for d at the most. If that is too short, it returns false, and standard error says so.
func (c *Call) Wait(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-c.done:
		return true
	case <-timer.C:
		go stderr("%s has not returned within %v; the program goes on without it", c.what, d) // this may hang, too
		return false
	}
}

// Log writes a line with the logger, or with slog.Default() if that is nil.
func Log(ctx context.Context, logger *slog.Logger, level slog.Level, message string, attrs ...slog.Attr) {
	Start("the logger", func() { cmp.Or(logger, slog.Default()).LogAttrs(ctx, level, message, attrs...) }).Wait(Most)
}

func stderr(format string, args ...any) { fmt.Fprintf(os.Stderr, "lambdalock: "+format+"\n", args...) }
