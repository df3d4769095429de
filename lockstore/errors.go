package lockstore

import (
	"errors"
	"fmt"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
)

// The outcomes of a request. Each has one meaning; find it with errors.Is. Every other
// error means that the outcome is unknown.
var (
	// ErrRefused: the key is not granted now. It comes as *Refused, which says why.
	ErrRefused = errors.New("lock is refused")
	// ErrLost: this lease is expired, released, abandoned or gone, or the key is
	// another owner's.
	ErrLost = errors.New("lock is lost")
	// ErrInvalid: the caller's key, owner, TTL or fence is out of bounds.
	// Nothing was sent.
	ErrInvalid = errors.New("invalid lock request")
	// ErrCorrupt: this store did not write the entry, or the table or server is set up
	// so that it cannot hold locks. Trying again does not help.
	ErrCorrupt = errors.New("lock entry is foreign or corrupt")
	// ErrUnavailable: the store certainly did not apply the request (refused
	// connection, throttled, denied, loading, read-only). Trying later may help.
	ErrUnavailable = errors.New("lock store is unavailable")
	// ErrContended gives an unavailable or unknown outcome a reason: many ask for the key at the same time, so it changed before the request
	// could change it, or it is throttled. The request may succeed if it is sent again. The error
	// matches ErrUnavailable, too, if the request was certainly not applied; otherwise the outcome is unknown.
	ErrContended = errors.New("many ask for the lock at once")
)

// Refused says why the key was not granted: what its state is, and for how long. Its content
// comes from the answer to the refused request. It matches ErrRefused.
//
// [Store.Revoke], [Store.ResolveEffect] and [Store.ResolveNoEffect] return it, too, if the
// state of the key does not allow them.
type Refused struct {
	Key   string
	State State // never Free

	// Holder has the lease, did or started the work, or revoked the lease. It is zero if the
	// key is Reserved.
	Holder HolderInfo

	// QueuePosition is the owner's place in the key's queue: 1 is next, 0 is none.
	QueuePosition int

	// Covered says that after the request was sent a run of its Work waited, for another Event, and had not begun.
	// The owner has no place.
	Covered bool

	// StateEndsIn is the longest time until a takeover, if the holder is dead; until this
	// owner's turn, if the key is Reserved; or until the key is free, if it is Completed or in
	// its Cooldown. Most holders release long before it, so it is not a time to wait. It is 0 if
	// the key is InDoubt.
	StateEndsIn time.Duration

	Result HiddenBytes // of the work, if the key is Completed

	Fence Fence // of the key's last grant; 0 when the store knows none

	OldestWait time.Duration // for which the first place of the key's queue has waited, also if it is parked; 0 if there is none, or if it is not known

	Hint Hint

	atOnce bool // a Revoke asked to open the key at once
}

func (e *Refused) Error() string {
	place := ""
	if e.QueuePosition > 0 {
		place = fmt.Sprintf("; place %d in its queue", e.QueuePosition)
	}
	switch {
	case e.Covered:
		return fmt.Sprintf("lock %q: another run of the same work waits, and has not begun", e.Key)
	case e.atOnce:
		return fmt.Sprintf("lock %q cannot be opened at once: its work has started (%v). When the lease has ended, after at most %v more, somebody has to resolve the key", e.Key, e.Holder, e.StateEndsIn)
	case e.State == Reserved:
		return fmt.Sprintf("lock %q is kept for those who wait, for at most %v more%s", e.Key, e.StateEndsIn, place)
	case e.State == Revoked:
		return fmt.Sprintf("lock %q was revoked by %v, and its lease lasts for at most %v more%s", e.Key, e.Holder, e.StateEndsIn, place)
	case e.State == Completed:
		return fmt.Sprintf("lock %q: the work was done by %v, and its result is stored for at most %v more (%v)", e.Key, e.Holder, e.StateEndsIn, e.Result)
	case e.State == Cooldown:
		return fmt.Sprintf("lock %q: the work was done by %v, and nobody gets the key for at most %v more", e.Key, e.Holder, e.StateEndsIn)
	case e.State == InDoubt:
		return fmt.Sprintf("lock %q is in doubt: %v started the work and did not say how it ended; somebody has to resolve the key", e.Key, e.Holder)
	}
	return fmt.Sprintf("lock %q is held by %v, for at most %v more%s", e.Key, e.Holder, e.StateEndsIn, place)
}

// Unwrap makes errors.Is(err, ErrRefused) true.
func (e *Refused) Unwrap() error { return ErrRefused }

func refusedBy(key string, r driver.Request, a driver.Answer) error {
	s := a.Status
	return &Refused{
		Key: key, State: s.State, Holder: DecodeHolderInfo(s.Holder), QueuePosition: a.Position, Covered: a.Covered, StateEndsIn: s.Remaining, Result: s.Result, Fence: s.Fence, OldestWait: s.OldestWait, Hint: a.Hint,
		atOnce: r.Kind == driver.Revoke,
	}
}

// StillHolds is the error of a Leave by an owner that does not wait: it holds the key, or was handed the key.
type StillHolds struct {
	Key   string
	Fence Fence
}

func (e *StillHolds) Error() string {
	return fmt.Sprintf("key %q: the owner that leaves the queue holds the lock", e.Key)
}

// Invalidf returns an error that matches ErrInvalid, for authors of stores. Its text is
// that of fmt.Errorf, without the words of ErrInvalid. Name the package, the field and
// the bound: "mystore: TTL is 5ms; want 1s to 24h".
func Invalidf(format string, args ...any) error {
	return &invalidError{fmt.Errorf(format, args...)}
}

type invalidError struct{ error }

func (e *invalidError) Unwrap() []error { return []error{ErrInvalid, e.error} }
