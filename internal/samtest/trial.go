package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// trial runs everything on one store after the other.
type trial struct {
	sam      *sam
	template template
	fixtures []fixture
	clerk    string // binary of the desk
	out      *screen
}

// report is what was seen on one store. The maps are by fixture.
type report struct {
	store   string
	invoked map[string]check
	called  map[string]check // through the HTTP API
	burst   check
	busy    int                      // answers 409 in the burst
	cold    map[string]check         // by function: the first call, with the container
	warm    map[string]time.Duration // by function: median of further calls
}

// check is how a comparison ended, and how long what was compared took.
type check struct {
	err  error
	took time.Duration
}

func (tr trial) on(ctx context.Context, s *store) (*report, error) {
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
	variables := s.variables(tr.template, hostName)
	for _, step := range []func(context.Context, *store, desk, map[string]string, *report) error{
		tr.invoke, tr.call, tr.crowd, tr.measure,
	} {
		if err = step(ctx, s, clerk, variables, r); err != nil {
			break
		}
		if err = ctx.Err(); err != nil {
			break
		}
	}
	return r, errors.Join(err, clerk.env.Close())
}

// invoke runs every event by sam local invoke.
func (tr trial) invoke(ctx context.Context, s *store, d desk, variables map[string]string, r *report) error {
	for _, f := range tr.fixtures {
		if err := f.prepare(ctx, s, d, tr.template); err != nil {
			return err
		}
		began := time.Now()
		got, err := tr.sam.invoke(ctx, f, variables)
		took := time.Since(began)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			err = sameJSON(f.want, got)
		}
		r.invoked[f.name] = tr.checked("sam local invoke, "+f.name, err, took)
	}
	return nil
}

// checked shows what differs at once; the table has room for a word.
func (tr trial) checked(what string, err error, took time.Duration) check {
	if err != nil {
		tr.out.line("  %s differs:\n     %v", what, err)
	}
	return check{err, took}
}

// call sends the events of the HTTP API to sam local start-api.
func (tr trial) call(ctx context.Context, s *store, d desk, variables map[string]string, r *report) error {
	requests := map[string]request{}
	for _, f := range tr.fixtures {
		if request, ok := f.http(); ok {
			requests[f.name] = request
		}
	}
	server, err := tr.sam.serve(ctx, "start-api", variables)
	if err != nil {
		return err
	}
	defer server.stop()
	for _, f := range tr.fixtures {
		request, ok := requests[f.name]
		if !ok {
			continue
		}
		if err := f.prepare(ctx, s, d, tr.template); err != nil {
			return err
		}
		began := time.Now()
		err := curl(ctx, server.base, request, f.want)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		r.called[f.name] = tr.checked("curl to sam local start-api, "+f.name, err, time.Since(began))
	}
	return nil
}

// crowd makes withdrawals at the same time.
func (tr trial) crowd(ctx context.Context, s *store, d desk, variables map[string]string, r *report) error {
	plain, err := tr.named(crowdFixture)
	if err != nil {
		return err
	}
	busy, err := tr.named(crowdFixture + "-busy")
	if err != nil {
		return err
	}
	var held struct{ Body string }
	if err := json.Unmarshal(busy.want, &held); err != nil {
		return err
	}
	if err := plain.prepare(ctx, s, d, tr.template); err != nil {
		return err
	}
	patient := maps.Clone(variables)
	patient["LOCK_WAIT"] = burstWait
	server, err := tr.sam.serve(ctx, "start-lambda", patient)
	if err != nil {
		return err
	}
	defer server.stop()
	release, err := s.hold(ctx, tr.template, plain.heldKey())
	if err != nil {
		return err
	}
	b, err := runBurst(ctx, server, plain.function.id, plain.event, held.Body, d, release)
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
	i := slices.IndexFunc(tr.fixtures, func(f fixture) bool { return f.name == name })
	if i < 0 {
		return fixture{}, fmt.Errorf("there is no events/%s.json", name)
	}
	return tr.fixtures[i], nil
}

const warmCalls = 15

// measure times each function's plain event in a new container and in one that
// has run before. The answers were compared already; a repeated event may be
// answered from memory.
func (tr trial) measure(ctx context.Context, s *store, d desk, variables map[string]string, r *report) error {
	server, err := tr.sam.serve(ctx, "start-lambda", variables, "--warm-containers", "LAZY")
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
		var took []time.Duration
		for range 1 + warmCalls {
			began := time.Now()
			_, err = server.invoke(ctx, f.id, plain.event)
			took = append(took, time.Since(began))
			if err != nil {
				break
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		r.cold[f.id] = tr.checked("sam local start-lambda, "+f.name, err, took[0])
		if warm := took[1:]; err == nil {
			slices.Sort(warm)
			r.warm[f.id] = warm[len(warm)/2]
		}
	}
	return nil
}

// verdict is nil when everything was as expected.
func verdict(reports []*report) error {
	differ, all := 0, 0
	count := func(c check) {
		all++
		if c.err != nil {
			differ++
		}
	}
	for _, r := range reports {
		for _, checks := range []map[string]check{r.invoked, r.called, {"": r.burst}, r.cold} {
			for _, c := range checks {
				count(c)
			}
		}
	}
	if differ > 0 {
		return fmt.Errorf("%d of %d checks differ", differ, all)
	}
	return nil
}
