package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/stores"
	"github.com/lambdalock/lambdalock/lockstore"
)

// margin ends the trust in a lease before the store may grant the key to another, as in
// package guard.
const margin = 250 * time.Millisecond

// trusting is a store that notes until when its last grant or renewal can be trusted. This
// counts from before the request, so a process that was stopped meanwhile is not wrong.
type trusting struct {
	lockstore.Store
	timeout   time.Duration // of one call
	killAfter time.Duration // the command is told to end so long before the end of trust
	until     moment
	failing   failing
	warned    bool // that renewals fail
}

func (s *trusting) Unwrap() lockstore.Store { return s.Store }

func (s *trusting) Acquire(ctx context.Context, req lockstore.Request) (lockstore.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	sent := now()
	lease, err := s.Store.Acquire(ctx, req)
	s.failing.note(err)
	if err == nil {
		s.until = sent.add(lease.TTL - margin)
	}
	return lease, err
}

func (s *trusting) Renew(ctx context.Context, lease lockstore.Lease, ttl time.Duration) (time.Duration, error) {
	limited, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	sent := now()
	trusted, err := s.Store.Renew(limited, lease, ttl)
	if err == nil {
		s.until = sent.add(trusted - margin)
	}
	if !errors.Is(ctx.Err(), context.Canceled) { // the command has ended, and nobody needs the renewal
		s.noteRenewal(lease.Key, err)
	}
	return trusted, err
}

// noteRenewal says at the first renewal that fails how much time is left to mend the store,
// and says when a renewal succeeds again. A lease that is lost has no time left: the command
// is ended, and lockctl says why.
func (s *trusting) noteRenewal(key string, err error) {
	stderr := s.failing.stderr
	switch {
	case err == nil && s.warned:
		s.warned = false
		fmt.Fprintf(stderr, "lockctl: the lock of %q is renewed again\n", key)
	case err == nil || s.warned || isLost(err):
	default:
		s.warned = true
		left := max(0, now().until(s.until)-s.killAfter).Round(time.Second / 10)
		fmt.Fprintf(stderr, "lockctl: warning: the lock of %q cannot be renewed, and the command is ended in %v if that stays so: %v\n", key, left, stores.Failed(err))
	}
}

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
	answered := err == nil || errors.Is(err, lockstore.ErrHeld) || errors.Is(err, lockstore.ErrLost)
	switch {
	case answered && f.told:
		fmt.Fprintln(f.stderr, "lockctl: the store answers again")
		fallthrough
	case answered:
		f.since, f.told = time.Time{}, false
	case f.since.IsZero():
		f.since = time.Now()
	case !f.told && time.Since(f.since) >= silentTime:
		f.told = true
		fmt.Fprintf(f.stderr, "lockctl: warning: calls of the store have failed for %v; lockctl goes on waiting: %v\n", silentTime, stores.Failed(err))
	}
}
