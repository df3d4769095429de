package testservers

import (
	"bytes"
	"net"
	"slices"
	"sync"
	"testing"
	"time"
)

// CutProxy is a proxy between a client and a server. A test tells it to break connections.
type CutProxy struct {
	Addr string // where clients connect

	target func() string
	mu     sync.Mutex
	now    fault
	cuts   int
	conns  map[net.Conn]struct{}
}

// fault is what happens to data that arrives.
type fault struct {
	mode
	match             [][]byte      // in which requests
	requests, replies time.Duration // delays
}

type mode int

const (
	forward mode = iota
	cutReplies
	cutRequests
	swallow
	reset
)

// Proxy starts a CutProxy in front of target. At first it forwards everything.
func Proxy(t testing.TB, target string) *CutProxy {
	t.Helper()
	return ProxyTo(t, func() string { return target })
}

// ProxyTo is Proxy for a target that changes. A connection stays where it has been made.
func ProxyTo(t testing.TB, target func() string) *CutProxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &CutProxy{Addr: l.Addr().String(), target: target, conns: map[net.Conn]struct{}{}}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return // closed by the cleanup
			}
			wg.Go(func() { p.serve(client) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		p.Disconnect()
		wg.Wait()
	})
	return p
}

// Forward forwards everything from now on. What is delayed already comes late.
func (p *CutProxy) Forward() { p.set(fault{}) }

// CutReplies forwards a request that contains one of the texts, waits for the server's reply, and
// then closes the connection. So the request was applied and its reply is lost.
func (p *CutProxy) CutReplies(match ...string) {
	p.set(fault{mode: cutReplies, match: lower(match)})
}

// CutRequests closes the connection when a request contains one of the texts. The server does not get
// the request.
func (p *CutProxy) CutRequests(match ...string) {
	p.set(fault{mode: cutRequests, match: lower(match)})
}

// Swallow forwards nothing and keeps the connections open, like a network that drops all
// packets.
func (p *CutProxy) Swallow() { p.set(fault{mode: swallow}) }

// Reset ends each connection by a reset when the server's next reply arrives, and the reply is lost.
func (p *CutProxy) Reset() { p.set(fault{mode: reset}) }

// Slow delays all requests and all replies, so that requests are applied late.
func (p *CutProxy) Slow(requests, replies time.Duration) {
	p.set(fault{requests: requests, replies: replies})
}

// Cuts returns how many connections were cut since the mode was set.
func (p *CutProxy) Cuts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cuts
}

// Disconnect closes all connections that are open.
func (p *CutProxy) Disconnect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
	}
}

func lower(match []string) (all [][]byte) {
	for _, text := range match {
		all = append(all, bytes.ToLower([]byte(text)))
	}
	return all
}

func (p *CutProxy) set(f fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now, p.cuts = f, 0
}

func (p *CutProxy) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", p.target())
	if err != nil {
		return
	}
	defer server.Close()
	p.mu.Lock()
	p.conns[client], p.conns[server] = struct{}{}, struct{}{}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.conns, client)
		delete(p.conns, server)
		p.mu.Unlock()
	}()

	cut := make(chan struct{}) // closed when the next reply is to be cut
	var once sync.Once
	var wg sync.WaitGroup
	wg.Go(func() {
		defer client.Close()
		for b := make([]byte, 64<<10); ; {
			n, err := server.Read(b)
			if err != nil {
				return
			}
			select {
			case <-cut:
				return
			default:
			}
			f := p.current()
			if f.mode == swallow {
				continue
			}
			if f.mode == reset {
				_ = client.(*net.TCPConn).SetLinger(0)
				return
			}
			time.Sleep(f.replies)
			if _, err := client.Write(b[:n]); err != nil {
				return
			}
		}
	})
	for b := make([]byte, 64<<10); ; {
		n, err := client.Read(b)
		if err != nil {
			break
		}
		f := p.arrived(b[:n])
		if f.mode == swallow {
			continue
		}
		if f.mode == cutRequests {
			break
		}
		if f.mode == cutReplies {
			once.Do(func() { close(cut) })
		}
		time.Sleep(f.requests)
		if _, err := server.Write(b[:n]); err != nil {
			break
		}
	}
	client.Close()
	server.Close()
	wg.Wait()
}

func (p *CutProxy) current() fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now
}

// arrived returns what to do with a request.
func (p *CutProxy) arrived(request []byte) fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.now
	if f.mode != cutReplies && f.mode != cutRequests {
		return f
	}
	text := bytes.ToLower(request)
	if !slices.ContainsFunc(f.match, func(match []byte) bool { return bytes.Contains(text, match) }) {
		return fault{}
	}
	p.cuts++
	return f
}
