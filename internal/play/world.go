package main

import (
	"cmp"
	"context"
	"fmt"
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

// settings are what a visitor may change at any time. An invocation reads them when it begins.
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
	start time.Time
	store *lockstore.Store
	think time.Duration // the work takes so long on average
	over  chan struct{} // closed when a test has ended: those who stand still, or are dead, give up

	mu           sync.Mutex // nobody holds it while time passes, or while it calls a guard
	set          settings
	coming       int      // events
	events       []*event // that have come
	source       []*event // that wait for an environment
	environments []*environment
	resource     [len(keys)]entry
	lanes        []lane // of the environments
	story        []line
	facts        facts
}

// event asks for one invoice.
type event struct {
	number, key int // the key's index
	reads       bool
	fault       string          // strikes between the last look at the context and the write
	owner       lockstore.Owner // of its lock, if it parks
	parked      *run            // its run that has parked, until it is woken
}

// entry is what the resource has of a key.
type entry struct {
	stored int                                   // the number of the last invoice
	asked  int                                   // events that have come
	fences [lockstore.MaxHolders]lockstore.Fence // the last one of each seat
}

// run is what an environment does for an event.
type run struct {
	*event
	lane    int  // of the environment
	limit   int  // how many may be at work at once, as far as this run is concerned
	covers  bool // it does what all events ask for that have come when its work begins
	fence   lockstore.Fence
	seat    int
	span    *span // what it does now; nil: it has not come, or its work has ended
	outcome string
}

func (r *run) String() string {
	text := fmt.Sprintf("event %d, %s", r.number, keys[r.key])
	if r.fence != 0 {
		text += fmt.Sprintf(", fence %d, seat %d", r.fence, r.seat)
	}
	return text + ": " + cmp.Or(r.outcome, "under way")
}

// lane has the spans of one environment, as page.js draws them. Times are milliseconds since 1970.
type lane struct {
	Name   string  `json:"name"`
	Frozen bool    `json:"frozen"` // in a picture
	Slow   bool    `json:"slow"`
	Spans  []*span `json:"spans"`
}

type span struct {
	From int64  `json:"from"`
	To   int64  `json:"to"` // in a world 0: it lasts
	Kind string `json:"kind"`
	Text string `json:"text"` // in a picture
	run  *run
}

// line is a line of the story.
type line struct {
	At   int64  `json:"at"`
	Who  string `json:"who"`
	Text string `json:"text"`
}

// facts are what the page counts.
type facts struct {
	Events   int   `json:"events"`   // that have come
	Runs     int   `json:"runs"`     // whose work began
	Overlaps int   `json:"overlaps"` // of them, those beside which more were at work than may be
	Most     int   `json:"most"`     // runs of one key at work at once
	Covered  int   `json:"covered"`  // events
	Wanted   int   `json:"wanted"`   // invoices of events that were answered as done or covered
	Stored   int   `json:"stored"`   // invoices, by the resource; in a picture
	Unserved int   `json:"unserved"` // events that were answered in another way
	Refused  int   `json:"refused"`  // writes with an old fence
	PaidWait int64 `json:"paidWait"` // milliseconds that environments have waited; in a picture
}

func newWorld(environments int, think time.Duration, set settings) *world {
	w := &world{start: time.Now(), store: memstore.New(nil), think: think, over: make(chan struct{}), set: set}
	for i := range environments {
		w.lanes = append(w.lanes, lane{Name: fmt.Sprintf("env %d", i+1)})
		w.environments = append(w.environments, w.newEnvironment(i))
	}
	return w
}

// locked calls f with the lock.
func (w *world) locked(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

func (w *world) after(d time.Duration, f func()) { time.AfterFunc(d, func() { w.locked(f) }) }

// send makes n events come, evenly spread over this time. The fault strikes the environment of the first. This and all below, but picture, is
// called with the lock held.
func (w *world) send(n int, over time.Duration, fault string) {
	w.coming += n
	for i := range n {
		w.after(over*time.Duration(i)/time.Duration(n)+time.Millisecond, func() {
			came := len(w.events)
			ev := &event{number: came + 1, key: came % w.set.Keys, owner: lockstore.NewOwner(), reads: w.set.Lock == readers && came%6 != 3}
			if i == 0 {
				ev.fault = fault
			}
			w.coming, w.events, w.source = w.coming-1, append(w.events, ev), append(w.source, ev)
			w.facts.Events++
			w.resource[ev.key].asked++
			w.dispatch()
		})
	}
}

// dispatch gives events to free environments, as Lambda does.
func (w *world) dispatch() {
	for _, e := range w.environments {
		if len(w.source) > 0 && e.run == nil && e.ice == nil {
			e.run = &run{event: w.source[0], lane: e.lane, limit: 1}
			w.source = w.source[1:]
			w.does(e.run, "wait")
			go e.invoke(e.run, w.set)
		}
	}
}

// wake makes an event come again, if it is parked.
func (w *world) wake(ev *event, why string) {
	if ev.parked != nil {
		ev.parked = nil
		w.say(-1, "event %d %s", ev.number, why)
		w.source = slices.Insert(w.source, 0, ev)
		w.dispatch()
	}
}

// idle says that nothing is left to do for any event.
func (w *world) idle() bool {
	return w.coming+len(w.source) == 0 &&
		!slices.ContainsFunc(w.events, func(ev *event) bool { return ev.parked != nil }) &&
		!slices.ContainsFunc(w.environments, func(e *environment) bool { return e.run != nil })
}

// say adds a line to the story; lane -1 is the source of the events.
func (w *world) say(lane int, format string, args ...any) {
	who := "source"
	if lane >= 0 {
		who = w.lanes[lane].Name
	}
	w.story = append(w.story, line{time.Now().UnixMilli(), who, fmt.Sprintf(format, args...)})
}

// draws begins a span in a lane.
func (w *world) draws(lane int, kind string, r *run) *span {
	s := &span{From: time.Now().UnixMilli(), Kind: kind, run: r}
	w.lanes[lane].Spans = append(w.lanes[lane].Spans, s)
	return s
}

// does notes what a run does from now on; "" is nothing more.
func (w *world) does(r *run, kind string) {
	if r.span != nil {
		r.span.To = time.Now().UnixMilli()
	}
	if r.span = nil; kind != "" {
		r.span = w.draws(r.lane, kind, r)
	}
}

func (r *run) works() bool {
	return r.span != nil && (r.span.Kind == "held" || r.span.Kind == "overlap")
}

// begins notes that the work of a run begins, and which runs overlap: more are at work than one of them allows.
func (w *world) begins(r *run) {
	w.does(r, "held")
	limit, working := r.limit, []*run{}
	for _, e := range w.environments {
		if other := e.run; other != nil && other.key == r.key && other.works() {
			working, limit = append(working, other), min(limit, other.limit)
		}
	}
	for _, other := range working {
		if len(working) > limit && other.span.Kind == "held" {
			other.span.Kind = "overlap"
			w.facts.Overlaps++
		}
	}
	w.facts.Runs, w.facts.Most = w.facts.Runs+1, max(w.facts.Most, len(working))
}

// ends notes how a run ended.
func (w *world) ends(r *run, outcome string) {
	w.does(r, "")
	r.outcome = outcome
	w.say(r.lane, "event %d: %s", r.number, outcome)
	switch {
	case outcome == "LockCovered":
		w.facts.Covered, w.facts.Wanted = w.facts.Covered+1, w.facts.Wanted+1
	case outcome == "done" && !r.reads:
		w.facts.Wanted++
	case outcome != "done" && outcome != parked:
		w.facts.Unserved++
	}
}

// storeInvoice is a write. The resource refuses it if it has seen a larger fence on this seat.
func (w *world) storeInvoice(r *run, number int) error {
	e := &w.resource[r.key]
	if last := e.fences[r.seat]; r.fence != 0 && r.fence < last {
		w.facts.Refused++
		w.say(r.lane, "its write with fence %d is refused: the resource has seen fence %d", r.fence, last)
		return fmt.Errorf("the resource has seen fence %d", last)
	}
	e.stored, e.fences[r.seat] = number, max(r.fence, e.fences[r.seat])
	return nil
}

// picture is what the page shows of the world at one moment.
type picture struct {
	Start int64         `json:"start"`
	Idle  bool          `json:"idle"` // nothing is left to do for any event
	Set   settings      `json:"set"`
	Keys  page.Snapshot `json:"keys"`
	Lanes []lane        `json:"lanes"`
	Facts facts         `json:"facts"`
	Story []line        `json:"story"`
}

// picture has the lines of the story that come after so many.
func (w *world) picture(told int) picture {
	const shown = 2 * time.Minute // of lanes, at most
	now, all := time.Now(), []lockstore.Status{}
	// A listing of memstore does not fail.
	_ = w.store.List(context.Background(), "", func(p lockstore.Page) error {
		all = append(all, p.Keys...)
		return nil
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	p := picture{Start: w.start.UnixMilli(), Idle: w.idle(), Set: w.set, Story: append([]line{}, w.story[told:]...), Facts: w.facts,
		Keys: page.Of(all, now, 100, func(s string) string { return s })}
	for _, e := range w.resource {
		p.Facts.Stored += e.stored
	}
	for i, e := range w.environments {
		p.Lanes = append(p.Lanes, lane{w.lanes[i].Name, e.ice != nil, e.slow, []*span{}})
		for _, s := range w.lanes[i].Spans {
			s := *s
			if s.To = cmp.Or(s.To, now.UnixMilli()); s.Kind == "wait" {
				p.Facts.PaidWait += s.To - s.From
			}
			if s.Text = s.Kind; s.run != nil {
				s.Text = s.run.String()
			}
			if s.To > now.Add(-shown).UnixMilli() {
				p.Lanes[i].Spans = append(p.Lanes[i].Spans, &s)
			}
		}
	}
	return p
}
