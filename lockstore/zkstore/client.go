package zkstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/internal/beside"
)

// maxPacket bounds an answer. The names of all nodes come in one.
const maxPacket = 64 << 20

// limits bound what a client waits for. Tests on a busy machine have longer ones.
type limits struct {
	// timeout is what a session asks for. Only wake-ups depend on the session, so it
	// is short: after two thirds of it the client leaves a server that does not answer.
	timeout time.Duration
	// forSession bounds how long a call waits for a session.
	forSession time.Duration
	// forServer bounds the dial and the first answer of a server.
	forServer time.Duration
}

var usual = limits{timeout: 4 * time.Second, forSession: 1500 * time.Millisecond, forServer: 900 * time.Millisecond}

// client makes a session with the ensemble when a call needs one. A session lasts as long as its connection. The ZooKeeper client could
// go on with it at another server, but only wake-ups depend on it: they get lost, and their owners look for themselves.
type client struct {
	servers []string
	auth    []byte // user:password; nil without
	dial    dialFunc
	limits

	mu      sync.Mutex
	closed  bool
	session *session
}

type dialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

// call runs f beside the caller, because the ZooKeeper client takes no context. f may go
// on after the context's end.
func call[T any](ctx context.Context, c *client, f func(*zk.Conn) (T, error)) (T, error) {
	s, err := c.ready(ctx)
	if err != nil {
		var none T
		return none, fmt.Errorf("%w: %w", lockstore.ErrUnavailable, err)
	}
	value, err := beside.Do(ctx, func() (T, error) { return f(s.conn) })
	return value, explain(err)
}

// ready returns a session that can send a request at once.
func (c *client) ready(ctx context.Context) (*session, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s, err := c.present()
	if err != nil {
		return nil, err
	}
	select {
	case <-s.ready:
		return s, nil
	case <-s.over.Done():
		err = errors.New("no server can be reached")
	case <-time.After(c.forSession):
		err = fmt.Errorf("no session within %v", c.forSession)
	case <-ctx.Done():
		err = ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failure != nil {
		return nil, fmt.Errorf("%w: %w", err, s.failure)
	}
	return nil, err
}

// present is the session, or a new one.
func (c *client) present() (*session, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errors.New("the store is closed")
	}
	if c.session != nil && c.session.stale() {
		c.session.end()
	}
	if c.session == nil || c.session.over.Err() != nil {
		s, err := c.connect()
		if err != nil {
			return nil, err
		}
		c.session = s
	}
	return c.session, nil
}

func (c *client) connect() (*session, error) {
	s := &session{client: c, ready: make(chan struct{})}
	s.over, s.end = context.WithCancel(context.Background())
	context.AfterFunc(s.over, s.close)
	s.mu.Lock() // the ZooKeeper client calls s before it returns
	defer s.mu.Unlock()
	conn, _, err := zk.Connect(c.servers, c.timeout, zk.WithDialer(s.connectTo), zk.WithHostProvider(&hosts{session: s}),
		zk.WithEventCallback(s.notice), zk.WithLogger(log.New(io.Discard, "", 0)), zk.WithLogInfo(false), zk.WithMaxBufferSize(maxPacket))
	s.conn = conn
	return s, err
}

// Close implements io.Closer of kv, see New.
func (c *client) Close() error {
	c.mu.Lock()
	s := c.session
	c.closed, c.session = true, nil
	c.mu.Unlock()
	if s != nil {
		s.end()
		s.close()
	}
	return nil
}

// session is a ZooKeeper client until its connection ends, and what is known about the connection.
type session struct {
	client  *client
	heard   atomic.Int64  // when the server sent something last, in nanoseconds since 1970
	granted atomic.Int64  // the timeout of the session, as the server answered, in nanoseconds
	ready   chan struct{} // closed when it can send requests
	begun   bool          // only for notice
	// over has ended when the connection has ended, or when there is none with any server. Then the next call makes another session.
	over context.Context
	end  context.CancelFunc

	mu      sync.Mutex
	conn    *zk.Conn
	network net.Conn
	failure error // of the last attempt to connect
}

// stale reports whether the process was frozen for so long that the connection is dead.
// The ZooKeeper client finds that out by its timer, and timers stand still while Lambda freezes the
// process. The wall clock does not.
func (s *session) stale() bool {
	heard := s.heard.Load()
	// The server's timeout may be longer than asked. The client then sends pings less often.
	lasts := max(s.client.timeout, time.Duration(s.granted.Load()))
	return heard != 0 && time.Since(time.Unix(0, heard)) > lasts
}

// notice is called by the ZooKeeper client for each event.
func (s *session) notice(e zk.Event) {
	switch {
	case e.Type != zk.EventSession || s.over.Err() != nil:
	case e.State == zk.StateHasSession:
		s.begun = true
		go s.authenticate()
	case e.State == zk.StateDisconnected && s.begun: // otherwise it goes on to the next server
		s.end()
	}
}

// authenticate sends the credentials, if there are some, before any request.
func (s *session) authenticate() {
	s.mu.Lock()
	conn := s.conn
	s.mu.Unlock()
	if s.client.auth != nil {
		if err := conn.AddAuth("digest", s.client.auth); err != nil {
			s.failed("the credentials: %v", err)
			s.end()
			return
		}
	}
	close(s.ready)
}

// failed notes why there is no session. The error matches no other error: the end of a
// dial, for example, is not the end of a caller's context.
func (s *session) failed(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failure = fmt.Errorf(format, args...)
}

// connectTo is the ZooKeeper client's dialer. The client allows a server ten times its
// session timeout for the first answer.
func (s *session) connectTo(network, addr string, _ time.Duration) (net.Conn, error) {
	if s.over.Err() != nil {
		return nil, zk.ErrClosing
	}
	ctx, cancel := context.WithTimeout(s.over, s.client.forServer)
	defer cancel()
	made, err := s.client.dial(ctx, network, addr)
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("no connection within %v", s.client.forServer)
		}
		s.failed("%s: %v", addr, err)
		return nil, err
	}
	end, _ := ctx.Deadline()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.network = made
	return &greeted{Conn: made, session: s, end: end}, nil
}

// close ends the session at the server, if the server answers, and the connection.
func (s *session) close() {
	s.mu.Lock()
	conn := s.conn
	s.mu.Unlock()
	conn.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.network != nil {
		_ = s.network.Close() // it may be closed
	}
}

// greeted is a connection whose server has to answer the first packet until end, with a
// packet as ZooKeeper sends it. One goroutine reads.
type greeted struct {
	net.Conn
	session  *session
	end      time.Time
	greeting []byte
	over     bool
}

// maxGreeting is more than the length of the first answer, which is 37 bytes.
const maxGreeting = 256

func (c *greeted) SetReadDeadline(t time.Time) error {
	if !c.over {
		t = c.end
	}
	return c.Conn.SetReadDeadline(t)
}

func (c *greeted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.session.heard.Store(time.Now().UnixNano())
	}
	if c.over {
		return n, err
	}
	c.greeting = append(c.greeting, b[:n]...)
	if len(c.greeting) >= 4 {
		switch length := binary.BigEndian.Uint32(c.greeting); {
		case length > maxGreeting:
			n, err = 0, errors.New("it is not ZooKeeper's") // with n > 0 the client would make room for so many bytes
		case len(c.greeting) >= 4+int(length):
			if len(c.greeting) >= 12 { // length, version, timeout
				c.session.granted.Store(int64(binary.BigEndian.Uint32(c.greeting[8:])) * int64(time.Millisecond))
			}
			c.over, c.greeting = true, nil
			return n, err
		}
	}
	if err != nil {
		c.session.failed("%s, first answer: %v", c.RemoteAddr(), err)
	}
	return n, err
}

// hosts tells the ZooKeeper client to try each server once. The client's own list resolves names once.
type hosts struct {
	session *session
	servers []string // that are left
}

func (h *hosts) Init(servers []string) error {
	h.servers = servers
	return nil
}

func (h *hosts) Len() int { return len(h.servers) }

// Next implements zk.HostProvider. With pause the ZooKeeper client waits, until it is closed.
func (h *hosts) Next() (server string, pause bool) {
	if len(h.servers) == 0 {
		h.session.end()
		return "", true
	}
	server, h.servers = h.servers[0], h.servers[1:]
	return server, false
}

func (h *hosts) Connected() {}
