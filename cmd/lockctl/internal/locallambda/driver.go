package locallambda

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/pause"
	"github.com/lambdalock/lambdalock/lambdatest"
)

const (
	retryTime  = 2 * time.Minute // of one event: longer than a dead holder blocks its lock
	retryPause = 50 * time.Millisecond
	mostLines  = 5     // of a function's log, shown with its failure
	mostText   = 2_000 // characters of each of them, and of an error
)

// driver sends the events of all phases.
type driver struct {
	settings
	target target
	event  eventTemplate
	out    io.Writer

	unlocked bool // the phase is as without the lock
}

func (d *driver) phase(ctx context.Context, f function) (_ phase, err error) {
	p := phase{unlocked: d.unlocked, environments: d.environments, fenced: d.fenced, planned: d.freeze + d.kill}
	run, title := rand.Text()[:8], p.title()
	if _, err := d.hook(ctx, "--before", d.before, "LOCKCTL_RUN="+run); err != nil {
		return phase{}, err
	}
	all, err := d.start(ctx, f)
	defer func() { err = errors.Join(err, all.close()) }()
	if err != nil {
		return phase{}, err
	}
	p.began = time.Now()
	if p.attempts, p.faults, err = d.send(ctx, all, title, run); err != nil {
		return phase{}, err
	}
	// After that everything that the processes wrote has been read.
	if err := all.close(); err != nil {
		return phase{}, err
	}
	for _, e := range all {
		p.sections = append(p.sections, e.reports.sections...)
		p.covered = append(p.covered, e.reports.covered...)
		p.reported = p.reported || e.reports.found
	}
	p.finish()
	fmt.Fprintf(d.out, "%s: %d events in %.1f s\n", title, d.events, p.took.Seconds())
	text, err := d.hook(ctx, "--after", d.after, "LOCKCTL_RUN="+run, fmt.Sprint("LOCKCTL_SUCCEEDED=", p.succeeded))
	p.rows, p.afterErr = rowsOf(text), err // which is one of the phase
	return p, ctx.Err()
}

type environment struct {
	*lambdatest.Environment
	reports *reports

	mu      sync.Mutex
	running bool // an event is under way
	hit     bool // a fault came while it was
	faulty  bool // a fault is under way
}

type environments []*environment

// start starts all environments at the same time. Also when one does not start it
// returns those that did.
func (d *driver) start(ctx context.Context, f function) (environments, error) {
	started, errs := make(environments, d.environments), make([]error, d.environments)
	var all sync.WaitGroup
	for i := range d.environments {
		all.Go(func() {
			e := &environment{reports: newReports(i)}
			e.Environment, errs[i] = lambdatest.Start(ctx, lambdatest.Config{
				Binary: f.path, Name: f.name, Timeout: d.timeout, Env: d.variables(), Log: e.reports,
			})
			started[i] = e
		})
	}
	all.Wait()
	for _, err := range errs {
		init, ok := errors.AsType[*lambdatest.InitError](err)
		switch {
		case err == nil || ctx.Err() != nil:
		case ok && init.LastLine != "":
			return started, fmt.Errorf("%s does not start: %s", f.name, strings.TrimPrefix(init.LastLine, "lambdalock: "))
		default: // mostly all of them say the same
			return started, err
		}
	}
	return started, ctx.Err()
}

func (all environments) close() error {
	var started lambdatest.Envs
	for _, e := range all {
		started = append(started, e.Environment)
	}
	return started.Close()
}

// send sends the events, one client for each environment, and makes the faults.
func (d *driver) send(ctx context.Context, all environments, title, run string) ([]attempt, []fault, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	attempts := make([]attempt, d.events)
	faults := newFaults(d, all)
	faults.make(ctx, 0)
	var next, done atomic.Int64
	var clients sync.WaitGroup
	var first sync.Once
	for _, e := range all {
		clients.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= d.events {
					return
				}
				a, err := d.one(ctx, e, i+1, run)
				if err != nil {
					cancel(err)
					return
				}
				attempts[i] = a
				if a.failed != "" { // the end of the run may be far away
					first.Do(func() { fmt.Fprintf(d.out, "%s: event %d failed for good with %s\n", title, i+1, a.failure()) })
				}
				faults.make(ctx, int(done.Add(1)))
				if err := pause.For(ctx, d.think+mathrand.N(d.think+1)); err != nil {
					return // the context says why
				}
			}
		})
	}
	clients.Wait()
	err := context.Cause(ctx)
	cancel(nil)
	return attempts, faults.wait(), err
}

// mostUnavailable is how often one event is sent again because the store was not available: a store that nobody reaches
// is told soon.
const mostUnavailable = 3

// one sends one event until it is answered for good. A busy answer, and that the store is not available, is followed by
// another try with a new request id, as a client would do. After a fault the event
// comes again with its request id, as Lambda's retry of an asynchronous event does.
func (d *driver) one(ctx context.Context, e *environment, n int, run string) (a attempt, err error) {
	a.sent = time.Now()
	defer func() { a.answered = time.Now() }()
	event, id := d.event.event(n, run), ""
	for {
		r, hit, err := e.send(ctx, n, lambdatest.Event{Payload: event, ID: id})
		if err != nil {
			return a, err
		}
		log := e.reports.said()
		answer := read(r, event, log)
		if d.coalesce && answer.failed == covers {
			answer.failed = "" // see phase.covered
		}
		if answer.rest != nil {
			event = answer.rest
		}
		late := time.Since(a.sent) > retryTime
		switch {
		case answer.busy && !late:
			a.busy++
		case answer.busy:
			a.failed, a.detail = "busy for "+retryTime.String(), cut(answer.detail, mostText)
			return a, nil
		case answer.again && a.unavailable < mostUnavailable:
			a.unavailable++
		case answer.failed != "" && hit && !late:
			a.sentAgain++
			id = r.RequestID
		default:
			a.failed, a.detail = cut(answer.failed, mostText), cut(answer.detail, mostText)
			if a.failed != "" {
				lines := e.Logs()
				for _, line := range lines[max(0, len(lines)-mostLines):] {
					a.wrote = append(a.wrote, cut(line, mostText))
				}
			} else {
				a.unasked, a.lost = log.runs == 0, log.lost
			}
			return a, nil
		}
		if err := pause.For(ctx, retryPause+mathrand.N(retryPause)); err != nil {
			return a, err
		}
	}
}

// send runs one invocation for the event with this number, and says if a fault hit it.
func (e *environment) send(ctx context.Context, n int, event lambdatest.Event) (r lambdatest.Result, hit bool, err error) {
	e.mu.Lock()
	e.running, e.hit = true, e.faulty
	e.mu.Unlock()
	e.reports.begin(n)
	r, err = e.Send(ctx, event)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.running = false
	return r, e.hit, err
}
