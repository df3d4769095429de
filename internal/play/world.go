package main

import (
	"fmt"
	"slices"
	"sync"
	"time"

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
	runs         []*run
	faults       []*fault
	story        []line
	most         int // runs of one key at work at once
	refused      int // writes
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

// run is what an environment does for an event. A time that is zero has not come.
type run struct {
	*event
	lane               int  // of the environment
	limit              int  // how many may be at work at once, as far as this run is concerned
	covers             bool // it does what all events ask for that have come when its work begins
	fence              lockstore.Fence
	seat               int
	came, began, ended time.Time
	stopped            time.Time // its work has returned; the release follows
	lost               time.Time // its context was cancelled, and its work has gone on
	woken              time.Time // its event has parked, and was woken
	overlaps           bool
	outcome            string
}

// fault is a time in which an environment stands still, or the moment in which it dies.
type fault struct {
	lane     int
	kind     string
	from, to time.Time // zero: it lasts
}

// line is a line of the story.
type line struct {
	At   int64  `json:"at"` // milliseconds since 1970
	Who  string `json:"who"`
	Text string `json:"text"`
}

func newWorld(environments int, think time.Duration, set settings) *world {
	w := &world{start: time.Now(), store: memstore.New(nil), think: think, over: make(chan struct{}), set: set, story: []line{}}
	for lane := range environments {
		w.environments = append(w.environments, w.newEnvironment(lane))
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

// send makes n events come, evenly spread over this time. The fault strikes the environment of the first. This and all below is called with the
// lock held.
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
			w.resource[ev.key].asked++
			w.dispatch()
		})
	}
}

// dispatch gives events to free environments, as Lambda does.
func (w *world) dispatch() {
	for _, e := range w.environments {
		if len(w.source) > 0 && e.run == nil && e.ice == nil {
			e.run = &run{event: w.source[0], lane: e.lane, limit: 1, came: time.Now()}
			w.source, w.runs = w.source[1:], append(w.runs, e.run)
			go e.invoke(e.run, w.set)
		}
	}
}

// wake makes an event come again, if it is parked.
func (w *world) wake(ev *event, why string) {
	if ev.parked != nil {
		ev.parked.woken, ev.parked = time.Now(), nil
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
		who = fmt.Sprintf("env %d", lane+1)
	}
	w.story = append(w.story, line{time.Now().UnixMilli(), who, fmt.Sprintf(format, args...)})
}

// begins notes that the work of a run begins, and which runs overlap: more are at work than one of them allows.
func (w *world) begins(r *run) {
	r.began = time.Now()
	limit, working := r.limit, []*run{}
	for _, other := range w.runs {
		if other.key == r.key && !other.began.IsZero() && other.stopped.IsZero() && other.lost.IsZero() {
			working, limit = append(working, other), min(limit, other.limit)
		}
	}
	for _, other := range working {
		other.overlaps = other.overlaps || len(working) > limit
	}
	w.most = max(w.most, len(working))
}

// ends notes how a run ended.
func (w *world) ends(r *run, outcome string) {
	r.ended, r.outcome = time.Now(), outcome
	r.stopped = first(r.stopped, r.ended)
	w.say(r.lane, "event %d: %s", r.number, outcome)
}

// storeInvoice is a write. The resource refuses it if it has seen a larger fence on this seat.
func (w *world) storeInvoice(r *run, number int) error {
	e := &w.resource[r.key]
	if last := e.fences[r.seat]; r.fence != 0 && r.fence < last {
		w.refused++
		w.say(r.lane, "its write with fence %d is refused: the resource has seen fence %d", r.fence, last)
		return fmt.Errorf("the resource has seen fence %d", last)
	}
	e.stored, e.fences[r.seat] = number, max(r.fence, e.fences[r.seat])
	return nil
}
