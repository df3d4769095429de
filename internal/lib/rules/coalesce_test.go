package rules_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/rules"
	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/internal/wrongrules"
)

// storm is one key under many events of two works, whose sources send each event again until it is answered. Environments
// die while they wait and while they work.
type storm struct {
	*rand.Rand
	decide
	state  rules.State
	now    time.Duration
	events []event
	tries  []*try
	most   int           // may hold the key
	pause  time.Duration // before an event is sent again
	owners int
	runs   int
	covers int
}

// event is one thing to do. Its source sends it until it is answered, and then again after a pause.
type event struct {
	id, work string
	sent     time.Duration // for the first time
	next     time.Duration // when it is sent again
	answered bool
	done     bool // a run of its work that began after it was sent has ended well
}

// try is one sending of an event: an invocation with an owner of its own.
type try struct {
	event int
	owner driver.Owner
	fence driver.Fence  // of its lease
	began time.Duration // 0: it waits
	ends  time.Duration
	over  bool
}

const (
	beat  = 50 * time.Millisecond
	never = time.Duration(1 << 62)
)

// tell sends a request by a try, and starts those who were handed the key.
func (s *storm) tell(x *try, r driver.Request) driver.Answer {
	r.Owner, r.Fence = x.owner, x.fence
	next, _, a, _ := s.decide(rules.Book{Places: 16, Marks: 4}, s.state, rules.At(noon.Add(s.now)), r)
	s.state = next
	for _, o := range a.HandedOver {
		for _, y := range s.tries {
			if h := leaseOf(&s.state, o); h != nil && y.owner == o && !y.over {
				s.begin(y, h.Fence)
			}
		}
	}
	return a
}

func (s *storm) begin(x *try, f driver.Fence) {
	x.fence, x.began, x.ends = f, s.now, s.now+time.Duration(s.IntN(1500))*time.Millisecond
	s.runs++
}

func (s *storm) ask(x *try) {
	a := s.tell(x, driver.Request{Kind: driver.Acquire, TTL: 3 * time.Second, MaxHolders: s.most, Join: true, Work: s.events[x.event].work, Event: s.events[x.event].id})
	switch {
	case a.Outcome == driver.Granted && x.began == 0:
		s.begin(x, a.Fence)
	case a.Covered:
		s.covers++
		s.end(x, true)
	}
}

// end ends a try. An event that is not answered is sent again after a pause.
func (s *storm) end(x *try, answered bool) {
	e := &s.events[x.event]
	x.over, e.answered, e.next = true, answered, s.now+s.pause
}

// live is what happens to a try within one beat.
func (s *storm) live(x *try) {
	switch {
	case s.IntN(200) == 0: // its environment dies
		s.end(x, false)
	case x.began == 0 && s.IntN(150) == 0: // its time is over, and it goes
		s.tell(x, driver.Request{Kind: driver.Leave})
		s.end(x, false)
	case x.began == 0 && s.IntN(10) == 0:
		s.ask(x)
	case x.began > 0 && s.now >= x.ends:
		s.tell(x, driver.Request{Kind: driver.Release})
		s.end(x, true)
		for i := range s.events {
			e := &s.events[i]
			e.done = e.done || e.work == s.events[x.event].work && e.sent <= x.began
		}
	}
}

// send sends an event once.
func (s *storm) send(i int) {
	s.events[i].next = never
	s.owners++
	x := &try{event: i, owner: driver.Owner(fmt.Sprint("owner ", s.owners))}
	s.tries = append(s.tries, x)
	s.ask(x)
}

// run returns how many events were answered, and no run of their work began after they were sent.
func (s *storm) run() (lost int) {
	const length = 10 * time.Second
	for ; s.now < length || slices.ContainsFunc(s.events, func(e event) bool { return !e.answered }); s.now += beat {
		if s.now < length && s.IntN(4) == 0 {
			s.events = append(s.events, event{id: fmt.Sprint(len(s.events)), work: []string{"index", "index", "sort"}[s.IntN(3)], sent: s.now, next: s.now})
		}
		s.tries = slices.DeleteFunc(s.tries, func(x *try) bool { return x.over })
		for _, x := range slices.Clone(s.tries) {
			if !x.over {
				s.live(x)
			}
		}
		for i, e := range s.events {
			if !e.answered && s.now >= e.next {
				s.send(i)
			}
		}
	}
	for _, e := range s.events {
		if !e.done {
			lost++
		}
	}
	return lost
}

// Each event that is answered has a run of its work that began after the event was sent, although those who wait and those at work
// die, if their source sends again what was not answered. With a mistake in the rule some have none.
func TestOneWaitsForAll(t *testing.T) {
	storms := 60
	if verifyrecord.WithRaceDetector {
		storms = 6
	}
	run := func(d decide) (all storm, lost int) {
		for seed := range uint64(storms) {
			s := &storm{Rand: rand.New(rand.NewPCG(seed, 4)), decide: d, now: beat, most: 1 + int(seed%2), pause: []time.Duration{beat, time.Second, 3 * time.Second}[seed%3]}
			lost += s.run()
			all.events, all.runs, all.covers = append(all.events, s.events...), all.runs+s.runs, all.covers+s.covers
		}
		return all, lost
	}
	s, lost := run(rules.Book.Decide)
	t.Logf("%d events, %d runs, %d covered", len(s.events), s.runs, s.covers)
	assert.Zero(t, lost, "events without a run")
	assert.Greater(t, s.covers, s.runs, "most events need no run of their own")
	for _, m := range wrongrules.Losing {
		_, lost := run(m.Decide)
		t.Logf("%s: %d events without a run", m.Name, lost)
		assert.NotZero(t, lost, m.Name)
	}
}
