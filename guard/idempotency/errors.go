package idempotency

import (
	"fmt"

	"github.com/lambdalock/lambdalock/lockstore"
)

// The errors of a repeat are returned as pointers and never wrapped, as those of package
// guard. After each of them the work did not run.

// RepeatMismatch: the kept answer is that of other input: Call.Fingerprint differs.
type RepeatMismatch struct {
	Key   string
	First lockstore.HolderInfo // whose answer is kept
}

func (e *RepeatMismatch) Error() string {
	return fmt.Sprintf("key %q was used with other input by %v", e.Key, e.First)
}

// RepeatInDoubt: a run began the work and did not say how it ended. The key is refused until
// somebody settles it: lockctl settle does, see ResolveEffect and ResolveNoEffect.
type RepeatInDoubt struct {
	Key   string
	First lockstore.HolderInfo // who began the work, and when it asked for the key; or who broke its lease
}

func (e *RepeatInDoubt) Error() string {
	return fmt.Sprintf("key %q is in doubt: work began, and nobody said how it ended (%v); find out whether it had its effect, and settle the key with lockctl settle", e.Key, e.First)
}

// RepeatNoAnswer: the work is done, and there is no answer to give.
type RepeatNoAnswer struct {
	Key    string
	First  lockstore.HolderInfo // who did the work
	Reason string               // why; without data of the answer
}

func (e *RepeatNoAnswer) Error() string {
	return fmt.Sprintf("key %q: the work was done by %v, and there is no answer: %s", e.Key, e.First, e.Reason)
}

// ResultError: an answer cannot be kept. Prepare returns it. It is Report.CompleteErr
// of a run whose answer this package refused; then the run kept a mark only. If the store
// refused the answer, CompleteErr is the store's error.
type ResultError struct {
	Reason string // without data of the answer
	code   string // the reason that is kept
}

func (e *ResultError) Error() string { return "the answer is not kept: " + e.Reason }
