package histories

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/lockstore/driver"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
	"github.com/lambdalock/lambdalock/verify/checker"
)

// network is what lies between one client and a store: it is slow, and loses requests and
// replies. A request arrives also when nobody waits for it any more.
type network struct {
	driver.Driver
	late    bool // it may be slow for longer than a TTL
	repeats bool // the client sends a request again within the call, as that of a Redis cluster does

	mu     sync.Mutex
	random *rand.Rand
}

func (n *network) chance(p float64) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.random.Float64() < p
}

func (n *network) takes() time.Duration {
	d := time.Millisecond
	switch {
	case n.late && n.chance(0.05):
		d = 3 * ttl / 2
	case n.chance(0.05):
		d = ttl / 4
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return time.Duration(n.random.Int64N(int64(d)))
}

// Do implements driver.Driver.
func (n *network) Do(ctx context.Context, key string, r driver.Request) (a driver.Answer, err error) {
	for range 4 {
		var again <-chan time.Time
		if n.repeats {
			again = time.After(repeats + 50*time.Millisecond)
		}
		select {
		case reply := <-n.send(key, r):
			if a, err = reply.answer, reply.err; !n.repeats || !errors.Is(err, io.EOF) {
				return a, err
			}
		case <-again:
		case <-ctx.Done():
			return a, ctx.Err()
		}
	}
	return a, err
}

type reply struct {
	answer driver.Answer
	err    error
}

func (n *network) send(key string, r driver.Request) <-chan reply {
	arrived := make(chan reply, 2)
	broken := func() { arrived <- reply{err: io.EOF} }
	there, back, lost := n.takes(), n.takes(), n.chance(0.04)
	if n.chance(0.04) {
		broken()
		if n.repeats || n.chance(0.5) {
			return arrived
		}
	}
	go func() {
		<-time.After(there)
		a, err := n.Driver.Do(context.Background(), key, r)
		<-time.After(back)
		if lost {
			broken()
		}
		arrived <- reply{a, err}
	}()
	return arrived
}

// TestSimulated: in virtual time the clients work on a store in memory, which follows the rule book. What the
// sweep reports there is a mistake of its own, and such histories are made a thousand
// times faster than those on real servers.
func TestSimulated(t *testing.T) {
	first, count := verifyrecord.Seed(t, 6, 300)
	mixes := []mix{few, {crash: 0.06, freeze: 0.12, complete: 0.1, start: 0.3, revoke: 0.15}, {crash: 0.03, freeze: 0.03, start: 0.15, revoke: 0.2}, {crash: 0.02, freeze: 0.3, complete: 0.2}}
	for _, c := range []struct {
		name                   string
		late, repeats, several bool
		limits                 checker.Limits
	}{
		{name: "a request is lost", limits: exact},
		{name: "a request is late", limits: onRedis, late: true},
		{name: "a request is lost and repeated", limits: onCluster, repeats: true},
		{name: "a request is late and repeated", limits: onCluster, late: true, repeats: true},
		{name: "several holders", limits: exact, several: true},
		{name: "several holders, repeated", limits: onCluster, repeats: true, several: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			takeovers := 0
			for seed := first; seed < first+uint64(count); seed++ {
				f := &fault{name: c.name, mix: mixes[seed%uint64(len(mixes))], late: c.late, several: c.several, effect: unknowns}
				if c.several {
					f.mix = mix{crash: 0.08, freeze: 0.08, revoke: 0.1}
				}
				s := &setup{name: "simulated", limits: c.limits, length: 10 * time.Second}
				s.start = func(t *testing.T, _ *fault, _ uint64) *system {
					store := memstore.New(nil)
					return &system{t: t, open: func(seed uint64) opened {
						return opened{Store: store.WrapDriver(func(d driver.Driver) driver.Driver {
							return &network{Driver: d, random: rand.New(rand.NewPCG(seed, 1)), late: c.late, repeats: c.repeats}
						})}
					}}
				}
				var ops []checker.Op
				var kept []string
				synctest.Test(t, func(t *testing.T) {
					played, stuck := play(t, f, s, []uint64{seed}, size{})
					require.Empty(t, stuck)
					<-time.After(10 * ttl) // for the last requests to arrive
					ops, kept = played.runs[0].Ops(), played.runs[0].kept
				})
				takeovers += checker.Count(ops).Takeovers
				if violations := checker.Sweep(ops, s.judged(f)); len(violations) > 0 || len(kept) > 0 {
					t.Errorf("seed %d: violations:\n%v\nkept: %v\nall operations are in %s", seed, violations, kept, dump(t, "simulated "+c.name, seed, ops))
				}
			}
			require.Greater(t, takeovers, count, "one history shows more than one")
		})
	}
}
