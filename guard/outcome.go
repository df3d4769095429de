package guard

import (
	"errors"

	"github.com/lambdalock/lambdalock/lockstore"
)

// Outcome says how a call of the guard ended. It stands in a Report and in its log
// line.
type Outcome string

// The outcomes of Do and DoAll. In the first four the work ran, at least in part. OutcomeLost of an
// Acquire, a Renew or a Release says that the lease had ended. Package idempotency has four more: replayed, mismatch, doubt and noresult.
const (
	OutcomeOK          Outcome = "ok"          // the work returned nil
	OutcomeError       Outcome = "error"       // the work returned an error
	OutcomePanic       Outcome = "panic"       // the work panicked or called runtime.Goexit
	OutcomeLost        Outcome = "lost"        // the lease was lost before the work returned
	OutcomeBusy        Outcome = "busy"        // the lock did not become free in time, see Report.KeyState
	OutcomeCovered     Outcome = "covered"     // another run of the same work waits, and has not begun, see Options.Coalesce
	OutcomeDeadline    Outcome = "deadline"    // there was no time for the work
	OutcomeInvalid     Outcome = "invalid"     // the request is wrong, see LockBadRequest
	OutcomeCorrupt     Outcome = "corrupt"     // the entry is foreign or corrupt
	OutcomeUnavailable Outcome = "unavailable" // the store gave no clear answer in time, or a lease was lost before the work
	OutcomeUnknown     Outcome = "unknown"     // the outcome of a request is unknown: the store may keep a lease or a place that nobody uses
)

// The outcomes of Acquire, Renew and Release when they succeed.
const (
	outcomeAcquired Outcome = "acquired"
	outcomeRenewed  Outcome = "renewed"
	outcomeReleased Outcome = "released"
)

// outcomeOf says what a store's answer means. Acquire, renew and release all go by
// this one function. Whatever judges an answer of the store calls it, and so does wakeOwner for an answer of Options.Wake.
func outcomeOf(err error) Outcome {
	switch {
	case err == nil:
		return OutcomeOK
	case errors.Is(err, lockstore.ErrRefused):
		return OutcomeBusy
	case errors.Is(err, lockstore.ErrLost):
		return OutcomeLost
	case errors.Is(err, lockstore.ErrInvalid):
		return OutcomeInvalid
	case errors.Is(err, lockstore.ErrCorrupt):
		return OutcomeCorrupt
	case errors.Is(err, lockstore.ErrUnavailable):
		return OutcomeUnavailable
	}
	return OutcomeUnknown
}

// failure is the outcome and the error of a call that the store answered with err. It is also for an error before the first request. acquire, mayStart,
// markStarted and refuse call it, and so do the runs of one request: acquireLease, requestFor and Inspect.
func (r *run) failure(err error) (Outcome, error) {
	switch outcome := outcomeOf(err); outcome {
	case OutcomeOK:
		return outcome, nil
	case OutcomeLost:
		return outcome, &LockLost{Key: r.key, Cause: err}
	case OutcomeInvalid:
		return outcome, &LockBadRequest{shortKey(r.key), err}
	case OutcomeCorrupt:
		return outcome, &LockCorrupt{r.key, err}
	case OutcomeUnavailable:
		return outcome, &LockStoreUnavailable{r.key, err}
	default:
		return OutcomeUnknown, &LockStoreUnavailable{r.key, err}
	}
}

// shortKey cuts a key. One that is invalid may be as large as an event; an error and a log line must not be. failure and report call it.
func shortKey(key string) string { return key[:min(len(key), lockstore.MaxKeyBytes)] }
