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

// A caller waits for Most, if its own time allows that, and for Least in a hurry.
const (
	Most  = time.Second
	Least = 50 * time.Millisecond
)

// mostHung is how many calls may hang. When so many do, further ones are left out.
const mostHung = 1000

var (
	hung    atomic.Int64 // calls that have not returned within their time
	leftOut atomic.Int64 // calls that were not made since the last one that was
)

// Call is one call, on a goroutine of its own.
type Call struct {
	what string
	done chan struct{}
}

// Start begins a call; what names the function. Its panic is told on standard error. Who calls Start calls Wait, so that a call that hangs counts.
func Start(what string, f func()) *Call {
	c := &Call{what, make(chan struct{})}
	if hung.Load() >= mostHung {
		leftOut.Add(1)
		close(c.done)
		return c
	}
	go func() {
		returned := false
		defer func() {
			defer close(c.done)
			if n := leftOut.Swap(0); n > 0 {
				stderr("%d calls of hooks and loggers were left out, because %d had not returned", n, mostHung)
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

// Wait waits until the call has ended, but for d at the most, and when hurry is closed for Least at the most. If that is too short, it returns
// false, and standard error says so. It is called once for a call.
func (c *Call) Wait(d time.Duration, hurry <-chan struct{}) bool {
	began, timer := time.Now(), time.NewTimer(d)
	defer timer.Stop()
	for over := false; !over; {
		select {
		case <-c.done:
			return true
		case <-hurry:
			passed := time.Since(began)
			d, hurry = min(d, passed+Least), nil
			timer.Reset(d - passed)
		case <-timer.C:
			over = true
		}
	}
	hung.Add(1)
	go func() {
		stderr("%s has not returned within %v; the program goes on without it", c.what, d) // this may hang, too
		<-c.done
		hung.Add(-1)
	}()
	return false
}

// Log writes a line with the logger, or with slog.Default() if that is nil. It waits for at most a second and a quarter
// of the time until ctx's deadline, and not if that is less than 50 ms or while another call hangs: a batch has many lines.
func Log(ctx context.Context, logger *slog.Logger, level slog.Level, message string, attrs ...slog.Attr) {
	c := Start("the logger", func() { cmp.Or(logger, slog.Default()).LogAttrs(ctx, level, message, attrs...) })
	d := Most
	if deadline, ok := ctx.Deadline(); ok {
		d = min(d, time.Until(deadline)/4)
	}
	if d >= Least && hung.Load() == 0 {
		c.Wait(d, nil)
	} else {
		go c.Wait(max(d, Least), nil) // it counts if it hangs, too
	}
}

func stderr(format string, args ...any) { fmt.Fprintf(os.Stderr, "lambdalock: "+format+"\n", args...) }
