// Package doonce has what guard.DoOnce takes and returns besides the words of package guard. It is for package
// idempotency, and for tests of it: a program uses that package.
package doonce

import (
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
)

// Options says how DoOnce treats a key whose work may have run before.
type Options struct {
	// MarkStarted says to the store, before the work, that the work begins. It costs a write. If the work then neither completes nor
	// frees the key, it is in doubt when its lease ends: nobody gets it before somebody resolves it.
	MarkStarted bool

	// OnRefused says how DoOnce ends, with one of the outcomes below, when the work does not run because the key is completed,
	// in a cooldown or in doubt. busy is a *guard.LockBusy. nil returns it.
	OnRefused func(busy error) (outcome string, err error)
}

// The outcomes of a run whose work did not run, because it had run before under this key.
const (
	Replayed = "replayed" // the run returned the stored result
	Mismatch = "mismatch" // the stored result is that of another payload
	InDoubt  = "doubt"    // nobody knows how the work ended; somebody has to resolve the key
	NoResult = "noresult" // the work is done, and its result is not stored or cannot be read
)

// Completion is what work leaves in the place of its lease. After work that returned an error nothing is stored.
type Completion struct {
	Result     driver.HiddenBytes
	ResultTime time.Duration // nobody gets the key in this time; 0 stores nothing

	Err      error // becomes Report.CompleteErr: Result is only a note that says why there is no result
	NoEffect bool  // releases the key also after MarkStarted
}

// NoEffect marks an error of work that had no effect, see idempotency.NoEffect.
type NoEffect struct{ Err error }

func (e *NoEffect) Error() string { return e.Err.Error() }

func (e *NoEffect) Unwrap() error { return e.Err }

// Unmarked takes the mark of NoEffect off.
func Unmarked(err error) (own error, marked bool) {
	if e, ok := err.(*NoEffect); ok {
		return e.Err, true
	}
	return err, false
}
