package leasesim

import (
	"context"
	"fmt"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
)

// Send carries one request of the process to a server, or loses it. deliver applies it there: at most twice, and perhaps
// when Send has returned. It says whether a copy that comes later changes nothing that was refused. A refused acquire whose copy
// comes when the key is free takes the key: the documented limit (P5), so it is not repeated here.
//
// The error is ErrDown if the request was certainly not applied.
func Send[A any](ctx context.Context, p *Process, deliver func() (a A, again bool, err error)) (A, error) {
	if p.Latency == 0 {
		a, _, err := deliver()
		return a, err
	}
	run := p.current()
	return send(ctx, p, func() (a A, again bool, err error) {
		a, again, err = deliver()
		p.arrived(run)
		return a, again, err
	})
}

func send[A any](ctx context.Context, p *Process, deliver func() (a A, again bool, err error)) (A, error) {
	var none A
	if !p.Yield() {
		return none, ErrDown
	}
	if err := ctx.Err(); err != nil {
		return none, fmt.Errorf("%w: not sent: %w", ErrDown, err)
	}
	p.Count("operations")
	in, out, late := p.UpTo(p.Latency), p.UpTo(p.Latency), time.Millisecond+p.UpTo(2*TTL)
	fate := p.fate()
	type reply struct {
		a   A
		err error
	}
	replies := make(chan reply, 1)
	switch fate {
	case "requests refused":
		return none, ErrDown
	case "requests lost":
		<-ctx.Done()
		return none, ctx.Err()
	case "requests late": // F11 F18: it arrives when nobody waits any more
		in = late
	case "replies late": // F29
		out = late
	}
	p.late.Go(func() {
		Pass(in)
		a, again, err := deliver()
		if fate == "requests repeated" && again { // F26: a proxy repeats it, later
			p.late.Go(func() {
				Pass(late)
				_, _, _ = deliver()
			})
		}
		Pass(out)
		if fate == "replies lost" {
			a, err = none, ErrCut
		}
		replies <- reply{a, err}
	})
	select {
	case r := <-replies:
		if !p.Yield() {
			return none, ErrCut
		}
		return r.a, r.err
	case <-ctx.Done():
		if !p.Yield() {
			return none, ErrCut
		}
		return none, ctx.Err()
	}
}

// fate is what happens to the next request: "" is nothing.
func (p *Process) fate() (what string) {
	f, streak := p.Float(), p.Float()
	p.mu.Lock()
	switch p.lost--; {
	case p.Calm:
	case p.lost >= 0:
		what = "replies lost"
	case f < 0.03:
		what = "requests refused"
	case f < 0.07:
		what = "replies lost"
		p.lost = int(streak * float64(p.Streak))
	case f < 0.10:
		what = "requests lost"
	case f < 0.13:
		what = "requests late"
	case f < 0.16:
		what = "replies late"
	case f < 0.20:
		what = "requests repeated"
	}
	if p.prompt && (what == "requests late" || what == "requests repeated") {
		what = "requests lost"
	}
	p.mu.Unlock()
	if what != "" {
		p.strikes(what)
	}
	return what
}

// Over is the process's way to a driver: the place of the network for a store that has none.
func Over(p *Process, d driver.Driver) driver.Driver { return wire{p, d} }

type wire struct {
	p *Process
	driver.Driver
}

func (s wire) Do(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	return Send(ctx, s.p, func() (driver.Answer, bool, error) {
		a, err := s.Driver.Do(context.WithoutCancel(ctx), key, r)
		return a, a.Outcome == driver.Granted || a.Outcome == driver.Done, err
	})
}

// Await now and then returns early, as a driver may: a wake-up came twice.
func (s wire) Await(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	early := s.p.Float() < 0.1
	return send(ctx, s.p, func() (driver.Answer, bool, error) { // it is no moment at which the store changes
		if early {
			s.p.Count("early wake-ups")
			ctx, cancel := context.WithTimeout(ctx, s.p.UpTo(time.Second))
			defer cancel()
			_, _ = s.Driver.Await(ctx, key, r)
			return driver.Answer{Outcome: driver.Ask}, false, nil
		}
		a, err := s.Driver.Await(ctx, key, r)
		return a, false, err
	})
}
