package redisstore

import (
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
)

// The client of a cluster sends a request again when the reply is lost. Other owners have
// had the key meanwhile, so the entry does not know the lease any more. ErrLost would say
// that the lease was lost before the release.
func TestReleaseRepeatedByTheClient(t *testing.T) {
	for _, c := range []struct {
		name    string
		answers []string // to the scripts
		lost    bool
	}{
		{"F25 repeated", []string{"", "$1\r\nL\r\n"}, false},
		{"F25 repeated at a server that has restarted", []string{"", "-NOSCRIPT No matching script.\r\n", "$1\r\nL\r\n"}, false},
		{"F25 redirected at first", []string{"-ASK 1 SELF\r\n", "$1\r\nL\r\n"}, true},
		{"F25 not repeated", []string{"$1\r\nL\r\n"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var addr string
			var mu sync.Mutex // the client uses another connection for each attempt
			answers := c.answers
			addr = fakeServer(t, func(command []string) string {
				mu.Lock()
				defer mu.Unlock()
				host, port, _ := strings.Cut(addr, ":")
				switch strings.ToLower(command[0]) {
				case "cluster":
					return "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n" + host + "\r\n:" + port + "\r\n"
				case "evalsha", "eval":
					answer := strings.Replace(answers[0], "SELF", addr, 1)
					answers = answers[1:]
					return answer
				}
				return "+OK\r\n"
			})
			s := openStore(t, "redis://"+addr+"?cluster=true")
			err := s.Release(t.Context(), lockstore.Lease{Key: "k", Owner: lockstore.NewOwner(), Fence: 7})
			mu.Lock()
			require.Empty(t, answers)
			mu.Unlock()
			if c.lost {
				require.ErrorIs(t, err, lockstore.ErrLost)
			} else {
				requireUnknown(t, err)
			}
		})
	}
}
