package testservers

import (
	"bytes"
	"net"
	"slices"
	"sync"
	"testing"
)

// CutProxy is a proxy between a client and a server. A test tells it to break connections.
type CutProxy struct {
	Addr string // where clients connect

	target func() string
	mu     sync.Mutex
	mode   mode
	match  [][]byte
	cuts   int
	conns  map[net.Conn]struct{}
}

type mode int

const (
	forward mode = iota
	cutReplies
	cutRequests
	swallow
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

// Forward forwards everything from now on.
func (p *CutProxy) Forward() { p.set(forward) }

// CutReplies forwards a request that contains one of the texts, waits for the server's reply, and
// then closes the connection. So the request was applied and its reply is lost.
func (p *CutProxy) CutReplies(match ...string) { p.set(cutReplies, match...) }

// CutRequests closes the connection when a request contains one of the texts. The server does not get
// the request.
func (p *CutProxy) CutRequests(match ...string) { p.set(cutRequests, match...) }

// Swallow forwards nothing and keeps the connections open, like a network that drops all
// packets.
func (p *CutProxy) Swallow() { p.set(swallow) }

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

func (p *CutProxy) set(m mode, match ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mode, p.match, p.cuts = m, nil, 0
	for _, text := range match {
		p.match = append(p.match, bytes.ToLower([]byte(text)))
	}
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
			if p.current() == swallow {
				continue
			}
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
		m := p.arrived(b[:n])
		if m == swallow {
			continue
		}
		if m == cutRequests {
			break
		}
		if m == cutReplies {
			once.Do(func() { close(cut) })
		}
		if _, err := server.Write(b[:n]); err != nil {
			break
		}
	}
	client.Close()
	server.Close()
	wg.Wait()
}

func (p *CutProxy) current() mode {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mode
}

// arrived returns what to do with a request.
func (p *CutProxy) arrived(request []byte) mode {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mode == swallow {
		return swallow
	}
	lower := bytes.ToLower(request)
	if p.mode == forward || !slices.ContainsFunc(p.match, func(text []byte) bool { return bytes.Contains(lower, text) }) {
		return forward
	}
	p.cuts++
	return p.mode
}
