package redisstore

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
)

// What List makes of a server's answers. SCAN returns a key twice when the server's table of keys grows or shrinks meanwhile.
func TestList(t *testing.T) {
	bulk := func(text string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(text), text) }
	const match = " match lambdalock:* count 1000 type string"
	s := openStore(t, "redis://"+fakeServer(t, func(command []string) string {
		switch strings.Join(command, " ") {
		case "scan 0" + match:
			return "*2\r\n" + bulk("5") + "*3\r\n" + bulk(DefaultPrefix+"a") + bulk(DefaultPrefix+"b") + bulk(DefaultPrefix+"damaged")
		case "scan 5" + match:
			return "*2\r\n" + bulk("0") + "*2\r\n" + bulk(DefaultPrefix+"b") + bulk(DefaultPrefix+"c")
		case "info":
			return bulk("role:master\r\n")
		case "dbsize":
			return ":4\r\n"
		}
		if command[3] == DefaultPrefix+"damaged" {
			return bulk("B")
		}
		return bulk("H7 5 0 0 0 \n")
	}))
	ctx, keys, damaged := t.Context(), []string{}, 0
	require.NoError(t, s.List(ctx, "", func(p lockstore.Page) error {
		for _, status := range p.Keys {
			keys = append(keys, status.Key)
			require.Equal(t, lockstore.Fence(7), status.Fence)
		}
		for _, name := range p.DamagedNames {
			require.Equal(t, DefaultPrefix+"damaged", name)
		}
		damaged += p.Damaged + len(p.DamagedNames)
		return nil
	}))
	require.Equal(t, []string{"a", "b", "c"}, keys)
	require.Equal(t, 2, damaged)
	stop := errors.New("stop")
	require.Equal(t, stop, s.List(ctx, "", func(lockstore.Page) error { return stop }))
	extent, err := s.Extent(ctx)
	require.NoError(t, err)
	require.Equal(t, int64(4), extent.Entries)

	s = openStore(t, "redis://"+closedPort)
	require.ErrorIs(t, failure(s.Extent(ctx)), lockstore.ErrUnavailable)
	require.ErrorIs(t, s.List(ctx, "", func(lockstore.Page) error { return nil }), lockstore.ErrUnavailable)
}

// finds wants Check to find these.
func finds(t *testing.T, url string, want ...string) {
	t.Helper()
	findings, err := openStore(t, url).Check(t.Context())
	require.NoError(t, err)
	require.Len(t, findings, len(want))
	for i, part := range want {
		require.Contains(t, findings[i].Problem+findings[i].Fix, part)
	}
}

// Check says what to change. A restart of a server that keeps nothing, and has no replica, loses all leases.
func TestCheck(t *testing.T) {
	onBoth(t, "F33 F50 check", func(t *testing.T, program string) {
		primary := testservers.Start(t, program, "--repl-diskless-sync-delay", "0").Addr
		finds(t, "redis://"+primary, "no append-only file and no replica")
		finds(t, "redis://"+testservers.Start(t, program, "--replicaof", strings.Replace(primary, ":", " ", 1), "--maxmemory-policy", "allkeys-lfu").Addr, "allkeys-lfu", "replica")
		admin := openClient(t, "redis://"+primary)
		require.Eventually(t, func() bool {
			return strings.Contains(admin.Info(t.Context(), "replication").Val(), "connected_slaves:1")
		}, time.Minute, 10*time.Millisecond)
		finds(t, "redis://"+primary)
		finds(t, "redis://"+testservers.Start(t, program, "--appendonly", "yes", "--cluster-enabled", "yes").Addr, "cluster=true")

		require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "locker", "on", ">pw", "~*", "+evalsha").Err())
		requireUnavailable(t, check(t.Context(), openStore(t, "redis://locker:pw@"+primary)), "NOPERM")
	})
	for version, old := range map[string]bool{"6.2.14": true, "7.0.0": false, "10.0.1": false, "": false} {
		require.Equal(t, old, len(findingsIn("redis_version:"+version+"\r\n", false)) == 1, version)
	}
}

// The users of deploy/cache.yaml may do what locking needs, and cannot stop the server.
func testUsersOfTheCache(t *testing.T, addrs []string) {
	template, err := os.ReadFile("../../deploy/cache.yaml")
	require.NoError(t, err)
	found := regexp.MustCompile(`(?m)^ *AccessString: (.*)$`).FindAllSubmatch(template, -1)
	require.Len(t, found, 2)
	for i, name := range []string{"locks", "operator"} {
		rights := []any{"ACL", "SETUSER", name, "reset", ">pw"}
		for _, rule := range strings.Fields(string(found[i][1])) {
			rights = append(rights, rule)
		}
		for _, addr := range addrs {
			require.NoError(t, openClient(t, "redis://"+addr).Do(t.Context(), rights...).Err())
		}
		s := openStore(t, "redis://"+name+":pw@"+addrs[0]+"?cluster=true")
		ctx := t.Context()
		for _, key := range []string{"a", "b", "c", "d", "e"} { // on different nodes
			lockUnlock(t, s, key)
			lease := acquire(t, s, key)
			waiting := queued(t, s, key)
			require.NoError(t, s.Release(ctx, lease))
			handed(t, s, waiting) // BLPOP is allowed
			require.NoError(t, s.Abandon(ctx, key, waiting.Owner))
		}
		for what, err := range everyRequest(ctx, s) {
			require.NotErrorIs(t, err, lockstore.ErrUnavailable, what)
		}
		for _, err := range []error{check(ctx, s), s.List(ctx, "", func(lockstore.Page) error { return nil }), failure(s.Extent(ctx))} {
			if name == "operator" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, "NOPERM")
			}
		}
		for _, command := range [][]any{{"CLIENT", "PAUSE", "1"}, {"CLIENT", "KILL", "TYPE", "normal"}, {"CLIENT", "LIST"}, {"FLUSHALL"}, {"GET", "other"}} {
			require.ErrorContains(t, driverOf(s).client.Do(ctx, command...).Err(), "NOPERM", command)
		}
	}
}

// A user with the rights that the package's comment names, for a URL with a database. Users of a cluster are above.
func TestDocumentedRights(t *testing.T) {
	source, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	_, table, _ := strings.Cut(string(source), "# Permissions")
	table, _, _ = strings.Cut(table, "\n// #")
	rights := []any{"ACL", "SETUSER", "documented", "on", ">pw", "~" + DefaultPrefix + "*"}
	for _, row := range regexp.MustCompile(`(?m)^//\t([A-Z, ]+)  `).FindAllStringSubmatch(table, -1) {
		for name := range strings.SplitSeq(strings.TrimSpace(row[1]), ", ") {
			rights = append(rights, "+"+strings.ReplaceAll(strings.ToLower(name), " ", "|"))
		}
	}
	ctx, addr := t.Context(), testservers.Redis(t)
	require.NoError(t, openClient(t, "redis://"+addr).Do(ctx, rights...).Err())
	s := openStore(t, "redis://documented:pw@"+addr+"/1")
	lockUnlock(t, s, "k")
	for what, err := range everyRequest(ctx, s) {
		require.NotErrorIs(t, err, lockstore.ErrUnavailable, what)
	}
	require.NoError(t, check(ctx, s))
	require.NoError(t, s.List(ctx, "", func(lockstore.Page) error { return nil }))
	require.NoError(t, failure(s.Extent(ctx)))
}

// The list of an owner, and beside it the string of its address, are in the slot of their key, wherever its name has braces.
func testSlots(t *testing.T, url string) {
	client := openClient(t, url)
	slot := func(name string) int64 { return client.ClusterKeySlot(t.Context(), name).Val() }
	for _, prefix := range []string{DefaultPrefix, "{p}:", "p{:"} {
		s, err := New(client, Options{Prefix: prefix})
		require.NoError(t, err)
		d := driverOf(s)
		require.Equal(t, prefix != "p{:", d.together("a"))
		require.NotEqual(t, d.list("a", "owner"), d.list("{"+prefix+"a}", "owner"), "each key has lists of its own")
		for _, key := range []string{"a", "a/b", "{a}", "{a}b", "a{b}c", "{a", "a}", "a}b{c}", "a{}", "{}", "{}a", "}{", "a{{b}}", "é"} {
			list := d.list(key, "OWNEROWNEROWNER")
			require.True(t, strings.HasPrefix(list, prefix), "the rights of a user are those for the prefix")
			require.NotContains(t, list, "OWNER")
			if d.together(key) {
				require.Equal(t, []int64{slot(prefix + key), slot(prefix + key)}, []int64{slot(list), slot(list + addressEnd)}, list)
			}
		}
	}
}

// The string of an address is not listed, goes by itself, and is not mistaken for what another program has written.
func testAddress(t *testing.T, url string) {
	ctx := t.Context()
	s, admin := openStore(t, url), openClient(t, url)
	d := driverOf(s)
	const key, owner = "a", "OWNEROWNEROWNER"
	name := d.list(key, owner) + addressEnd
	require.NoError(t, d.PutAddress(ctx, key, owner, driver.HiddenBytes("token"), time.Hour))
	require.InDelta(t, time.Hour, admin.PTTL(ctx, name).Val(), float64(time.Minute))
	require.NoError(t, s.List(ctx, "", func(p lockstore.Page) error {
		require.Empty(t, p.Keys)
		require.Zero(t, p.Damaged)
		return nil
	}))
	address, err := d.TakeAddress(ctx, key, owner)
	require.NoError(t, err)
	require.Equal(t, "token", string(address))
	require.Zero(t, admin.Exists(ctx, name).Val())

	for _, write := range []func() error{
		func() error { return admin.Set(ctx, name, "foreign", 0).Err() },
		func() error { return admin.RPush(ctx, name, "foreign").Err() },
	} {
		require.NoError(t, admin.Del(ctx, name).Err())
		require.NoError(t, write())
		before := admin.Dump(ctx, name).Val()
		require.ErrorIs(t, d.PutAddress(ctx, key, owner, driver.HiddenBytes("token"), time.Hour), lockstore.ErrCorrupt)
		require.ErrorIs(t, failure(d.TakeAddress(ctx, key, owner)), lockstore.ErrCorrupt)
		require.Equal(t, before, admin.Dump(ctx, name).Val())
	}
	require.NoError(t, admin.Del(ctx, name).Err())
}
