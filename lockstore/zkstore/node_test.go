package zkstore

import (
	"strings"
	"testing"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
)

// What names other keys have, the suites say on servers: no two of them have one node, and ZooKeeper takes each.
func TestNames(t *testing.T) {
	p := paths{"/p"}
	require.Equal(t, "/p/locks/account%2F7", p.lock("account/7"))
	require.NotContains(t, p.waiter("key", "OWNER"), "OWNER", "names of nodes are in the server's log")
	require.NotEqual(t, p.waiter("key", "a"), p.waiter("key", "b"))
	require.NotEqual(t, p.waiter("key", "a"), p.waiter("kez", "a"), "an owner waits for several keys")
	require.Equal(t, []string{"/a", "/a/b", "/a/b/locks", "/a/b/waiters", "/a/b/clock"}, paths{"/a/b"}.above())
}

func TestVersions(t *testing.T) {
	birth := newBirth()
	require.True(t, isBirth(birth))
	for _, count := range []int32{0, 1, 1<<31 - 1, -1 << 31, -2} {
		v, err := parseVersion(version{birth, count}.text())
		require.NoError(t, err)
		require.Equal(t, version{birth, count}, v)
	}
	for _, text := range []string{"", ".", birth, birth + ".", birth + ".x", birth + ".2147483648", "short.1", strings.ToLower(birth) + ".1"} {
		_, err := parseVersion(text)
		require.ErrorIs(t, err, lockstore.ErrInvalid, text)
	}
	// ZooKeeper would replace the node whatever its version is.
	_, err := parseVersion(version{birth, -1}.text())
	require.ErrorIs(t, err, lockstore.ErrCorrupt)
}

func FuzzDecode(f *testing.F) {
	birth := newBirth()
	for _, seed := range []string{"", " ", "hello", birth, birth + " ", birth + " value", birth + "\x00value", strings.ToLower(birth) + " value", `{"owner":"me"}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := decode(data, &zk.Stat{Version: 7, Mtime: 1700000000123})
		if err != nil {
			require.ErrorIs(t, err, lockstore.ErrCorrupt)
			require.Empty(t, e.Version)
			return
		}
		v, err := parseVersion(e.Version)
		require.NoError(t, err)
		require.Equal(t, int32(7), v.count)
		require.Equal(t, data, encode(v.birth, e.Value))
		require.EqualValues(t, 1700000000123, e.WrittenAt.UnixMilli())
	})
}
