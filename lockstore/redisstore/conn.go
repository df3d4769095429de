package redisstore

import (
	"context"
	"net"
	"reflect"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// go-redis ends a command at the deadline of its context, but not when the context is
// cancelled. It does not show which connection a command uses. But it sets a deadline on
// the connection: the context's. So this file gives each call a deadline that no other
// command has:
//
//	call -> unique deadline -> go-redis sets it on a connection -> the connection finds the call
//
// Then the call can end the wait of the connection when its context ends, and the connection is free. No call needs
// another goroutine, as package beside has for clients of others. Measured on 2 busy cores with Redis on the same machine, 60
// alternating rounds: an acquire and a release take 120 us and 82 us of CPU time, 184 us and 124 us with one.

// callContext is the context of one call through a client of this package.
type callContext struct {
	context.Context
	conn      atomic.Pointer[conn] // the connection that the call used last
	over      atomic.Bool          // the context has ended
	most      time.Duration        // of each wait; less than the client's own timeout, or the client would set its own deadline
	returned  bool                 // the call; calls guards it
	deadlines []int64              // of this call, in nanoseconds since 1970
}

// calls are the calls that have not returned, by their deadlines.
var calls = struct {
	sync.Mutex
	by map[int64]*callContext
}{by: map[int64]*callContext{}}

// Deadline returns a deadline that no other call has: a little later than the context's, because a command of the user may
// have that one. It is for the connection. Done does not close at it.
func (c *callContext) Deadline() (time.Time, bool) {
	end := time.Now().Add(c.most)
	if own, ok := c.Context.Deadline(); ok && own.Before(end) {
		end = own
	}
	deadline := end.UnixNano() + 1
	calls.Lock()
	defer calls.Unlock()
	if c.returned { // a hook goes on
		return c.Context.Deadline()
	}
	for calls.by[deadline] != nil && calls.by[deadline] != c {
		deadline++
	}
	if calls.by[deadline] == nil {
		calls.by[deadline] = c
		c.deadlines = append(c.deadlines, deadline)
	}
	return time.Unix(0, deadline), true
}

// begin starts a call: when ctx ends, the call's connection stops waiting. stop ends this. most bounds each of its waits.
func (c *callContext) begin(ctx context.Context, most time.Duration) (stop func() bool) {
	c.Context, c.most = ctx, most
	return context.AfterFunc(ctx, c.end)
}

// forget is for the return of the call, when its connection is in the pool again.
func (c *callContext) forget() {
	if used := c.conn.Load(); used != nil {
		used.mu.Lock()
		if used.user == c {
			used.user = nil
		}
		used.mu.Unlock()
	}
	calls.Lock()
	defer calls.Unlock()
	c.returned = true
	for _, deadline := range c.deadlines {
		delete(calls.by, deadline)
	}
}

// callKey is the key under which a callContext is its own value.
type callKey struct{}

func (c *callContext) Value(key any) any {
	if key == (callKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// callersContext is the context of the store's caller, for functions of the user. That of the call is not for them: a
// context with a time limit, made of one with an earlier deadline, has no timer, and would wait for a Done that never comes.
func callersContext(ctx context.Context) context.Context {
	if call, ok := ctx.Value(callKey{}).(*callContext); ok {
		return call.Context
	}
	return ctx
}

// end ends the call's present wait and all later waits.
func (c *callContext) end() {
	c.over.Store(true)
	if used := c.conn.Load(); used != nil {
		used.mu.Lock()
		defer used.mu.Unlock()
		if used.user == c {
			_ = used.Conn.SetDeadline(past)
		}
	}
}

var past = time.Unix(1, 0)

// conn is a connection of a client of this package.
type conn struct {
	net.Conn

	mu   sync.Mutex
	user *callContext // the call whose deadline was set last; nil without one
}

func (c *conn) SetReadDeadline(t time.Time) error { return c.wait(t, c.Conn.SetReadDeadline) }

func (c *conn) SetWriteDeadline(t time.Time) error { return c.wait(t, c.Conn.SetWriteDeadline) }

func (c *conn) wait(t time.Time, set func(time.Time) error) error {
	calls.Lock()
	user := calls.by[t.UnixNano()]
	calls.Unlock()
	if user != nil {
		user.conn.Store(c) // first conn, then over; end has the reverse order, so one of them sees the other
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.user = user
	if user != nil && user.over.Load() {
		t = past
	}
	return set(t)
}

// plainConn is a conn without TLS. go-redis uses its syscall.Conn to find out whether the
// server has closed the connection.
type plainConn struct {
	*conn
	syscall.Conn
}

// endable wraps the connections of a dialer so that calls can end them. isEndable compares
// the code of this function's result, so the function must not be inlined.
//
//go:noinline
func endable(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		made, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		c := &conn{Conn: made}
		if raw, ok := made.(syscall.Conn); ok {
			return plainConn{c, raw}, nil
		}
		return c, nil
	}
}

// isEndable reports whether a client's dialer is from endable.
func isEndable(dialer dialFunc) bool {
	return reflect.ValueOf(dialer).Pointer() == reflect.ValueOf(endable(nil)).Pointer()
}
