package guard

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// Causes of a work context's end, found with context.Cause and errors.Is. When
// the lease is lost the cause matches lockstore.ErrLost.
var (
	// ErrDeadline: the time for the work is over, by the context's deadline less
	// Reserve or by MaxHold.
	ErrDeadline = errors.New("time for the work is over")
	// ErrShutdown: Shutdown was called.
	ErrShutdown = errors.New("guard is shut down")
)

// The errors of a run are returned as pointers and never wrapped, because
// Lambda reports the outermost type's name as errorType, and a Step Functions
// Retry matches on that name.

// LockBusy: another holds the lock, and it did not become free within Wait. The
// work did not run. It matches lockstore.ErrHeld.
type LockBusy struct {
	Key    string
	Holder lockstore.Holder
	// Remaining is the longest time until the lock is free if its holder is dead.
	Remaining time.Duration
}

func newLockBusy(key string, err error) *LockBusy {
	busy := &LockBusy{Key: key}
	if held, ok := errors.AsType[*lockstore.HeldError](err); ok {
		busy.Holder, busy.Remaining = held.Holder, held.Remaining
	}
	return busy
}

func (e *LockBusy) Error() string {
	return fmt.Sprintf("lock %q is busy: held by %v", e.Key, e.Holder)
}

// Unwrap makes errors.Is(err, lockstore.ErrHeld) true.
func (e *LockBusy) Unwrap() error { return lockstore.ErrHeld }

// LockLost: the lease was lost before the work returned, or, of a LeaseRequest, before its
// holder gave it back. The work ran, at least in part, and what it wrote may stand.
// It matches lockstore.ErrLost, its cause and what the work said.
type LockLost struct {
	Key   string
	Err   error // what the work said; nil when it reported success
	Cause error // the store's answer, or that the trust in the lease has ended
}

func (e *LockLost) Error() string {
	s := fmt.Sprintf("lock %q was lost; what was written under it may stand", e.Key)
	said := ""
	if e.Err != nil {
		said = ": " + e.Err.Error()
	}
	if e.Cause != nil {
		// Neither that it was lost nor the cause is to stand there twice: work often
		// returns its context's cause.
		cause := strings.TrimSuffix(strings.TrimSuffix(e.Cause.Error(), lockstore.ErrLost.Error()), ": ")
		if cause != "" && !strings.Contains(said, cause) {
			s += " (" + cause + ")"
		}
	}
	return s + said
}

// Unwrap returns lockstore.ErrLost, the cause and what the work said.
func (e *LockLost) Unwrap() []error {
	all := withSentinel(lockstore.ErrLost, e.Err)
	if e.Cause != nil {
		all = append(all, e.Cause)
	}
	return all
}

// loss is a cause of LockLost in words of its own.
type loss struct {
	text  string
	cause error
}

func (e *loss) Error() string { return e.text }

func (e *loss) Unwrap() []error { return withSentinel(lockstore.ErrLost, e.cause) }

// LockDeadline: there was no time to run the work in, because the deadline is
// too near, the caller went away, or the guard was shut down. The work did not
// run. It matches ErrDeadline.
type LockDeadline struct {
	Key string
	Err error // the caller's cancellation or ErrShutdown; nil for a near deadline

	// Of a near deadline: what was left until it, and Options.Reserve.
	Left, Reserve time.Duration
}

func (e *LockDeadline) Error() string {
	s := fmt.Sprintf("lock %q: no time left to run the work: ", e.Key)
	if e.Err != nil {
		return s + e.Err.Error()
	}
	return s + fmt.Sprintf("the deadline is %v away; want at least Reserve (%v) and %v for the work", e.Left.Round(time.Millisecond), e.Reserve, leastWork)
}

// Unwrap returns ErrDeadline and the cause.
func (e *LockDeadline) Unwrap() []error { return withSentinel(ErrDeadline, e.Err) }

// LockInvalid: the key cannot be locked. The work did not run. It matches
// lockstore.ErrInvalid.
type LockInvalid struct {
	Key string // a key that is too long is cut to lockstore.MaxKeyBytes
	Err error
}

func (e *LockInvalid) Error() string { return fmt.Sprintf("lock %q is invalid: %v", e.Key, e.Err) }

// Unwrap returns lockstore.ErrInvalid and the reason.
func (e *LockInvalid) Unwrap() []error { return withSentinel(lockstore.ErrInvalid, e.Err) }

// LockCorrupt: the lock's entry is foreign or corrupt, or the store is set up
// wrongly. Trying again does not help. The work did not run. It matches
// lockstore.ErrCorrupt.
type LockCorrupt struct {
	Key string
	Err error
}

// What is wrong may be the whole table or server, so the store's words come first.
func (e *LockCorrupt) Error() string { return fmt.Sprintf("%v (lock %q)", e.Err, e.Key) }

// Unwrap returns lockstore.ErrCorrupt and the reason.
func (e *LockCorrupt) Unwrap() []error { return withSentinel(lockstore.ErrCorrupt, e.Err) }

// LockStoreUnavailable: the store did not grant the lock in time and did not say
// that another holds it, or did not say that a long-lived lease is renewed or
// released. The work of a Do did not run. When Err matches
// lockstore.ErrUnavailable nothing of this run is left in the store; otherwise
// answers were lost or late, and the message says whether the attempt was
// abandoned.
type LockStoreUnavailable struct {
	Key string
	Err error
}

func (e *LockStoreUnavailable) Error() string {
	return fmt.Sprintf("lock %q: the store is unavailable: %v", e.Key, e.Err)
}

// Unwrap returns what the store said last, or the first answer that was lost.
func (e *LockStoreUnavailable) Unwrap() error { return e.Err }

func withSentinel(sentinel, err error) []error {
	if err == nil {
		return []error{sentinel}
	}
	return []error{sentinel, err}
}
