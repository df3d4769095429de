package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/stores"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// As in package guard: margin ends the trust in a lease before the store may grant the key to
// another, and callTime bounds one call.
const (
	margin   = 250 * time.Millisecond
	callTime = 2 * time.Second
)

// trusting is a driver that notes until when its last grant can be trusted. This counts from
// before the request, so a process that was stopped meanwhile is not wrong. What the guard
// tells counts from a moment that may be over when lockctl reads its clocks.
type trusting struct {
	driver.Driver
	timeout time.Duration // of one call
	failing failing
	once    bool // who waits does not wait for the end of Completed or Cooldown
	until   moment
	asked   bool
}

// Unwrap is for driver.As.
func (d *trusting) Unwrap() driver.Driver { return d.Driver }

// Do implements driver.Driver.
func (d *trusting) Do(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	if r.Kind != driver.Acquire {
		return d.Driver.Do(ctx, key, r)
	}
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	sent := now()
	a, err := d.Driver.Do(ctx, key, r)
	if d.failing.note(err); a.Outcome == driver.Granted {
		d.until = sent.add(a.TTL - margin)
	}
	if !d.asked && errors.Is(err, lockstore.ErrUnavailable) && stores.IsFinal(stores.Failed(err)) {
		err = final{err}
	}
	d.asked = true
	if d.once && a.Outcome == driver.Refused && a.Status.State.Done() {
		return a, doneBefore{a.Status}
	}
	return a, err
}

// doneBefore is the answer of a key whose work is done. The guard would wait until it may be done again.
type doneBefore struct{ driver.Status }

func (doneBefore) Error() string { return "the work is done" }

func (doneBefore) Is(target error) bool { return target == lockstore.ErrCorrupt } // as final

// final is the error of a first request that another one would get, too. The guard repeats none that
// matches lockstore.ErrCorrupt.
type final struct{ error }

func (f final) Unwrap() error { return f.error }

func (final) Is(target error) bool { return target == lockstore.ErrCorrupt }

// isLost says that no later renewal can succeed.
func isLost(err error) bool {
	return errors.Is(err, lockstore.ErrLost) || errors.Is(err, lockstore.ErrCorrupt) || errors.Is(err, lockstore.ErrInvalid)
}

// silentTime is how long calls may fail before lockctl says so.
const silentTime = 30 * time.Second

// failing says when the calls of a wait have failed for long: the password may be another
// one now, and nobody would know what lockctl waits for.
type failing struct {
	stderr io.Writer
	since  time.Time // of the first failed call; zero after an answer
	told   bool
}

func (f *failing) note(err error) {
	switch {
	case err == nil && f.told:
		fmt.Fprintln(f.stderr, "lockctl: the store answers again")
		fallthrough
	case err == nil:
		f.since, f.told = time.Time{}, false
	case f.since.IsZero():
		f.since = time.Now()
	case !f.told && time.Since(f.since) >= silentTime:
		f.told = true
		fmt.Fprintf(f.stderr, "lockctl: warning: calls of the store have failed for %v; lockctl goes on waiting: %v\n", silentTime, stores.Failed(err))
	}
}
