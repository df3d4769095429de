package lockstore

import (
	"errors"
	"fmt"
	"time"
)

// The outcomes of a request, each with one meaning, found with errors.Is.
// Every other error means that the outcome is unknown.
var (
	// ErrHeld: another owner has a live lease. It comes as *HeldError.
	ErrHeld = errors.New("lock is held")
	// ErrLost: this lease is expired, released, abandoned, gone or another's.
	ErrLost = errors.New("lock is lost")
	// ErrInvalid: the caller's key, owner, TTL or fence is out of bounds.
	// Nothing was sent.
	ErrInvalid = errors.New("invalid lock request")
	// ErrCorrupt: the entry is not one that this store wrote, or the table or
	// server is set up so that it cannot hold locks. Trying again does not help.
	ErrCorrupt = errors.New("lock entry is foreign or corrupt")
	// ErrUnavailable: the store certainly did not apply the request (refused
	// connection, throttled, denied, loading, read-only). Trying later may help.
	ErrUnavailable = errors.New("lock store is unavailable")
)

// HeldError says who has the lock. Its content comes from the same request
// that was refused.
type HeldError struct {
	Key    string
	Holder Holder
	// Remaining is the longest time until another may take over if the holder is
	// dead. Most holders release long before it, so it is not a time to wait.
	Remaining time.Duration
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("lock %q is held by %v, for at most %v more", e.Key, e.Holder, e.Remaining)
}

// Unwrap makes errors.Is(err, ErrHeld) true.
func (e *HeldError) Unwrap() error { return ErrHeld }

// invalidError is a sentence that matches ErrInvalid without ending in its
// words: whoever shows it has mostly said already that the request is invalid.
type invalidError string

func (e invalidError) Error() string { return string(e) }

func (invalidError) Unwrap() error { return ErrInvalid }

func invalid(format string, args ...any) error {
	return invalidError("lockstore: " + fmt.Sprintf(format, args...))
}
