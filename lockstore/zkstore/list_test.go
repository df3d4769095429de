package zkstore

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"testing"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
)

// listed is a listing, and its pages.
func listed(t *testing.T, s opened, prefix string) (keys []string, pages []lockstore.Page) {
	t.Helper()
	require.NoError(t, s.List(t.Context(), prefix, func(p lockstore.Page) error {
		pages = append(pages, p)
		for _, status := range p.Keys {
			keys = append(keys, status.Key)
		}
		return nil
	}))
	return keys, pages
}

func testList(t *testing.T, addr string) {
	conn := openTable(t, addr).Conn
	// open makes a store with nodes of its own.
	open := func(t *testing.T) (opened, table) {
		prefix := "/" + rand.Text()
		return openStore(t, "zookeeper://"+addr+prefix), table{conn, paths{prefix}}
	}

	t.Run("before the first use", func(t *testing.T) {
		s, nodes := open(t)
		extent, err := s.Extent(t.Context())
		require.NoError(t, err)
		require.Zero(t, extent)
		there, _, err := nodes.Exists(nodes.prefix)
		require.NoError(t, err)
		require.False(t, there, "Extent makes no node")
		_, pages := listed(t, s, "")
		require.Equal(t, []lockstore.Page{{Keys: []lockstore.Status{}, Requests: 1}}, pages)
	})

	t.Run("names", func(t *testing.T) {
		s, nodes := open(t)
		all := []string{".", "..", "%2E", "a/b", "a%2Fb", "a", "/", "%", " ", "a b", "ü", "日本", "a/", strings.Repeat("ö", 512)}
		for _, key := range all {
			acquire(t, s, key)
		}
		keys, _ := listed(t, s, "")
		require.ElementsMatch(t, all, keys)
		keys, _ = listed(t, s, "a%2F")
		require.Equal(t, []string{"a%2Fb"}, keys)
		// Names that the store would not give to a key, two of them for a key that has a node.
		for _, name := range []string{"a%2fb", "a b", "%zz", "%ff", "%00"} {
			_, err := nodes.Create(nodes.locks()+"/"+name, nil, 0, zk.WorldACL(zk.PermAll))
			require.NoError(t, err)
		}
		keys, pages := listed(t, s, "")
		require.ElementsMatch(t, all, keys, "each key once")
		require.ElementsMatch(t, []string{"a%2fb", "a b", "%zz", "%ff", "%00"}, pages[0].DamagedNames)
		pages[0].DamagedNames = nil
		require.Equal(t, lockstore.Page{Keys: []lockstore.Status{}, Damaged: 5, Requests: 1}, pages[0])
	})

	t.Run("pages", func(t *testing.T) {
		s, nodes := open(t)
		const n = 2*pageKeys + 3
		for i := range n {
			acquire(t, s, fmt.Sprint("many/", i))
		}
		acquire(t, s, "other")
		_, free := acquire(t, s, "free")
		require.NoError(t, s.Release(t.Context(), free))
		nodes.put(t, "foreign", []byte("hello"))
		keys, pages := listed(t, s, "many/")
		require.Len(t, keys, n)
		require.Len(t, pages, 4)
		for i, p := range pages {
			require.Len(t, p.Keys, []int{0, pageKeys, pageKeys, 3}[i])
		}
		extent, err := s.Extent(t.Context())
		require.NoError(t, err)
		require.Equal(t, lockstore.Extent{Entries: n + 3}, extent)
		_, pages = listed(t, s, "f")
		require.Len(t, pages, 2)
		require.Equal(t, 1, pages[1].Damaged)
		require.Equal(t, []string{"foreign"}, pages[1].DamagedNames)
		require.Equal(t, []lockstore.Status{{Key: "free", Fence: free.Fence}}, pages[1].Keys)

		// Nobody waits for the end of a listing that was stopped.
		ctx, cancel := context.WithCancel(t.Context())
		require.ErrorIs(t, s.List(ctx, "", func(lockstore.Page) error { cancel(); return nil }), context.Canceled)

		// Keys that are deleted after the names were read are not listed.
		calls := 0
		require.NoError(t, s.List(t.Context(), "many/", func(p lockstore.Page) error {
			if calls++; calls == 1 {
				for i := range n - 1 {
					nodes.SetValue(t, fmt.Sprint("many/", i), nil)
				}
			}
			for _, status := range p.Keys {
				require.Equal(t, fmt.Sprint("many/", n-1), status.Key)
			}
			return nil
		}))
		require.Equal(t, 4, calls)
	})

	t.Run("F46 the session ends between two pages", func(t *testing.T) {
		s, _ := open(t)
		acquire(t, s, "a")
		before := s.kv.session
		require.NoError(t, s.List(t.Context(), "", func(p lockstore.Page) error {
			if len(p.Keys) == 0 {
				s.kv.session.heard.Store(1)
				return nil
			}
			require.Len(t, p.Keys, 1)
			return nil
		}))
		require.False(t, before == s.kv.session)
	})

	// A lock that the user may not read is no reason to say that nobody holds it.
	t.Run("a node of another user's", func(t *testing.T) {
		s, nodes := open(t)
		acquire(t, s, "mine")
		acquire(t, openAs(t, "zookeeper://"+addr+nodes.prefix, "another:password"), "theirs")
		err := s.List(t.Context(), "", func(p lockstore.Page) error {
			require.Empty(t, p.Keys)
			return nil
		})
		require.ErrorIs(t, err, lockstore.ErrUnavailable)
		require.ErrorContains(t, err, `"theirs"`)
		require.ErrorContains(t, err, authVariable)
		keys, _ := listed(t, s, "mine")
		require.Equal(t, []string{"mine"}, keys)
	})
}
