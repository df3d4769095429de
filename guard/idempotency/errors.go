package idempotency

import (
	"fmt"

	"github.com/lambdalock/lambdalock/lockstore"
)

// The errors of a repeat are returned as pointers and never wrapped, as those of package
// guard. After each of them the work did not run.

// RepeatMismatch: the stored result is that of other input: Call.Fingerprint differs.
type RepeatMismatch struct {
	key   string
	First lockstore.HolderInfo // whose result is stored, or who revoked the lease of that run
}

func (e *RepeatMismatch) Error() string {
	return fmt.Sprintf("key %q was used with other input by %v", e.key, e.First)
}

// RepeatInDoubt: a run started the work and did not say how it ended. The key is refused until
// somebody resolves it: lockctl resolve does, see ResolveEffect and lockstore.Store.ResolveNoEffect.
type RepeatInDoubt struct {
	key   string
	First lockstore.HolderInfo // who started the work, and when it asked for the key; or who revoked its lease
}

func (e *RepeatInDoubt) Error() string {
	return fmt.Sprintf("key %q is in doubt: work started, and nobody said how it ended (%v); find out whether it had its effect, and resolve the key with lockctl resolve", e.key, e.First)
}

// RepeatNoAnswer: the work is done, and there is no result to answer with.
type RepeatNoAnswer struct {
	key    string
	First  lockstore.HolderInfo // who did the work, or who revoked the lease of that run
	reason string               // why; without data of the result
}

func (e *RepeatNoAnswer) Error() string {
	return fmt.Sprintf("key %q: the work was done by %v, and there is no result: %s", e.key, e.First, e.reason)
}
