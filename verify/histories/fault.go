package histories

import (
	"context"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/pause"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
	"github.com/lambdalock/lambdalock/verify/checker"
)

// fault is a row of the table.
type fault struct {
	name    string
	proxied bool     // the clients reach the servers through proxies that break connections
	mix     mix      // of the clients' own faults, without which there is no takeover and no lost lease
	redis   []string // further settings of the servers
	// processes is among how many processes the clients are. Those in one process share a store and its connections. 0 is one for each client.
	processes int
	several   bool // several clients may hold a key
	// late says that a request may arrive late, or that an answer may be what was true before.
	late bool

	// inject makes the fault again and again until ctx ends, when it is healed. It is nil where the clients themselves fail.
	inject func(ctx context.Context, c *cell)
	// effect counts in a history what only this fault makes, of which it shows at least effects; 0 is 1.
	effect  func(r *run, n counts) int64
	effects int64

	never map[string]string // in which set-ups it cannot occur, and why
}

var (
	few      = mix{crash: 0.06, freeze: 0.04}
	crashing = mix{crash: 0.12, freeze: 0.03}
	freezing = mix{crash: 0.03, freeze: 0.12}
)

const (
	aService = "the service does not stop or restart for its users"
	onePlace = "a key never moves to another server"
	restarts = "a primary that becomes a replica restarts, and its connections end"
	noRole   = "a node without the key's slot refuses the key, whatever its role"
	elect    = "a leader that ends is another row"
	inside   = "the service moves partitions unseen; the emulator has none"
)

const (
	paused   = "server paused"
	restart  = "server restarted, data kept"
	dataLost = "data lost"
	keyMoves = "the key's server changes" // in an ensemble: the leader

	// The primary runs on as a replica that lags, and connections to it stay open.
	plannedFailover = "planned failover"
	lossyFailover   = "planned failover with loss"
)

// unplanned are the set-ups without a primary that becomes a replica. On Valkey these faults have a pair, too.
var unplanned = map[string]string{
	dynamo: inside, redisOne: "as with a replica", redisCluster: noRole, zooKeeper: elect, postgres: restarts,
}

var kinds = []*fault{
	{
		name: "client crash", mix: crashing,
		effect: func(r *run, _ counts) int64 { return r.crashes.Load() },
	},
	{
		name: "client freeze", mix: freezing,
		effect: func(r *run, _ counts) int64 { return r.freezes.Load() },
	},
	{
		name: "reply lost", mix: few, proxied: true, inject: loseReplies,
		effect: unknowns, effects: 5,
	},
	{
		name: "several holders: crashes, freezes, replies lost", mix: mix{crash: 0.08, freeze: 0.08}, proxied: true, several: true, inject: loseReplies,
		effect: unknowns, effects: 5,
		never: map[string]string{redisPair: "as on redis: nothing fails over"},
	},
	{
		name: "request cut or late", mix: few, proxied: true,
		inject: func(ctx context.Context, c *cell) {
			c.cutting(ctx, func(p *testservers.CutProxy) { p.CutRequests(c.sys.write...) })
		},
		effect: unknowns, effects: 5,
	},
	{
		name: "latency of 0.5 to 1.1 TTL", mix: few, proxied: true, late: true,
		inject: func(ctx context.Context, c *cell) {
			c.broken(ctx, 1200, func(p *testservers.CutProxy) {
				if c.random.IntN(2) == 0 {
					p.Slow(0, latency(c.random))
				} else {
					p.Slow(latency(c.random), 0)
				}
			})
		},
		effect: slow,
	},
	{
		name: "connections reset", mix: few, proxied: true, late: true,
		inject: func(ctx context.Context, c *cell) { c.broken(ctx, 300, (*testservers.CutProxy).Reset) },
		effect: unknowns, effects: 5,
	},
	{
		name: "silent drop", mix: few, proxied: true, late: true,
		inject: func(ctx context.Context, c *cell) {
			c.again(ctx, 900, 1500, func() {
				for _, p := range c.sys.cuts {
					p.Swallow()
				}
				c.sleep(ctx, 900, 2200)
				for _, p := range c.sys.cuts {
					p.Forward()
					p.Disconnect() // what was dropped in the middle never continues
				}
			})
		},
		effect: slow,
	},
	{
		name: paused, mix: few, late: true,
		inject: func(ctx context.Context, c *cell) {
			c.again(ctx, 900, 1500, func() {
				server := c.sys.servers[c.random.IntN(len(c.sys.servers))]
				server.Pause()
				c.sleep(ctx, 400, 2500) // some calls end without an answer
				server.Resume()
			})
		},
		effect: slow,
	},
	{
		name: restart, mix: few, redis: []string{"--appendonly", "yes"}, // each write is kept before it is answered
		inject: func(ctx context.Context, c *cell) {
			rest := 500
			if len(c.sys.servers) > 1 {
				rest = 2500 // a node of a cluster refuses everything for its first two seconds
			}
			c.again(ctx, rest, rest+1000, func() { kill(c.sys.servers[c.random.IntN(len(c.sys.servers))]) })
		},
		effect: func(_ *run, n counts) int64 { return n[notApplied] + n[unknown] },
		never:  map[string]string{dynamo: aService},
	},
	{
		name: dataLost, mix: few,
		inject: func(ctx context.Context, c *cell) { c.again(ctx, 600, 1600, c.loseData) },
		effect: func(_ *run, n counts) int64 { return n[losses] },
	},
	{
		name: keyMoves, mix: few, late: true,
		inject: func(ctx context.Context, c *cell) {
			switch {
			case c.sys.pair != nil:
				c.again(ctx, 600, 1200, func() { c.failedOver(c.sys.pair.failOver(func() { c.sleep(ctx, 200, 700) })) })
			case c.sys.ensemble != nil:
				c.again(ctx, 1300, 2900, c.changeLeader)
			default:
				c.again(ctx, 5, 25, func() {
					r := c.runs[c.random.IntN(len(c.runs))]
					moveSlot(c.sys.t, c.sys.servers, redisstore.DefaultPrefix+r.keys[c.random.IntN(len(r.keys))].name, c.random)
					r.struck.Add(1)
				})
			}
		},
		effect: func(r *run, n counts) int64 { return n[losses] + r.struck.Load() },
		never:  map[string]string{dynamo: inside, redisOne: onePlace, valkey: onePlace, postgres: "a replica that has all that was acknowledged looks like a restart"},
	},
	{
		name: plannedFailover, mix: few, processes: 2,
		inject: func(ctx context.Context, c *cell) { c.demote(ctx, false) },
		effect: toReplica, never: unplanned,
	},
	{
		name: lossyFailover, mix: few, processes: 2, late: true,
		inject: func(ctx context.Context, c *cell) { c.demote(ctx, true) },
		effect: toReplica, never: unplanned,
	},
}

func loseReplies(ctx context.Context, c *cell) {
	c.cutting(ctx, func(p *testservers.CutProxy) { p.CutReplies(c.sys.write...) })
}

func latency(r *rand.Rand) time.Duration { return ttl/2 + time.Duration(r.Int64N(int64(3*ttl/5))) }

func unknowns(_ *run, n counts) int64 { return n[unknown] }

func slow(r *run, _ counts) (n int64) {
	for _, op := range r.Ops() {
		if op.Return-op.Call > 2*ttl/5 && !op.Waits {
			n++
		}
	}
	return n
}

// toReplica counts what was asked of the old primary when it was a replica.
func toReplica(r *run, _ counts) (n int64) {
	for _, op := range r.Ops() {
		if strings.Contains(op.Cause, "READONLY") {
			n++
		}
	}
	return n
}

// again makes a fault and rests, until ctx ends.
func (c *cell) again(ctx context.Context, low, high int, make func()) {
	for c.sleep(ctx, low, high) {
		make()
		c.injected++
	}
}

// sleep is for a random time, in milliseconds. It returns early, and false, when ctx ends.
func (c *cell) sleep(ctx context.Context, low, high int) bool {
	return pause.For(ctx, time.Duration(low+c.random.IntN(high-low))*time.Millisecond) == nil
}

func (c *cell) cutting(ctx context.Context, set func(*testservers.CutProxy)) {
	for c.sleep(ctx, 150, 500) {
		for _, p := range c.sys.cuts {
			set(p)
		}
		c.sleep(ctx, 100, 350)
		for _, p := range c.sys.cuts {
			c.injected += p.Cuts()
			p.Forward()
		}
	}
}

func (c *cell) broken(ctx context.Context, length int, set func(*testservers.CutProxy)) {
	c.again(ctx, 500, 1200, func() {
		for _, p := range c.sys.cuts {
			set(p)
		}
		c.sleep(ctx, length, length+1)
		for _, p := range c.sys.cuts {
			p.Forward()
		}
	})
}

// kill ends a server that has received requests and has not answered them, and starts it again.
func kill(server *testservers.Server) (from time.Time) {
	server.Pause()
	<-time.After(60 * time.Millisecond)
	from = time.Now()
	server.Restart()
	return from
}

// loseData deletes what the store knows, as an operator or a restart without a file does.
func (c *cell) loseData() {
	from := time.Now()
	if c.sys.erase != nil {
		r := c.runs[c.random.IntN(len(c.runs))]
		k := c.random.IntN(len(r.keys))
		c.sys.erase(r.keys[k].name)
		r.happened(checker.Forget, from, time.Now(), r.keys[k:k+1])
		return
	}
	if c.random.IntN(2) == 0 && len(c.sys.servers) == 1 && c.sys.pair == nil {
		from = kill(c.sys.servers[0])
	} else {
		c.sys.onAll("FLUSHALL")
	}
	for _, r := range c.runs {
		r.happened(checker.Forget, from, time.Now(), r.keys)
	}
}

// demote makes planned failovers. Where nothing is lost, nothing excuses an answer.
func (c *cell) demote(ctx context.Context, loses bool) {
	var lose func()
	if loses {
		lose = func() { c.sleep(ctx, 200, 700) }
	}
	c.again(ctx, 200, 600, func() {
		f := c.sys.pair.demote(lose, func() { c.sleep(ctx, 300, 1000) })
		if loses {
			c.failedOver(f)
		}
	})
}

func (c *cell) failedOver(f failover) {
	for _, r := range c.runs {
		r.happened(checker.CutOff, f.cutFrom, f.cutTo, r.keys)
		r.happened(checker.Promote, f.downFrom, f.downTo, r.keys)
	}
}

// changeLeader kills the leader, and starts it again when the others have elected another.
func (c *cell) changeLeader() {
	leader := c.sys.ensemble.Leader()
	leader.Kill()
	c.sys.ensemble.AwaitQuorum(leader)
	leader.Restart()
	c.sys.ensemble.AwaitQuorum(nil)
	for _, r := range c.runs {
		r.struck.Add(1)
	}
}

// happened records what happened to the store.
func (r *run) happened(kind checker.Kind, from, to time.Time, keys []key) {
	for _, k := range keys {
		r.Add(checker.Op{Client: clients + 1, Kind: kind, Key: k.name, Outcome: checker.OK, Call: from.Sub(r.Start), Return: to.Sub(r.Start)})
	}
}
