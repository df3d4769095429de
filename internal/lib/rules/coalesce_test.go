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

// storm is one key under many events of two works, and of runs that do not coalesce. Some events are delivered twice: the second delivery begins
// while the first one waits or works, or later. The sources send each delivery again until it is answered. Environments
// die while they wait and while they work, and some come too late for their turn.
type storm struct {
	*rand.Rand
	decide
	state   rules.State
	now     time.Duration
	events  []event
	tries   []*try
	most    int           // may hold the key
	pause   time.Duration // before an event is sent again
	forgets bool          // an answer to one delivery of an event is one to both
	owners  int
	runs    int
	covers  int
	beside  int // tries that begin beside one of another delivery of their event
}

// event is one delivery of one thing to do. Its source sends it until it is answered, and then again after a pause.
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
	late  time.Duration // it does nothing before: its environment is slow
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
			switch h := leaseOf(&s.state, o); {
			case h == nil || y.owner != o || y.over:
			case s.IntN(4) > 0:
				s.begin(y, h.Fence)
			default:
				y.late = s.now + time.Duration(s.IntN(4000))*time.Millisecond
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
	x.over, e.answered, e.next = true, e.answered || answered, s.now+s.pause
	for i := range s.events {
		if s.forgets && s.events[i].id == e.id {
			s.events[i].answered = e.answered
		}
	}
}

// live is what happens to a try within one beat.
func (s *storm) live(x *try) {
	switch {
	case s.IntN(200) == 0: // its environment dies
		s.end(x, false)
	case x.began == 0 && s.IntN(150) == 0: // its time is over, and it goes
		if a := s.tell(x, driver.Request{Kind: driver.Leave}); a.Outcome == driver.Holding {
			x.fence = a.Fence
			s.tell(x, driver.Request{Kind: driver.Release})
		}
		s.end(x, false)
	case x.began == 0 && s.now >= x.late && s.IntN(10) == 0:
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
	if slices.ContainsFunc(s.tries, func(x *try) bool { return !x.over && s.events[x.event].id == s.events[i].id }) {
		s.beside++
	}
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
			e := event{id: fmt.Sprint(len(s.events)), work: []string{"index", "index", "index", "sort", "sort", ""}[s.IntN(6)], sent: s.now, next: s.now}
			s.events = append(s.events, e)
			if s.IntN(4) == 0 {
				e.next += time.Duration(s.IntN(2000)) * time.Millisecond
				s.events = append(s.events, e)
			}
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
// die, and some events are delivered twice, if their source sends each delivery again until it is answered. With a mistake in the rule some have none,
// and so it is if the source forgets the second delivery because the first one is answered, as docs/guarantees.md says.
func TestOneWaitsForAll(t *testing.T) {
	const most = 60
	storms := most
	if verifyrecord.WithRaceDetector {
		storms = 6
	}
	run := func(d decide, storms int, forgets bool) (all storm, lost int) {
		for seed := range uint64(storms) {
			if lost > 0 {
				break
			}
			s := &storm{
				Rand: rand.New(rand.NewPCG(seed, 4)), decide: d, now: beat, most: 1 + int(seed%2),
				pause: []time.Duration{beat, time.Second, 3 * time.Second}[seed%3], forgets: forgets,
			}
			lost += s.run()
			all.events, all.runs, all.covers, all.beside = append(all.events, s.events...), all.runs+s.runs, all.covers+s.covers, all.beside+s.beside
		}
		return all, lost
	}
	s, lost := run(rules.Book.Decide, storms, false)
	t.Logf("%d events, %d runs, %d covered, %d tries beside another of their event", len(s.events), s.runs, s.covers, s.beside)
	assert.Zero(t, lost, "events without a run")
	assert.NotZero(t, s.beside)
	assert.Greater(t, s.covers, s.runs, "most events need no run of their own")
	for _, m := range wrongrules.Losing {
		_, lost := run(m.Decide, most, false)
		t.Logf("%s: %d events without a run", m.Name, lost)
		assert.NotZero(t, lost, m.Name)
	}
	_, lost = run(rules.Book.Decide, most, true)
	t.Logf("a second delivery is forgotten: %d events without a run", lost)
	assert.NotZero(t, lost, "the page says that these events may have no run")
}

// An owner that came too late for its turn has a place again, behind one that does not coalesce. So the next event of its work has a place, too, and after
// the next grant both places cover others. If both owners are dead, their events must not be covered by the places of each other.
func TestTwoEventsWhoseOwnersAreDead(t *testing.T) {
	run := func(d decide) (first, second, third driver.Answer) {
		var s rules.State
		now := noon
		ask := func(owner driver.Owner, work, event string) (a driver.Answer) {
			s, _, a, _ = d(rules.Book{Places: 16, Marks: 4}, s, rules.At(now), driver.Request{
				Kind: driver.Acquire, Owner: owner, TTL: 9 * time.Second, MaxHolders: 1, Join: true, Work: work, Event: event,
			})
			return a
		}
		holder := ask("holder", "", "")
		ask("late", "index", "1")
		ask("plain", "", "")
		s, _, _, _ = d(rules.Book{Places: 16, Marks: 4}, s, rules.At(now), driver.Request{Kind: driver.Release, Owner: "holder", Fence: holder.Fence})
		now = now.Add(driver.TurnTime + time.Second)
		assert.Equal(t, 2, ask("late", "index", "1").Position)
		assert.Equal(t, 3, ask("second", "index", "2").Position)
		assert.Equal(t, driver.Granted, ask("plain", "", "").Outcome)
		return ask("another try of the first", "index", "1"), ask("another try of the second", "index", "2"), ask("third", "index", "3")
	}
	first, second, third := run(rules.Book.Decide)
	assert.Equal(t, []any{3, false, 4, false, true}, []any{first.Position, first.Covered, second.Position, second.Covered, third.Covered})
	first, second, _ = run(wrongrules.Find("covered: two events by the places of each other").Decide)
	assert.True(t, first.Covered && second.Covered, "both are answered, and nobody comes")
}
