package zkstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lambdalock/lambdalock/lockstore"
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

// client makes sessions with the ensemble. It connects when the first call needs it.
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
	var none T
	s, err := c.ready(ctx)
	if err != nil {
		return none, fmt.Errorf("%w: %w", lockstore.ErrUnavailable, err)
	}
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := f(s.conn)
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

// ready returns a session that can send a request at once.
func (c *client) ready(ctx context.Context) (*session, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, errors.New("the store is closed")
	}
	if c.session != nil && c.session.stale() {
		go c.session.close()
		c.session = nil
	}
	if c.session == nil {
		s, err := c.connect()
		if err != nil {
			c.mu.Unlock()
			return nil, err
		}
		c.session = s
	}
	s := c.session
	c.mu.Unlock()
	return s, s.await(ctx)
}

func (c *client) connect() (*session, error) {
	s := &session{dial: c.dial, limits: c.limits, changed: make(chan struct{}), ended: make(chan struct{}), authenticated: c.auth == nil}
	conn, _, err := zk.Connect(c.servers, c.timeout, zk.WithDialer(s.connectTo), zk.WithHostProvider(&s.hosts),
		zk.WithEventCallback(s.notice), zk.WithLogger(silent{}), zk.WithLogInfo(false), zk.WithMaxBufferSize(maxPacket))
	if err != nil {
		return nil, err
	}
	s.conn = conn
	if c.auth != nil {
		go s.authenticate(c.auth)
	}
	return s, nil
}

func (c *client) close() {
	c.mu.Lock()
	s := c.session
	c.closed, c.session = true, nil
	c.mu.Unlock()
	if s != nil {
		s.close()
	}
}

// session is a ZooKeeper client, and what is known about its connection. The client makes
// a new session by itself when the server has ended the old one.
type session struct {
	conn *zk.Conn
	dial dialFunc
	limits
	hosts   hosts
	heard   atomic.Int64 // when the server sent something last, in nanoseconds since 1970
	granted atomic.Int64 // the timeout of the session, as the server answered, in nanoseconds
	ended   chan struct{}

	mu            sync.Mutex
	network       net.Conn
	connected     bool
	authenticated bool
	failure       error         // of the last attempt to connect
	failures      int           // how often every server has failed
	changed       chan struct{} // closed and replaced when one of these changes
}

// stale reports whether the process was frozen for so long that the connection is dead.
// The client finds that out by its timer, and timers stand still while Lambda freezes the
// process. The wall clock does not.
func (s *session) stale() bool {
	heard := s.heard.Load()
	// The server's timeout may be longer than asked. The client then sends pings less often.
	lasts := max(s.timeout, time.Duration(s.granted.Load()))
	return heard != 0 && time.Since(time.Unix(0, heard)) > lasts
}

func (s *session) await(ctx context.Context) error {
	timer := time.NewTimer(s.forSession)
	defer timer.Stop()
	for before := -1; ; {
		s.mu.Lock()
		ready, changed, failure, failures := s.connected && s.authenticated, s.changed, s.failure, s.failures
		s.mu.Unlock()
		if before < 0 {
			before = failures
		}
		switch {
		case ready:
			return nil
		case failures > before:
			return fmt.Errorf("no server can be reached: %w", failure)
		}
		select {
		case <-changed:
		case <-timer.C:
			if failure != nil {
				return fmt.Errorf("no session within %v: %w", s.forSession, failure)
			}
			return fmt.Errorf("no session within %v", s.forSession)
		case <-ctx.Done():
			if failure != nil {
				return fmt.Errorf("%w: %w", ctx.Err(), failure)
			}
			return ctx.Err()
		}
	}
}

func (s *session) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.changed)
	s.changed = make(chan struct{})
}

// notice is called by the ZooKeeper client for each event.
func (s *session) notice(e zk.Event) {
	if e.Type != zk.EventSession {
		return
	}
	s.change(func() {
		s.connected = e.State == zk.StateHasSession
		switch e.State {
		case zk.StateExpired:
			s.hosts.reset()
			_ = s.network.Close() // the ZooKeeper client leaves it open
		case zk.StateConnecting:
			s.failures = s.hosts.failures()
		}
	})
}

// authenticate sends the credentials before any request. From then on the ZooKeeper
// client sends them on each new connection.
func (s *session) authenticate(auth []byte) {
	for {
		s.mu.Lock()
		connected, changed := s.connected, s.changed
		s.mu.Unlock()
		if connected {
			err := s.conn.AddAuth("digest", auth)
			if err == nil {
				s.change(func() { s.authenticated = true })
				return
			}
			s.failed("the credentials: %v", err)
		}
		select {
		case <-changed:
		case <-s.ended:
			return
		}
	}
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
	ctx, cancel := context.WithTimeout(context.Background(), s.forServer)
	defer cancel()
	made, err := s.dial(ctx, network, addr)
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("no connection within %v", s.forServer)
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
	close(s.ended)
	s.conn.Close()
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

// hosts tells the ZooKeeper client where to connect. The client's own list resolves names
// once, and it lets a second pass before each reconnect to a single server. This one lets
// a second pass when every server has failed, and when a connection lasted for less than
// a second.
type hosts struct {
	mu        sync.Mutex
	servers   []string
	next      int
	tried     int // since the last session
	failed    int // how often every server has
	connected time.Time
}

var _ zk.HostProvider = (*hosts)(nil)

// Init implements zk.HostProvider.
func (h *hosts) Init(servers []string) error {
	h.servers = servers
	return nil
}

// Len implements zk.HostProvider.
func (h *hosts) Len() int { return len(h.servers) }

// Next implements zk.HostProvider.
func (h *hosts) Next() (server string, pause bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	server = h.servers[h.next%len(h.servers)]
	pause = h.tried > 0 && h.tried%len(h.servers) == 0
	if pause {
		h.failed++
	}
	pause = pause || h.tried == 0 && time.Since(h.connected) < time.Second
	h.next++
	h.tried++
	return server, pause
}

// Connected implements zk.HostProvider.
func (h *hosts) Connected() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tried, h.connected = 0, time.Now()
}

// reset lets a server whose answer was that the session has expired be asked again.
func (h *hosts) reset() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tried, h.connected = 0, time.Time{}
	h.next--
}

func (h *hosts) failures() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failed
}

// silent drops what the ZooKeeper client logs. What matters is in the errors.
type silent struct{}

func (silent) Printf(string, ...any) {}
