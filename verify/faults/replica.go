package faults

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lambdalock/lambdalock/internal/testservers"
)

// Pair is a primary and a replica. Clients reach whichever is the primary at the
// address that Primary returns, as behind a name that follows it.
type Pair struct {
	t       testing.TB
	servers [2]*testservers.Server
	link    *testservers.CutProxy // from the replica to the primary

	mu      sync.Mutex
	primary int
}

// Failover says when a replica without the last writes took over. Each moment is
// known to lie between two readings of the clock.
type Failover struct {
	CutFrom, CutTo   time.Time // from when on the replica got no more writes
	DownFrom, DownTo time.Time // when clients began to reach it
}

// StartPair starts two redis-servers.
func StartPair(t testing.TB, args ...string) *Pair {
	t.Helper()
	p := &Pair{t: t}
	for i := range p.servers {
		p.servers[i] = testservers.Start(t, testservers.RedisServer, append([]string{"--repl-diskless-sync-delay", "0"}, args...)...)
	}
	if err := p.follow(t.Context()); err != nil {
		t.Fatal(err)
	}
	return p
}

// Primary is the address of the present primary.
func (p *Pair) Primary() string { return p.Server().Addr }

// Server is the present primary.
func (p *Pair) Server() *testservers.Server {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.servers[p.primary]
}

func (p *Pair) replica() *testservers.Server {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.servers[1-p.primary]
}

func (p *Pair) swap() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.primary = 1 - p.primary
}

// Switch makes the replica the primary and loses nothing, as a planned failover does.
// It ends the connections to the old primary.
func (p *Pair) Switch(ctx context.Context) error {
	old, next := p.Server().Addr, p.replica().Addr
	if err := do(ctx, old, "FAILOVER"); err != nil {
		return err
	}
	if err := until(ctx, next, "role:master"); err != nil {
		return err
	}
	p.swap()
	if err := until(ctx, old, "master_link_status:up"); err != nil {
		return err
	}
	return do(ctx, old, "CLIENT", "KILL", "TYPE", "normal")
}

// FailOver cuts the replica off, calls meanwhile, whose writes are to be lost, kills
// the primary and promotes the replica. (A replica that is only stopped would still
// read the last writes from its socket.) Then the old primary starts again, empty, and
// follows the new primary.
func (p *Pair) FailOver(ctx context.Context, meanwhile func()) (f Failover, err error) {
	if err := p.follow(ctx); err != nil {
		return f, err
	}
	f.CutFrom = time.Now()
	if err := p.synced(ctx); err != nil {
		return f, err
	}
	p.link.Swallow()
	p.link.Disconnect()
	f.CutTo = time.Now()
	meanwhile()
	// A request that was sent just now gets no answer.
	p.Server().Pause()
	<-time.After(60 * time.Millisecond)
	f.DownFrom = time.Now()
	p.Server().Kill()
	if err := do(ctx, p.replica().Addr, "REPLICAOF", "NO", "ONE"); err != nil {
		return f, err
	}
	p.swap()
	f.DownTo = time.Now()
	p.replica().Restart()
	return f, p.follow(ctx)
}

// follow makes the replica follow the primary through a new link.
func (p *Pair) follow(ctx context.Context) error {
	p.link = testservers.Proxy(p.t, p.Server().Addr)
	host, port, _ := strings.Cut(p.link.Addr, ":")
	if err := do(ctx, p.replica().Addr, "REPLICAOF", host, port); err != nil {
		return err
	}
	return until(ctx, p.replica().Addr, "master_link_status:up")
}

// synced returns when the replica has all writes that were answered before.
func (p *Pair) synced(ctx context.Context) error {
	return with(p.Server().Addr, func(c *redis.Client) error {
		conn := c.Conn() // WAIT looks at what its own connection wrote
		defer conn.Close()
		if err := conn.Set(ctx, "synced", time.Now().UnixNano(), 0).Err(); err != nil {
			return err
		}
		n, err := conn.Wait(ctx, 1, 2*time.Second).Result()
		if err == nil && n != 1 {
			err = fmt.Errorf("the replica of %s does not keep up", p.Server().Addr)
		}
		return err
	})
}

func do(ctx context.Context, addr string, args ...any) error {
	return with(addr, func(c *redis.Client) error {
		if err := c.Do(ctx, args...).Err(); err != nil {
			return fmt.Errorf("%v to %s: %w", args, addr, err)
		}
		return nil
	})
}

// until waits for a line in the answer to INFO replication.
func until(ctx context.Context, addr, line string) error {
	return with(addr, func(c *redis.Client) error {
		late := time.After(10 * time.Second)
		for {
			info, err := c.Info(ctx, "replication").Result()
			if err == nil && strings.Contains(info, line) {
				return nil
			}
			select {
			case <-late:
				return fmt.Errorf("%s does not say %s: %s %w", addr, line, info, err)
			case <-time.After(5 * time.Millisecond):
			}
		}
	})
}

func with(addr string, f func(*redis.Client) error) error {
	c := redis.NewClient(&redis.Options{Addr: addr, Protocol: 2, DisableIdentity: true})
	defer c.Close()
	return f(c)
}
