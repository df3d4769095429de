// Package checker records what clients asked of a store and what they were told,
// and checks the answers against what a store promises.
//
// Sweep needs no search. It looks at what holders may trust at the same time, at fences and seats, at what a resource
// accepted, at refusals and results that nothing explains, and at how long each answer took. It does not say whether
// each answer is the one of the rule book: the comparison of each store with the rule book does.
//
// A store that loses data is not excused. What it lost, and when, is part of the
// history (Forget, CutOff, Promote).
package checker

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// Kind is what was asked, or what happened to the store.
type Kind string

// The kinds of operations. An abandon is a release without a fence. A write goes
// to the resource that the lock protects, which compares fences: it is OK, or
// Lost when the resource has seen a larger one. An effect goes to a resource that compares
// nothing: each run makes one, while it may trust its lease.
//
// A Complete and a ResolveEffect have in TTL the time for which the result is stored. Revoke and both
// resolutions are an operator's: Owner and Fence are those of the lease that they are about.
const (
	Acquire  Kind = "acquire"
	Renew    Kind = "renew"
	Release  Kind = "release"
	Abandon  Kind = "abandon"
	Write    Kind = "write"
	Effect   Kind = "effect"
	Complete Kind = "complete"

	MarkStarted     Kind = "mark-started"
	ResolveEffect   Kind = "resolve-effect"
	ResolveNoEffect Kind = "resolve-no-effect"
	Revoke          Kind = "revoke"
)

// What happens to a store's copy of a key, at one moment between Call and Return.
// It has no client and its outcome is OK.
const (
	Forget  Kind = "forget"  // the key's entry is gone
	CutOff  Kind = "cutoff"  // from now on the replica gets no changes
	Promote Kind = "promote" // the replica takes over as it was at the last CutOff
)

// Outcome is what the client was told.
type Outcome string

// The outcomes. After NotApplied certainly nothing was applied. After Unknown the
// request may have been applied, or will be later. Invalid is invalid or corrupt,
// which no request of a history may be told.
const (
	OK         Outcome = "ok"
	Busy       Outcome = "busy"
	Reserved   Outcome = "reserved"  // nobody has the key, and owners that wait get it first
	Completed  Outcome = "completed" // a result is stored, and was told
	InDoubt    Outcome = "in-doubt"  // a lease has ended under work that had started
	Lost       Outcome = "lost"
	NotApplied Outcome = "not-applied"
	Unknown    Outcome = "unknown"
	Invalid    Outcome = "invalid"
)

// Op is one operation. Times count from the history's beginning, on one clock
// that never jumps.
type Op struct {
	Client  int
	Kind    Kind
	Key     string
	Owner   string        // one client's, and new for each acquisition
	TTL     time.Duration // asked for
	Fence   int64         // of the lease: told by Acquire, named by the others
	Seat    int           // of the lease: told by Acquire, named by a Write
	Trust   time.Duration // from Call on; of Acquire and Renew
	Most    int           // the MaxHolders of an Acquire; 0 is 1
	Waits   bool          // an Acquire that asked for a place in the queue
	Data    string        // the result that a Complete or a ResolveEffect writes, and an Acquire is told; each call has its own
	Outcome Outcome
	Call    time.Duration
	Return  time.Duration
	Stood   time.Duration // for how much of the time between them the machine gave this process no time
	Cause   string        // the error, for people
}

func (o Op) String() string {
	s := fmt.Sprintf("client %d %s %s as %.6s: %s", o.Client, o.Kind, o.Key, o.Owner, o.Outcome)
	if o.Fence != 0 {
		s += fmt.Sprintf(", fence %d", o.Fence)
	}
	if o.Most > 1 {
		s += fmt.Sprintf(", seat %d of %d", o.Seat, o.Most)
	}
	if o.Trust != 0 {
		s += fmt.Sprintf(", trusted for %v", o.Trust)
	}
	if o.Data != "" {
		s += fmt.Sprintf(", answer %q", o.Data)
	}
	s += fmt.Sprintf("  [%v, %v]", o.Call.Round(time.Microsecond), o.Return.Round(time.Microsecond))
	if o.Stood > 0 {
		s += fmt.Sprintf(", %v of it without processor time", o.Stood.Round(time.Millisecond))
	}
	if o.Cause != "" {
		s += "  " + o.Cause
	}
	return s
}

// Limits are what a store's tolerance adds to the times that clients know.
type Limits struct {
	// Early is by how much a grant may come before the end of the trust in the
	// earlier grant: the error of the recording itself.
	Early time.Duration
	// Late is how long after the end of a TTL the key may still be busy.
	Late time.Duration
	// Answer bounds how long an operation may take beyond its Stood; 0 is no bound.
	Answer time.Duration
	// Repeats is how long the client waits for an answer before it repeats the
	// request within the call; 0 if it does not.
	Repeats time.Duration
	// LateDuplicates is how long after its call, or after its owner's end, a request may
	// arrive. It is for a store that remembers only the last owners that ended. There a
	// late acquire takes the key until its own expiry, if its owner is forgotten or was
	// told busy. 0 is a store that remembers all owners, or a network that delays nothing.
	LateDuplicates time.Duration
	// OldReads says that a refusal may rest on what was true a moment ago. Then it proves
	// nothing.
	OldReads bool
}

// History collects operations from many clients.
type History struct {
	Start time.Time

	mu  sync.Mutex
	ops []Op
}

// New is an empty history that begins now.
func New() *History { return &History{Start: time.Now()} }

// Now is the time on the history's clock.
func (h *History) Now() time.Duration { return time.Since(h.Start) }

// Add records an operation that has returned.
func (h *History) Add(op Op) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, op)
}

// Ops are the operations so far.
func (h *History) Ops() []Op {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]Op(nil), h.ops...)
}

// OutcomeOf reads a store's answer.
func OutcomeOf(err error) Outcome {
	if refused, ok := errors.AsType[*lockstore.Refused](err); ok {
		switch {
		case refused.State == lockstore.Reserved:
			return Reserved
		case refused.State.Done():
			return Completed
		case refused.State == lockstore.InDoubt:
			return InDoubt
		}
	}
	for _, o := range []struct {
		is  error
		out Outcome
	}{
		{lockstore.ErrRefused, Busy},
		{lockstore.ErrLost, Lost},
		{lockstore.ErrInvalid, Invalid},
		{lockstore.ErrCorrupt, Invalid},
		{lockstore.ErrUnavailable, NotApplied},
	} {
		if errors.Is(err, o.is) {
			return o.out
		}
	}
	if err != nil {
		return Unknown
	}
	return OK
}

// grantOf names the lease of one owner.
type grantOf struct{ key, owner string }
