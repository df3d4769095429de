package histories

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
)

// pair is a primary and a replica. Clients reach whichever is the primary at the
// address that primaryAddr returns, as behind a name that follows it.
type pair struct {
	t       testing.TB
	servers [2]*testservers.Server
	link    *testservers.CutProxy // from the replica to the primary

	mu      sync.Mutex
	primary int
}

// failover says when a replica without the last writes took over. Each moment is
// known to lie between two readings of the clock.
type failover struct {
	cutFrom, cutTo   time.Time // from when on the replica got no more writes
	downFrom, downTo time.Time // when clients began to reach it
}

// startPair starts two servers of testservers.RedisServer or testservers.ValkeyServer.
func startPair(t testing.TB, program string, args ...string) *pair {
	t.Helper()
	p := &pair{t: t}
	for i := range p.servers {
		p.servers[i] = testservers.Start(t, program, append([]string{"--repl-diskless-sync-delay", "0"}, args...)...)
	}
	p.follow()
	return p
}

// primaryAddr is the address of the present primary.
func (p *pair) primaryAddr() string { return p.server().Addr }

// server is the present primary.
func (p *pair) server() *testservers.Server {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.servers[p.primary]
}

func (p *pair) replica() *testservers.Server {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.servers[1-p.primary]
}

func (p *pair) swap() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.primary = 1 - p.primary
}

// failOver cuts the replica off, calls meanwhile, whose writes are to be lost, kills
// the primary and promotes the replica. (A replica that is only stopped would still
// read the last writes from its socket.) Then the old primary starts again, empty, and
// follows the new primary.
func (p *pair) failOver(meanwhile func()) (f failover) {
	p.t.Helper()
	p.follow()
	f.cutFrom, f.cutTo = p.cutOff()
	meanwhile()
	// A request that was sent just now gets no answer.
	p.server().Pause()
	<-time.After(60 * time.Millisecond)
	f.downFrom = time.Now()
	p.server().Kill()
	command(p.t, p.replica().Addr, "REPLICAOF", "NO", "ONE")
	p.swap()
	f.downTo = time.Now()
	p.replica().Restart()
	p.follow()
	return f
}

// demote makes the replica the primary as a managed service does for maintenance: both
// servers run on, the old primary becomes a replica, and the connections to it stay open.
// Until lag returns, it knows nothing of what the new primary does. With a nil lose every
// write is kept. Otherwise the replica is cut off before, and the writes during lose are
// lost.
func (p *pair) demote(lose, lag func()) (f failover) {
	p.t.Helper()
	if lose != nil {
		f.cutFrom, f.cutTo = p.cutOff()
		lose()
	}
	old, next := p.server().Addr, p.replica().Addr
	f.downFrom = time.Now()
	command(p.t, old, "CLIENT", "PAUSE", time.Minute.Milliseconds(), "WRITE")
	if lose == nil {
		require.Eventually(p.t, func() bool { return p.offset(old) == p.offset(next) }, 10*time.Second, time.Millisecond, "the replica does not keep up")
	}
	command(p.t, next, "REPLICAOF", "NO", "ONE")
	nothing := testservers.Proxy(p.t, next)
	nothing.Swallow()
	host, port, _ := strings.Cut(nothing.Addr, ":")
	command(p.t, old, "REPLICAOF", host, port)
	p.swap()
	command(p.t, old, "CLIENT", "UNPAUSE")
	f.downTo = time.Now()
	lag()
	p.follow()
	return f
}

// offset is how much of the replication stream a server has.
func (p *pair) offset(addr string) string {
	c := redisClient(p.t, addr)
	defer c.Close()
	info, err := c.Info(context.Background(), "replication").Result()
	require.NoError(p.t, err)
	_, after, found := strings.Cut(info, "master_repl_offset:")
	require.True(p.t, found, info)
	line, _, _ := strings.Cut(after, "\r")
	return line
}

// cutOff lets the replica get no more writes from a moment between the two times on.
func (p *pair) cutOff() (from, to time.Time) {
	p.t.Helper()
	from = time.Now()
	p.sync()
	p.link.Swallow()
	p.link.Disconnect()
	return from, time.Now()
}

// follow makes the replica follow the primary through a new link.
func (p *pair) follow() {
	p.t.Helper()
	p.link = testservers.Proxy(p.t, p.server().Addr)
	host, port, _ := strings.Cut(p.link.Addr, ":")
	command(p.t, p.replica().Addr, "REPLICAOF", host, port)
	until(p.t, p.replica().Addr, "master_link_status:up")
}

// sync returns when the replica has all writes that were answered before.
func (p *pair) sync() {
	p.t.Helper()
	c := redisClient(p.t, p.primaryAddr())
	defer c.Close()
	conn := c.Conn() // WAIT looks at what its own connection wrote
	defer conn.Close()
	require.NoError(p.t, conn.Set(context.Background(), "synced", time.Now().UnixNano(), 0).Err())
	n, err := conn.Wait(context.Background(), 1, 2*time.Second).Result()
	require.NoError(p.t, err)
	require.EqualValues(p.t, 1, n, "the replica does not keep up")
}

// redisClient connects to one server. It does not end with the test's context: what was
// broken has to be healed in the end.
func redisClient(t testing.TB, addr string) *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: addr, Protocol: 2, DisableIdentity: true, MaxRetries: -1, ReadTimeout: 5 * time.Second})
	t.Cleanup(func() { c.Close() })
	return c
}

// command sends one command to a server.
func command(t testing.TB, addr string, args ...any) {
	t.Helper()
	c := redisClient(t, addr)
	defer c.Close()
	require.NoError(t, c.Do(context.Background(), args...).Err(), "%v to %s", args, addr)
}

// until waits for a line in the answer to INFO replication.
func until(t testing.TB, addr, line string) {
	t.Helper()
	c := redisClient(t, addr)
	defer c.Close()
	require.Eventually(t, func() bool {
		info, err := c.Info(context.Background(), "replication").Result()
		return err == nil && strings.Contains(info, line)
	}, 10*time.Second, 5*time.Millisecond, "%s does not say %s", addr, line)
}
