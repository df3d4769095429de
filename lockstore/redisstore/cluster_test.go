package redisstore

import (
	"strings"
	"sync/atomic"
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
			var sent atomic.Int32
			s := openStore(t, fakeCluster(t, func(command []string) string {
				if strings.EqualFold(command[0], "asking") {
					return "+OK\r\n"
				}
				return c.answers[sent.Add(1)-1]
			}))
			err := s.Release(t.Context(), lockstore.Lease{Key: "k", Owner: lockstore.NewOwner(), Fence: 7})
			require.EqualValues(t, len(c.answers), sent.Load())
			if c.lost {
				require.ErrorIs(t, err, lockstore.ErrLost)
			} else {
				requireUnknown(t, err)
			}
		})
	}
}
