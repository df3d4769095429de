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
	fatal(t, err)
	t.Cleanup(conn.Close)
	return conn
}

// testZooKeeper compares with the lock of the client library, which makes a node, lists the nodes, and deletes its own.
// It has no fencing token.
func testZooKeeper(t *testing.T) {
	addr := testservers.ZooKeeper(t).Addr
	own := zooKeeperConn(t, addr)
	contestants := []contestant{{"zkstore", cycle(t, zooKeeperStore(t, addr))}, {"go-zookeeper's lock", func() {
		lock := zk.NewLock(own, "/library", zk.WorldACL(zk.PermAll))
		fatal(t, lock.Lock())
		fatal(t, lock.Unlock())
	}}}
	contest(1, 400, contestants...) // the server's compiler is busy at first
	judge(t, func() [][]time.Duration { return contest(rounds, 40, contestants...) },
		figure{"zkstore : go-zookeeper's lock", 1.05, "x", compare(0, 1)},
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
	judgeRace(t, times, 2.5, us, []*entrant{them}, figure{"16 clients, a hand-over : go-zookeeper's lock", 1.5, "x", compare(0, 1)})
}
