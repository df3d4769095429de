package casstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/leasesim"
	"github.com/lambdalock/lambdalock/internal/rules"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// TestSimulation runs simulated clients over a KV in virtual time. The KV's
// clock has steps of 1 ns, 1 ms or 1 s, and in half of the seeds its hosts' clocks differ. The network is slow,
// loses requests and replies, delivers writes too late, and sends writes twice. Reads that
// are not fresh are sometimes old. Some replies to writes are wrong, and the clocks of
// some processes jump ahead.
//
// No two clients may trust their leases at the same time, and fences grow in the order of
// trust. The test also checks each change of the entry, and some answers:
//
//   - Acquire does not grant the key of a live lease, nor before the owner's turn, nor to
//     an owner that has ended. Only the end of a lease by its owner hands a live key over.
//   - A lease begins later, or gets longer, only by its owner's writes.
//   - Nobody ends another's live lease. An owner whose lease was taken over is remembered, unless
//     it was handed the key and did not come.
//   - The fence never becomes smaller, and each write is counted.
//   - A place is added at the end, and only a grant and a leave end places.
//   - A grant, a refusal, the end of a place, a lost lease and "not applied" are told when it is so.
//
// VERIFY_SEED=17 VERIFY_SEEDS=1 go test ./lockstore/casstore -run TestSimulation replays
// one seed.
func TestSimulation(t *testing.T) {
	leasesim.Verify(t, "simulated clients over a KV", 10, 1000, 0.02, simulate)
}

func simulate(t *testing.T, seed uint64, fromReply bool) (leasesim.Counts, []string) {
	steps := []time.Duration{1, time.Millisecond, time.Second}
	skews := []time.Duration{0, 200 * time.Millisecond}
	w := &world{t: t, start: time.Now(), step: steps[seed/2%3], skew: skews[seed/6%2], granted: map[lockstore.Owner]lockstore.Fence{}, joined: map[lockstore.Owner]time.Time{},
		counts: leasesim.NewCounts("writes", "conflicts", "refused requests", "lost replies", "cut requests", "requests without an answer",
			"late requests", "late replies", "slow requests and replies", "repeated writes", "wrong replies", "old reads", "clocks that jump", "touches", "takeovers",
			"grants in the queue's order", "hand-overs", "hand-overs that are extended", "hand-overs that lapse", "leaves")}
	w.history = []Entry{{}}
	var err error
	w.reader, err = newStore(&line{world: w}, Options{MaxClockSkew: w.skew})
	require.NoError(t, err)
	w.several = seed%4 > 1
	sim := &leasesim.Sim{Seed: seed, TTL: simTTL, Length: 15 * simTTL, Several: w.several, Open: w.open, FromReply: fromReply}
	counts, problems := sim.Run(t)
	w.underWay.Wait()
	maps.Copy(counts, w.counts)
	return counts, problems
}

const simTTL = 3 * time.Second

// world is the service, and the network of one seed.
type world struct {
	t        *testing.T
	start    time.Time
	step     time.Duration
	skew     time.Duration // between the clocks of the service's hosts
	underWay sync.WaitGroup
	reader   *store // decodes entries
	several  bool   // may hold the key: only what does not depend on that is checked

	mu      sync.Mutex
	counts  leasesim.Counts
	history []Entry   // of the key; the last one is the present one
	since   time.Time // when the holder's lease was granted or renewed, by the right clock
	granted map[lockstore.Owner]lockstore.Fence
	joined  map[lockstore.Owner]time.Time // when an owner got its place
}

func (w *world) count(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts[what]++
}

// line is the KV as one process has it.
type line struct {
	*world
	p     *leasesim.Process
	jumps bool // the process's clock does
}

func (w *world) open(p *leasesim.Process) (*lockstore.Store, func()) {
	l := &line{world: w, p: p, jumps: p.Float() < 0.2}
	s, err := newStore(l, Options{MaxClockSkew: l.skew})
	require.NoError(w.t, err)
	return lockstore.New("casstore", &told{s, l}), func() {}
}

// attempt is one request to a store: which writes of it were applied.
type attempt struct {
	driver.Request
	applied int
	granted bool // one of them granted the key
	refused bool // the caller was told that nothing was applied
}

type attemptKey struct{}

// told is a store whose answers are checked.
type told struct {
	*store
	line *line
}

func (s *told) Do(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	w := s.line.world
	if s.line.jumps && s.line.p.Float() < 0.3 {
		w.count("clocks that jump")
		s.mu.Lock()
		if !s.clock.stamp.IsZero() {
			s.clock.stamp = s.clock.stamp.Add(s.line.p.UpTo(simTTL))
		}
		s.mu.Unlock()
	}
	own, began := &attempt{Request: r}, time.Now()
	a, err := s.store.Do(context.WithValue(ctx, attemptKey{}, own), key, r)
	w.mu.Lock()
	defer w.mu.Unlock()
	own.refused = errors.Is(err, lockstore.ErrUnavailable)
	if own.refused && own.applied > 0 {
		w.t.Errorf("M107: at %v: %s was applied: %v", time.Since(w.start), r.Kind, err)
	}
	if a.Outcome == driver.Refused && own.granted {
		w.t.Errorf("M160: at %v: told that another has the key, and it was granted", time.Since(w.start))
	}
	v := w.view(w.history[len(w.history)-1])
	switch {
	case r.Kind == driver.Acquire && a.Outcome == driver.Granted && w.granted[r.Owner] != a.Fence:
		w.t.Errorf("M112: at %v: the caller was told of a grant that never was", time.Since(w.start))
	// A host whose clock is ahead says earlier that the lease is over.
	case r.Kind == driver.Renew && a.Outcome == driver.Lost && v.owner == r.Owner && v.LastFence == r.Fence && time.Since(w.since) < v.ttl-w.skew:
		w.t.Errorf("M108 M111: at %v: told that a live lease is lost", time.Since(w.start))
	// A late request of the owner may give it a place again.
	case r.Kind == driver.Leave && !w.several && a.Outcome == driver.Done && v.place(r.Owner) >= 0 && w.joined[r.Owner].Before(began):
		w.t.Errorf("M109: at %v: an owner that has left has a place", time.Since(w.start))
	}
	return a, err
}

func (w *world) ClockResolution() time.Duration { return w.step }

// stamp is the time of one of the service's hosts.
func (l *line) stamp() time.Time {
	return time.Now().Round(0).Add(l.p.UpTo(l.skew)).Truncate(l.step)
}

// answer is the service's answer to a request.
type answer struct {
	entry Entry
	now   time.Time
	err   error
}

func (l *line) Read(ctx context.Context, _ string, fresh bool) (Entry, time.Time, error) {
	a := l.carry(ctx, func(string) answer {
		l.mu.Lock()
		defer l.mu.Unlock()
		if fresh {
			return answer{entry: l.history[len(l.history)-1], now: l.stamp()}
		}
		at := len(l.history) - 1
		if l.p.Float() < 0.2 {
			l.counts["old reads"]++
			at = max(0, at-int(l.p.Float()*6))
		}
		return answer{entry: l.history[at]}
	}, false)
	return a.entry, a.now, a.err
}

func (l *line) Write(ctx context.Context, _ string, value []byte, ifVersion string) (Entry, error) {
	own := ctx.Value(attemptKey{}).(*attempt)
	a := l.carry(ctx, func(fate string) answer {
		l.mu.Lock()
		defer l.mu.Unlock()
		if fate == "wrong replies" { // with the old version
			return answer{entry: Entry{Version: ifVersion, WrittenAt: l.stamp()}}
		}
		e, err := l.apply(own, value, ifVersion)
		if err != nil {
			l.counts["conflicts"]++
			return answer{err: err}
		}
		own.applied++
		if own.refused {
			l.t.Errorf("M107: at %v: a write was applied, and the caller was told that it was not", time.Since(l.start))
		}
		return answer{entry: e}
	}, true)
	return a.entry, a.err
}

var errEnded = errors.New("the connection ended")

// carry delivers a request to the service, or loses it. What was sent may arrive after
// the end of the caller's context.
func (l *line) carry(ctx context.Context, deliver func(fate string) answer, writes bool) answer {
	p := l.p
	in, out, fate := p.UpTo(40*time.Millisecond), p.UpTo(40*time.Millisecond), ""
	twice, lose := false, false
	for _, at := range []struct {
		part float64
		fate string
	}{{0.02, "refused requests"}, {0.05, "lost replies"}, {0.03, "cut requests"}, {0.03, "requests without an answer"}, {0.05, "late requests"},
		{0.04, "late replies"}, {0.04, "slow requests and replies"}, {0.05, "repeated writes"}, {0.02, "wrong replies"}} {
		if p.Float() >= at.part {
			continue
		}
		if fate = at.fate; writes || fate != "repeated writes" && fate != "wrong replies" {
			l.count(fate)
		}
		break
	}
	switch fate {
	case "refused requests":
		return answer{err: fmt.Errorf("%w: connection refused", lockstore.ErrUnavailable)}
	case "lost replies":
		lose = true
	case "cut requests":
		leasesim.Pass(in)
		return answer{err: errEnded}
	case "requests without an answer":
		<-ctx.Done()
		return answer{err: ctx.Err()}
	case "late requests":
		in = p.UpTo(2 * simTTL)
	case "late replies":
		out = p.UpTo(2 * simTTL)
	case "slow requests and replies": // and the client waits for them
		in, out = p.UpTo(time.Second), p.UpTo(time.Second)
	case "repeated writes":
		twice = writes
	}
	done := make(chan answer, 1)
	l.underWay.Go(func() {
		leasesim.Pass(in)
		a := deliver(fate)
		if twice { // the client sends it again, and gets the second answer
			leasesim.Pass(p.UpTo(40 * time.Millisecond))
			a = deliver(fate)
		}
		leasesim.Pass(out)
		if lose {
			a = answer{err: errEnded}
		}
		done <- a
	})
	select {
	case a := <-done:
		return a
	case <-ctx.Done():
		return answer{err: ctx.Err()}
	}
}

// seen is an entry as the test reads it.
type seen struct {
	view
	owner lockstore.Owner // "" is free
	begin time.Time
	ttl   time.Duration
	// It was handed the key, and has not come yet.
	handed bool
}

func (w *world) view(e Entry) seen {
	v, err := w.reader.view(leasesim.Key, e)
	if err != nil {
		w.t.Error(err)
	}
	s := seen{view: v}
	for _, h := range v.Holders {
		s.owner, s.begin, s.ttl, s.handed = h.Owner, h.Since, h.TTL, h.HandedOver
	}
	return s
}

func (s seen) place(o lockstore.Owner) int {
	return slices.IndexFunc(s.Queue, func(p rules.Waiter) bool { return p.Owner == o })
}

func (s seen) ending(o lockstore.Owner) (how rules.How, ok bool) {
	i := slices.IndexFunc(s.Ended, func(e rules.Ended) bool { return e.Owner == o })
	if i < 0 {
		return 0, false
	}
	return s.Ended[i].How, true
}

// apply writes the entry for a request, and checks how it changes.
func (l *line) apply(by *attempt, value []byte, ifVersion string) (Entry, error) {
	w := l.world
	last := w.history[len(w.history)-1]
	if last.Version != ifVersion {
		return Entry{}, ErrConflict
	}
	e := Entry{Value: value, Version: fmt.Sprint(len(w.history)), WrittenAt: l.stamp()}
	w.history = append(w.history, e)
	w.counts["writes"]++
	before, after, now := w.view(last), w.view(e), time.Now()
	fail := func(format string, args ...any) {
		w.t.Errorf("at %v: %s: %+v became %+v", time.Since(w.start), fmt.Sprintf(format, args...), before.State, after.State)
	}
	live := before.owner != "" && now.Sub(w.since) < before.ttl
	if after.entry.it.N != before.entry.it.N+1 {
		fail("M114: a write was not counted")
	}
	if after.LastFence < before.LastFence {
		fail("the fence fell")
	}
	if w.several {
		for _, h := range after.Holders {
			w.granted[h.Owner] = h.Fence
		}
		return e, nil
	}
	owner := after.owner
	queue, without := before.Queue, before.Queue // what it has to be; and without the place of who asks
	if i := before.place(by.Owner); i >= 0 {
		without = slices.Concat(queue[:i], queue[i+1:])
	}
	how, ended := after.ending(before.owner)
	ends := by.Owner == before.owner && (by.Kind == driver.Release || by.Kind == driver.Abandon)
	switch {
	case owner != "" && (owner != before.owner || after.LastFence != before.LastFence):
		_, over := before.ending(owner)
		switch {
		case live && !(ends && after.handed):
			fail("M110 M118: the key of a live lease was granted")
		case after.handed == (owner == by.Owner):
			fail("a grant is a hand-over exactly if another one asks")
		case after.LastFence == before.LastFence:
			fail("the fence did not grow")
		case over:
			fail("M18: an owner that has ended has the key")
		}
		switch {
		case before.owner == "":
		case ends:
			if !ended || how != rules.Released {
				fail("the owner that has ended its lease is forgotten")
			}
		case before.handed:
			w.counts["hand-overs that lapse"]++
			if ended && before.owner != by.Owner {
				fail("who did not come within its turn has ended")
			}
		default:
			w.counts["takeovers"]++
			if !ended || how != rules.Expired {
				fail("M117: the owner whose lease was taken over is forgotten")
			}
		}
		if after.handed {
			w.counts["hand-overs"]++
			queue = without
		} else {
			by.granted = true
		}
		free := now.Sub(before.begin.Add(before.ttl)) + 2*w.skew + w.step
		if before.owner == "" {
			free = lockstore.Turn * lockstore.MaxTurns
		}
		place := slices.IndexFunc(queue, func(p rules.Waiter) bool { return p.Owner == owner })
		if place >= 0 {
			w.counts["grants in the queue's order"]++
		} else {
			place = len(queue)
		}
		if turn := leasesim.UntilTurn(place, max(0, free)); turn > 0 {
			fail("M32: granted %v before its turn", turn)
		}
		queue = queue[min(place+1, len(queue)):]
		without = queue
		w.since, w.granted[owner] = now, after.LastFence
	case owner != "":
		own := after.entry.it.Holders[0].it.Begin == 0
		switch {
		case after.LastFence != before.LastFence:
			fail("the fence changed within a lease")
		case after.ttl < before.ttl:
			fail("M09: the lease got shorter")
		case own && by.Owner != owner, before.handed && !after.handed && !own:
			fail("M106: the lease begins again by another's write")
		case own:
			if w.since = now; before.handed && !after.handed {
				w.counts["hand-overs that are extended"]++
				by.granted = true
			}
		case after.begin.After(before.begin):
			fail("the lease begins later by a write that is not its owner's")
		default:
			w.counts["touches"]++
		}
	case before.owner != "":
		switch {
		case !ended && live:
			fail("M113: another's lease was ended")
		case len(before.Queue) > 0 && len(without) > 0:
			fail("the key was handed over to nobody")
		}
	}
	// Besides, a write adds one place at the end, or takes the own one out.
	added := len(after.Queue) == len(queue)+1 && slices.Equal(after.Queue[:len(queue)], queue)
	switch {
	case added && by.Kind == driver.Acquire && after.Queue[len(queue)].Owner == by.Owner:
		w.joined[by.Owner] = now
	case slices.Equal(queue, after.Queue):
	case slices.Equal(without, after.Queue) && by.Kind != driver.Renew:
		w.counts["leaves"]++
	default:
		fail("the queue has to be %v", queue)
	}
	return e, nil
}
