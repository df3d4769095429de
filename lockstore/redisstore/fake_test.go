package redisstore

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// fakeServer is a server with the answers of a test: answer gets the words of a command and
// returns the raw reply; "" ends the connection.
func fakeServer(t testing.TB, answer func(command []string) string) (addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		conns []net.Conn
	)
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed by the cleanup
			}
			mu.Lock()
			conns = append(conns, conn)
			mu.Unlock()
			wg.Go(func() {
				defer conn.Close()
				for r := bufio.NewReader(conn); ; {
					command, err := readCommand(r)
					if err != nil {
						return
					}
					reply := "-ERR unknown command\r\n" // to HELLO; the client goes on without it
					if !strings.EqualFold(command[0], "hello") {
						reply = answer(command)
					}
					if reply == "" {
						return
					}
					if _, err := io.WriteString(conn, reply); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return l.Addr().String()
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

func readCommand(r *bufio.Reader) ([]string, error) {
	number := func() (int, error) {
		line, err := r.ReadString('\n')
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(strings.TrimSpace(line[1:]))
	}
	n, err := number()
	if err != nil {
		return nil, err
	}
	words := make([]string, n)
	for i := range words {
		size, err := number()
		if err != nil {
			return nil, err
		}
		word := make([]byte, size+2)
		if _, err := io.ReadFull(r, word); err != nil {
			return nil, err
		}
		words[i] = string(word[:size])
	}
	return words, nil
}
