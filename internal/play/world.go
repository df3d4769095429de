package main

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/page"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// The locks that a visitor chooses from, beside "on".
const (
	off      = "off"
	holders  = "holders"  // up to settings.Holders at once
	readers  = "readers"  // many readers or one writer
	coalesce = "coalesce" // one waits for all
	parked   = "parked"   // no environment waits
)

// The faults of an environment.
const (
	freeze = "freeze"
	kill   = "kill"
)

// settings are what a visitor may change at any time. A run has those of its begin.
type settings struct {
	Lock    string `json:"lock"`
	Holders int    `json:"holders"` // 1 to lockstore.MaxHolders
	Keys    int    `json:"keys"`    // 1 to len(keys)
}

// keys are those of the events, in turn.
var keys = [...]string{"invoices/acme", "invoices/birch", "invoices/cobalt", "invoices/delta"}

// world is a source of events, the environments that work on them, a store of locks, and a resource. Its time is that of package time: a test and
// the page make that virtual.
type world struct {
	situation situation
	store     *lockstore.Store

	mu           sync.Mutex // nobody holds it while time passes, or while it calls a guard
	shown        picture
	coming       int           // events
	source       []*event      // that wait for an environment
	parked       map[*run]bool // until they are woken
	environments []*environment
	resource     [len(keys)]entry
}

// event asks for one invoice.
type event struct {
	number, key int // the key's index
	reads       bool
	owner       lockstore.Owner // of its lock, if it parks
	address     lockstore.WakeAddress
}

// environment is one process after the other. While it stands still it sends nothing, and its monotonic clock stands still.
type environment struct {
	*world
	lane   // Frozen is in a picture
	dice   *rand.Rand
	run    *run          // nil: it is free
	ice    *span         // nil: it does not stand still
	missed time.Duration // for how long it stood still before
}

// entry is what the resource has of a key.
type entry struct {
	stored int                                   // the number of the last invoice
	asked  int                                   // events that have come
	fences [lockstore.MaxHolders]lockstore.Fence // the last one of each seat
}

// picture is what the page shows of the world at one moment. Times are milliseconds since 1970.
type picture struct {
	Idle  bool          `json:"idle"` // nothing is left to do for any event
	Set   settings      `json:"set"`
	Keys  page.Snapshot `json:"keys"`
	Lanes []lane        `json:"lanes"`
	Facts facts         `json:"facts"`
	Story []line        `json:"story"`
}

// lane is what an environment does, as page.js draws it.
type lane struct {
	Name   string  `json:"name"`
	Frozen bool    `json:"frozen"`
	Slow   bool    `json:"slow"`
	Spans  []*span `json:"spans"`
}

type span struct {
	From int64  `json:"from"`
	To   int64  `json:"to"` // 0, but not in a picture: it lasts
	Kind string `json:"kind"`
	Text string `json:"text"` // in a picture
	run  *run
}

type line struct {
	At   int64  `json:"at"`
	Who  string `json:"who"`
	Text string `json:"text"`
}

// facts are what the page counts.
type facts struct {
	Events   int   `json:"events"`   // that have come
	Runs     int   `json:"runs"`     // whose work began
	Overlaps int   `json:"overlaps"` // of them, those beside which more were at work than may be; in a picture
	Most     int   `json:"most"`     // runs of one key at work at once
	Covered  int   `json:"covered"`  // events
	Wanted   int   `json:"wanted"`   // invoices of events that were answered as done or covered
	Stored   int   `json:"stored"`   // invoices, by the resource; in a picture
	Unserved int   `json:"unserved"` // events that were answered in another way
	Refused  int   `json:"refused"`  // writes with an old fence
	PaidWait int64 `json:"paidWait"` // milliseconds that environments have waited; in a picture
}

func newWorld(s situation) *world {
	w := &world{situation: s, store: memstore.New(nil), parked: map[*run]bool{}}
	w.shown = picture{Set: settings{s.lock, 3, 1}, Story: []line{}}
	for i := range s.environments {
		e := &environment{world: w, lane: lane{Name: fmt.Sprintf("env %d", i+1)}, dice: rand.New(rand.NewPCG(1, uint64(i)))}
		w.environments = append(w.environments, e)
	}
	return w
}

func now() int64 { return time.Now().UnixMilli() }

// locked calls f with the lock. All functions below are called with it, but clocks and upTo.
func (w *world) locked(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

func (w *world) after(d time.Duration, f func()) { time.AfterFunc(d, func() { w.locked(f) }) }

// send makes n events come, evenly spread over this time.
func (w *world) send(n int, over time.Duration) {
	w.coming += n
	for i := range n {
		w.after(over*time.Duration(i)/time.Duration(n)+time.Millisecond, func() {
			came, set := w.shown.Facts.Events, w.shown.Set
			ev := &event{number: came + 1, key: came % set.Keys, reads: set.Lock == readers && came%6 != 3}
			ev.owner, ev.address = lockstore.NewOwner(), lockstore.TaskToken(fmt.Sprint(ev.number))
			w.coming--
			w.shown.Facts.Events++
			w.resource[ev.key].asked++
			w.source = append(w.source, ev)
			w.dispatch()
		})
	}
}

// dispatch gives events to free environments, as Lambda does.
func (w *world) dispatch() {
	for _, e := range w.environments {
		if len(w.source) > 0 && e.run == nil && e.ice == nil {
			e.run = e.newRun(w.source[0])
			w.source = w.source[1:]
			e.run.does("wait")
			go e.run.invoke()
		}
	}
}

// wake makes the event of a run come again, if it is parked.
func (w *world) wake(r *run, why string) {
	if w.parked[r] {
		delete(w.parked, r)
		w.say("source", "event %d %s", r.number, why)
		w.source = slices.Insert(w.source, 0, r.event)
		w.dispatch()
	}
}

func (w *world) say(who, format string, args ...any) {
	w.shown.Story = append(w.shown.Story, line{now(), who, fmt.Sprintf(format, args...)})
}

// picture has the lines of the story that come after so many.
func (w *world) picture(told int) picture {
	const longest = 2 * time.Minute // of lanes
	var all []lockstore.Status
	// A listing of memstore does not fail.
	_ = w.store.List(context.Background(), "", func(p lockstore.Page) error {
		all = append(all, p.Keys...)
		return nil
	})
	p := w.shown
	p.Keys = page.Of(all, time.Now(), 100, func(s string) string { return s })
	p.Story = p.Story[told:]
	p.Idle = w.coming+len(w.source)+len(w.parked) == 0
	for _, e := range w.resource {
		p.Facts.Stored += e.stored
	}
	for _, e := range w.environments {
		p.Idle = p.Idle && e.run == nil
		l := lane{e.Name, e.ice != nil, e.Slow, []*span{}}
		for _, s := range e.Spans {
			s := *s
			s.To, s.Text = cmp.Or(s.To, now()), s.Kind
			if s.run != nil {
				s.Text = s.run.String()
			}
			switch s.Kind {
			case "wait":
				p.Facts.PaidWait += s.To - s.From
			case "overlap":
				p.Facts.Overlaps++
			}
			if s.To > now()-longest.Milliseconds() {
				l.Spans = append(l.Spans, &s)
			}
		}
		p.Lanes = append(p.Lanes, l)
	}
	return p
}

func (e *environment) draws(kind string, r *run) *span {
	s := &span{From: now(), Kind: kind, run: r}
	e.Spans = append(e.Spans, s)
	return s
}

// strike does to the environment what a visitor or a situation wants: freeze, thaw, kill, slow, or fast.
func (e *environment) strike(what string) {
	if e.ice != nil && (what == "thaw" || what == kill) {
		e.ice.To = now()
		e.missed += time.Duration(e.ice.To-e.ice.From) * time.Millisecond
		e.ice = nil
		if what == "thaw" {
			e.say(e.Name, "it goes on")
		}
	}
	switch {
	case what == freeze && e.ice == nil:
		e.ice = e.draws(freeze, nil)
		e.say(e.Name, "it stands still")
	case what == "slow" || what == "fast":
		e.Slow = what == "slow"
		e.say(e.Name, "it is %s", what)
	case what == kill:
		e.draws(kill, nil).To = now() + look.Milliseconds()
		e.say(e.Name, "it is killed")
		if e.run != nil {
			delete(e.parked, e.run)
			e.run.ends("killed")
		}
		e.Slow = false // Lambda starts another process
	}
	e.dispatch()
}

func (e *environment) clocks() (mono, wall time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	wall = time.Duration(time.Now().UnixNano())
	if mono = wall; e.ice != nil {
		mono = time.Duration(e.ice.From) * time.Millisecond
	}
	return mono - e.missed, wall
}

func (e *environment) upTo(most time.Duration) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	return time.Duration(e.dice.Float64() * float64(most))
}
