package guard

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// ErrDeadline is the cause of the end of a work's context, found with context.Cause, when the time for the work is over:
// DeadlineMargin before the deadline, or at MaxHold. When the lease is lost, the cause matches lockstore.ErrLost.
var ErrDeadline = errors.New("time for the work is over")

var errShutdown = errors.New("guard is shut down")

// The errors of a run are returned as pointers and never wrapped. Lambda reports the name
// of the outermost type as errorType, and a Retry of Step Functions matches this name.

// LockBusy: the store refused the lock, and waiting did not help. The work did
// not run. It matches lockstore.ErrRefused.
//
// The fields are from the last answer of the store: a refusal or, for a run without a place in the queue, a
// read. While a run with a place waits, most stores give it no newer answer (Redis does every 0.1 to 1 s).
// So the lock may have another holder by now.
type LockBusy struct {
	Key   string
	State lockstore.State // Free only if the store gave no reason

	// Holder, StateEndsIn and QueuePosition are as in lockstore.Refused.
	Holder        lockstore.HolderInfo
	StateEndsIn   time.Duration
	QueuePosition int

	err error // the last refusal; can be older than State
}

func (e *LockBusy) Error() string {
	s := fmt.Sprintf("lock %q is busy: ", e.Key)
	switch e.State {
	case lockstore.Completed, lockstore.Cooldown:
		return s + fmt.Sprintf("the work was done by %v, and nobody gets the lock for at most %v", e.Holder, e.StateEndsIn)
	case lockstore.InDoubt:
		return s + fmt.Sprintf("%v started the work and did not say how it ended; somebody has to resolve the lock", e.Holder)
	case lockstore.Reserved:
		return s + "reserved for runs that have waited longer"
	case lockstore.Revoked:
		return s + fmt.Sprintf("revoked by %v, and its lease lasts for at most %v", e.Holder, e.StateEndsIn)
	}
	return s + fmt.Sprintf("held by %v", e.Holder)
}

// Unwrap returns the last refusal, a *lockstore.Refused: it has the result if the key is Completed. It matches lockstore.ErrRefused.
func (e *LockBusy) Unwrap() error { return cmp.Or(e.err, lockstore.ErrRefused) }

// LockCovered: another run of the same work waits for the lock, and had not begun when this call was made, see Options.Coalesce. The
// work did not run. If the source of the event sends it again until it is answered, that run does what this event asks for, and the error
// is a success; otherwise that run may fail, and nobody does it. It matches lockstore.ErrRefused, and errors.As finds the *lockstore.Refused.
//
// Use the type assertion err.(*LockCovered), and not errors.As: that would also find a wrapped one of another lock, which the work
// has asked for. Such work has begun, and nobody does the rest of it.
type LockCovered struct {
	Key    string
	Work   string               // Options.Coalesce
	Holder lockstore.HolderInfo // who has the lock now; zero if nobody is known to have it

	err error // the refusal
}

func (e *LockCovered) Error() string {
	behind := ""
	if e.Holder != (lockstore.HolderInfo{}) {
		behind = fmt.Sprintf(" behind %v", e.Holder)
	}
	return fmt.Sprintf("lock %q: another run of %s waits%s, and has not begun; it does what this event asks for", e.Key, e.Work, behind)
}

func (e *LockCovered) Unwrap() error { return cmp.Or(e.err, lockstore.ErrRefused) }

// LockLost: the lease was lost before the work returned. The work ran, at least in part, and
// what it wrote may stand. From Acquire, Renew and Release it means that the long-lived lease had
// ended. It matches lockstore.ErrLost, WorkErr and Cause.
type LockLost struct {
	Key     string
	WorkErr error // the work's own error; nil if the work returned nil
	Cause   error // the store's answer, or that the trust in the lease has ended
}

func (e *LockLost) Error() string {
	s := fmt.Sprintf("lock %q was lost; what was written under it may stand", e.Key)
	// Work often returns its context's cause. The text must have neither the cause nor the word lost twice.
	plain := func(err error) string {
		if err == nil {
			return ""
		}
		return strings.TrimSuffix(strings.TrimSuffix(err.Error(), lockstore.ErrLost.Error()), ": ")
	}
	said, cause := plain(e.WorkErr), plain(e.Cause)
	if cause != "" && !strings.Contains(said, cause) {
		s += " (" + cause + ")"
	}
	if said != "" {
		s += ": " + said
	}
	return s
}

func (e *LockLost) Unwrap() []error {
	all := withSentinel(lockstore.ErrLost, e.WorkErr)
	if e.Cause != nil {
		all = append(all, e.Cause)
	}
	return all
}

// LockNoTime: there was no time for the work, because the deadline was too near, the
// caller went away, or the guard was shut down. The work did not run. It matches ErrDeadline and Err.
type LockNoTime struct {
	Key string
	Err error // the caller's cancellation, that Shutdown was called, that an outer run's lease was lost, or ErrDeadline for work whose time was over; else nil

	left, reserve time.Duration // if the deadline was too near: the time until the deadline, and Options.DeadlineMargin
}

func (e *LockNoTime) Error() string {
	s := fmt.Sprintf("lock %q: no time left to run the work: ", e.Key)
	if e.Err != nil {
		return s + e.Err.Error()
	}
	return s + fmt.Sprintf("the deadline is %v away; want at least DeadlineMargin (%v) and %v for the work", e.left.Round(time.Millisecond), e.reserve, leastWork)
}

func (e *LockNoTime) Unwrap() []error { return withSentinel(ErrDeadline, e.Err) }

// LockBadRequest: the request is invalid (for example its key, TTL, Wait or number of keys), the key
// function failed, or a run around this one holds the key already. No work of this call ran. It matches lockstore.ErrInvalid and Err.
type LockBadRequest struct {
	Key string // cut to lockstore.MaxKeyBytes, unless the key function failed
	Err error
}

func (e *LockBadRequest) Error() string { return fmt.Sprintf("lock %q is invalid: %v", e.Key, e.Err) }

func (e *LockBadRequest) Unwrap() []error { return withSentinel(lockstore.ErrInvalid, e.Err) }

// LockCorrupt: the lock's entry is foreign or corrupt, or the store is set up so that it
// cannot hold locks. Trying again does not help. No work of this call ran. It matches
// lockstore.ErrCorrupt and Err.
type LockCorrupt struct {
	Key string
	Err error
}

// The whole table or server may be wrong, so the store's text comes first.
func (e *LockCorrupt) Error() string { return fmt.Sprintf("%v (lock %q)", e.Err, e.Key) }

func (e *LockCorrupt) Unwrap() []error { return withSentinel(lockstore.ErrCorrupt, e.Err) }

// LockStoreUnavailable: the store gave no clear answer in time, or a DoAll or package idempotency lost a lease before its work began.
// No work of this call ran.
//
// If Err matches lockstore.ErrUnavailable, the store has not applied the last request: an acquire has
// left no lease (with LeaseRequest.Owner its place may get one), and after [Guard.Renew] or [Guard.Release] the lease is
// as it was. If the store may still have an earlier lease of the call, Report.ReleaseErr says so.
// If Err does not match it, an answer was lost or came too late (the message says if the
// acquire was abandoned), or the run could not leave the queue, or a lease was lost before the work.
type LockStoreUnavailable struct {
	Key string
	Err error
}

func (e *LockStoreUnavailable) Error() string {
	return fmt.Sprintf("lock %q: the store is unavailable: %v", e.Key, e.Err)
}

// Unwrap returns Err: the error of the first lost answer. If none was lost, Err is what the store answered last, or says
// what was in the way.
func (e *LockStoreUnavailable) Unwrap() error { return e.Err }

// withSentinel is what an Unwrap returns. The slice is new: LockLost adds to it. The Unwrap of LockLost, LockNoTime, LockBadRequest and
// LockCorrupt calls it.
func withSentinel(sentinel, err error) []error {
	if err == nil {
		return []error{sentinel}
	}
	return []error{sentinel, err}
}
