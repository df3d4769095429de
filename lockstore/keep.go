package lockstore

import (
	"context"
	"fmt"
	"time"

	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// Completer is implemented by a store that can keep the answer of the work in the key's
// entry. A kept key is refused to everybody until the time is over; the refusal is a
// *KeptError and brings the answer. A cooldown is a Complete without data.
//
// Both methods need the Fence of the lease: what is not granted cannot be begun or kept.
type Completer interface {
	// MarkStarted says that the work begins. From then on the key is free again only by a
	// Release or an abandon of this owner, or when what it keeps has ended. If the lease
	// ends without them, the key is in doubt: nobody knows whether the work had its
	// effect. Everybody is then refused with a *DoubtError, until a [Resolver] settles the
	// key. A store remembers this for at least StartedFor.
	//
	// The same MarkStarted again returns nil. MarkStarted returns ErrLost when the lease is expired,
	// released or another owner's. It calls ValidateGrant first. A caller begins the
	// work only after nil, and only while it trusts the lease.
	MarkStarted(ctx context.Context, lease Lease) error

	// Complete ends the lease, with the answer in its place. For the time d from now on
	// nobody can acquire the key; then the key is free. The queue ends: all who wait
	// learn the answer when they ask next.
	//
	// Complete works also after the end of the lease, if nobody was granted the key since.
	// The same Complete again returns nil and changes neither the data nor the time. Once
	// another owner was granted the key, a store may have forgotten the first Complete, and
	// returns ErrLost. A first Complete returns ErrLost when another was granted the key since,
	// and when the lease was released, broken or settled. Complete calls ValidateComplete first.
	Complete(ctx context.Context, lease Lease, data []byte, d time.Duration) error
}

// Resolver is implemented by a [Completer] that can end the state in doubt. It is for
// operators, who have found out whether the work had its effect. fence is that of the
// begun lease, as Inspect shows it.
//
// Both methods return nil also when nothing is left to do: ResolveEffect when something is kept
// under this fence, and ResolveNoEffect when the key has become free under it. They return a
// *HeldError while a lease of the key lasts. Otherwise they return ErrLost when the key is not
// in doubt with this fence.
type Resolver interface {
	// ResolveEffect keeps data for the time d. The begun lease is over, as after a Release: its
	// owner, who comes too late with its own answer, gets ErrLost from Complete.
	ResolveEffect(ctx context.Context, key string, fence Fence, data []byte, d time.Duration) error

	// ResolveNoEffect frees the key, as a Release of the begun lease: the work may run again.
	ResolveNoEffect(ctx context.Context, key string, fence Fence) error
}

const (
	// MaxResultTime bounds the time of a Complete. The lower bound is MinTTL.
	MaxResultTime = 31 * 24 * time.Hour
	// MaxResultBytes bounds the data of a Complete, in bytes.
	MaxResultBytes = 256 << 10
	// StartedFor is for how long a store remembers at least that the work has begun.
	StartedFor = 30 * 24 * time.Hour
)

// KeptError says that the work under the key is done. Holder is who did it. Remaining is
// the longest time until the key is free.
type KeptError struct {
	HeldError
	Result Secret // the answer; empty for a cooldown
}

func (e *KeptError) Error() string {
	return fmt.Sprintf("lock %q: the work was done by %v, and this is kept for at most %v more (an answer of %v)", e.Key, e.Holder, e.Remaining, e.Result)
}

// Unwrap returns the *HeldError, which matches ErrHeld.
func (e *KeptError) Unwrap() error { return &e.HeldError }

// DoubtError says that the key is in doubt: Holder began the work, and its lease ended
// without an answer. If a [Revoker] ended the lease, Holder is who broke it. Remaining is 0: the key is not free before a Resolver settles it.
type DoubtError struct{ HeldError }

func (e *DoubtError) Error() string {
	return fmt.Sprintf("lock %q is in doubt: %v began the work and did not say how it ended; somebody has to settle the key", e.Key, e.Holder)
}

// Unwrap returns the *HeldError, which matches ErrHeld.
func (e *DoubtError) Unwrap() error { return &e.HeldError }

// Secret is data of a user. Printed, or encoded as text or JSON, it shows its length only.
// To use the data, convert it: []byte(secret). In an unexported field Go prints it whole,
// when the struct around the field is printed.
type Secret = driver.Secret

// ValidateGrant checks a lease that was granted: its Fence is known.
func ValidateGrant(l Lease) error {
	if err := l.Validate(); err != nil {
		return err
	}
	if l.Fence == 0 {
		return Invalidf("lockstore: Fence is 0; want that of a grant")
	}
	return nil
}

// ValidateComplete checks the arguments of Complete.
func ValidateComplete(l Lease, data []byte, d time.Duration) error {
	if err := ValidateGrant(l); err != nil {
		return err
	}
	return validateResult(data, d)
}

// ValidateResolveEffect checks the arguments of ResolveEffect.
func ValidateResolveEffect(key string, fence Fence, data []byte, d time.Duration) error {
	if err := ValidateResolveNoEffect(key, fence); err != nil {
		return err
	}
	return validateResult(data, d)
}

// ValidateResolveNoEffect checks the arguments of ResolveNoEffect.
func ValidateResolveNoEffect(key string, fence Fence) error {
	if err := ValidateKey(key); err != nil {
		return err
	}
	if fence <= 0 {
		return Invalidf("lockstore: Fence is %d; want that of a grant", fence)
	}
	return nil
}

func validateResult(data []byte, d time.Duration) error {
	if d < MinTTL || d > MaxResultTime {
		return Invalidf("lockstore: Complete is for %v; want %v to %v", d, MinTTL, MaxResultTime)
	}
	if len(data) > MaxResultBytes {
		return Invalidf("lockstore: Data has %d bytes; want at most %d", len(data), MaxResultBytes)
	}
	return nil
}
