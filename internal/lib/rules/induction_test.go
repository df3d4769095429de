package rules_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/rules"
	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/internal/wrongrules"
	"github.com/lambdalock/lambdalock/lockstore"
)

// decide is the rule book, or one with a mistake.
type decide func(rules.Book, rules.State, rules.Clock, driver.Request) (rules.State, bool, driver.Answer, rules.Basis)

// induction takes every step from the states that it is given.
type induction struct {
	decide
	book   rules.Book
	now    time.Time
	states int64
	steps  int64
	wrong  string // the first step that is wrong, and what is wrong with it
}

// noon is the right time of every step that is enumerated. It is before 1970, so that each fence is the next number.
var noon = time.Unix(-1_000_000, 0).UTC()

const tick = time.Second

// thisWrite is the time of a write that is still to come: later than every other time.
var thisWrite = time.Unix(1<<40, 0)

// request takes all steps of a request: by clocks that are right, early and late, and by guesses.
func (in *induction) request(s rules.State, r driver.Request, errors []time.Duration) {
	for _, early := range errors {
		for _, late := range errors {
			in.sure(s, r, rules.Clock{Early: in.now.Add(-early), Late: in.now.Add(late), Sure: true})
		}
	}
	for _, off := range errors {
		in.guessed(s, r, in.now.Add(off), nil)
		if off > 0 {
			in.guessed(s, r, in.now.Add(-off), nil)
		}
	}
}

func (in *induction) sure(s rules.State, r driver.Request, c rules.Clock) (next rules.State) {
	next, changed, a, _ := in.decide(in.book, s, c, r)
	if !changed {
		next = s
	}
	in.check(&step{book: in.book, before: s, after: next, now: in.now, clock: c, request: r, answer: a})
	return next
}

// guessed takes a step by a guess of the time: what is new in its state begins with its write. If the answer has to rest on a
// stamp, the store asks again by a clock that is sure. If it may rest on an old state, it has to be true of the one that
// another request has made of it, too.
func (in *induction) guessed(s rules.State, r driver.Request, guess time.Time, other *driver.Request) {
	next, changed, a, basis := in.decide(in.book, s, rules.Clock{Early: guess, Late: thisWrite}, r)
	if basis == rules.OnStamp {
		return
	}
	if basis == rules.OnItsWrite {
		if _, _, again, _ := in.decide(in.book, s, rules.At(in.now), r); again.Outcome != a.Outcome {
			return // the new state does not count
		}
	}
	if !changed {
		next = s
	}
	g := &step{book: in.book, before: s, after: in.written(next), now: in.now, clock: rules.At(in.now), request: r, answer: a, guess: true}
	in.check(g)
	if other != nil && !changed && basis == rules.OnAnything && (a.Outcome != driver.Refused || a.Covered) && a.Outcome != driver.Exclusive {
		g.before = in.sure(s, *other, rules.At(in.now))
		if g.after = g.before; (markOf(&s, r.Owner) == nil) == (markOf(&g.after, r.Owner) == nil) { // it is not forgotten
			wrong := g.wrongCover()
			if !a.Covered {
				wrong = g.wrongAnswer()
			}
			in.checked(g, wrong)
		}
	}
}

// written is the state with the time of its write.
func (in *induction) written(s rules.State) rules.State {
	s.Holders = slices.Clone(s.Holders)
	for i := range s.Holders {
		if s.Holders[i].Since.Equal(thisWrite) {
			s.Holders[i].Since = in.now
		}
	}
	s.Queue = slices.Clone(s.Queue)
	for i := range s.Queue {
		if s.Queue[i].Since.Equal(thisWrite) {
			s.Queue[i].Since = in.now
		}
	}
	if s.Closed.Since.Equal(thisWrite) {
		s.Closed.Since = in.now
	}
	return s
}

func (in *induction) check(s *step) { in.checked(s, s.wrong()) }

func (in *induction) checked(s *step, wrong string) {
	if in.steps++; wrong != "" && in.wrong == "" {
		in.wrong = fmt.Sprintf("%s / %v\nbefore:  %s\nrequest: %+v\n  now is 0s, the clock says %v to %v, guess %t\nafter:   %s\nanswer:  %+v", wrong, s.request.Kind, show(s.before, in.now), s.request,
			s.clock.Early.Sub(in.now), s.clock.Late.Sub(in.now), s.guess, show(s.after, in.now), s.answer)
	}
}

// show is the state in a line, with times from now on.
func show(s rules.State, now time.Time) string {
	var text strings.Builder
	fmt.Fprintf(&text, "last fence %d", s.LastFence)
	for _, h := range s.Holders {
		fmt.Fprintf(&text, "; %s has fence %d seat %d of %d from %v to %v", string(h.Owner), h.Fence, h.Seat, h.MaxHolders, h.Since.Sub(now), h.End().Sub(now))
		for word, is := range map[string]bool{"handed over": h.HandedOver, "revoked": h.Revoked, "started": h.Started} {
			if is {
				text.WriteString(" " + word)
			}
		}
	}
	for _, w := range s.Queue {
		fmt.Fprintf(&text, "; %s waits for one of %d, parked %v", string(w.Owner), w.MaxHolders, w.Parked)
	}
	for _, m := range s.Ended {
		fmt.Fprintf(&text, "; %s has ended, fence %d, how %d", string(m.Owner), m.Fence, m.How)
	}
	if s.Closed.For > 0 {
		fmt.Fprintf(&text, "; closed from %v to %v with %q", s.Closed.Since.Sub(now), s.Closed.End().Sub(now), string(s.Closed.Result))
	}
	return text.String()
}

// inParallel is what several processors find.
func inParallel(do func(p, processors int) induction) (all induction) {
	var mu sync.Mutex
	var workers sync.WaitGroup
	processors := runtime.GOMAXPROCS(0)
	for p := range processors {
		workers.Go(func() {
			mine := do(p, processors)
			mu.Lock()
			defer mu.Unlock()
			all.add(mine)
		})
	}
	workers.Wait()
	return all
}

func (in *induction) add(other induction) {
	in.states, in.steps, in.wrong = in.states+other.states, in.steps+other.steps, cmp.Or(in.wrong, other.wrong)
}

// exhaustive takes every step from one of share states of a grid.
func exhaustive(g grid, d decide, share int64) induction {
	var found atomic.Bool
	return inParallel(func(p, processors int) induction {
		in := induction{decide: d, book: rules.Book{Places: 2, Marks: 2}, now: noon}
		n := int64(0)
		g.all(func(s rules.State, owners int) {
			if n++; found.Load() || n%share != 0 || n/share%int64(processors) != int64(p) {
				return
			}
			in.states++
			for _, r := range requests(s, owners) {
				in.request(s, r, []time.Duration{0, 2 * tick})
			}
			if in.wrong != "" {
				found.Store(true)
			}
		})
		return in
	})
}

// beyond takes a step from each of n random states that are larger than those of a grid: up to as many holders and
// places as a key may have, and with times of any length. The steps of one seed are the same everywhere.
func beyond(seed uint64, n int, d decide) induction {
	c := &chance{Rand: rand.New(rand.NewPCG(seed, 7))}
	in := induction{decide: d}
	for range n {
		in.now = []time.Time{noon, time.Unix(1_700_000_000, int64(c.IntN(1e9))), time.Unix(1<<31, c.Int64N(1e10)-5e9)}[c.IntN(3)]
		in.book = rules.Book{Places: 6, Marks: 4}
		*c = chance{Rand: c.Rand, now: in.now, owners: people[:6], holders: 4, places: 6, long: 8 * tick}
		if c.one(4) {
			c.long = []time.Duration{time.Minute, time.Hour, 100 * 24 * time.Hour}[c.IntN(3)]
		}
		if c.one(10) {
			in.book = rules.Book{Places: 20, Marks: 16}
			c.owners, c.holders, c.places = people, lockstore.MaxHolders, 20
		}
		c.owners = slices.Clone(c.owners)
		c.Shuffle(len(c.owners), func(i, j int) { c.owners[i], c.owners[j] = c.owners[j], c.owners[i] })
		s := c.state()
		if s.Broken() != "" {
			s.Ended = nil
		}
		if s.Broken() != "" {
			s.Queue = nil
		}
		if s.Broken() != "" {
			continue
		}
		in.states++
		r, other := c.request(s), c.request(s)
		off := func() time.Duration { return c.instant(3 * tick) }
		in.sure(s, r, rules.Clock{Early: in.now.Add(-off().Abs()), Late: in.now.Add(off().Abs()), Sure: true})
		in.sure(s, r, rules.At(in.now))
		if r.Owner == other.Owner {
			in.guessed(s, r, in.now.Add(10*off()), nil)
		} else {
			in.guessed(s, r, in.now.Add(10*off()), &other)
		}
		if in.wrong != "" {
			break
		}
	}
	return in
}

// small is what make verify visits without an exception. A turn has two ticks.
var small = grid{holders: 2, places: 2, marks: 2, owners: 3, ends: []time.Duration{-8 * tick, -3 * tick, -1 * tick, 0, tick, 7 * tick}, numbers: []int{1, 2, 3}}

// Every step from every state of a bounded size leads to a state that satisfies the invariant, and takes from nobody what it may
// trust. Nothing of the clients and their history occurs in this, so it is true for any number of clients. make verify visits
// all states, other runs a part of them.
func TestInduction(t *testing.T) {
	share := int64(1)
	switch {
	case verifyrecord.WithRaceDetector:
		share = 101
	case verifyrecord.Gate():
		share = verifyrecord.GateShare
	case !verifyrecord.Full():
		share = 53
	}
	result := verifyrecord.Result{
		Kind: verifyrecord.Induction, Name: "every step from every small state of a key",
		Limits: []string{
			"The induction is over random states, and all states with at most 2 holders, 2 places, 2 marks, 3 owners, 6 ends of leases, and clocks that are 0 or 2 s early or late. For larger states and other times it is no proof.",
			"The induction is about the rule book alone. The comparison checks the stores, the simulations check the guard.",
		},
	}
	record(t, result, func() induction { return exhaustive(small, rules.Book.Decide, share) })
}

// Random states are larger, and their times are of any length.
func TestInductionBeyond(t *testing.T) {
	seed, blocks := verifyrecord.Seed(t, 24, 430)
	result := verifyrecord.Result{Kind: verifyrecord.Induction, Name: "steps from random states of a key", Seed: seed}
	record(t, result, func() induction {
		return inParallel(func(p, processors int) induction {
			var mine induction
			for n := p; n < blocks && mine.wrong == ""; n += processors {
				mine.add(beyond(seed+uint64(n), block, rules.Book.Decide))
			}
			return mine
		})
	})
}

// block is how many random states one seed makes.
const block = 20_000

func record(t *testing.T, result verifyrecord.Result, take func() induction) {
	began := time.Now()
	all := take()
	result.Took = time.Since(began)
	t.Logf("%d states, %d steps, %v", all.states, all.steps, result.Took)
	if all.wrong != "" {
		t.Fatal(all.wrong)
	}
	result.Counts = map[string]int64{"states": all.states, "steps": all.steps}
	verifyrecord.Write(t, result)
}

// unseen is the one mistake that only a result of more than 64 KiB shows.
const unseen = "complete: 64 KiB"

// The induction alone finds each other mistake in a rule.
func TestInductionFindsMistakes(t *testing.T) {
	verifyrecord.SkipWithRace(t)
	began := time.Now()
	result := verifyrecord.Result{Kind: verifyrecord.Induction, Name: "rules with a mistake"}
	for _, m := range wrongrules.All {
		began, found := time.Now(), induction{}
		found.add(beyond(1, block, m.Decide))
		if found.wrong == "" {
			found.add(exhaustive(small, m.Decide, 101))
		}
		for seed := uint64(2); found.wrong == "" && seed < 100 && m.Name != unseen; seed++ {
			found.add(beyond(seed, block, m.Decide))
		}
		what, _, _ := strings.Cut(found.wrong, "\n")
		t.Logf("%s: %s after %d steps, %v", m.Name, what, found.steps, time.Since(began).Round(time.Millisecond))
		if (found.wrong == "") != (m.Name == unseen) {
			t.Errorf("%s: found %q", m.Name, found.wrong)
		}
		if m.Name == unseen {
			continue
		}
		result.Controls = append(result.Controls, verifyrecord.Control{What: m.Name, Shown: found.wrong != "", Saw: fmt.Sprintf("%s, after %d steps", what, found.steps)})
	}
	result.Took = time.Since(began)
	verifyrecord.Write(t, result)
}
