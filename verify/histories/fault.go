package histories

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
	"github.com/lambdalock/lambdalock/verify/checker"
	"github.com/lambdalock/lambdalock/verify/faults"
)

// fault is a row of the table.
type fault struct {
	name  string
	path  path
	mix   mix
	redis []string // further settings of the servers
	// processes is among how many processes the clients are. Those in one process share a
	// store and its connections. 0 is one for each client.
	processes int
	// several says that several clients may hold a key.
	several bool
	// inject makes the fault again and again until ctx ends, and heals it. It is nil
	// where the clients themselves fail.
	inject func(ctx context.Context, c *cell)
	// effect counts in a history what only this fault makes.
	effect func(r *run, n checker.Counts) int
	// ambiguous says that it leaves outcomes unknown.
	ambiguous bool
	// late says that it delays requests, so that a request may arrive after its owner
	// has ended.
	late bool
	// hidden is the set-up whose client repeats a request within its call. There the
	// outcomes are late instead of unknown.
	hidden string
	// never says in which set-ups it cannot occur, and why.
	never map[string]string
}

// The clients' own faults are in every history. Without them there is no takeover and
// no lost lease.
var (
	few      = mix{crash: 0.06, freeze: 0.04, complete: 0.03, start: 0.05, revoke: 0.02}
	crashing = mix{crash: 0.12, freeze: 0.03, complete: 0.03, start: 0.05, revoke: 0.02}
	keeping  = mix{crash: 0.05, freeze: 0.04, complete: 0.05, start: 0.08, revoke: 0.02}
	freezing = mix{crash: 0.03, freeze: 0.12, complete: 0.03, start: 0.05, revoke: 0.02}
)

const (
	noPath   = "nothing lies between a client and its memory"
	noServer = "there is no server that could fail without its clients"
	aService = "the service does not stop or restart for its users"
	onePlace = "a key never moves to another server"
	restarts = "a primary that becomes a replica restarts, and its connections end"
	noRole   = "a node without the key's slot refuses the key, whatever its role"
	elect    = "a leader that ends is another row"
	inside   = "the service moves partitions unseen; the emulator has none"
)

const (
	dataLost = "data lost"
	keyMoves = "the key's server changes" // in an ensemble: the leader

	// The primary runs on as a replica that lags, and connections to it stay open.
	plannedFailover = "planned failover"
	lossyFailover   = "planned failover with loss"
)

// persistent keeps each write before it is answered.
var persistent = []string{"--appendonly", "yes"}

var kinds = []*fault{
	{
		name: "client crash", mix: crashing,
		effect: func(r *run, _ checker.Counts) int { return int(r.crashes.Load()) },
	},
	{
		name: "client freeze", mix: freezing,
		effect: func(r *run, _ checker.Counts) int { return int(r.freezes.Load()) },
	},
	{
		name: "reply lost", mix: few, path: cutting, ambiguous: true,
		effect: unknowns,
		inject: loseReplies,
	},
	{
		name: "several holders: crashes, freezes, replies lost", mix: mix{crash: 0.08, freeze: 0.08, revoke: 0.02}, path: cutting, ambiguous: true, several: true,
		effect: unknowns,
		inject: loseReplies,
		never:  map[string]string{"redis with replica": "as on redis: nothing fails over"},
	},
	{
		name: "request cut or late", mix: few, path: cutting, ambiguous: true,
		effect: unknowns,
		inject: func(ctx context.Context, c *cell) {
			if c.sys.plan != nil {
				c.planned(ctx, func(r *rand.Rand) (f storetest.Fault) {
					if p := r.Float64(); p < 0.1 {
						f.Drop, f.Late = errPlanned, p < 0.06
					}
					return f
				})
				return
			}
			c.cutting(ctx, func(p *testservers.CutProxy) { p.CutRequests(c.sys.write...) })
		},
	},
	{
		name: "latency of 0.5 to 1.1 TTL", mix: few, path: toxic, late: true,
		effect: slow,
		inject: func(ctx context.Context, c *cell) {
			latency := func(r *rand.Rand) time.Duration { return ttl/2 + time.Duration(r.Int64N(int64(3*ttl/5))) }
			if c.sys.plan != nil {
				c.planned(ctx, func(r *rand.Rand) (f storetest.Fault) {
					switch p := r.Float64(); {
					case p < 0.05:
						f.Before = latency(r)
					case p < 0.1:
						f.After = latency(r)
					}
					return f
				})
				return
			}
			c.poisoned(ctx, func(x *faults.Toxic) time.Duration {
				if c.random.IntN(2) == 0 {
					x.Slow(latency(c.random))
				} else {
					x.SlowRequests(latency(c.random))
				}
				return 1200 * time.Millisecond
			}, 700, 1300)
		},
	},
	{
		name: "resets and slices of bytes", mix: few, path: toxic, late: true, ambiguous: true,
		effect: unknowns,
		inject: func(ctx context.Context, c *cell) {
			c.poisoned(ctx, func(x *faults.Toxic) time.Duration {
				if c.random.IntN(3) == 0 {
					x.Slice()
				} else {
					x.Reset()
				}
				return 300 * time.Millisecond
			}, 300, 800)
		},
		never: map[string]string{"memory": noPath},
	},
	{
		name: "silent drop", mix: few, path: cutting, late: true, ambiguous: true, hidden: "redis cluster",
		effect: slow,
		inject: func(ctx context.Context, c *cell) {
			for ctx.Err() == nil {
				from := time.Now()
				for _, p := range c.sys.cuts {
					p.Swallow()
				}
				sleep(ctx, c.between(900, 2200))
				c.injectedBetween(from, time.Now())
				for _, p := range c.sys.cuts {
					p.Forward()
					p.Disconnect() // what was dropped in the middle never continues
				}
				sleep(ctx, c.between(900, 1500))
			}
		},
		never: map[string]string{"memory": noPath},
	},
	{
		name: "server paused", mix: few, late: true, ambiguous: true, hidden: "redis cluster",
		effect: slow,
		inject: func(ctx context.Context, c *cell) {
			for i := 0; ctx.Err() == nil; i++ {
				server := c.sys.servers[c.random.IntN(len(c.sys.servers))]
				from := time.Now()
				length := c.between(400, 2200)
				if i%2 == 0 {
					length = callTime + c.between(100, 300) // so that some calls end without an answer
				}
				server.Pause()
				sleep(ctx, length)
				server.Resume()
				c.injectedBetween(from, time.Now())
				sleep(ctx, c.between(900, 1500))
			}
		},
		never: map[string]string{"memory": noServer},
	},
	{
		name: "server restarted, data kept", mix: few, redis: persistent, ambiguous: true,
		effect: func(_ *run, n checker.Counts) int { return n.NotApplied + n.Unknown },
		inject: func(ctx context.Context, c *cell) {
			rest := 500
			if len(c.sys.servers) > 1 {
				rest = 2500 // a node of a cluster refuses everything for its first two seconds
			}
			for sleep(ctx, c.between(rest, rest+1000)) {
				c.restart(c.sys.servers[c.random.IntN(len(c.sys.servers))])
			}
		},
		never: map[string]string{"memory": noServer, "dynamodb local": aService},
	},
	{
		name: dataLost, mix: few,
		effect: func(_ *run, n checker.Counts) int { return n.Losses },
		inject: func(ctx context.Context, c *cell) {
			for sleep(ctx, c.between(600, 1600)) {
				c.loseData()
			}
		},
		never: map[string]string{"memory": "its data are gone only with all its clients"},
	},
	{
		name: "server errors", mix: few, path: throttle,
		effect: func(_ *run, n checker.Counts) int { return n.NotApplied },
		inject: func(ctx context.Context, c *cell) {
			for ctx.Err() == nil {
				heal := c.refuse()
				c.injected++
				sleep(ctx, c.between(500, 1200))
				heal()
				sleep(ctx, c.between(500, 900))
			}
		},
		never: map[string]string{"memory": noServer, zooKeeper: "a server without a majority ends its connections, and has no other refusal"},
	},
	{
		name: keyMoves, mix: few,
		effect: func(r *run, n checker.Counts) int { return n.Losses + int(r.injected.Load()) },
		inject: func(ctx context.Context, c *cell) {
			if c.sys.pair != nil {
				c.failOver(ctx)
				return
			}
			if c.sys.ensemble != nil {
				c.changeLeader(ctx)
				return
			}
			if c.sys.postgres != nil {
				c.promote(ctx)
				return
			}
			for sleep(ctx, c.between(5, 25)) {
				r := c.runs[c.random.IntN(len(c.runs))]
				key := r.keys[c.random.IntN(len(r.keys))]
				faults.MoveSlot(c.sys.t, c.sys.servers, redisstore.DefaultPrefix+key, c.random)
				c.injected++
				r.injected.Add(1)
			}
		},
		never: map[string]string{"memory": onePlace, "dynamodb local": inside, "redis": onePlace, "valkey": onePlace, postgres: onePlace},
	},
	{
		name: plannedFailover, mix: keeping, processes: 2,
		effect: toReplica,
		inject: func(ctx context.Context, c *cell) { c.demote(ctx, false) },
		never:  unplanned,
	},
	{
		name: lossyFailover, mix: keeping, processes: 2,
		effect: toReplica,
		inject: func(ctx context.Context, c *cell) { c.demote(ctx, true) },
		never:  unplanned,
	},
}

// leftOut says why a fault is not made on a set-up, or nothing.
func (f *fault) leftOut(s *setup) string {
	if s.rows != nil && !slices.Contains(s.rows, f.name) {
		return "as on " + s.like
	}
	return f.never[s.name]
}

// unplanned are the set-ups without a primary that becomes a replica. On Valkey these faults
// have a pair, too.
var unplanned = map[string]string{
	"memory": onePlace, "dynamodb local": inside, "redis": "as with a replica", "redis cluster": noRole, zooKeeper: elect,
	postgres: restarts,
}

var errPlanned = errors.New("the connection ended")

// slow counts what took long during the fault: a busy machine is slow, too.
func slow(r *run, _ checker.Counts) (n int) {
	r.mu.Lock()
	during := slices.Clone(r.slow)
	r.mu.Unlock()
	for _, op := range r.Ops() {
		if op.Return-op.Call > 2*ttl/5 && slices.ContainsFunc(during, func(s interval) bool { return op.Return > s.from && op.Call < s.to }) {
			n++
		}
	}
	return n
}

func unknowns(_ *run, n checker.Counts) int { return n.Unknown }

// toReplica counts what was asked of the old primary when it was a replica.
func toReplica(r *run, _ checker.Counts) (n int) {
	for _, op := range r.Ops() {
		if strings.Contains(op.Cause, "READONLY") {
			n++
		}
	}
	return n
}

// loseReplies cuts connections before replies.
func loseReplies(ctx context.Context, c *cell) {
	if c.sys.plan == nil {
		c.cutting(ctx, func(p *testservers.CutProxy) { p.CutReplies(c.sys.write...) })
		return
	}
	c.planned(ctx, func(r *rand.Rand) (f storetest.Fault) {
		if r.Float64() < 0.15 {
			f.Cut = errPlanned
		}
		return f
	})
}

// planned lets a plan run for as long as the histories do.
func (c *cell) planned(ctx context.Context, fault func(*rand.Rand) storetest.Fault) {
	now := time.Now()
	c.injectedBetween(now, now.Add(time.Hour)) // single calls, all the time
	c.sys.plan.set(fault)
	<-ctx.Done()
	c.sys.plan.set(nil)
	c.injected = c.sys.plan.faults()
}

// injectedBetween counts a fault and remembers when it was.
func (c *cell) injectedBetween(from, to time.Time) {
	c.injected++
	for _, r := range c.runs {
		r.mu.Lock()
		r.slow = append(r.slow, interval{from.Sub(r.Start), to.Sub(r.Start)})
		r.mu.Unlock()
	}
}

func (c *cell) cutting(ctx context.Context, set func(*testservers.CutProxy)) {
	for ctx.Err() == nil {
		for _, p := range c.sys.cuts {
			set(p)
		}
		sleep(ctx, c.between(100, 350))
		for _, p := range c.sys.cuts {
			c.injected += p.Cuts()
			p.Forward()
		}
		sleep(ctx, c.between(150, 500))
	}
}

func (c *cell) poisoned(ctx context.Context, set func(*faults.Toxic) time.Duration, low, high int) {
	for ctx.Err() == nil {
		var length time.Duration
		from := time.Now()
		for _, x := range c.sys.toxics {
			length = set(x)
		}
		sleep(ctx, length)
		c.injectedBetween(from, time.Now())
		for _, x := range c.sys.toxics {
			x.Heal()
		}
		sleep(ctx, c.between(low, high))
	}
}

// restart kills a server that has received requests and has not answered them.
func (c *cell) restart(server *testservers.Server) (from, to time.Time) {
	server.Pause()
	<-time.After(60 * time.Millisecond)
	from = time.Now()
	server.Restart()
	c.injected++
	return from, time.Now()
}

// loseData deletes what the store knows, as an operator or a restart without a
// file does.
func (c *cell) loseData() {
	if c.sys.erase != nil {
		r := c.runs[c.random.IntN(len(c.runs))]
		key := r.keys[c.random.IntN(len(r.keys))]
		from := time.Now()
		c.sys.erase(key)
		c.injected++
		r.happened(checker.Forget, from, time.Now(), key)
		return
	}
	var from, to time.Time
	if c.random.IntN(2) == 0 && len(c.sys.servers) == 1 && c.sys.pair == nil {
		from, to = c.restart(c.sys.servers[0])
	} else {
		from = time.Now()
		c.sys.onAll("FLUSHALL")
		c.injected++
		to = time.Now()
	}
	for _, r := range c.runs {
		r.happened(checker.Forget, from, to, r.keys...)
	}
}

// refuse makes the servers refuse requests.
func (c *cell) refuse() (heal func()) {
	if x := c.sys.throttled; x != nil {
		x.Set(true)
		return func() { x.Set(false) }
	}
	if c.sys.readOnly != nil {
		c.sys.readOnly(true)
		return func() { c.sys.readOnly(false) }
	}
	name, bad, good := "maxmemory", "1", "0" // OOM for a write
	if c.random.IntN(2) == 0 {
		name, bad = "min-replicas-to-write", "5" // NOREPLICAS for all
	}
	c.sys.onAll("CONFIG", "SET", name, bad)
	return func() { c.sys.onAll("CONFIG", "SET", name, good) }
}

// failOver alternates between failovers that lose the last writes and failovers that
// lose nothing.
func (c *cell) failOver(ctx context.Context) {
	for sleep(ctx, c.between(300, 900)) {
		f := c.sys.pair.FailOver(func() { sleep(ctx, c.between(200, 700)) })
		c.injected++
		for _, r := range c.runs {
			r.happened(checker.CutOff, f.CutFrom, f.CutTo, r.keys...)
			r.happened(checker.Promote, f.DownFrom, f.DownTo, r.keys...)
		}
		if !sleep(ctx, c.between(600, 1200)) {
			break
		}
		c.sys.pair.Switch()
		c.injected++
	}
}

// demote makes planned failovers. Where nothing is lost, nothing excuses an answer.
func (c *cell) demote(ctx context.Context, loses bool) {
	var lose func()
	if loses {
		lose = func() { sleep(ctx, c.between(200, 700)) }
	}
	for sleep(ctx, c.between(200, 600)) {
		f := c.sys.pair.Demote(lose, func() { sleep(ctx, c.between(300, 1000)) })
		c.injected++
		for _, r := range c.runs {
			if loses {
				r.happened(checker.CutOff, f.CutFrom, f.CutTo, r.keys...)
				r.happened(checker.Promote, f.DownFrom, f.DownTo, r.keys...)
			}
		}
	}
}

// promote kills the primary and goes on with its replica, which has all that was acknowledged.
func (c *cell) promote(ctx context.Context) {
	for sleep(ctx, c.between(300, 1200)) {
		c.sys.postgres.FailOver()
		c.injected++
		for _, r := range c.runs {
			r.injected.Add(1)
		}
		sleep(ctx, c.between(600, 1200))
	}
}

// changeLeader kills the leader, and starts it again when the others have elected another.
func (c *cell) changeLeader(ctx context.Context) {
	for sleep(ctx, c.between(300, 900)) {
		leader := c.sys.ensemble.Leader()
		leader.Kill()
		c.injected++
		for _, r := range c.runs {
			r.injected.Add(1)
		}
		c.sys.ensemble.AwaitQuorum(leader)
		leader.Restart()
		c.sys.ensemble.AwaitQuorum(nil)
		sleep(ctx, c.between(1000, 2000))
	}
}

// happened records what happened to the store.
func (r *run) happened(kind checker.Kind, from, to time.Time, keys ...string) {
	for _, key := range keys {
		r.Add(checker.Op{Client: clients + 1, Kind: kind, Key: key, Outcome: checker.OK, Call: from.Sub(r.Start), Return: to.Sub(r.Start)})
	}
}

// between is a random time, in milliseconds.
func (c *cell) between(low, high int) time.Duration {
	return time.Duration(low+c.random.IntN(high-low)) * time.Millisecond
}
