package lockstore

import (
	"errors"
	"fmt"
	"time"
)

// The outcomes of a request. Each has one meaning; find it with errors.Is. Every other
// error means that the outcome is unknown.
var (
	// ErrHeld: another owner has a live lease. It comes as *HeldError.
	ErrHeld = errors.New("lock is held")
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
)

// HeldError says who has the lock. Its content comes from the answer to the refused
// request.
type HeldError struct {
	Key    string
	Holder HolderInfo
	// Remaining is the longest time until a takeover, if the holder is dead. Most
	// holders release long before it, so it is not a time to wait. If the key is free
	// and kept for owners that wait, it is the longest time until this owner's turn.
	Remaining time.Duration

	// QueuePosition is the owner's place in the key's queue, 1 for the first; 0 when it has
	// none.
	QueuePosition int

	// Reserved says that nobody holds the key: it is kept for those who wait before this
	// owner. Holder is zero then.
	Reserved bool
}

func (e *HeldError) Error() string {
	place := ""
	if e.QueuePosition > 0 {
		place = fmt.Sprintf("; place %d in its queue", e.QueuePosition)
	}
	if e.Reserved {
		return fmt.Sprintf("lock %q is kept for those who wait, for at most %v more%s", e.Key, e.Remaining, place)
	}
	return fmt.Sprintf("lock %q is held by %v, for at most %v more%s", e.Key, e.Holder, e.Remaining, place)
}

// Unwrap makes errors.Is(err, ErrHeld) true.
func (e *HeldError) Unwrap() error { return ErrHeld }

// Invalidf returns an error that matches ErrInvalid, for authors of stores. Its text is
// that of fmt.Errorf, without the words of ErrInvalid. Name the package, the field and
// the bound: "mystore: TTL is 5ms; want 1s to 24h".
func Invalidf(format string, args ...any) error {
	return &invalidError{fmt.Errorf(format, args...)}
}

type invalidError struct{ error }

func (e *invalidError) Unwrap() []error { return []error{ErrInvalid, e.error} }
