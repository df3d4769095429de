package storetest

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/rules"
	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/lockstore"
)

// Within sends each request from many states of a key, and another owner's request with it: a fifth of all pairs of
// requests, by VERIFY_SEED, and in make verify GATE=1 fewer. If the harness has Inside, Requests and LoseReplies, the other request comes between the requests
// of the call, also after a lost reply of one of them, and all replies are lost from one of them on. Otherwise the other one comes after
// the call, whose reply may be lost, and then the first request comes again. The answers and the state must be those of the rule book to
// the one request after the other. Each state is in a synctest bubble of its own. Run has a few of the pairs. Within returns how many it
// has tried.
func Within(t *testing.T, open func(t *testing.T) Harness) (tried int) {
	t.Helper()
	kinds := map[string]bool{}
	first, _ := verifyrecord.Seed(t, 0, 0)
	for _, s := range situations {
		t.Run(s.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newPlacing(newCheck(t, t, open(t), true), s, kinds)
				if w.stride = 5; verifyrecord.Gate() {
					w.stride = verifyrecord.GateShare
				}
				w.pairs = int(first % uint64(w.stride))
				tries := w.tries()
				for _, try := range tries {
					try()
				}
				tried += len(tries)
			})
		})
	}
	return tried
}

// pairs tries few pairs, in one bubble or on the wall clock: there many at once, because they mostly wait, and of the states that
// need no time.
func (c *check) pairs() {
	var tries []func()
	kinds := map[string]bool{}
	for _, s := range situations {
		lapses := slices.ContainsFunc(s.steps, func(s step) bool { return s.lapse > 0 })
		if c.virtual || !lapses {
			tries = append(tries, newPlacing(c, s, kinds).tries()...)
		}
	}
	workers := 1
	if !c.virtual {
		workers = mostAtOnce
	}
	spread(len(tries), workers, func(i int) { tries[i]() })
}

// newPlacing tries one pair of so many, and each pair of kinds once; under the race detector fewer, and none within a call.
func newPlacing(c *check, s situation, kinds map[string]bool) *placing {
	if verifyrecord.WithRaceDetector {
		return &placing{check: c, situation: s, stride: 311}
	}
	return &placing{check: c, situation: s, stride: 31, kinds: kinds, within: c.virtual && c.Inside != nil && c.Requests != nil && c.LoseReplies != nil}
}

// situation is a state of a key, by the requests that lead to it. The fence of each is that of its owner's lease,
// of an operator's request that of the owner whose number the step has as its fence.
type situation struct {
	name  string
	steps []step
}

// Owners that are in no situation.
const (
	newWriter = 20 + iota
	newReader
	newReaderWithoutWaiting
	newCoalescing
	_
	firstOperator
	secondOperator
)

var situations = func() []situation {
	const lease = 10 * time.Second
	acquire := func(owner, most int) step {
		return step{kind: driver.Acquire, owner: owner, most: most, ttl: lease, join: true}
	}
	parks := func(owner, most int) step {
		s := acquire(owner, most)
		s.parked = driver.MaxParkedTurn
		return s
	}
	coalescesFor := func(owner, event int) step {
		s := acquire(owner, 1)
		s.event = event
		return s
	}
	coalesces := func(owner int) step { return coalescesFor(owner, 1) }
	by := func(kind driver.Kind, owner int) step {
		return step{kind: kind, owner: owner, ttl: lease, result: true}
	}
	operates := func(kind driver.Kind, of int) step {
		return step{kind: kind, owner: firstOperator, fence: of, ttl: lease}
	}
	after := func(d time.Duration, s step) step {
		s.lapse = d
		return s
	}
	look := func(d time.Duration) step { return step{kind: driver.Inspect, owner: firstOperator, lapse: d} }
	const over = lease + 5*time.Second
	return []situation{
		{"a new key", nil},
		{"free", []step{acquire(0, 1), by(driver.Release, 0)}},
		{"held", []step{acquire(0, 1)}},
		{"held, and others wait", []step{acquire(0, 1), acquire(1, 1), acquire(2, 2)}},
		{"held, and parked owners wait", []step{acquire(0, 1), parks(1, 1), acquire(2, 1), parks(3, 2)}},
		{"held, and one waits for all", []step{acquire(0, 1), coalesces(1)}},
		{"held, and two events of one work wait", []step{
			acquire(0, 1), coalesces(1), acquire(2, 1), by(driver.Release, 0), after(3500*time.Millisecond, coalesces(1)), coalescesFor(3, 2), acquire(2, 1),
		}},
		{"handed over to one that waited for all", []step{acquire(0, 1), coalesces(1), acquire(2, 1), by(driver.Release, 0)}},
		{"held by two", []step{acquire(0, 2), acquire(1, 2)}},
		{"held by two, a writer waits before a reader", []step{acquire(0, 2), acquire(1, 2), acquire(2, 1), acquire(3, 2)}},
		{"held by two, a reader waits before a writer", []step{acquire(0, 2), acquire(1, 2), acquire(3, 2), acquire(2, 1)}},
		{"held by two, a parked writer waits before a reader", []step{acquire(0, 2), acquire(1, 2), parks(2, 1), acquire(3, 2)}},
		{"held by one of two, a writer waits", []step{acquire(0, 2), acquire(2, 1)}},
		{"held by one of two, a writer waits before a reader", []step{acquire(0, 2), acquire(2, 1), acquire(3, 2)}},
		{"held by one of three, a writer and two readers wait", []step{acquire(0, 3), acquire(2, 1), acquire(3, 3), acquire(4, 2)}},
		{"handed over", []step{acquire(0, 1), acquire(1, 1), acquire(2, 1), by(driver.Release, 0)}},
		{"handed over to a parked owner", []step{acquire(0, 1), parks(1, 1), acquire(2, 2), by(driver.Release, 0)}},
		{"handed over to two", []step{acquire(0, 1), acquire(1, 2), acquire(2, 2), acquire(3, 1), by(driver.Release, 0)}},
		{"the hand-over has lapsed", []step{acquire(0, 1), acquire(1, 1), acquire(2, 1), by(driver.Release, 0), look(5 * time.Second)}},
		{"the lease has ended", []step{acquire(0, 1), look(over)}},
		{"the lease has ended, and others wait", []step{acquire(0, 1), acquire(1, 1), acquire(2, 2), look(over)}},
		{"one lease of two has ended, and others wait", []step{acquire(0, 2), after(6*time.Second, acquire(1, 2)), acquire(2, 1), acquire(3, 2), look(6 * time.Second)}},
		{"the work has started, and others wait", []step{acquire(0, 1), by(driver.MarkStarted, 0), acquire(1, 1), acquire(2, 2)}},
		{"in doubt, and others wait", []step{acquire(0, 1), by(driver.MarkStarted, 0), acquire(1, 1), acquire(2, 2), look(over)}},
		{"resolved", []step{acquire(0, 1), by(driver.MarkStarted, 0), acquire(1, 1), acquire(2, 2), look(over), operates(driver.Resolve, 0)}},
		{"completed", []step{acquire(0, 1), by(driver.Complete, 0)}},
		{"completed, and open again", []step{acquire(0, 1), by(driver.Complete, 0), look(over)}},
		{"revoked, and others wait", []step{acquire(0, 1), acquire(1, 1), acquire(2, 2), operates(driver.Revoke, 0)}},
		{"one lease of two is revoked, and others wait", []step{acquire(0, 2), acquire(1, 2), acquire(2, 1), acquire(3, 2), operates(driver.Revoke, 0)}},
	}
}()

// placing is one situation.
type placing struct {
	*check
	situation
	stride, pairs int
	kinds         map[string]bool // pairs that were tried
	within        bool            // the harness puts requests inside a call
}

// tries are what tries one pair each.
func (w *placing) tries() (tries []func()) {
	ops := w.ops(w.begin())
	for _, s := range ops {
		requests := 0 // of the call
		if w.within {
			m := w.begin()
			sent := w.Requests()
			m.send(s, false)
			requests = w.Requests() - sent
			for at := 2; at <= requests; at++ {
				tries = append(tries, func() { w.fails(s, at) })
			}
		}
		for _, other := range ops {
			if other.owner == s.owner && s.owner != firstOperator {
				continue
			}
			if other.owner == firstOperator {
				other.owner = secondOperator
			}
			kinds := fmt.Sprint(s.kind, s.join, other.kind, other.join)
			if w.pairs++; w.pairs%w.stride != 0 && (w.kinds == nil || w.kinds[kinds] || w.within && requests < 2) {
				continue
			}
			if w.kinds != nil && (requests > 1 || !w.within) {
				w.kinds[kinds] = true
			}
			if !w.within {
				tries = append(tries, func() { w.inTurn(s, other, false) })
				if w.virtual && w.LoseReplies != nil {
					tries = append(tries, func() { w.inTurn(s, other, true) })
				}
			}
			for at := 2; w.within && at <= requests+1; at++ {
				tries = append(tries, func() { w.pair(s, other, at, true) })
				if at <= requests {
					tries = append(tries, func() { w.pair(s, other, at, false) })
				}
			}
		}
	}
	return tries
}

// inTurn sends a request, whose reply may be lost, another one, and the first one again.
func (w *placing) inTurn(s, other step, unheard bool) {
	m := w.begin()
	for n, step := range []step{s, other, s} {
		step.looks, step.unheard = true, unheard && n == 0
		if difference, goes := m.take(step); difference != "" || !goes {
			if difference != "" {
				w.Errorf("%s: %s\n  then %s\n  then the first again: %s", w.name, s, other, difference)
			}
			return
		}
	}
}

// begin brings a new key into the situation.
func (w *placing) begin() *comparison {
	m := w.comparison()
	for _, s := range w.steps {
		if s.owner == firstOperator {
			s.fence = m.leaseOf(s.fence)
		} else {
			s.fence = m.leaseOf(s.owner)
		}
		s.looks = true
		if difference, goes := m.take(s); !goes {
			w.fatalf("%s: %s: %s", w.name, s, cmp.Or(difference, "the situation is not reached"))
		}
	}
	if m.virtual {
		m.slow = 0
	}
	return m
}

// leaseOf is the number of the fence of an owner's lease.
func (m *comparison) leaseOf(owner int) int {
	b := m.beliefs[0]
	for _, h := range b.state.Holders {
		if h.Owner == m.owners[owner] {
			return max(0, slices.Index(b.fences, h.Fence))
		}
	}
	for _, e := range b.state.Ended {
		if e.Owner == m.owners[owner] && e.Fence > 0 {
			return max(0, slices.Index(b.fences, e.Fence))
		}
	}
	return 0
}

// ops are the requests that make sense in a state.
func (w *placing) ops(m *comparison) (all []step) {
	const lease = 10 * time.Second
	s := m.beliefs[0].state
	acquire := func(owner, most int, parked time.Duration) step {
		return step{kind: driver.Acquire, owner: owner, most: most, ttl: lease, join: true, parked: parked}
	}
	operated := 0
	for owner := range newWriter {
		fence := m.leaseOf(owner)
		is := func(o driver.Owner) bool { return o == m.owners[owner] }
		holds := slices.IndexFunc(s.Holders, func(h rules.Holder) bool { return is(h.Owner) })
		waits := slices.IndexFunc(s.Queue, func(q rules.Waiter) bool { return is(q.Owner) })
		var kinds []driver.Kind
		switch {
		case holds >= 0:
			a := acquire(owner, s.Holders[holds].MaxHolders, 0)
			all = append(all, a)
			if s.Holders[holds].HandedOver {
				a.fence, a.extends = fence, true
				all = append(all, a)
			}
			kinds = []driver.Kind{driver.Renew, driver.Release, driver.MarkStarted, driver.Complete, driver.Abandon, driver.Leave}
		case waits >= 0:
			all = append(all, acquire(owner, s.Queue[waits].MaxHolders, s.Queue[waits].Parked))
			kinds = []driver.Kind{driver.Abandon, driver.Leave}
		case fence > 0:
			all = append(all, acquire(owner, 1, 0))
			kinds = []driver.Kind{driver.Release, driver.Complete}
		default:
			continue
		}
		for _, kind := range kinds {
			all = append(all, step{kind: kind, owner: owner, fence: fence, ttl: lease, result: true})
		}
		if fence > 0 && operated < 2 {
			operated++
			for _, join := range []bool{false, true} {
				all = append(all, step{kind: driver.Revoke, owner: firstOperator, fence: fence, join: join},
					step{kind: driver.Resolve, owner: firstOperator, fence: fence, join: join, ttl: lease, result: true})
			}
		}
	}
	without := acquire(newReaderWithoutWaiting, 2, 0)
	without.join = false
	if slices.ContainsFunc(s.Queue, func(q rules.Waiter) bool { return q.Work != "" }) || slices.ContainsFunc(s.Holders, func(h rules.Holder) bool { return h.HandedOver }) {
		for owner, event := range []int{2, 1} {
			a := acquire(newCoalescing+owner, 1, 0)
			a.event = event
			all = append(all, a)
		}
	}
	return append(all, acquire(newWriter, 1, 0), acquire(newReader, 2, 0), without,
		step{kind: driver.Abandon, owner: newWriter}, step{kind: driver.Leave, owner: newReader})
}

func (w *placing) pair(s, inside step, at int, again bool) {
	m := w.begin()
	s.inside, s.at, s.again = &inside, at, again
	if difference, _ := m.takeBoth(s, inside); difference != "" {
		w.Errorf("%s: %s\n%s", w.name, s, difference)
	}
}

// fails loses all replies from a request of the call on: nobody knows whether the call has changed the key, so it is as it
// was, or as it is after the request.
func (w *placing) fails(s step, at int) {
	m := w.begin()
	for process := range 2 { // a reply tells each process the time, so that the call needs no request for that
		if _, err := m.client(process).Driver().Do(m.t.Context(), m.key, driver.Request{Kind: driver.Inspect}); err != nil {
			w.fatalf("%v", err)
		}
	}
	restore := func() {}
	m.asked = m.elapsed()
	m.Inside(at, false, func() { restore = m.LoseReplies(m.t) })
	got := m.send(s, false)
	m.Inside(0, false, nil)
	restore()
	m.slow = m.elapsed() - m.asked
	for _, known := range []error{lockstore.ErrRefused, lockstore.ErrLost, lockstore.ErrCorrupt} { // these are answers
		if errors.Is(got.err, known) {
			w.Errorf("%s: %s, without a reply from request %d on: %v", w.name, s, at, got.err)
		}
	}
	inspected, err := m.client(s.owner).Driver().Do(m.t.Context(), m.key, driver.Request{Kind: driver.Inspect})
	if err != nil {
		w.fatalf("%v", err)
	}
	m.number(&m.fences, &inspected.Status)
	got.inspected = inspected.Status
	difference := ""
	for _, applied := range []bool{true, false} {
		b, want := m.beliefs[0], seen{}
		if applied {
			want, _ = m.decide(&b, s)
		}
		if got.err != nil {
			want.answer = driver.Answer{}
		}
		want.inspected = m.inspect(&b)
		d := m.differs(b, want, got)
		if d == "" {
			return
		}
		difference = cmp.Or(difference, d)
	}
	w.Errorf("%s: %s, without a reply from request %d on: %s, %v", w.name, s, at, difference, got.err)
}
