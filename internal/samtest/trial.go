package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/lambdalock/lambdalock/internal/eventfiles"
)

// trial runs everything on one store after the other.
type trial struct {
	template template
	fixtures []fixture
	clerk    string // binary of the desk
	out      *screen
}

// runner runs the functions: the SAM CLI, or AWS.
type runner interface {
	// once runs an event and returns the function's answer, also one that is an
	// error.
	once(context.Context, fixture) ([]byte, error)
	serve(context.Context, purpose) (service, error)
}

// purpose is what a service is for.
type purpose int

const (
	forRequests purpose = iota // one after the other, to the HTTP API
	forCrowd                   // invocations at the same time
	forTiming                  // invocations of which all but the first are warm
)

// service runs functions until stop.
type service interface {
	// call sends a request to the HTTP API.
	call(context.Context, request) (response, error)
	// invoke runs an event whose answer is no error.
	invoke(ctx context.Context, id string, event []byte) (reply, error)
	// overlap ends the service and says whether its functions reported critical
	// sections that overlap.
	overlap() error
	stop()
}

// reply is a function's answer.
type reply struct {
	text   []byte
	reused bool // by an environment that does not report that it has just begun
}

// report is what was seen on one store. The maps are by fixture.
type report struct {
	store   string
	invoked map[string]check
	called  map[string]check // through the HTTP API
	burst   check
	busy    int                      // answers 409 in the burst
	cold    map[string]check         // by function: the first call, with the start of an environment
	warm    map[string]time.Duration // by function: median of further calls
}

// check is how a comparison ended, and how long what was compared took.
type check struct {
	err     error
	took    time.Duration
	untried string // why there is nothing to compare
}

// step fills a part of the report.
type step func(context.Context, *store, desk, runner, *report) error

func (tr trial) on(ctx context.Context, s *store, functions runner, steps ...step) (*report, error) {
	r := &report{
		store:   s.name,
		invoked: map[string]check{}, called: map[string]check{},
		cold: map[string]check{}, warm: map[string]time.Duration{},
	}
	tr.out.line("\n%s", s.name)
	if err := s.fresh(ctx); err != nil {
		return nil, err
	}
	clerk, err := openDesk(ctx, tr.clerk, s, tr.template)
	if err != nil {
		return nil, err
	}
	for _, step := range steps {
		if err = step(ctx, s, clerk, functions, r); err != nil {
			break
		}
		if err = ctx.Err(); err != nil {
			break
		}
	}
	return r, errors.Join(err, s.letGo(context.WithoutCancel(ctx)), clerk.env.Close())
}

// invoke runs every event.
func (tr trial) invoke(ctx context.Context, s *store, d desk, functions runner, r *report) error {
	for _, f := range tr.fixtures {
		if f.Held != "" && s.noHold != "" {
			r.invoked[f.Name] = check{untried: s.noHold}
			continue
		}
		if err := f.prepare(ctx, s, d, tr.template); err != nil {
			return err
		}
		if s.keeps {
			f.Event = f.unused()
		}
		began := time.Now()
		got, err := functions.once(ctx, f)
		took := time.Since(began)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			err = eventfiles.SameAnswer(f.Want, got)
		}
		r.invoked[f.Name] = tr.checked("the answer to "+f.Name, err, took)
		if err := tr.giveBack(ctx, s, functions, f, got); err != nil {
			return err
		}
	}
	return nil
}

// giveBack releases what the answer to an event says is had, on a store that
// does not forget it.
func (tr trial) giveBack(ctx context.Context, s *store, functions runner, f fixture, answer []byte) error {
	event, ok := f.handBack(answer)
	if !ok || !s.keeps {
		return nil
	}
	_, err := functions.once(ctx, fixture{eventfiles.Fixture{Event: event}, f.function})
	return err
}

// checked shows what differs at once; the table has room for a word.
func (tr trial) checked(what string, err error, took time.Duration) check {
	if err != nil {
		tr.out.line("  %s differs:\n     %v", what, err)
	}
	return check{err: err, took: took}
}

// call sends the events of the HTTP API as requests, and then those of a client
// that borrows a lock.
func (tr trial) call(ctx context.Context, s *store, d desk, functions runner, r *report) error {
	requests := map[string]request{}
	for _, f := range tr.fixtures {
		if request, ok := f.http(); ok {
			requests[f.Name] = request
		}
	}
	api, err := functions.serve(ctx, forRequests)
	if err != nil {
		return err
	}
	defer api.stop()
	for _, f := range tr.fixtures {
		request, ok := requests[f.Name]
		if !ok {
			continue
		}
		if f.Held != "" && s.noHold != "" {
			r.called[f.Name] = check{untried: s.noHold}
			continue
		}
		if err := f.prepare(ctx, s, d, tr.template); err != nil {
			return err
		}
		began := time.Now()
		got, err := api.call(ctx, request)
		took := time.Since(began)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			err = got.same(f.Want)
		}
		r.called[f.Name] = tr.checked("the response to "+f.Name, err, took)
		if err := tr.giveBack(ctx, s, functions, f, got.answer()); err != nil {
			return err
		}
	}
	began := time.Now()
	err = life(ctx, api)
	r.called[lifeRow] = tr.checked(lifeRow, err, time.Since(began))
	if at, ok := api.(*server); ok && ctx.Err() == nil { // the examples do not all sign for AWS
		return tr.clients(ctx, at.base, r)
	}
	return ctx.Err()
}

// crowd makes withdrawals at the same time.
func (tr trial) crowd(ctx context.Context, s *store, d desk, functions runner, r *report) error {
	if s.noHold != "" {
		r.burst = check{untried: s.noHold}
		return nil
	}
	plain, err := tr.named(crowdFixture)
	if err != nil {
		return err
	}
	busy, err := tr.named(crowdFixture + "-busy")
	if err != nil {
		return err
	}
	var held struct{ Body string }
	if err := json.Unmarshal(busy.Want, &held); err != nil {
		return err
	}
	if err := plain.prepare(ctx, s, d, tr.template); err != nil {
		return err
	}
	server, err := functions.serve(ctx, forCrowd)
	if err != nil {
		return err
	}
	defer server.stop()
	release, err := s.hold(ctx, tr.template, busy.Held)
	if err != nil {
		return err
	}
	s.held = release
	b, err := runBurst(ctx, server, plain.function.id, plain.Event, held.Body, d, s.letGo)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	r.busy = b.busy
	r.burst = tr.checked(fmt.Sprint(burstSize, " withdrawals at once"), err, b.took)
	return nil
}

// crowdFixture is the event of a withdrawal: the one function whose answers need
// to be known here, because they tell whether an update was lost.
const crowdFixture = "withdraw"

func (tr trial) named(name string) (fixture, error) {
	i := slices.IndexFunc(tr.fixtures, func(f fixture) bool { return f.Name == name })
	if i < 0 {
		return fixture{}, fmt.Errorf("there is no events/%s.json", name)
	}
	return tr.fixtures[i], nil
}

const warmCalls = 5

// measure times each function's plain event in a new environment and in one
// that has run before. Other steps compare the answers; a repeated event may be
// answered from memory.
func (tr trial) measure(ctx context.Context, s *store, d desk, functions runner, r *report) error {
	server, err := functions.serve(ctx, forTiming)
	if err != nil {
		return err
	}
	defer server.stop()
	for _, f := range tr.template.functions {
		plain, err := tr.named(f.name)
		if err != nil {
			return err
		}
		if err := plain.prepare(ctx, s, d, tr.template); err != nil {
			return err
		}
		var replies []reply
		var took []time.Duration
		for range 1 + warmCalls {
			plain.Event = plain.unused()
			began := time.Now()
			var got reply
			got, err = server.invoke(ctx, f.id, plain.Event)
			took, replies = append(took, time.Since(began)), append(replies, got)
			if err != nil {
				break
			}
			// Or the next call would find it busy.
			if back, ok := plain.handBack(got.text); ok {
				if _, err = server.invoke(ctx, f.id, back); err != nil {
					break
				}
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		r.cold[f.id] = tr.checked("a repeated "+f.name, err, took[0])
		if replies[0].reused {
			r.cold[f.id] = check{untried: "a cold start, because an environment was there already; come back in an hour"}
		}
		if warm := took[1:]; err == nil {
			slices.Sort(warm)
			r.warm[f.id] = warm[len(warm)/2]
		}
	}
	return nil
}

// checks are all that was compared, or was to be.
func checks(reports []*report) iter.Seq[check] {
	return func(yield func(check) bool) {
		for _, r := range reports {
			for _, some := range []map[string]check{r.invoked, r.called, {"": r.burst}, r.cold} {
				for _, c := range some {
					if !yield(c) {
						return
					}
				}
			}
		}
	}
}

// verdict is nil when everything that was tried was as expected.
func verdict(reports []*report) error {
	differ, tried := 0, 0
	for c := range checks(reports) {
		if c.untried == "" {
			tried++
		}
		if c.err != nil {
			differ++
		}
	}
	if differ > 0 {
		return fmt.Errorf("%d of %d checks differ", differ, tried)
	}
	return nil
}
