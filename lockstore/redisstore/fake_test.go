package redisstore

import (
	"fmt"
	"strings"
	"testing"

	resp "github.com/alicebob/miniredis/v2/server"
	"github.com/stretchr/testify/require"
)

// fakeServer is a server with the answers of a test: answer gets the words of a command and
// returns the raw reply; "" ends the connection.
func fakeServer(t testing.TB, answer func(command []string) string) (addr string) {
	s, err := resp.NewServer("127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(s.Close)
	s.SetPreHook(func(c *resp.Peer, name string, args ...string) bool {
		if name == "HELLO" {
			return false // it is refused, and the client goes on without it
		}
		reply := ""
		if !c.Closed() { // or this was sent with a command that ended the connection
			reply = answer(append([]string{strings.ToLower(name)}, args...))
		}
		if reply == "" {
			c.Close()
		}
		c.WriteRaw(reply)
		return true
	})
	return s.Addr().String()
}

// fakeCluster is the URL of a fakeServer that has all slots of a cluster. SELF in an answer is its address.
func fakeCluster(t testing.TB, answer func(command []string) string) (url string) {
	var addr string
	addr = fakeServer(t, func(command []string) string {
		if strings.EqualFold(strings.Join(command, " "), "cluster slots") {
			host, port, _ := strings.Cut(addr, ":")
			return fmt.Sprintf("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$%d\r\n%s\r\n:%s\r\n", len(host), host, port)
		}
		return strings.ReplaceAll(answer(command), "SELF", addr)
	})
	return "redis://" + addr + "?cluster=true"
}
