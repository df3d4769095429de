package storms

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/pause"
	"github.com/lambdalock/lambdalock/lambdatest"
)

const (
	ttl    = 2 * time.Second
	frozen = ttl + time.Second/2 // longer than anybody trusts a lease

	index, sort = "index", "sort" // two functions, so two works
)

// crowd is the environments of both functions on one store.
type crowd struct {
	t     *testing.T
	board *board
	takes time.Duration             // the work
	think time.Duration             // of an environment between two events; more if there are several faults
	of    map[string][]*environment // by function
	envs  lambdatest.Envs

	mu   sync.Mutex // guards what follows, and what environments have under way
	seen counts
	tail []string // the last lines of all
}

// counts is what the runs of the guard have logged.
type counts struct {
	runs, covered int
	asks          int // requests of covered runs that never waited, beyond one for each
	place         int // the last in the queue that a run had
	other         map[string]int
	why           string // of the first of them
}

// environment is an execution environment.
type environment struct {
	*lambdatest.Environment
	event string // under way; "" is none
	since time.Time
	hit   bool // a fault is under way
}

func newCrowd(t *testing.T, binary, locks, variant string, indexes, sorts int, takes time.Duration) *crowd {
	c := &crowd{t: t, board: newBoard(t), takes: takes, of: map[string][]*environment{}}
	t.Cleanup(c.close)
	for name, n := range map[string]int{index: indexes, sort: sorts} {
		all, err := lambdatest.StartAll(t.Context(), n, lambdatest.Config{
			Binary: binary, Name: name, Timeout: time.Minute, Log: output{c},
			Env: []string{
				"LOCK_URL=" + locks, "BOARD_URL=" + c.board.URL, "VARIANT=" + variant, "WORK=" + takes.String(),
				"LOCK_TTL=" + ttl.String(), "LOCK_WAIT=20s", "LOCK_COALESCE=true", "LOCK_LOG=start",
			},
		})
		require.NoError(t, err)
		c.envs = append(c.envs, all...)
		for _, e := range all {
			c.of[name] = append(c.of[name], &environment{Environment: e})
		}
	}
	return c
}

func (c *crowd) close() { assert.NoError(c.t, c.envs.Close()) }

// output is what all processes write.
type output struct{ *crowd }

// Write reads a line.
func (o output) Write(line []byte) (int, error) {
	var report struct {
		Message, Outcome, Error string
		Calls                   int
		QueuePosition           int `json:"queue_position"`
		FailedCalls             int `json:"failed_calls"`
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tail = append(o.tail[max(0, len(o.tail)-100):], string(line))
	if json.Unmarshal(line, &report) != nil || report.Message != "lock" {
		return len(line), nil // the platform's, or of a start
	}
	s := &o.seen
	s.place = max(s.place, report.QueuePosition)
	switch report.Outcome {
	case "ok":
		s.runs++
	case "covered":
		s.covered++
		if report.QueuePosition == 0 && report.FailedCalls == 0 {
			s.asks += report.Calls - 1
		}
	default:
		s.other[report.Outcome]++
		s.why = cmp.Or(s.why, report.Error)
	}
	return len(line), nil
}

// source sends the events of one work for one key, and sends again at once what was not answered with success, as a queue without a
// visibility timeout does.
type source struct {
	*crowd
	key, work string
	size      int           // how many events
	think     time.Duration // between two events of an environment
	last      func()        // called when the last event is sent, with the mutex held

	changed *sync.Cond // of the crowd's mutex
	sent    int
	again   []string // not answered
	done    int      // answered with success
	resent  int
	err     error
}

func (c *crowd) newSource(key, work string, size int) *source {
	return &source{crowd: c, key: key, work: work, size: size, last: func() {}, changed: sync.NewCond(&c.mu)}
}

// next waits for an event to send. It returns "" in the end.
func (s *source) next() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.err == nil && s.done < s.size {
		if n := len(s.again) - 1; n >= 0 {
			id := s.again[n]
			s.again = s.again[:n]
			s.resent++
			return id
		}
		if s.sent < s.size {
			if s.sent++; s.sent == s.size {
				s.last()
			}
			s.board.of(s.key, s.work, func(r *row) { r.came++ }) // what the event speaks of is there before the event
			return fmt.Sprint(s.key, "-", s.sent)
		}
		s.changed.Wait()
	}
	return ""
}

// feed sends events to one environment.
func (s *source) feed(ctx context.Context, e *environment) {
	for id := s.next(); id != ""; id = s.next() {
		payload, err := json.Marshal(events.SQSEvent{Records: []events.SQSMessage{{MessageId: id, Body: s.key, EventSource: "aws:sqs"}}})
		if err != nil {
			panic(err) // strings
		}
		s.mu.Lock()
		e.event, e.since = id, time.Now()
		s.mu.Unlock()
		r, err := e.Send(ctx, lambdatest.Event{Payload: payload})
		var answer events.SQSEventResponse
		success := err == nil && r.ErrorType == "" && json.Unmarshal(r.Payload, &answer) == nil && len(answer.BatchItemFailures) == 0
		s.mu.Lock()
		e.event = ""
		if success {
			s.done++
		} else {
			s.again = append(s.again, id)
		}
		if err != nil {
			s.err = err
		}
		s.changed.Broadcast()
		s.mu.Unlock()
		_ = pause.For(ctx, s.think)
	}
}

// all has the environments of the work send events until each is answered.
func (s *source) all(ctx context.Context) {
	var workers sync.WaitGroup
	for _, e := range s.of[s.work] {
		workers.Go(func() { s.feed(ctx, e) })
	}
	workers.Wait()
}

// whom a fault hits.
const (
	holder = "holder"
	waiter = "waiter"
)

// fault is one that comes after so many answers.
type fault struct {
	after int
	whom  string
	kill  bool // or frozen, for longer than a lease lasts
}

// find waits for an environment that the fault hits; nil if all events are answered before.
func (s *source) find(ctx context.Context, whom string) *environment {
	for ctx.Err() == nil {
		at := s.board.row(s.key, s.work).event
		s.mu.Lock()
		var found *environment
		for _, e := range s.of[s.work] {
			switch {
			case e.event == "" || e.hit || (whom == holder) != (e.event == at):
			case whom == waiter && time.Since(e.since) < s.takes/10: // it may be covered, and that takes less
			case found == nil || e.since.Before(found.since):
				found = e
			}
		}
		over := s.done >= s.size || s.err != nil
		if found != nil && !over {
			found.hit = true
		}
		s.mu.Unlock()
		if found != nil || over {
			return found
		}
		_ = pause.For(ctx, time.Millisecond)
	}
	return nil
}

// make makes the faults one after the other, and returns how many.
func (s *source) make(ctx context.Context, faults []fault) (kills, stops int64) {
	var thaws sync.WaitGroup
	defer thaws.Wait()
	for _, f := range faults {
		s.mu.Lock()
		for s.done < f.after && s.err == nil {
			s.changed.Wait()
		}
		s.mu.Unlock()
		e := s.find(ctx, f.whom)
		if e == nil {
			return kills, stops
		}
		if f.kill {
			if e.Kill() == nil {
				kills++
			}
			s.free(e)
			continue
		}
		if e.Freeze() == nil {
			stops++
			thaws.Go(func() {
				_ = pause.For(ctx, frozen)
				_ = e.Thaw() // an error: its process has ended
				s.free(e)
			})
		} else {
			s.free(e)
		}
	}
	return kills, stops
}

func (c *crowd) free(e *environment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.hit = false
}

// outcome is how a storm ended.
type outcome struct {
	counts
	index, sort  row
	resent       int
	kills, stops int64
	took         time.Duration
}

// lost is how many events were answered without a run that began after them.
func (o outcome) lost() int { return o.index.came - o.index.wrote + o.sort.came - o.sort.wrote }

func (o outcome) String() string {
	return fmt.Sprintf("%d events in %v: %d runs, %d covered, %d sent again, %d killed, %d frozen, other outcomes %v %s; written %d of %d, and %d of %d of another work",
		o.index.came+o.sort.came, o.took.Round(time.Millisecond), o.runs, o.covered, o.resent, o.kills, o.stops, o.other, o.why, o.index.wrote, o.index.came, o.sort.wrote, o.sort.came)
}

// storm sends the events for a key. With others it sends events of the other work, too, until the last of the events is sent: then
// a run of the other work that is missing does not come later.
func (c *crowd) storm(ctx context.Context, key string, size int, faults []fault, others bool) (o outcome) {
	began := time.Now()
	c.mu.Lock()
	c.seen = counts{other: map[string]int{}}
	c.mu.Unlock()
	main, beside := c.newSource(key, index, size), c.newSource(key, sort, 0)
	main.think = c.think
	if others {
		beside.size, beside.think = 1_000_000, c.takes/4
	}
	if len(faults) > 1 {
		main.think = c.takes // or the storm is over before the second fault
	}
	main.last = func() {
		beside.size = beside.sent
		beside.changed.Broadcast()
	}
	var all sync.WaitGroup
	all.Go(func() { o.kills, o.stops = main.make(ctx, faults) })
	all.Go(func() { beside.all(ctx) })
	main.all(ctx)
	all.Wait()
	require.NoError(c.t, main.err)
	require.NoError(c.t, beside.err)
	require.NoError(c.t, ctx.Err())
	c.mu.Lock()
	defer c.mu.Unlock()
	o.counts, o.index, o.sort, o.resent, o.took = c.seen, c.board.row(key, index), c.board.row(key, sort), main.resent+beside.resent, time.Since(began)
	return o
}

// spread are n faults of each kind in turn over a storm. The last one kills who waits when nearly all is answered: its event is sent
// again while its dead place is in the queue.
func spread(size, n int) (all []fault) {
	for i := range n {
		f := []fault{{whom: holder, kill: true}, {whom: waiter}, {whom: holder}, {whom: waiter, kill: true}}[i%4]
		f.after = size * (i + 1) / (n + 1)
		if i == n-1 {
			f = fault{after: size - 2, whom: waiter, kill: true}
		}
		all = append(all, f)
	}
	return all
}
