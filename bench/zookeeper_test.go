package bench

import (
	"context"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore/zkstore"
)

// testWaitingZooKeeper compares the wait for a busy key with that of the client library's
// lock, where each waiter watches the one before it. Our p99 is that of the first runs of each round, which all join at once.
func testWaitingZooKeeper(t *testing.T) {
	const n, times = 16, 21
	addr := testservers.ZooKeeper(t).Addr
	ours := clients(n, func() locker {
		store, err := zkstore.New(zkstore.Options{Servers: []string{addr}})
		return guarded(t, opened(t, store, err))
	})
	theirs := clients(n, func() locker {
		conn, _, err := zk.Connect([]string{addr}, 10*time.Second, zk.WithLogInfo(false))
		fatal(t, err)
		t.Cleanup(conn.Close)
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
