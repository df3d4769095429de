package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cirello.io/dynamolock/v2"
	"github.com/bsm/redislock"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
)

// locker runs work under one lock that all clients want.
type locker func(ctx context.Context, work func()) error

// job is what a client does under the lock. It returns by how much it took longer than it should.
type job func() (late time.Duration)

// crowd lets each client work a number of times, one client at a time by their lock. It returns
// how long a hand-over took, with its work, and how long each waited. By how much the work was late is left out:
// a timer of 1 ms comes up to 1 ms later if other clients of this process get answers meanwhile.
func crowd(t *testing.T, times int, work job, clients ...locker) (handOver time.Duration, waits []time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var mu sync.Mutex
	var inside atomic.Int32
	var all sync.WaitGroup
	var late time.Duration // one works at a time
	began := time.Now()
	for _, do := range clients {
		all.Go(func() {
			for range times {
				asked := time.Now()
				err := do(ctx, func() {
					waited := time.Since(asked)
					if inside.Add(1) != 1 {
						t.Error("two clients work at once")
					}
					lateNow := work()
					inside.Add(-1)
					mu.Lock()
					late += lateNow
					waits = append(waits, waited)
					mu.Unlock()
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	took := time.Since(began) - late
	if len(waits) == 0 {
		t.Fatal("nobody worked")
	}
	return took / time.Duration(len(waits)), waits
}

func lasting(d time.Duration) job {
	return func() time.Duration {
		began := time.Now()
		<-time.After(d)
		return time.Since(began) - d
	}
}

// entrant is a crowd that takes turns with others.
type entrant struct {
	store, name string
	work        job
	clients     []locker
	waits       []time.Duration // of all rounds of the last race
}

// race lets the crowds take turns, as contest does, and returns how long the hand-overs took.
func race(t *testing.T, times int, entrants ...*entrant) [][]time.Duration {
	handOvers := make([][]time.Duration, len(entrants))
	for _, e := range entrants {
		e.waits = nil
		crowd(t, 2, e.work, e.clients...)
	}
	inTurns(rounds, len(entrants), func(who int) {
		e := entrants[who]
		handOver, waits := crowd(t, times, e.work, e.clients...)
		handOvers[who] = append(handOvers[who], handOver)
		e.waits = append(e.waits, waits...)
	})
	for _, e := range entrants {
		slices.Sort(e.waits)
	}
	return handOvers
}

func (e *entrant) wait(part float64) time.Duration { return e.waits[int(part*float64(len(e.waits)-1))] }

// fair is the figure that says whether the last is served as the others are.
func (e *entrant) fair(limit float64) figure {
	return figure{"  p99 of the wait : p50", limit, "x", func([][]time.Duration) (float64, string) {
		p50, p99 := e.wait(0.5), e.wait(0.99)
		return float64(p99) / float64(p50), fmt.Sprintf("%v : %v, of %d grants", p99.Round(10*time.Microsecond), p50.Round(10*time.Microsecond), len(e.waits))
	}}
}

// judgeRace judges ours by the others and by how fair it is, and prints and keeps what the last race showed of the crowds
// that have a store.
func judgeRace(t *testing.T, times int, fair float64, ours *entrant, others []*entrant, wanted ...figure) {
	t.Helper()
	all := append([]*entrant{ours}, others...)
	var last [][]time.Duration
	judge(t, func() [][]time.Duration {
		last = race(t, times, all...)
		return last
	}, append(wanted, ours.fair(fair))...)
	for i, e := range all {
		if e.store != "" {
			cells := []string{e.store, e.name}
			for _, d := range []time.Duration{median(last[i]), e.wait(0.5), e.wait(0.99), e.wait(1)} {
				cells = append(cells, d.Round(10*time.Microsecond).String())
			}
			tables[waitTimes] = append(tables[waitTimes], cells)
			fmt.Println("  wait:", strings.Join(cells, ", "))
		}
	}
}

// slower is ours, with a tenth of a hand-over more after the work. It is the control of a race: it has to show.
func slower(ours *entrant, tenth time.Duration) *entrant {
	e := *ours
	e.store = "" // it is not reported
	e.work = func() time.Duration {
		late := ours.work()
		for end := time.Now().Add(tenth); time.Now().Before(end); { // a timer would be later
		}
		return late
	}
	return &e
}

// clients are n of them, each with connections of its own, as environments have them.
func clients(n int, open func() locker) []locker {
	all := make([]locker, n)
	for i := range all {
		all[i] = open()
	}
	return all
}

// guarded waits in the store's queue. Each run has to be released.
func guarded(t *testing.T, store *lockstore.Store) locker {
	g, err := guard.New(store, guard.Options{Wait: time.Minute, Observe: func(_ context.Context, r guard.Report) {
		if r.ReleaseErr != nil {
			t.Errorf("not released: %v", r.ReleaseErr)
		}
	}})
	fatal(t, err)
	return func(ctx context.Context, work func()) error {
		return g.Do(ctx, key, func(context.Context, guard.Lock) error {
			work()
			return nil
		})
	}
}

// pause is between two polls of the lock libraries that poll.
const pause = 5 * time.Millisecond

// testWaitingRedis compares the wait for a busy key with that of a lock library, which polls.
func testWaitingRedis(t *testing.T) {
	const n, times = 16, 21 // with 15 rounds, more than 5,000 grants
	addr := testservers.Redis(t)
	var count count
	ours := clients(n, func() locker {
		c := redisClient(t, addr)
		c.AddHook(&count)
		return guarded(t, redisStore(t, c))
	})
	theirs := clients(n, func() locker {
		locks := redislock.New(redisClient(t, addr))
		return func(ctx context.Context, work func()) error {
			lock, err := locks.Obtain(ctx, "redislock:"+key, ttl, &redislock.Options{RetryStrategy: redislock.LinearBackoff(pause)})
			if err != nil {
				return err
			}
			work()
			return lock.Release(ctx)
		}
	})
	us := &entrant{store: "Redis", name: "redisstore, in its queue", work: lasting(time.Millisecond), clients: ours}
	them := &entrant{store: "Redis", name: "bsm/redislock, polls every 5ms", work: us.work, clients: theirs}
	handOver, _ := crowd(t, times, us.work, ours...)
	judgeRace(t, times, 1.4, us, []*entrant{them, slower(us, handOver/10)},
		figure{"16 clients, a hand-over : bsm/redislock's", 1.1, "x", compare(0, 1)},
		figure{"  control: redisstore : redisstore, slowed by a tenth", 0.96, "x", compare(0, 2)},
	)
	count.requests.Store(0)
	_, waits := crowd(t, times, us.work, ours...)
	budget(t, "  requests a run", float64(count.requests.Load())/float64(len(waits)), 3.1, "", "") // a hand-over that comes before the waiter waits is one more
}

// meters are those of several clients.
type meters []*metered

// sum is what all meters show. They begin again from zero.
func (all meters) sum() (total metered) {
	for _, m := range all {
		total.reads += m.reads
		total.writes += m.writes
		total.refused += m.refused
		total.units += m.units
		*m = metered{Client: m.Client}
	}
	return total
}

// meteredClients are n clients of one table, each with a meter.
func meteredClients(t *testing.T, n int, rawURL, table string) ([]locker, meters) {
	var all meters
	lockers := clients(n, func() locker {
		m := &metered{Client: dynamoClient(t, rawURL)}
		all = append(all, m)
		store, err := dynamostore.New(m, table, dynamostore.Options{})
		fatal(t, err)
		return guarded(t, store.Store)
	})
	return lockers, all
}

// testWaitingDynamoDB does so on DynamoDB Local.
func testWaitingDynamoDB(t *testing.T) {
	const n, times, table = 16, 3, "waiting"
	rawURL := testservers.Table(t, testservers.DynamoDB(t), table, "key")
	ours, meters := meteredClients(t, n, rawURL, table)
	peers := clients(n, func() locker {
		locks, err := dynamolock.New(dynamoClient(t, rawURL), table, dynamolock.WithLeaseDuration(ttl), dynamolock.DisableHeartbeat())
		fatal(t, err)
		return func(ctx context.Context, work func()) error {
			lock, err := locks.AcquireLockWithContext(ctx, "dynamolock/"+key, dynamolock.WithAdditionalTimeToWaitForLock(time.Minute),
				dynamolock.WithRefreshPeriod(pause))
			if err != nil {
				return err
			}
			work()
			_, err = locks.ReleaseLockWithContext(ctx, lock)
			return err
		}
	})
	work := lasting(20 * time.Millisecond)
	us := &entrant{store: "DynamoDB Local", name: "dynamostore, in its queue", work: work, clients: ours}
	them := &entrant{store: "DynamoDB Local", name: "cirello.io/dynamolock, polls every 5ms", work: work, clients: peers}
	judgeRace(t, times, 1.3, us, []*entrant{them}, figure{"16 clients, a hand-over : dynamolock's", 1.1, "x", compare(0, 1)})
	costs := func(what string, times int, work time.Duration, writes, reads float64) {
		meters.sum() // from zero
		_, waits := crowd(t, times, lasting(work), ours...)
		used, runs := meters.sum(), float64(len(waits))
		budget(t, what+", writes a run", float64(used.writes+used.refused)/runs, writes, "", "")
		budget(t, "  reads a run", float64(used.reads)/runs, reads, "", "")
	}
	costs("20 ms of work", 20, 20*time.Millisecond, 2.1, 4)
	costs("1 s of work", 1, time.Second, 3.1, 30)
}
