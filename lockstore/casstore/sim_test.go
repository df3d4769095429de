package casstore

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/leasesim"
	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
)

// TestSimulation is package leasesim over a KV. The KV's clock has steps of 1 ns, 1 ms or 1 s, and in half of the seeds its
// hosts' clocks differ. Reads that are not fresh are sometimes old, some replies to writes are wrong, a client sends some
// writes twice and takes the second answer, and the store's clock jumps ahead in some processes.
func TestSimulation(t *testing.T) {
	leasesim.Sim{
		Part:  leasesim.Part{Name: "simulated guards over a KV", Few: 10, Full: 400, Must: []string{oldReads, wrongReplies, twice, jumps}},
		Open:  openRegister,
		Slack: 4 * time.Second, Delay: 4 * time.Second,
	}.Run(t)
}

const (
	oldReads     = "old reads"
	wrongReplies = "wrong replies to writes"
	twice        = "writes that a client sends twice"
	jumps        = "store clocks that jump"
)

// register is the service of one world.
type register struct {
	*leasesim.World
	resolution, skew time.Duration
	reader           *store // decodes entries

	mu      sync.Mutex
	history []Entry // of the key; the last one is the present one
}

func openRegister(w *leasesim.World) func(*leasesim.Process) *lockstore.Store {
	r := &register{World: w, history: []Entry{{}}}
	r.resolution = []time.Duration{1, time.Millisecond, time.Second}[w.Seed/2%3]
	r.skew = []time.Duration{0, 200 * time.Millisecond}[w.Seed/6%2]
	if w.Step = r.resolution + r.skew; w.Step == 1 {
		w.Step = 0
	}
	w.OldReads = true
	var err error
	r.reader, err = newStore(&line{register: r}, Options{})
	require.NoError(w.T, err)
	return func(p *leasesim.Process) *lockstore.Store {
		l := &line{r, p}
		s, err := newStore(l, Options{MaxClockSkew: r.skew})
		require.NoError(w.T, err)
		return lockstore.New("casstore", jumpy{s, p})
	}
}

// jumpy is a store whose clock jumps ahead now and then.
type jumpy struct {
	*store
	p *leasesim.Process
}

func (s jumpy) Do(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	if s.p.Chance(0.02, jumps) {
		s.mu.Lock()
		if !s.clock.stamp.IsZero() {
			s.clock.stamp = s.clock.stamp.Add(s.p.UpTo(leasesim.TTL))
		}
		s.mu.Unlock()
	}
	return s.store.Do(ctx, key, r)
}

// line is the KV as one process has it.
type line struct {
	*register
	p *leasesim.Process
}

func (l *line) ClockResolution() time.Duration { return l.resolution }

// stamp is the time of one of the service's hosts.
func (l *line) stamp() time.Time {
	ahead := l.p.UpTo(l.skew)
	if l.p.Latency == 0 {
		ahead = 0
	}
	return time.Now().Round(0).Add(ahead).Truncate(l.resolution)
}

type readAnswer struct {
	Entry
	now time.Time
}

func (l *line) Read(ctx context.Context, _ string, fresh bool) (Entry, time.Time, error) {
	old := 0
	if !fresh && l.p.Latency > 0 && l.p.Float() < 0.2 { // this is no trouble: it only delays
		l.Count(oldReads)
		old = int(l.p.Float() * 6)
	}
	a, err := leasesim.Send(ctx, l.p, func() (a readAnswer, again bool, err error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		a.Entry = l.history[max(0, len(l.history)-1-old)]
		if fresh {
			a.now = l.stamp()
		}
		return a, false, nil
	})
	return a.Entry, a.now, err
}

func (l *line) Write(ctx context.Context, _ string, value []byte, ifVersion string) (Entry, error) {
	wrong, repeated := l.p.Chance(0.02, wrongReplies), l.p.Chance(0.05, twice)
	return leasesim.Send(ctx, l.p, func() (Entry, bool, error) {
		if wrong { // with the old version
			return Entry{Version: ifVersion, WrittenAt: l.stamp()}, false, nil
		}
		e, err := l.write(value, ifVersion)
		if repeated { // and the client gets the second answer
			e, err = l.write(value, ifVersion)
		}
		return e, true, err
	})
}

func (l *line) write(value []byte, ifVersion string) (Entry, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := l.history[len(l.history)-1]
	if last.Version != ifVersion {
		return Entry{}, ErrConflict
	}
	e := Entry{Value: value, Version: fmt.Sprint(len(l.history)), WrittenAt: l.stamp()}
	l.history = append(l.history, e)
	if before, after := l.count(last), l.count(e); after != before+1 {
		l.Fail("M114: a write was not counted: after number %d comes number %d", before, after)
	}
	return e, nil
}

// count is the number of a write.
func (r *register) count(e Entry) uint64 {
	v, err := r.reader.view(leasesim.Key, e)
	require.NoError(r.T, err)
	return v.entry.Number()
}
