// Package faults breaks connections and servers in the ways that internal/testservers
// does not: slow, sliced and reset connections, a service that throttles, a primary
// that fails over, a key that moves to another node of a cluster.
package faults

import (
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Toxic is a proxy between clients and a server. Without a fault it forwards everything. (Toxiproxy 2.5 was here before: it
// waits for itself for ever if a client leaves while a sliced reply is on its way and the slices end.)
type Toxic struct {
	Addr string // where clients connect

	target string
	mu     sync.Mutex
	now    toxicity
	open   map[net.Conn]bool // nil when the proxy is closed
}

// toxicity is what happens to data that arrives.
type toxicity struct {
	requests, replies time.Duration // delays
	slice, reset      bool
}

// NewToxic starts a Toxic in front of target.
func NewToxic(t testing.TB, target string) *Toxic {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	x := &Toxic{Addr: l.Addr().String(), target: target, open: map[net.Conn]bool{}}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { x.serve(client) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		x.mu.Lock()
		all := x.open
		x.open = nil
		x.mu.Unlock()
		for c := range all {
			_ = c.Close()
		}
		serving.Wait()
	})
	return x
}

// Slow delays all replies by d.
func (x *Toxic) Slow(d time.Duration) { x.set(toxicity{replies: d}) }

// SlowRequests delays all requests by d, so that they are applied late.
func (x *Toxic) SlowRequests(d time.Duration) { x.set(toxicity{requests: d}) }

// Slice forwards a few bytes at a time, in both directions.
func (x *Toxic) Slice() { x.set(toxicity{slice: true}) }

// Reset ends each connection by a reset when the server's next reply arrives, and the reply is lost.
func (x *Toxic) Reset() { x.set(toxicity{reset: true}) }

// Heal ends the fault. What is delayed already comes late.
func (x *Toxic) Heal() { x.set(toxicity{}) }

func (x *Toxic) set(now toxicity) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.now = now
}

func (x *Toxic) toxicity() toxicity {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.now
}

// serve forwards between one client and the server until one of them ends.
func (x *Toxic) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", x.target)
	if err != nil {
		return
	}
	defer server.Close()
	x.mu.Lock()
	closed := x.open == nil
	if !closed {
		x.open[client], x.open[server] = true, true
	}
	x.mu.Unlock()
	if closed {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { x.forward(client, server, false) })
	both.Go(func() { x.forward(server, client, true) })
	both.Wait()
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.open, client)
	delete(x.open, server)
}

// forward passes data on in its order, and closes both connections at the end.
func (x *Toxic) forward(from, to net.Conn, replies bool) {
	defer from.Close()
	defer to.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		now := x.toxicity()
		if n > 0 && replies && now.reset {
			_ = from.(*net.TCPConn).SetLinger(0)
			_ = to.(*net.TCPConn).SetLinger(0)
			return
		}
		delay := now.requests
		if replies {
			delay = now.replies
		}
		if n > 0 {
			time.Sleep(delay)
		}
		if errors.Join(x.write(to, buffer[:n]), err) != nil {
			return
		}
	}
}

// write sends data whole, or two bytes at a time.
func (x *Toxic) write(to net.Conn, data []byte) error {
	for len(data) > 0 {
		n := len(data)
		if x.toxicity().slice {
			n = min(n, 2)
			time.Sleep(10 * time.Microsecond)
		}
		if _, err := to.Write(data[:n]); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}
