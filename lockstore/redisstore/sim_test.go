package redisstore

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/proto"
	resp "github.com/alicebob/miniredis/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/leasesim"
	"github.com/lambdalock/lambdalock/lockstore"
)

// TestSimulation is package leasesim with the real client and the real scripts, on miniredis. The server forgets its scripts
// now and then, and replies arrive byte by byte.
func TestSimulation(t *testing.T) {
	t.Parallel() // it computes while the tests on real servers wait
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
	w.T.Cleanup(n.server.Close)
	w.T.Cleanup(connections.Wait)
	return func(p *leasesim.Process) *lockstore.Store {
		client := dialerClient(w.T, "redis://127.0.0.1", func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			ctx, cancel := context.WithCancel(context.Background())
			connections.Go(func() { n.serve(ctx, p, theirs) })
			return byteByByte{ours, cancel, p.Latency > 0}, nil
		})
		w.T.Cleanup(func() { require.NoError(w.T, client.Close()) })
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
	way := resp.NewServerConn()
	defer way.Close()
	way.SetPreHook(func(c *resp.Peer, name string, args ...string) bool {
		command := append([]string{strings.ToLower(name)}, args...)
		reply, err := "", error(nil)
		if strings.HasPrefix(command[0], "eval") {
			if p.Chance(0.02, "scripts forgotten") {
				n.exchange("SCRIPT", "FLUSH")
			}
			reply, err = leasesim.Send(ctx, p, func() (reply string, again bool, err error) {
				reply = n.exchange(command...)
				_, answer, _ := strings.Cut(reply, "\r\n")
				_, refused := states[(answer + " ")[0]] // a refusal comes with the state of the key
				return reply, !refused, nil
			})
		} else {
			reply = n.exchange(command...)
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

// exchange sends a command to the server, over a connection of its own, and reads the reply.
func (n network) exchange(command ...string) string {
	conn, err := n.server.Dial()
	require.NoError(n.T, err)
	server := proto.NewClient(conn)
	defer server.Close()
	reply, err := server.Do(command...)
	require.NoError(n.T, err)
	return reply
}
