package redisstore

import (
	"context"
	"net"
	"reflect"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// go-redis ends a command at its context's deadline, but not when its context is
// cancelled, and it shows nobody the connection that a command waits for. It does
// tell each connection until when it may wait: that is the context's deadline. So
// a call through a client of this package has a deadline that no other call has. By
// it the connection finds the call, and the call can end the connection's waiting.
// That is how a call ends with its context without a goroutine of its own.

// ending is the context of one call to a client of this package.
type ending struct {
	context.Context
	conn  atomic.Pointer[conn] // that it used last
	over  atomic.Bool          // the context has ended
	marks []int64              // its deadlines, in nanoseconds since 1970
	first [4]int64             // for marks, of which most calls need one
}

// endings are the calls that are under way, by their deadlines.
var endings = struct {
	sync.Mutex
	by map[int64]*ending
}{by: map[int64]*ending{}}

// patience bounds each wait for the server. It is shorter than the client's own
// timeout, which would hide the deadline.
const patience = answerTimeout - 100*time.Millisecond

// Deadline returns one that no other call has: the context's, or a little earlier.
func (e *ending) Deadline() (time.Time, bool) {
	end := time.Now().Add(patience)
	if own, ok := e.Context.Deadline(); ok && own.Before(end) {
		end = own
	}
	mark := end.UnixNano()
	endings.Lock()
	defer endings.Unlock()
	for endings.by[mark] != nil && endings.by[mark] != e {
		mark--
	}
	if endings.by[mark] == nil {
		endings.by[mark] = e
		e.marks = append(e.marks, mark)
	}
	return time.Unix(0, mark), true
}

// begin makes e a context that ends the waiting of this package's clients when ctx
// ends, until the func that it returns is called.
func (e *ending) begin(ctx context.Context) (stop func() bool) {
	e.Context, e.marks = ctx, e.first[:0]
	return context.AfterFunc(ctx, e.end)
}

// forget is for the return of the call: its connection is in the pool again.
func (e *ending) forget() {
	if c := e.conn.Load(); c != nil {
		c.mu.Lock()
		if c.user == e {
			c.user = nil
		}
		c.mu.Unlock()
	}
	endings.Lock()
	defer endings.Unlock()
	for _, mark := range e.marks {
		delete(endings.by, mark)
	}
}

// end ends what the call waits for now, and all that it would wait for later.
func (e *ending) end() {
	e.over.Store(true)
	if c := e.conn.Load(); c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.user == e {
			_ = c.Conn.SetDeadline(past)
		}
	}
}

var past = time.Unix(1, 0)

// conn is a connection of a client of this package.
type conn struct {
	net.Conn

	mu   sync.Mutex
	user *ending // whose deadline it has; nil for that of nobody who can be found
}

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error { return c.wait(t, c.Conn.SetReadDeadline) }

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(t time.Time) error { return c.wait(t, c.Conn.SetWriteDeadline) }

func (c *conn) wait(t time.Time, set func(time.Time) error) error {
	endings.Lock()
	user := endings.by[t.UnixNano()]
	endings.Unlock()
	if user != nil {
		user.conn.Store(c) // before it looks whether the call is over: end does so the other way round
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.user = user
	if user != nil && user.over.Load() {
		t = past
	}
	return set(t)
}

// plainConn is a conn without TLS, at which go-redis can look whether the server
// has closed it.
type plainConn struct {
	*conn
	syscall.Conn
}

// withEnds makes a dialer's connections ones that calls can end. hasEnds knows its
// func by its code, of which inlining would make several.
//
//go:noinline
func withEnds(dial dialFunc) dialFunc {
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

// hasEnds reports whether a client's connections are from withEnds.
func hasEnds(client redis.UniversalClient) bool {
	var dialer dialFunc
	switch c := client.(type) {
	case *redis.Client:
		dialer = c.Options().Dialer
	case *redis.ClusterClient:
		dialer = c.Options().Dialer
	}
	return reflect.ValueOf(dialer).Pointer() == reflect.ValueOf(withEnds(nil)).Pointer()
}
