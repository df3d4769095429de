package redisstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	resp "github.com/alicebob/miniredis/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/leasesim"
	"github.com/lambdalock/lambdalock/lockstore"
)

// TestSimulation is package leasesim with the real client and the real scripts, on miniredis. The server forgets its scripts
// now and then, and replies arrive byte by byte.
func TestSimulation(t *testing.T) {
	leasesim.Sim{
		Part:  leasesim.Part{Name: "simulated guards over miniredis, whose connections are reset (F30)", Few: 4, Full: 100, Must: []string{"scripts forgotten"}},
		Open:  openNetwork,
		Slack: 2 * time.Second, Delay: time.Second, Forget: true, // the client repeats requests by itself
	}.Run(t)
}

// network is the server of one world, and the way to it.
type network struct {
	*leasesim.World
	server *miniredis.Miniredis
}

func openNetwork(w *leasesim.World) func(*leasesim.Process) *lockstore.Store {
	n := network{w, miniredis.NewMiniRedis()}
	var connections sync.WaitGroup
	w.AtEnd(n.server.Close)
	w.AtEnd(connections.Wait)
	return func(p *leasesim.Process) *lockstore.Store {
		client := dialerClient(w.T, "redis://127.0.0.1", func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			ctx, cancel := context.WithCancel(context.Background())
			connections.Go(func() { n.serve(ctx, p, theirs) })
			return byteByByte{ours, cancel, p.Latency > 0}, nil
		})
		w.AtEnd(func() { require.NoError(w.T, client.Close()) })
		s, err := New(client, Options{})
		require.NoError(w.T, err)
		return s
	}
}

// byteByByte is a connection whose replies arrive byte by byte.
type byteByByte struct {
	net.Conn
	closed context.CancelFunc
	slowly bool // the judge asks often
}

func (s byteByByte) Read(b []byte) (int, error) {
	if s.slowly {
		b = b[:1]
	}
	return s.Conn.Read(b)
}

func (s byteByByte) Close() error {
	s.closed()
	return s.Conn.Close()
}

// serve is one connection. What has arrived from the client reaches the server, even if the
// client does not wait any more.
func (n network) serve(ctx context.Context, p *leasesim.Process, client net.Conn) {
	server, err := n.server.Dial()
	require.NoError(n.T, err)
	defer server.Close()
	way := resp.NewServerConn()
	defer way.Close()
	way.SetPreHook(func(c *resp.Peer, name string, args ...string) bool {
		command := append([]string{strings.ToLower(name)}, args...)
		reply, err := "", error(nil)
		if strings.HasPrefix(command[0], "eval") {
			if p.Chance(0.02, "scripts forgotten") {
				n.exchange(server, []string{"SCRIPT", "FLUSH"})
			}
			reply, err = leasesim.Send(ctx, p, func() (string, bool, error) { return n.script(command) })
		} else {
			reply = n.exchange(server, command)
		}
		if errors.Is(err, leasesim.ErrDown) {
			reply, err = "-LOADING Redis is loading the dataset in memory\r\n", nil
		}
		if err != nil || reply == "" {
			c.Close()
		} else {
			c.WriteRaw(reply)
		}
		return true
	})
	way.ServeConn(client)
	<-ctx.Done() // the client has closed it
}

// script runs a script. A refusal comes with the state of the key.
func (n network) script(command []string) (reply string, again bool, err error) {
	server, err := n.server.Dial()
	require.NoError(n.T, err)
	defer server.Close()
	reply = n.exchange(server, command)
	_, answer, _ := strings.Cut(reply, "\r\n")
	_, refused := states[(answer + " ")[0]]
	return reply, !refused, nil
}

// exchange sends a command and reads the reply, which the server writes at once.
func (n network) exchange(server net.Conn, command []string) string {
	text := fmt.Sprintf("*%d\r\n", len(command))
	for _, word := range command {
		text += fmt.Sprintf("$%d\r\n%s\r\n", len(word), word)
	}
	_, err := io.WriteString(server, text)
	require.NoError(n.T, err)
	reply := make([]byte, 1<<16)
	size, err := server.Read(reply)
	require.NoError(n.T, err)
	return string(reply[:size])
}
