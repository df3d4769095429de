package zkstore

import (
	"context"
	"errors"
	"io"
	"log"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/leasesim"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore/castest"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

// TestOneServer is what needs no faults of a server. The tests share it, because to start a
// server takes longer than most of them. They have keys or prefixes of their own.
func TestOneServer(t *testing.T) {
	t.Parallel()
	addr := testservers.ZooKeeper(t).Addr
	for name, test := range map[string]func(t *testing.T, addr string){
		"session": testSession, "lost reply": testLostReply, "closed store": testClosedStore,
		"credentials": testCredentials, "two users below a node": testTwoUsersBelowANode,
		"node without its child": testNodeWithoutItsChild, "list": testList,
		"wake-up": testWakeUp, "no node of a waiter is left over": testNoNodeOfAWaiterIsLeftOver,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, addr)
		})
	}
}

// TestEnsemble needs an ensemble of three. Its faults come last.
func TestEnsemble(t *testing.T) {
	t.Parallel()
	e := testservers.ZooKeeperEnsemble(t)
	t.Run("conformance", func(t *testing.T) { conformance(t, e.Addrs()) })
	testMajority(t, e)
}

// conformance runs the suites on an ensemble, where reads may be old. Each case has its own session and its own
// keys.
func conformance(t *testing.T, addrs string) {
	nodes := openTable(t, addrs)
	castest.Run(t, func(t *testing.T) (casstore.KV, castest.Table) {
		net := openNetwork(t, addrs)
		s := openStore(t, "zookeeper://"+net.addrs())
		return s.kv, wire{nodes, net, s}
	}, storetest.Parallel)
	storetest.Run(t, func(t *testing.T) storetest.Harness { return harness(t, addrs, nodes) }, storetest.Parallel)
}

// TestRuleBook compares the store with the rule book by random requests to a real server.
func TestRuleBook(t *testing.T) {
	leasesim.RuleBookOnServers(t, "random requests to ZooKeeper and to the rule book", 1000, map[string]func(*testing.T) storetest.Harness{
		"ZooKeeper": func(t *testing.T) storetest.Harness {
			addr := testservers.ZooKeeper(t).Addr
			return harness(t, addr, openTable(t, addr))
		},
	})
}

func harness(t *testing.T, addrs string, nodes table) storetest.Harness {
	net := openNetwork(t, addrs)
	s := openStore(t, "zookeeper://"+net.addrs())
	h := castest.Harness(t, s.kv, casstore.Options{Name: "zkstore", MaxClockSkew: defaultMaxClockSkew}, nodes)
	h.Sequences, h.Corrupt = 4, nil           // package casstore and make verify compare more, and casstore finds what is damaged
	h.TakeoverDelay += 400 * time.Millisecond // a busy machine: a process knows the time of its last reply
	h.Unreachable = func(t *testing.T) *lockstore.Store { return openStore(t, "zookeeper://"+closedPort).Store }
	for what, data := range map[string]string{"empty": "", "text": "hello", "a birth alone": newBirth(), "no birth": strings.ToLower(newBirth()) + " x"} {
		h.Foreign["a node with "+what] = func(t *testing.T, key string) { nodes.put(t, key, []byte(data)) }
	}
	// Writes only: their data begin with the entry's mark.
	h.LoseReplies = func(t *testing.T) func() {
		return net.during(t, s, func(p *testservers.CutProxy) { p.CutReplies(entryMark) })
	}
	h.Hang = func(t *testing.T) func() { return net.during(t, s, (*testservers.CutProxy).Swallow) }
	h.Dump = func(t *testing.T, key string) string { return string(nodes.data(t, key)) }
	return h
}

const entryMark = "lambdalock2 "

// network is a proxy in front of each server.
type network []*testservers.CutProxy

func openNetwork(t testing.TB, addrs string) (n network) {
	for _, addr := range strings.Split(addrs, ",") {
		n = append(n, testservers.Proxy(t, addr))
	}
	return n
}

func (n network) addrs() string {
	var addrs []string
	for _, p := range n {
		addrs = append(addrs, p.Addr)
	}
	return strings.Join(addrs, ",")
}

// during does something to every proxy, and returns how to end it.
func (n network) during(t *testing.T, s opened, set func(*testservers.CutProxy)) (restore func()) {
	for _, p := range n {
		set(p)
	}
	return func() {
		for _, p := range n {
			p.Forward()
			p.Disconnect()
		}
		repeat(t, func(ctx context.Context) error {
			_, err := s.Inspect(ctx, "reconnected")
			return err
		})
	}
}

// wire is a table that can break the network.
type wire struct {
	table
	network
	store opened
}

// LoseReplies implements castest.Wire.
func (w wire) LoseReplies(t *testing.T) func() {
	return w.during(t, w.store, func(p *testservers.CutProxy) { p.CutReplies("") })
}

// Hang implements castest.Wire.
func (w wire) Hang(t *testing.T) func() {
	return w.during(t, w.store, (*testservers.CutProxy).Swallow)
}

// Unreachable implements castest.Wire.
func (w wire) Unreachable(t *testing.T) casstore.KV {
	return openStore(t, "zookeeper://"+closedPort).kv
}

// table changes nodes as an operator does.
type table struct {
	*zk.Conn
	paths
}

func openTable(t testing.TB, addrs string) table {
	conn, _, err := zk.Connect(strings.Split(addrs, ","), time.Minute, zk.WithLogger(log.New(io.Discard, "", 0)))
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	return table{conn, paths{DefaultPrefix}}
}

// Value implements castest.Table.
func (n table) Value(t *testing.T, key string) []byte {
	if data := n.data(t, key); data != nil {
		return data[birthLength+1:]
	}
	return nil
}

// data is what a node has; nil for no node. Another session may have written it just now.
func (n table) data(t *testing.T, key string) []byte {
	_, err := n.Sync(n.lock(key))
	require.NoError(t, err)
	data, _, err := n.Get(n.lock(key))
	if !errors.Is(err, zk.ErrNoNode) {
		require.NoError(t, err)
	}
	return data
}

// SetValue implements castest.Table.
func (n table) SetValue(t *testing.T, key string, value []byte) {
	if n.data(t, key) != nil && value == nil {
		n.deleteBirth(t, key)
		require.NoError(t, n.Delete(n.lock(key), anyVersion))
	}
	if value == nil {
		return
	}
	data, stat, err := n.Get(n.lock(key))
	if errors.Is(err, zk.ErrNoNode) {
		birth := newBirth()
		n.put(t, key, encode(birth, value))
		_, err := n.Create(n.lock(key)+"/"+birth, nil, 0, zk.WorldACL(zk.PermAll))
		require.NoError(t, err)
		return
	}
	require.NoError(t, err)
	_, err = n.Set(n.lock(key), encode(string(data[:birthLength]), value), stat.Version)
	require.NoError(t, err)
}

// put makes a node.
func (n table) put(t *testing.T, key string, data []byte) {
	for _, path := range n.above() {
		if _, err := n.Create(path, nil, 0, zk.WorldACL(zk.PermAll)); !errors.Is(err, zk.ErrNodeExists) {
			require.NoError(t, err)
		}
	}
	_, err := n.Create(n.lock(key), data, 0, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
}

func (n table) deleteBirth(t *testing.T, key string) {
	children, _, err := n.Children(n.lock(key))
	require.NoError(t, err)
	for _, child := range children {
		require.NoError(t, n.Delete(n.lock(key)+"/"+child, 0))
	}
}

func config(t testing.TB, rawURL, auth string) lockstore.Config {
	u, err := lockstore.ParseURL(rawURL)
	require.NoError(t, err)
	return lockstore.Config{URL: u, Getenv: func(name string) string {
		if name == authVariable {
			return auth
		}
		return ""
	}}
}

// opened is a store, and its KV.
type opened struct {
	*lockstore.Store
	kv *kv
}

func openStore(t testing.TB, rawURL string) opened { return openAs(t, rawURL, "") }

func openAs(t testing.TB, rawURL, auth string) opened {
	opt, err := options(config(t, rawURL, auth))
	require.NoError(t, err)
	return openWith(t, opt)
}

// openWith opens a store that waits for its server for longer than usual: on a busy machine a server may take
// seconds for its first answers. What depends on the usual limits sets them.
func openWith(t testing.TB, opt Options) opened {
	k, err := newKV(opt)
	require.NoError(t, err)
	k.limits = limits{timeout: time.Minute, forSession: time.Minute, forServer: time.Minute}
	s, err := opt.store(k)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return opened{s, k}
}

// closedPort is an address where no server listens. A port that was free a moment ago may be the one of
// another test's server now.
const closedPort = "127.0.0.1:1"
