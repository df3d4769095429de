package lockstore

import (
	"context"
	"fmt"
	"time"

	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// Keeper is implemented by a store that can keep the answer of the work in the key's
// entry. A kept key is refused to everybody until the time is over; the refusal is a
// *KeptError and brings the answer. A cooldown is a Keep without data.
//
// Both methods need the Fence of the lease: what is not granted cannot be begun or kept.
type Keeper interface {
	// Begin says that the work begins. From then on the key is free again only by a
	// Release or an abandon of this owner, or when what it keeps has ended. If the lease
	// ends without them, the key is in doubt: nobody knows whether the work had its
	// effect. Everybody is then refused with a *DoubtError, until a [Settler] settles the
	// key. A store remembers this for at least BegunFor.
	//
	// The same Begin again returns nil. Begin returns ErrLost when the lease is expired,
	// released or another owner's. It calls ValidateGrant first. A caller begins the
	// work only after nil, and only while it trusts the lease.
	Begin(ctx context.Context, lease Lease) error

	// Keep ends the lease, with the answer in its place. For the time d from now on
	// nobody can acquire the key; then the key is free. The queue ends: all who wait
	// learn the answer when they ask next.
	//
	// Keep works also after the end of the lease, if nobody was granted the key since.
	// The same Keep again returns nil and changes neither the data nor the time. Once
	// another owner was granted the key, a store may have forgotten the first Keep, and
	// returns ErrLost. A first Keep returns ErrLost when another was granted the key since,
	// and when the lease was released, broken or settled. Keep calls ValidateKeep first.
	Keep(ctx context.Context, lease Lease, data []byte, d time.Duration) error
}

// Settler is implemented by a [Keeper] that can end the state in doubt. It is for
// operators, who have found out whether the work had its effect. fence is that of the
// begun lease, as Inspect shows it.
//
// Both methods return nil also when nothing is left to do: SettleKept when something is kept
// under this fence, and SettleFree when the key has become free under it. They return a
// *HeldError while a lease of the key lasts. Otherwise they return ErrLost when the key is not
// in doubt with this fence.
type Settler interface {
	// SettleKept keeps data for the time d. The begun lease is over, as after a Release: its
	// owner, who comes too late with its own answer, gets ErrLost from Keep.
	SettleKept(ctx context.Context, key string, fence Fence, data []byte, d time.Duration) error

	// SettleFree frees the key, as a Release of the begun lease: the work may run again.
	SettleFree(ctx context.Context, key string, fence Fence) error
}

const (
	// MaxKeep bounds the time of a Keep. The lower bound is MinTTL.
	MaxKeep = 31 * 24 * time.Hour
	// MaxAnswer bounds the data of a Keep, in bytes.
	MaxAnswer = 256 << 10
	// BegunFor is for how long a store remembers at least that the work has begun.
	BegunFor = 30 * 24 * time.Hour
)

// KeptError says that the work under the key is done. Holder is who did it. Remaining is
// the longest time until the key is free.
type KeptError struct {
	HeldError
	Data Secret // the answer; empty for a cooldown
}

func (e *KeptError) Error() string {
	return fmt.Sprintf("lock %q: the work was done by %v, and this is kept for at most %v more (an answer of %v)", e.Key, e.Holder, e.Remaining, e.Data)
}

// Unwrap returns the *HeldError, which matches ErrHeld.
func (e *KeptError) Unwrap() error { return &e.HeldError }

// DoubtError says that the key is in doubt: Holder began the work, and its lease ended
// without an answer. If a [Breaker] ended the lease, Holder is who broke it. Remaining is 0: the key is not free before a Settler settles it.
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

// ValidateKeep checks the arguments of Keep.
func ValidateKeep(l Lease, data []byte, d time.Duration) error {
	if err := ValidateGrant(l); err != nil {
		return err
	}
	return validateKept(data, d)
}

// ValidateSettleKept checks the arguments of SettleKept.
func ValidateSettleKept(key string, fence Fence, data []byte, d time.Duration) error {
	if err := ValidateSettleFree(key, fence); err != nil {
		return err
	}
	return validateKept(data, d)
}

// ValidateSettleFree checks the arguments of SettleFree.
func ValidateSettleFree(key string, fence Fence) error {
	if err := ValidateKey(key); err != nil {
		return err
	}
	if fence <= 0 {
		return Invalidf("lockstore: Fence is %d; want that of a grant", fence)
	}
	return nil
}

func validateKept(data []byte, d time.Duration) error {
	if d < MinTTL || d > MaxKeep {
		return Invalidf("lockstore: Keep is for %v; want %v to %v", d, MinTTL, MaxKeep)
	}
	if len(data) > MaxAnswer {
		return Invalidf("lockstore: Data has %d bytes; want at most %d", len(data), MaxAnswer)
	}
	return nil
}
