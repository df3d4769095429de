package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lambdalock/lambdalock/lambdatest"
)

// driver fires the invocations of both halves.
type driver struct {
	settings
	place    place
	event    event
	binaries binaries
	out      *screen
}

const (
	functionTimeout = 15 * time.Second
	lockWait        = time.Second      // inside the function; then it answers 409
	retryTime       = 60 * time.Second // of one withdrawal, all its retries
	retryPause      = 50 * time.Millisecond
	thinkTime       = 100 * time.Millisecond // of a client between two withdrawals, up to twice this
)

// half runs all invocations against one binary.
func (d *driver) half(ctx context.Context, title, binary string) (_ half, err error) {
	account := fmt.Sprintf("demo-%s-%s", filepath.Base(filepath.Dir(binary)), rand.Text()[:8])
	h := half{title: title, environments: d.environments, amount: d.event.amount, opening: d.opening(d.event)}

	d.out.progress("%s: starting %d environments", title, d.environments)
	desk, err := d.start(ctx, "desk", d.binaries.unguarded)
	if err != nil {
		return half{}, err
	}
	defer func() { err = errors.Join(err, desk.Close()) }()
	if err := ask(ctx, desk, fmt.Sprintf(`{"open": {"account": %q, "balance": %d}}`, account, h.opening), nil); err != nil {
		if d.place.needs != "" {
			err = fmt.Errorf("%w; %s", err, d.place.needs)
		}
		return half{}, fmt.Errorf("no account can be opened on %s: %w", d.place.name, err)
	}
	envs, err := d.startAll(ctx, binary)
	defer func() {
		for _, env := range envs {
			err = errors.Join(err, env.Close())
		}
	}()
	if err != nil {
		return half{}, err
	}

	h.began = time.Now()
	if h.attempts, err = d.fire(ctx, envs, title, account); err != nil {
		return half{}, err
	}
	var closing struct{ Balance int64 }
	if err := ask(ctx, desk, fmt.Sprintf(`{"read": {"account": %q}}`, account), &closing); err != nil {
		return half{}, fmt.Errorf("the balance cannot be read: %w", err)
	}
	h.closing = closing.Balance
	for i, env := range envs {
		// After Close everything that the process wrote has been read.
		if err := env.Close(); err != nil {
			return half{}, err
		}
		h.sections = append(h.sections, sections(i, env.Logs())...)
	}
	h.finish()
	d.out.done("%s: %d withdrawals in %.1f s", title, d.invocations, h.took.Seconds())
	return h, nil
}

func (d *driver) start(ctx context.Context, name, binary string) (*lambdatest.Env, error) {
	env, err := lambdatest.Start(ctx, lambdatest.Config{
		Binary:  binary,
		Name:    name,
		Timeout: functionTimeout,
		Env:     append([]string{"LOCK_WAIT=" + lockWait.String()}, d.place.env...),
	})
	if init, ok := errors.AsType[*lambdatest.InitError](err); ok && init.LastLine != "" {
		return nil, errors.New(strings.TrimPrefix(init.LastLine, "lambdalock: "))
	}
	return env, err
}

// startAll starts the environments at the same time, as a burst of traffic
// would. It returns those that started, also when one did not.
func (d *driver) startAll(ctx context.Context, binary string) ([]*lambdatest.Env, error) {
	envs := make([]*lambdatest.Env, d.environments)
	errs := make([]error, d.environments)
	var all sync.WaitGroup
	for i := range d.environments {
		all.Go(func() { envs[i], errs[i] = d.start(ctx, filepath.Base(filepath.Dir(binary)), binary) })
	}
	all.Wait()
	var started []*lambdatest.Env
	for _, env := range envs {
		if env != nil {
			started = append(started, env)
		}
	}
	for _, err := range errs {
		if err != nil {
			return started, err // they would all say the same
		}
	}
	return started, nil
}

// fire sends the withdrawals, one client for each environment.
func (d *driver) fire(ctx context.Context, envs []*lambdatest.Env, title, account string) ([]attempt, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	attempts := make([]attempt, d.invocations)
	var next, done atomic.Int64
	var clients sync.WaitGroup
	for _, env := range envs {
		clients.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= d.invocations {
					return
				}
				a, err := d.withdraw(ctx, env, account, fmt.Sprintf("w-%d", i+1))
				if err != nil {
					cancel(err)
					return
				}
				a.answered = time.Now()
				attempts[i] = a
				d.out.progress("%s: %d of %d", title, done.Add(1), d.invocations)
				if err := sleep(ctx, thinkTime+mathrand.N(thinkTime)); err != nil {
					return // the context says why
				}
			}
		})
	}
	clients.Wait()
	return attempts, context.Cause(ctx)
}

// withdraw makes one withdrawal as a client would: a 409 is tried again after a
// short random pause.
func (d *driver) withdraw(ctx context.Context, env *lambdatest.Env, account, id string) (attempt, error) {
	payload, err := d.event.with(account, id)
	if err != nil {
		return attempt{}, err
	}
	a := attempt{sent: time.Now()}
	for {
		r, err := env.Invoke(ctx, payload)
		if err != nil {
			return a, err
		}
		a.requestIDs = append(a.requestIDs, r.RequestID)
		if r.ErrorType != "" {
			a.failure = r.ErrorType + ": " + shorten(r.ErrorMessage)
			return a, nil
		}
		var answer struct {
			StatusCode int
			Body       string
		}
		if err := json.Unmarshal(r.Payload, &answer); err != nil {
			return a, fmt.Errorf("the function's answer cannot be read: %w", err)
		}
		switch {
		case answer.StatusCode == 200:
			return a, nil
		case answer.StatusCode != 409 || time.Since(a.sent) > retryTime:
			a.failure = fmt.Sprintf("status %d: %s", answer.StatusCode, answer.Body)
			return a, nil
		}
		a.busy++
		if err := sleep(ctx, retryPause+mathrand.N(retryPause)); err != nil {
			return a, err
		}
	}
}

// ask sends a set-up event and decodes the answer.
func ask(ctx context.Context, desk *lambdatest.Env, event string, to any) error {
	r, err := desk.Invoke(ctx, []byte(event))
	if err != nil {
		return err
	}
	if r.ErrorType != "" {
		return errors.New(shorten(r.ErrorMessage))
	}
	if to == nil {
		return nil
	}
	return json.Unmarshal(r.Payload, to)
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
