package processes

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/pause"
	"github.com/lambdalock/lambdalock/lambdatest"
	"github.com/lambdalock/lambdalock/lockstore"
)

const (
	ttl = time.Second
	// perList bounds a list, so that a list stays cheap to read and write. Later
	// events go to a new list.
	perList = 50
	retries = 2               // as Lambda repeats a failed asynchronous event
	slack   = 3 * time.Second // for a machine that is busy with something else
)

// target is a store for the locks and the lists.
type target struct {
	name         string
	locks, lists string // URLs
	store        *lockstore.Store
	ttl          time.Duration
	late         time.Duration // how long after a lease's TTL a takeover may come
	parallel     int           // as of a run: more where a dead holder blocks for longer
}

// fault is what happens to a process; the record counts it by this name.
type fault string

const (
	none fault = ""
	kill fault = "SIGKILL"
	stop fault = "SIGSTOP" // for longer than a lease lasts, then SIGCONT
	term fault = "SIGTERM" // and SIGKILL after half a second
	hang fault = lambdatest.ErrorTimeout
)

// plan is what a try does and what is done to the process, by the run's seed.
type plan struct {
	fault          fault
	fromGrant      bool          // after counts from the grant, else from the request
	after          time.Duration // when the fault comes
	stopped        time.Duration
	pause          time.Duration
	ignoresContext bool
	duplicate      bool          // the event is delivered a second time at once
	once           string        // as in Event
	delay          time.Duration // before the event is repeated if this try fails
}

func (r *run) plan(event, attempt int) plan {
	random := rand.New(rand.NewPCG(r.seed, uint64(event)<<8|uint64(attempt)))
	upTo := func(d time.Duration) time.Duration { return time.Duration(random.Int64N(int64(d))) }
	p := plan{
		pause:          20*time.Millisecond + upTo(100*time.Millisecond),
		ignoresContext: random.IntN(2) == 0,
		fromGrant:      random.IntN(3) > 0,
		duplicate:      attempt == 0 && random.IntN(10) == 0,
		delay:          upTo(500 * time.Millisecond),
	}
	p.after = upTo(p.pause + 30*time.Millisecond)
	// So long that another process can be granted the key meanwhile, and use it.
	p.stopped = r.target.ttl + r.target.late + 300*time.Millisecond + upTo(time.Second)
	switch n := random.IntN(100); {
	case n < 25:
		p.fault = kill
	case n < 50:
		p.fault = stop
	case n < 56:
		p.fault = term
	case n < 58:
		p.fault = hang
	}
	if r.old != "" {
		p.fault = none
		p.pause /= 4
		p.once = []string{"", "AtLeastOnce", "", "AtMostOnce"}[event%4]
		p.duplicate = p.once != "" && attempt == 0
	}
	switch r.variant {
	case "unfenced":
		// Only the stops do harm; the other faults would take time.
		p.ignoresContext, p.fromGrant = true, true
		if p.fault != stop {
			p.fault = none
		}
	case "M01":
		p.fault = none                                 // nothing that could excuse a refusal
		p.pause *= time.Duration(1 + 3*random.IntN(2)) // a short writer changes what a long reader reads
	case "M28":
		p.duplicate = attempt == 0
	}
	if p.fault == hang {
		p.ignoresContext = true
		p.pause = r.timeout() + r.target.ttl + r.target.late
	}
	return p
}

// event is one element to add.
type event struct {
	number, attempts int    // attempts after the first
	id               string // the request id of all its tries
	notBefore        time.Duration
	acknowledged     bool
	by               string // the binary that was the first to acknowledge it
}

func (e *event) element() string { return fmt.Sprint("e", e.number) }

// counts is what happened so far, by the names of the record.
type counts map[string]int64

// Some of the names.
const (
	refused        = "refused"               // requests of a holder whose lease had ended
	refusedTrusted = "refused-while-trusted" // the list has seen a later holder too early
	changed        = "changed"               // lists under a reader whose lease had ended
	changedTrusted = "changed-while-trusted"
	read           = "lists read"
	acknowledged   = "acknowledged elements"
	toWaiter       = "signals to a waiter"
	shared         = "grants with the fence of another try"
	lost           = "LockLost"
	doubt          = "RepeatInDoubt"
	replaced       = "environments replaced by the other version"
	unreleased     = "releases before which others were always first"
	told           = "results of the one version that the other told"
)

// run is one variant of the function in several environments on one store. The seed
// decides what is done and when. How far a process has come by then depends on the
// machine.
type run struct {
	t        *testing.T
	target   target
	variant  string
	old      string // the binary of the last version, if the run is a deployment
	seed     uint64
	parallel int  // how many may hold the lists in use at a time; fewer than environments, so that tries meet
	several  bool // one may hold a list, two the next, and so on; another is for one writer or many readers
	envs     int
	enough   func(counts) bool
	start    time.Time
	over     context.Context // ends when enough has happened
	end      context.CancelFunc
	lists    *Lists

	mu       sync.Mutex
	counts   counts
	events   []*event
	again    []*event // to be repeated
	tries    []*try
	fences   map[string]bool
	problems []string
	tail     []string // the last lines of all processes
}

// try is a Try that is under way.
type try struct {
	Try
	event          *event
	plan           plan
	sent           time.Duration
	asked, granted chan struct{} // closed then
	signalled      bool          // the process got a signal meanwhile
	ended          bool
	outcome        string // the error's type
}

// closed reports whether that has happened.
func closed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// environment is an execution environment and the tries in it.
type environment struct {
	*lambdatest.Environment
	number int
	binary string
	// The run's mutex guards the rest.
	running   map[string]*try // by request id
	injecting bool
	ending    bool          // got SIGTERM
	faulted   time.Duration // when the last fault was over
}

func (r *run) now() time.Duration { return time.Since(r.start) }

// timeout is the function's. It is long enough for a process that was stopped.
func (r *run) timeout() time.Duration { return 3*r.target.ttl + 2*r.target.late }

func (r *run) problem(format string, args ...any) {
	r.problems = append(r.problems, fmt.Sprintf(format, args...))
}

// play keeps the environments busy until enough has happened, and checks the result.
func (r *run) play(binary string, limit time.Duration) Verdict {
	r.start, r.counts, r.fences = time.Now(), counts{}, map[string]bool{}
	r.over, r.end = context.WithTimeout(r.t.Context(), limit)
	defer r.end()
	var err error
	r.lists, err = Open(config(r.t, r.target.lists), true)
	require.NoError(r.t, err)
	var all []*environment
	for i := range r.envs {
		e := &environment{number: i, running: map[string]*try{}}
		require.NoError(r.t, r.launch(e, cmp.Or(r.old, binary)))
		r.t.Cleanup(func() { assert.NoError(r.t, e.Close()) })
		all = append(all, e)
	}
	var workers sync.WaitGroup
	for _, e := range all {
		workers.Go(func() {
			for t := r.next(e); t != nil; t = r.next(e) {
				r.deliver(e, t)
				r.deploy(e, binary)
			}
		})
	}
	workers.Wait()
	if !r.enough(r.counts) {
		r.problem("not enough has happened: %+v", r.counts)
	}
	if r.variant == "" {
		r.drain(all)
	}
	for _, e := range all {
		assert.NoError(r.t, e.Close())
	}
	if r.variant == "" {
		r.lockAgain()
	}
	return r.check()
}

// launch has the binary run in the environment. After an error what ran there before is still in e.
func (r *run) launch(e *environment, binary string) error {
	started, err := lambdatest.Start(r.t.Context(), lambdatest.Config{
		Binary: binary, Name: "lists", Timeout: r.timeout(),
		Log: &output{r},
		Env: []string{
			"LOCK_URL=" + r.target.locks, "LISTS_URL=" + r.target.lists, "VARIANT=" + r.variant,
			"LOCK_TTL=" + r.target.ttl.String(), "LOCK_WAIT=1m", "LOCK_SIGTERM=true",
		},
	})
	if err == nil {
		e.Environment, e.binary = started, binary
	}
	return err
}

// deploy replaces an environment when it is its turn: one after the other by the new version, and then one
// after the other by the old one again, with some events between two of them. Nothing runs in the environment.
func (r *run) deploy(e *environment, binary string) {
	r.mu.Lock()
	n := int(r.counts[replaced])
	due := r.old != "" && r.over.Err() == nil && n%r.envs == e.number && r.counts[acknowledged] >= int64(10*(n+1))
	r.mu.Unlock()
	if !due {
		return
	}
	if n/r.envs%2 == 1 {
		binary = r.old
	}
	err := errors.Join(e.Shutdown(), e.Close())
	if err == nil {
		err = r.launch(e, binary)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts[replaced]++
	if err != nil {
		r.problem("environment %d: %v", e.number, err)
		r.end()
	}
}

// next is a try of an event to repeat, or of a new event, or nil in the end. The
// same request id is never twice at a time in one environment.
func (r *run) next(e *environment) *try {
	r.mu.Lock()
	defer r.mu.Unlock()
	for e.ending { // the platform sends it nothing more
		r.mu.Unlock()
		<-time.After(10 * time.Millisecond)
		r.mu.Lock()
	}
	if r.over.Err() != nil || r.enough(r.counts) {
		r.end()
		return nil
	}
	for i, ev := range r.again {
		if ev.notBefore <= r.now() && e.running[ev.id] == nil {
			r.again = slices.Delete(r.again, i, i+1)
			ev.attempts++
			return r.begin(e, ev, r.plan(ev.number, ev.attempts))
		}
	}
	n := len(r.events)
	ev := &event{number: n, id: fmt.Sprint("event-", n)}
	r.events = append(r.events, ev)
	p := r.plan(n, 0)
	if p.duplicate {
		r.again = append(r.again, ev)
	}
	return r.begin(e, ev, p)
}

// begin makes a try; the run's mutex is held.
func (r *run) begin(e *environment, ev *event, p plan) *try {
	t := &try{event: ev, plan: p, sent: r.now(), asked: make(chan struct{}), granted: make(chan struct{})}
	r.tries = append(r.tries, t)
	t.Event = r.place(ev.number)
	t.Event.Try, t.Element, t.Pause, t.IgnoresContext, t.Once = len(r.tries), ev.element(), int(p.pause.Milliseconds()), p.ignoresContext, p.once
	e.running[ev.id] = t
	return t
}

// place has the list of an event, and how it takes the list's key. The events are spread over the lists in use, and on
// to new lists. A list that two may hold gets twice as many. So does that of readers and writers: of three that come for it,
// one writes.
func (r *run) place(n int) Event {
	if r.plan(n, 0).once != "" {
		return Event{List: fmt.Sprint("once-", n), Holders: 1} // of its own: nobody else's lock guards it
	}
	list, p := n%r.parallel, Event{Holders: 1}
	switch {
	case r.several && list < 2:
		list, p.Reads = 0, n/r.parallel%3 > 0
		if p.Reads {
			p.Holders = lockstore.MaxHolders
		}
	case r.several:
		for list -= 2; list >= p.Holders; p.Holders++ {
			list -= p.Holders
		}
		list = p.Holders
	}
	p.List = fmt.Sprintf("%s-%d", strings.ReplaceAll(r.variant+"run", " ", "-"), n/(r.parallel*perList)*r.parallel+list)
	return p
}

// deliver sends a try's event and makes the planned fault.
func (r *run) deliver(e *environment, t *try) {
	ev := t.event
	payload, err := json.Marshal(t.Event)
	if err != nil {
		panic(err) // strings and numbers
	}

	done := make(chan struct{})
	var injecting sync.WaitGroup
	injecting.Go(func() { r.inject(e, t, done) })
	// The run's end does not bound this; the platform's timeout does.
	answer, err := e.Send(context.Background(), lambdatest.Event{Payload: payload, ID: ev.id})
	close(done)
	injecting.Wait()
	var last []string
	if answer.ErrorType == lambdatest.ErrorExit {
		last = e.Logs() // not while the mutex is held, for which a log line may wait
		last = last[max(0, len(last)-3):]
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	delete(e.running, ev.id)
	t.ended, t.outcome = true, answer.ErrorType
	if err != nil {
		t.outcome = "not sent"
		r.problem("try %d was not sent: %v", t.Event.Try, err)
	}
	excused := e.disturbs(t)
	switch t.outcome {
	case "":
		t.Acknowledged = true
		if !ev.acknowledged {
			what := acknowledged
			if t.Reads {
				what = read
			}
			r.counts[what]++
			ev.by = e.binary
		}
		ev.acknowledged = true
		if t.Once != "" && string(answer.Payload) != `"added"` {
			r.problem("try %d got another result than the first: %s", t.Event.Try, answer.Payload)
		}
		if t.Once != "" && ev.by != e.binary {
			r.counts[told]++
		}
		return
	case lambdatest.ErrorExit:
		if !excused {
			r.problem("the process of try %d ended by itself: %s %q", t.Event.Try, answer.ErrorMessage, last)
		}
	case "LockBadRequest", "LockCorrupt":
		r.problem("try %d: %s", t.Event.Try, answer.Payload)
	default:
		r.counts[t.outcome]++
	}
	if ev.attempts < retries {
		ev.notBefore = r.now() + t.plan.delay
		r.again = append(r.again, ev)
	}
}

// disturbs says that a fault hit the process while a try was in it; the run's mutex is held.
func (e *environment) disturbs(t *try) bool {
	return t.signalled || e.injecting || e.faulted > t.sent
}

// inject does to the process what the plan says, unless the try is over first.
func (r *run) inject(e *environment, t *try, done <-chan struct{}) {
	p := t.plan
	if p.fault == none {
		return
	}
	if p.fault == hang {
		select {
		case <-done:
			return
		case <-r.over.Done(): // nobody waits for the timeout any more
		}
	}
	from := t.asked
	if p.fromGrant {
		from = t.granted
	}
	select {
	case <-from:
	case <-done:
		return
	}
	select {
	case <-time.After(p.after):
	case <-done:
		return
	}
	r.mu.Lock()
	if e.injecting {
		r.mu.Unlock()
		return // the other try in this process has a fault under way
	}
	e.injecting, e.ending = true, p.fault == term
	holding, waiting := false, false
	for _, other := range e.running {
		other.signalled = true
		holding = holding || closed(other.granted)
		waiting = waiting || closed(other.asked) && !closed(other.granted)
	}
	r.mu.Unlock()

	var err error
	switch p.fault {
	case kill, hang:
		p.fault, err = kill, e.Kill()
	case stop:
		if err = e.Freeze(); err == nil {
			_ = pause.For(r.over, p.stopped)
			_ = e.Thaw() // an error: the platform's timeout has ended it meanwhile
		}
	case term:
		err = e.Shutdown()
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	e.injecting, e.ending, e.faulted = false, false, r.now()
	if err != nil {
		return // the process has just ended
	}
	r.counts[string(p.fault)]++
	if holding {
		r.counts["signals to a holder"]++
	}
	if waiting {
		r.counts[toWaiter]++
	}
}

// drain repeats, without faults, the events that were given up. Each has to succeed.
func (r *run) drain(all []*environment) {
	work := make(chan *event)
	var workers sync.WaitGroup
	for _, e := range all {
		workers.Go(func() {
			for ev := range work {
				for range 10 { // the dead may keep a key for six turns
					if !ev.acknowledged {
						r.mu.Lock()
						t := r.begin(e, ev, plan{pause: time.Millisecond})
						r.mu.Unlock()
						r.deliver(e, t)
					}
				}
				r.mu.Lock()
				if !ev.acknowledged {
					r.problem("event %d never succeeded", ev.number)
				}
				r.mu.Unlock()
			}
		})
	}
	for _, ev := range slices.DeleteFunc(slices.Clone(r.events), func(ev *event) bool { return ev.acknowledged }) {
		work <- ev
	}
	close(work)
	workers.Wait()
}

// lockAgain takes every lock once. All become free in the time of a lease.
func (r *run) lockAgain() {
	ctx, cancel := context.WithTimeout(context.Background(), r.target.ttl+r.target.late+slack)
	defer cancel()
	last := map[string]lockstore.Fence{}
	for _, t := range r.tries {
		last[t.List] = max(last[t.List], t.Fence)
	}
	for name, before := range last {
		lease, err := r.target.store.Acquire(ctx, lockstore.Request{Key: Key(name), Owner: lockstore.NewOwner(), TTL: r.target.ttl})
		for err != nil && pause.For(ctx, 50*time.Millisecond) == nil {
			lease, err = r.target.store.Acquire(ctx, lockstore.Request{Key: Key(name), Owner: lockstore.NewOwner(), TTL: r.target.ttl})
		}
		if err != nil || lease.Fence <= before {
			r.problem("%s in the end: fence %d after %d, %v", name, lease.Fence, before, err)
		}
	}
}

func (r *run) check() Verdict {
	contents := map[string][]Content{}
	tries := make([]Try, len(r.tries))
	for i, t := range r.tries {
		tries[i] = t.Try
		if _, ok := contents[t.List]; ok || t.Reads {
			continue
		}
		for seat := range t.Holders {
			part, err := r.lists.ReadAll(context.Background(), Part(t.List, seat))
			require.NoError(r.t, err)
			contents[t.List] = append(contents[t.List], part)
		}
	}
	return Check(tries, contents)
}

// output is what a process writes.
type output struct{ *run }

// report is the guard's line about a run.
type report struct{ Outcome, ReleaseError string }

// Write reads a line.
func (o *output) Write(line []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tail = append(o.tail, strings.TrimSpace(string(line)))
	o.tail = o.tail[max(0, len(o.tail)-200):]
	var g report
	if json.Unmarshal(line, &g) == nil {
		// The store has answered, and others were first until the time of the release was over.
		if strings.Contains(g.ReleaseError, lockstore.ErrContended.Error()) && g.Outcome != "lost" {
			o.counts[unreleased]++
		}
		return len(line), nil
	}
	var what string
	var number int
	var fence lockstore.Fence
	var seat int
	n, _ := fmt.Sscan(string(line), &what, &number, &fence, &seat) // other lines are the platform's
	if n < 2 || number < 1 || number > len(o.tries) || !slices.Contains([]string{"asked", "granted", refused, refusedTrusted, changed, changedTrusted}, what) {
		return len(line), nil
	}
	t := o.tries[number-1]
	switch what {
	case "asked":
		close(t.asked)
	case "granted":
		t.Fence = fence
		if seat >= t.Holders {
			o.problem("%s: try %d had seat %d of %d", t.List, number, seat, t.Holders)
		}
		if seat > 0 && t.Reads {
			o.counts["readers beside another"]++
		} else if seat > 0 {
			o.counts["grants beside another holder"]++
		}
		id := fmt.Sprint(t.List, " ", fence)
		if o.fences[id] {
			o.counts[shared]++
		}
		o.fences[id] = true
		close(t.granted)
	default: // refused or changed
		t.RefusedTrusted = t.RefusedTrusted || strings.HasSuffix(what, "-while-trusted")
		o.counts[what]++
	}
	return len(line), nil
}
