package storetest

import (
	"testing"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// Harness is a store under test and what the suite may do to it from outside.
// Store is required. A case that needs a nil field is skipped and says which;
// the package documentation says which fields matter most.
// Every key that the suite uses is new, so a harness may share its server with
// others.
type Harness struct {
	// Store is the store under test.
	Store lockstore.Store

	// Sleep lets d pass for the store's deciding clock; nil is time.Sleep. Outside a
	// synctest bubble, one of the harness's own advances a clock that stands still
	// otherwise. Several goroutines may call it at once.
	Sleep func(d time.Duration)

	// TakeoverDelay is how long after a lease's TTL another owner may have to
	// wait before it is granted the key (clock tolerance, whole-second clocks).
	TakeoverDelay time.Duration

	// Margin is what the store subtracts from a lease's trusted time.
	Margin time.Duration

	// Requests returns how many requests the store has sent so far.
	Requests func() int

	// RequestsPerCall is for a store that has to read before it writes: how many
	// requests a call may take at most. It is 1 for what is not in it, and 2 for
	// OpAbandon. OpAcquire stands for a free key and for a refusal; a takeover and a
	// repeat may take one more.
	RequestsPerCall map[Op]int

	// Delete removes the key's entry, as an operator or an eviction would.
	Delete func(t *testing.T, key string)

	// Snapshot returns a func that puts back the key's entry as it is now.
	Snapshot func(t *testing.T, key string) (restore func())

	// Dump returns the key's entry as bytes that are equal when nothing changed;
	// there may be no entry.
	Dump func(t *testing.T, key string) string

	// Foreign are ways to put something at the key that is not this store's.
	Foreign map[string]func(t *testing.T, key string)

	// Corrupt are ways to damage the entry that is at the key.
	Corrupt map[string]func(t *testing.T, key string)

	// ShiftClock sets the clock that stamps fences and expiries, which is the
	// store's own or its server's, to d from the right time. It does not add up: d
	// replaces the one before. The suite does not set it back.
	ShiftClock func(t *testing.T, d time.Duration)

	// Unreachable returns a store like Store whose server refuses connections.
	Unreachable func(t *testing.T) lockstore.Store

	// LoseReplies makes the server apply requests and lose the replies, until
	// the returned func is called. For a store that reads before it writes, only
	// the reply of the request that changes the entry: after a lost read it is
	// certain that nothing was applied.
	LoseReplies func(t *testing.T) (restore func())

	// Hang makes the server keep its replies to itself, with the connections
	// open, until the returned func is called; then it answers new requests. It may
	// apply what it gets, or not.
	Hang func(t *testing.T) (restore func())
}
