// Package driver is what a lock store implements: two methods, and the words of their
// requests and answers. Package internal/lib/rules decides what the answer to a request is;
// a driver that keeps its entries in another way has to give the same answers. It is for the stores of
// this repository. Who writes another store writes a casstore.KV.
package driver

import (
	"context"
	"time"
)

// Driver is a lock store. It is safe for concurrent use. The caller has checked the
// request: its key, its owner and each number are within the bounds of package lockstore.
type Driver interface {
	// Do makes one attempt at a request. An error means that there is no answer: it
	// matches lockstore.ErrUnavailable if the request was certainly not applied,
	// lockstore.ErrCorrupt if there is an entry that the driver cannot read, and otherwise
	// the outcome is unknown.
	Do(ctx context.Context, key string, r Request) (Answer, error)

	// Await waits for the turn of an owner that has a place in the queue of the key. The
	// outcome is Ask if an Acquire of the owner may now have another answer than before,
	// NotYet if the wait ended without news, and Granted if the owner was handed the key, with
	// Fence, Seat, TTL and Hint. Ask and NotYet may be wrong. Granted is not, unless the owner
	// itself or a Revoke has ended that lease since. Its TTL counts from before this Await, like
	// every TTL. So an Await whose TTL rests on its own request makes at most one: between two of them the
	// process may be frozen, and only the caller sees that. One whose TTL rests on Elapsed, or that only says Ask
	// or NotYet, may ask the server again and again. The caller awaits again at once after NotYet, so the driver pauses; for a waiter that it does not wake, at most half a Turn.
	// Await returns the context's error if the context ends first.
	Await(ctx context.Context, key string, r Request) (Answer, error)
}

// Kind is what a request wants.
type Kind int

// The fields of Request that a kind reads stand behind it. Each reads Kind.
const (
	// Inspect reads the state of the key and changes nothing.
	Inspect Kind = iota
	// Acquire wants a lease: Owner, TTL, MaxHolders, Holder, Join, Parked, Work, Event, Hint. With a Fence it
	// only extends the lease that was handed over with this fence.
	Acquire
	// Renew makes the lease last for the longer of its TTL and this one, from now on:
	// Owner, Fence, TTL, Hint.
	Renew
	// Release ends the lease: Owner, Fence, Hint.
	Release
	// Abandon ends whatever an owner has, a lease or a place, and leaves a mark, so that a
	// late duplicate of its Acquire takes no lock: Owner, Hint.
	Abandon
	// Leave ends the owner's place in the queue and nothing else: Owner, Hint.
	Leave
	// MarkStarted says that the work begins: Owner, Fence. From then on the key is in
	// doubt if the lease ends by time.
	MarkStarted
	// Complete ends the lease and closes the key for the time TTL: Owner, Fence, Result.
	// Without a Result it is a cooldown.
	Complete
	// Resolve says how the work under Fence ended, of a key that is in doubt. With Effect it closes the key as
	// Complete does: TTL, Result. Without Effect the work may run again.
	Resolve
	// Revoke takes the lease with this Fence away from its owner: Holder says who does it.
	// The key stays held until the end of the lease. AtOnce frees it now.
	Revoke
	// AwaitTurn is the kind of each request of Await: Owner, Elapsed, Hint.
	AwaitTurn
)

var kinds = [...]string{"inspect", "acquire", "renew", "release", "abandon", "leave", "mark started", "complete", "resolve", "revoke", "await turn"}

// String is the kind in small letters, such as "mark started".
func (k Kind) String() string { return kinds[k] }

// Request is one request for a key.
type Request struct {
	Kind       Kind
	Owner      Owner // of one acquisition
	Fence      Fence
	TTL        time.Duration
	MaxHolders int    // how many may hold the key together with this request; 1 is a mutex
	Holder     string // for people, as lockstore.HolderInfo.Encode writes it
	Join       bool   // a refused Acquire takes the last place in the queue

	Parked time.Duration // the turn of a place where nobody waits, at most MaxParkedTurn; then Join is true
	Work   string        // see lockstore.Request; if it is not empty, Join is true
	Event  string        // a hash of that of lockstore.Request

	AtOnce  bool
	Effect  bool
	Result  HiddenBytes
	Hint    Hint          // from the last Answer to this owner that had one
	Elapsed time.Duration // of Await: how long ago the owner's last Acquire that was refused was sent
}

// Outcome is what became of a request.
type Outcome int

const (
	// Granted: the owner has the lease, see Answer.Fence, Seat and TTL.
	Granted Outcome = iota + 1
	// Done: the request had its effect, now or when it came before.
	Done
	// Refused: Answer.Status says what is in the way.
	Refused
	// Lost: the owner does not have this lease, or the key is not in the state that the
	// request is for.
	Lost
	// Holding is the answer to Leave of an owner that holds the key.
	Holding
	// Exclusive is the answer to a request that is for a lease with MaxHolders 1 only.
	Exclusive
	// NotYet is an outcome of Await: the turn has not come.
	NotYet
	// Ask is an outcome of Await: a request may have another answer now.
	Ask
)

// Answer is the answer to a request.
type Answer struct {
	Outcome Outcome
	Why     string // of Lost: one short reason

	Fence Fence         // of the lease
	Seat  int           // of the lease: the lowest number, from 0, that no other holder had at the grant
	TTL   time.Duration // for which the lease may be trusted, counted from before the request was sent

	Position int // of Refused: the owner's place in the queue, 1 is next, 0 is none

	Covered bool // of Refused, see lockstore.Refused

	// Status is the state after the request: of Inspect, Refused and Revoke.
	Status Status

	// HandedOver are the owners that this request made holders, for one turn each, and that wait. The
	// driver wakes them.
	HandedOver []Owner

	// Wake are the parked owners that the caller has to wake: the key was handed over to them, or
	// it was completed, and they can ask for the result. The answer to a repeat may have none, and one
	// with an error may have some.
	Wake []Owner

	Hint Hint // of Granted, Refused, NotYet and Ask; the caller sends it with the next requests of this owner
}

// Status is a lockstore.Status, before its texts are read.
type Status struct {
	State      State
	Fence      Fence
	Holder     string        // of the lease, or who did the work; "" if nobody is at work
	Remaining  time.Duration // the longest time until the state ends, if nobody asks for anything
	Waiting    int
	Parked     int
	Result     HiddenBytes
	Started    bool
	Holders    []LiveLease
	OldestWait time.Duration
	Queue      []Place // only of Inspect
}

// Place is a lockstore.Place.
type Place struct {
	Waited time.Duration // 0 if it is not known
	Parked bool
}

// LiveLease is the lease of one who holds a key.
type LiveLease struct {
	Fence      Fence
	Seat       int
	MaxHolders int
	Text       string
	Remaining  time.Duration
	State      State // Held, Revoked or Reserved
}

// The queue's times, on the store's clock. A place whose owner does not ask delays the next one by its own turn:
// a Turn, or for a parked place what its owner has asked for, up to MaxParkedTurn. That is time for a wake-up and the
// start of an environment. At most MaxTurnsBefore places cost their turns, and together at most MaxDelay.
const (
	TurnTime       = 2 * time.Second
	MaxTurnsBefore = 5
	MaxParkedTurn  = 30 * time.Second
	MaxDelay       = 60 * time.Second
)

// LeastTrust is for how long an Await that is Granted lets the owner trust its lease at least. With less the
// outcome is Ask: the owner makes the lease longer before it relies on it.
const LeastTrust = TurnTime / 4
