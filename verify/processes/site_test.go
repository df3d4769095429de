package processes

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lambdatest"
	"github.com/lambdalock/lambdalock/lockstore"
)

const (
	ttl = time.Second
	// perList bounds a list: then the events go to a new one, so that a list stays
	// cheap to read and write.
	perList = 50
	// retries is how often Lambda repeats a failed asynchronous event.
	retries = 2
	// slack is for a machine that is busy with something else; how long the slowest
	// look at a list took comes to that.
	slack = 3 * time.Second
	poll  = time.Second // a waiter's longest pause
)

// place is a store for the locks and the lists.
type place struct {
	name         string
	locks, lists string // URLs
	store        lockstore.Store
	late         time.Duration // how long after a lease's TTL a takeover may come
	lanes        int           // lists in use at a time: more where a dead holder blocks for longer
}

// fault is what happens to a process.
type fault int

const (
	none fault = iota
	kill       // SIGKILL
	stop       // SIGSTOP for longer than a lease lasts, then SIGCONT
	term       // SIGTERM, and SIGKILL after half a second
	hang       // the work does not return: the platform's timeout ends the process
	numFaults
)

// plan is what a try does and what is done to it, by the run's seed.
type plan struct {
	fault     fault
	fromGrant bool          // after is counted from the grant, else from the asking
	after     time.Duration // when the fault strikes
	stopped   time.Duration
	pause     time.Duration
	stubborn  bool
	duplicate bool          // another delivery of the event follows at once
	delay     time.Duration // before the event is repeated if this try fails
}

func (s *site) plan(event, attempt int) plan {
	r := rand.New(rand.NewPCG(s.seed, uint64(event)<<8|uint64(attempt)))
	upTo := func(d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d))) }
	p := plan{
		pause:     20*time.Millisecond + upTo(100*time.Millisecond),
		stubborn:  r.IntN(2) == 0,
		fromGrant: r.IntN(3) > 0,
		duplicate: attempt == 0 && r.IntN(10) == 0,
		delay:     upTo(500 * time.Millisecond),
	}
	p.after = upTo(p.pause + 30*time.Millisecond)
	// So long that another can be granted the key meanwhile, and use it.
	p.stopped = ttl + s.place.late + 300*time.Millisecond + upTo(time.Second)
	switch n := r.IntN(100); {
	case n < 25:
		p.fault = kill
	case n < 50:
		p.fault = stop
	case n < 56:
		p.fault = term
	case n < 58:
		p.fault = hang
	}
	switch s.variant {
	case "unfenced":
		// The stops alone, where they do harm; the rest would only take time.
		p.stubborn, p.fromGrant = true, true
		if p.fault != stop {
			p.fault = none
		}
	case "M01":
		p.fault = none // nothing that could excuse a refusal
	case "M28 request":
		p.duplicate = attempt == 0
	case "M28 init":
		p.pause += 500 * time.Millisecond // the process's other slot is to come in time
		// A process whose owner was released gets no lock any more.
		p.fromGrant = false
		if p.fault == stop {
			p.fault = kill
		}
	}
	if p.fault == hang {
		p.stubborn = true
		p.pause = s.timeout() + ttl + s.place.late
	}
	return p
}

// event is one element to add.
type event struct {
	number, attempts int    // attempts after the first
	id               string // the request id of all its tries
	notBefore        time.Duration
	acknowledged     bool
}

// counts is what happened so far.
type counts struct {
	events, tries, acknowledged     int64
	struck                          [numFaults]int64 // delivered signals; of hang the timeouts
	holding                         int64            // of which to a process that had a lock
	busy, lost, unavailable, failed int64
	repeated, duplicates            int64
	found                           int64 // elements that an earlier try had added
	refused                         int64 // requests that a list refused to a holder whose lease was over
	robbed                          int64 // the same to a holder that still trusted its lease
	missing                         int64 // acknowledged elements that were seen not to be there, if only for a time
	shared                          int64 // grants with a fence that another has
}

// site is one run: environments of one variant of the function on one store. Its
// seed decides what is done and when; how far a process has come by then is the
// machine's.
type site struct {
	t       *testing.T
	place   place
	variant string
	seed    uint64
	lanes   int // lists in use at a time; fewer than environments, so that they meet
	envs    int
	enough  func(counts) bool
	start   time.Time
	over    chan struct{} // closed when enough has happened, or the time is over
	lists   Lists

	mu       sync.Mutex
	slowest  time.Duration // look at a list
	counts   counts
	events   []*event
	again    []*event // to be repeated
	tries    []*try
	fences   map[string]bool
	problems []string
	ended    bool
	tail     []string // the last lines of all processes
}

// try is a Try that is under way.
type try struct {
	Try
	event          *event
	plan           plan
	sent           time.Duration
	asked, granted chan struct{} // closed then
}

// environment is an execution environment and the tries in it.
type environment struct {
	*lambdatest.Env
	slots    int
	running  map[string]*try // by request id; the site's mutex guards these
	striking bool
	ending   bool // got SIGTERM
	// Tries of an environment with two slots that run on after their timeout. When
	// such a one answers, aws-lambda-go ends the process.
	late   map[string]bool
	struck time.Duration // when the last fault was over
}

func (s *site) now() time.Duration { return time.Since(s.start) }

// timeout is the function's: a process that is stopped in the middle can go on.
func (s *site) timeout() time.Duration { return 3*ttl + 2*s.place.late }

func (s *site) problem(format string, args ...any) {
	s.problems = append(s.problems, fmt.Sprintf(format, args...))
}

// run keeps the environments busy until enough has happened, and judges it.
func (s *site) run(binary string, limit time.Duration) Verdict {
	s.start, s.fences, s.over = time.Now(), map[string]bool{}, make(chan struct{})
	late := time.AfterFunc(limit, func() { s.end(true) })
	defer late.Stop()
	var err error
	s.lists, err = Open(config(s.t, s.place.lists), true)
	require.NoError(s.t, err)
	var all []*environment
	for i := range s.envs {
		e := &environment{running: map[string]*try{}, late: map[string]bool{}}
		slots := 1
		if i == 0 {
			slots = 2 // as on managed instances
		}
		env, err := lambdatest.Start(s.t.Context(), lambdatest.Config{
			Binary: binary, Name: "lockset", Timeout: s.timeout(), MaxConcurrency: slots,
			Log: s,
			Env: []string{
				"LOCK_URL=" + s.place.locks, "LISTS_URL=" + s.place.lists, "VARIANT=" + s.variant,
				"LOCK_TTL=" + ttl.String(), "LOCK_WAIT=1m", "LOCK_SIGTERM=true",
			},
		})
		require.NoError(s.t, err)
		s.t.Cleanup(func() { assert.NoError(s.t, env.Close()) })
		e.Env, e.slots = env, slots
		all = append(all, e)
	}
	if runtime.GOOS == "linux" {
		assert.NotEmpty(s.t, left(s.t, binary), "the look for processes has to see these")
	}
	var workers sync.WaitGroup
	workers.Go(s.observe)
	for _, e := range all {
		for range e.slots {
			workers.Go(func() { s.work(e) })
		}
	}
	workers.Wait()
	if s.variant == "" {
		s.drain(all[1:]) // in the first one tries may still run
	}
	for _, e := range all {
		assert.NoError(s.t, e.Close())
	}
	if s.variant == "" {
		s.free()
	}
	return s.judge()
}

// work is one slot of an environment.
func (s *site) work(e *environment) {
	for {
		t := s.next(e)
		if t == nil {
			return
		}
		s.deliver(e, t)
	}
}

// next is a try of an event to repeat, or of a new one, or nil in the end. The same
// request id is never twice at a time in one environment.
func (s *site) next(e *environment) *try {
	s.mu.Lock()
	defer s.mu.Unlock()
	for e.ending { // the platform gives it nothing more
		s.mu.Unlock()
		<-time.After(10 * time.Millisecond)
		s.mu.Lock()
	}
	if s.ended || s.enough(s.counts) {
		s.end(false)
		return nil
	}
	for i, ev := range s.again {
		if ev.notBefore <= s.now() && e.running[ev.id] == nil && !e.late[ev.id] {
			s.again = slices.Delete(s.again, i, i+1)
			ev.attempts++
			s.counts.repeated++
			return s.begin(e, ev, s.plan(ev.number, ev.attempts))
		}
	}
	n := len(s.events)
	ev := &event{number: n, id: fmt.Sprint("event-", n)}
	s.events = append(s.events, ev)
	s.counts.events++
	p := s.plan(n, 0)
	if p.duplicate {
		s.counts.duplicates++
		s.again = append(s.again, ev)
	}
	return s.begin(e, ev, p)
}

// begin makes a try; the site's mutex is held.
func (s *site) begin(e *environment, ev *event, p plan) *try {
	t := &try{event: ev, plan: p, sent: s.now(), asked: make(chan struct{}), granted: make(chan struct{})}
	s.tries = append(s.tries, t)
	t.Event = Event{Try: len(s.tries), List: s.list(ev.number), Element: ev.element(), Pause: int(p.pause.Milliseconds()), Stubborn: p.stubborn}
	e.running[ev.id] = t
	s.counts.tries++
	return t
}

// end lets those who wait finish; the site's mutex is held unless time is up.
func (s *site) end(timeUp bool) {
	if timeUp {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.ended {
			s.problem("not enough has happened: %+v", s.counts)
		}
	}
	if !s.ended {
		s.ended = true
		close(s.over)
	}
}

// observe looks from time to time whether an acknowledged element is missing: a
// holder in the middle of its work may bring it back later.
func (s *site) observe() {
	missing := map[int]bool{}
	for {
		select {
		case <-s.over:
			return
		case <-time.After(200 * time.Millisecond):
		}
		wanted := map[string][]*event{}
		s.mu.Lock()
		for _, ev := range s.events[max(0, len(s.events)-perList):] {
			if ev.acknowledged {
				wanted[s.list(ev.number)] = append(wanted[s.list(ev.number)], ev)
			}
		}
		s.mu.Unlock()
		for list, events := range wanted {
			c, err := s.look(list)
			s.mu.Lock()
			if err != nil {
				s.problem("looking at %s: %v", list, err)
			}
			for _, ev := range events {
				if err == nil && !missing[ev.number] && !slices.Contains(c.Elements, ev.element()) {
					missing[ev.number] = true
					s.counts.missing++
				}
			}
			s.mu.Unlock()
		}
	}
}

// look reads a list, and asks again where a busy machine does not answer in time.
func (s *site) look(list string) (c Content, err error) {
	began := time.Now()
	for time.Since(began) < time.Minute {
		if c, err = s.lists.Look(context.Background(), list); err == nil {
			break
		}
		<-time.After(100 * time.Millisecond)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slowest = max(s.slowest, time.Since(began))
	return c, err
}

func (e *event) element() string { return fmt.Sprint("e", e.number) }

// list spreads the events over the lanes, and on to new lists.
func (s *site) list(n int) string {
	return fmt.Sprintf("%s-%d", strings.ReplaceAll(s.variant+"run", " ", "-"), n/(s.lanes*perList)*s.lanes+n%s.lanes)
}

// deliver sends a try's event and strikes its process as planned.
func (s *site) deliver(e *environment, t *try) {
	ev := t.event
	payload, err := json.Marshal(t.Event)
	if err != nil {
		panic(err) // two strings and three numbers
	}

	done := make(chan struct{})
	var strike sync.WaitGroup
	strike.Go(func() { s.strike(e, t, done) })
	// Not bounded by the run's end: the platform's timeout bounds it.
	r, err := e.Send(context.Background(), lambdatest.Event{Payload: payload, ID: ev.id})
	ended := s.now()
	close(done)
	strike.Wait()
	var last []string
	if r.ErrorType == lambdatest.ErrorExit {
		last = e.Logs() // not while the mutex is held, for which a log line may wait
		last = last[max(0, len(last)-3):]
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	delete(e.running, ev.id)
	t.Ended, t.Outcome = ended, r.ErrorType
	if err != nil {
		t.Outcome = "not sent"
		s.problem("try %d was not sent: %v", t.Event.Try, err)
	}
	excused := t.Struck != 0 || e.striking || e.struck > t.sent || len(e.late) > 0
	switch t.Outcome {
	case "":
		if string(r.Payload) == `"was there"` {
			s.counts.found++
		}
		if !ev.acknowledged {
			s.counts.acknowledged++
		}
		ev.acknowledged = true
		return
	case "LockBusy":
		s.counts.busy++
	case "LockLost":
		s.counts.lost++
	case "LockStoreUnavailable":
		s.counts.unavailable++
	case lambdatest.ErrorTimeout:
		s.counts.struck[hang]++
		if e.slots > 1 {
			e.late[ev.id] = true
		}
	case lambdatest.ErrorExit:
		if !excused {
			s.problem("the process of try %d ended by itself: %s %q", t.Event.Try, r.ErrorMessage, last)
		}
	case "LockInvalid", "LockCorrupt":
		s.problem("try %d: %s", t.Event.Try, r.Payload)
	default:
		s.counts.failed++
	}
	if ev.attempts < retries {
		ev.notBefore = s.now() + t.plan.delay
		s.again = append(s.again, ev)
	}
}

// strike does to the process what the plan says, unless the try is over first.
func (s *site) strike(e *environment, t *try, done <-chan struct{}) {
	p := t.plan
	if p.fault == none {
		return
	}
	if p.fault == hang {
		select {
		case <-done:
			return
		case <-s.over: // nobody waits for the timeout any more
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
	s.mu.Lock()
	if e.striking {
		s.mu.Unlock()
		return // the other slot's plan is at it
	}
	e.striking, e.ending = true, p.fault == term
	at := s.now()
	holding := false
	var hit []*try
	for _, other := range e.running {
		if other.Struck == 0 {
			other.Struck = at
			hit = append(hit, other)
		}
		holding = holding || other.Granted != 0
	}
	s.mu.Unlock()

	var err error
	switch p.fault {
	case kill, hang:
		p.fault, err = kill, e.Kill()
	case stop:
		if err = e.Stop(); err == nil {
			select {
			case <-time.After(p.stopped):
			case <-s.over:
			}
			_ = e.Cont() // an error: the platform's timeout has ended it meanwhile
		}
	case term:
		err = e.Shutdown()
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	e.striking, e.ending, e.struck = false, false, s.now()
	if err != nil { // it has just ended
		for _, other := range hit {
			other.Struck = 0
		}
		return
	}
	s.counts.struck[p.fault]++
	if holding {
		s.counts.holding++
	}
}

func (s *site) count(f func(*counts)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.counts)
}

// drain repeats what was given up, without faults: each event gets through.
func (s *site) drain(all []*environment) {
	var left []*event
	for _, ev := range s.events {
		if !ev.acknowledged {
			left = append(left, ev)
		}
	}
	work := make(chan *event)
	var workers sync.WaitGroup
	for _, e := range all {
		workers.Go(func() {
			for ev := range work {
				for range 5 {
					if !ev.acknowledged {
						s.mu.Lock()
						t := s.begin(e, ev, plan{pause: time.Millisecond})
						s.mu.Unlock()
						s.deliver(e, t)
					}
				}
				if !ev.acknowledged {
					s.count(func(*counts) { s.problem("event %d never got through", ev.number) })
				}
			}
		})
	}
	for _, ev := range left {
		work <- ev
	}
	close(work)
	workers.Wait()
}

// free takes every lock once.
func (s *site) free() {
	last := map[string]lockstore.Fence{}
	for _, t := range s.tries {
		last[t.List] = max(last[t.List], t.Fence)
	}
	deadline := time.After(ttl + s.place.late + slack)
	for name, before := range last {
		for {
			ctx := context.Background()
			lease, err := s.place.store.Acquire(ctx, lockstore.Request{Key: Key(name), Owner: lockstore.NewOwner(), TTL: ttl})
			if err == nil {
				err = s.place.store.Release(ctx, lease)
			}
			if err == nil && lease.Fence <= before {
				s.problem("%s: the last fence is %d, after %d", name, lease.Fence, before)
			}
			if err == nil {
				break
			}
			select {
			case <-time.After(50 * time.Millisecond):
				continue
			case <-deadline:
				s.problem("%s is not free in the end: %v", name, err)
			}
			return
		}
	}
}

func (s *site) judge() Verdict {
	contents := map[string]Content{}
	tries := make([]Try, len(s.tries))
	for i, t := range s.tries {
		tries[i] = t.Try
		if _, ok := contents[t.List]; !ok {
			c, err := s.look(t.List)
			require.NoError(s.t, err)
			contents[t.List] = c
		}
	}
	return Check(tries, contents, ttl+s.place.late+poll+slack+s.slowest)
}

// Write reads a line that a process wrote.
func (s *site) Write(line []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tail = append(s.tail, strings.TrimSpace(string(line)))
	s.tail = s.tail[max(0, len(s.tail)-200):]
	var what string
	var number int
	var fence lockstore.Fence
	n, _ := fmt.Sscan(string(line), &what, &number, &fence) // other lines are the guard's reports
	if n < 2 || number < 1 || number > len(s.tries) {
		return len(line), nil
	}
	t := s.tries[number-1]
	switch what {
	case "asked":
		t.Asked = s.now()
		close(t.asked)
	case "granted":
		t.Granted, t.Fence = s.now(), fence
		id := fmt.Sprint(t.List, " ", fence)
		if s.fences[id] {
			s.counts.shared++
		}
		s.fences[id] = true
		close(t.granted)
	case "refused":
		s.counts.refused++
	case "robbed":
		t.Robbed = true
		s.counts.robbed++
	}
	return len(line), nil
}

// left are processes of the binary that still run.
func left(t *testing.T, binary string) (pids []string) {
	if runtime.GOOS != "linux" {
		return nil // lambdatest waits for each of them; only Linux lets us look
	}
	all, err := filepath.Glob("/proc/[0-9]*/exe")
	require.NoError(t, err)
	for _, link := range all {
		if to, err := os.Readlink(link); err == nil && to == binary { // others' are not for us to read
			pids = append(pids, link)
		}
	}
	return pids
}
