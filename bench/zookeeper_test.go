package bench

import (
	"context"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/zkstore"
)

func zooKeeperStore(t *testing.T, addr string) *lockstore.Store {
	store, err := zkstore.New(zkstore.Options{Servers: []string{addr}})
	return opened(t, store, err)
}

func zooKeeperConn(t *testing.T, addr string) *zk.Conn {
	conn, _, err := zk.Connect([]string{addr}, 10*time.Second, zk.WithLogInfo(false))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

// testZooKeeper compares with two writes like the store's, sent by hand: a check of the
// child that was made with the node, and new data. Beside it stands the lock of the client
// library, which makes a node, lists the nodes, and deletes its own. It has no fencing token.
func testZooKeeper(t *testing.T) {
	addr := testservers.ZooKeeper(t).Addr
	fatal := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	ours := cycle(t, zooKeeperStore(t, addr))
	ours()
	raw := zooKeeperConn(t, addr)
	node, child := "/by-hand", "/by-hand/child"
	for _, path := range []string{node, child} {
		_, err := raw.Create(path, nil, 0, zk.WorldACL(zk.PermAll))
		fatal(err)
	}
	entry, _, err := raw.Get(zkstore.DefaultPrefix + "/locks/account%2F7")
	fatal(err)
	version := int32(0)
	byHand := func() {
		for range 2 {
			_, err := raw.Multi(&zk.CheckVersionRequest{Path: child, Version: -1}, &zk.SetDataRequest{Path: node, Data: entry, Version: version})
			fatal(err)
			version++
		}
	}
	own := zooKeeperConn(t, addr)
	library := func() {
		lock := zk.NewLock(own, "/library", zk.WorldACL(zk.PermAll))
		fatal(lock.Lock())
		fatal(lock.Unlock())
	}
	contestants := []contestant{{"zkstore", ours}, {"by hand", byHand}, {"go-zookeeper's lock", library}}
	contest(1, 400, contestants...) // the server's compiler is busy at first
	judge(t, func() [][]time.Duration { return contest(rounds, 40, contestants...) },
		figure{"zkstore : its two writes by hand", 1.5, "x", compare(0, 1)},
		figure{"  : go-zookeeper's lock", 1.05, "x", compare(0, 2)},
	)
}

// testWaitingZooKeeper compares the wait for a busy key with that of the client library's
// lock, where each waiter watches the one before it. Our p99 is that of the first runs of each round, which all join at once.
func testWaitingZooKeeper(t *testing.T) {
	const n, times = 16, 21
	addr := testservers.ZooKeeper(t).Addr
	ours := clients(n, func() locker { return guarded(t, zooKeeperStore(t, addr)) })
	theirs := clients(n, func() locker {
		conn := zooKeeperConn(t, addr)
		return func(_ context.Context, work func()) error {
			lock := zk.NewLock(conn, "/library", zk.WorldACL(zk.PermAll))
			if err := lock.Lock(); err != nil {
				return err
			}
			work()
			return lock.Unlock()
		}
	})
	us := &entrant{store: "ZooKeeper", name: "zkstore, in its queue", work: lasting(time.Millisecond), clients: ours}
	them := &entrant{store: "ZooKeeper", name: "go-zookeeper's lock, a node for each waiter", work: us.work, clients: theirs}
	var last [][]time.Duration
	judge(t, func() [][]time.Duration {
		last = race(t, times, us, them)
		return last
	},
		figure{"16 clients, a hand-over : go-zookeeper's lock", 1.5, "x", compare(0, 1)},
		us.fair(2.5),
	)
	report(last, us, them)
}
