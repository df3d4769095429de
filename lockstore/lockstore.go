package lockstore

import (
	"context"
	"time"
)

// Store keeps leases. It is safe for concurrent use. Each method makes one attempt;
// the guard decides about repeats. A method checks its arguments before it sends
// anything; its error about a bad argument matches ErrInvalid.
//
// When the context ends, a method returns within 50 ms, whatever the server does, and
// its error matches the context's error. When the server refuses connections, a method
// returns ErrUnavailable within 2 s.
type Store interface {
	// Acquire grants the key to the owner. When another owner has a live lease, its
	// error is a *HeldError, which matches ErrHeld. With a [Completer] it may also be a
	// *KeptError or a *DoubtError, which match ErrHeld too. The same request again returns
	// the same lease, with the time that is left of it, but at most Request.TTL. Acquire
	// calls Request.Validate first. It keeps the holder as
	// Holder.Encode writes it.
	Acquire(ctx context.Context, req Request) (Lease, error)

	// Renew makes the lease end at the later of these: its present end, and ttl from
	// now. A store may let it end later, and never earlier. It returns the longest time for
	// which the caller may trust the lease, counted from before the call. It returns ErrLost when
	// the lease is expired, released or another owner's. It calls Lease.Validate and
	// ValidateTTL first.
	Renew(ctx context.Context, lease Lease, ttl time.Duration) (time.Duration, error)

	// Release frees the key if this lease holds it, or held it last. The same release again
	// returns nil. With Fence 0 it abandons an Acquire whose outcome is unknown. It calls
	// Lease.Validate first.
	Release(ctx context.Context, lease Lease) error
}

// Inspector is implemented by a store that can read a key's state without changing
// it. A waiting caller polls with Inspect, and acquires only when it may succeed.
type Inspector interface {
	// Inspect returns the state of the key. It sees every write that ended before
	// Inspect began. It calls ValidateKey first.
	Inspect(ctx context.Context, key string) (Status, error)
}

// Checker is implemented by a store that can check the set-up of its own server or
// table. It is for deploy time and for operators. It may need more permissions than
// locking does.
type Checker interface {
	Check(ctx context.Context) ([]Finding, error)
}

// Finding is one thing that Check would change.
type Finding struct {
	Problem string // what is set, and what it does to locks
	Fix     string // what to set instead
}

// As finds an optional interface on s or on a store that s wraps. A wrapper has a
// method Unwrap() Store, which returns the store that it wraps.
func As[T any](s Store) (T, bool) {
	for s != nil {
		if t, ok := s.(T); ok {
			return t, true
		}
		w, ok := s.(interface{ Unwrap() Store })
		if !ok {
			break
		}
		s = w.Unwrap()
	}
	var none T
	return none, false
}

// Request asks for the lease of a key.
type Request struct {
	Key        string        // 1 to MaxKeyBytes bytes, see ValidateKey
	Owner      Owner         // new for every acquisition, the same for its repeats
	TTL        time.Duration // MinTTL to MaxTTL
	HolderInfo HolderInfo    // for people; never compared

	// JoinQueue asks a [Queuer] for a place in the key's queue if the request is refused.
	// An owner that has a place keeps it. Other stores do not look at it.
	JoinQueue bool
}

// Lease is a grant. TTL is the time for which the caller may trust the lease, counted
// from before the request that returned it. TTL is zero or negative when the answer
// came too late to be of use.
type Lease struct {
	Key   string
	Owner Owner
	Fence Fence
	TTL   time.Duration
}

// Status is the state of a key. Held is false as soon as an Acquire may succeed, also
// when the entry of a dead holder is still there.
type Status struct {
	Key       string
	Held      bool
	Kept      bool          // held by nobody: the answer of the work is kept, or it is a cooldown
	InDoubt   bool          // held by nobody, see [DoubtError]
	Holder    HolderInfo    // of the live lease, or who began or did the work; zero when not held
	Fence     Fence         // of the last grant; 0 when the store knows none
	Remaining time.Duration // until a takeover at the latest, if nobody renews
	Waiting   int           // places in the key's queue; 0 for a store that is no Queuer

	// Broken says that a [Revoker] has ended the lease. Holder is who broke it, and nobody
	// may have the key until Remaining is over. Held is true. If its work had begun, the key
	// is InDoubt after that, and no longer Broken.
	Broken bool
}

// Bounds of a TTL, the same for every store.
const (
	MinTTL = time.Second
	MaxTTL = 24 * time.Hour
)

// ValidateTTL returns an error matching ErrInvalid unless ttl is MinTTL to
// MaxTTL.
func ValidateTTL(ttl time.Duration) error {
	if ttl < MinTTL || ttl > MaxTTL {
		return Invalidf("lockstore: TTL is %v; want %v to %v", ttl, MinTTL, MaxTTL)
	}
	return nil
}

// Validate checks the request's bounds; every store calls it first. Its error
// matches ErrInvalid and names the field and the bound.
func (r Request) Validate() error {
	if err := ValidateKey(r.Key); err != nil {
		return err
	}
	if err := validateOwner(r.Owner); err != nil {
		return err
	}
	return ValidateTTL(r.TTL)
}

// Validate checks a lease that is to be renewed or released. Fence 0, which
// abandons, is valid here. It does not check TTL.
func (l Lease) Validate() error {
	if err := ValidateKey(l.Key); err != nil {
		return err
	}
	if err := validateOwner(l.Owner); err != nil {
		return err
	}
	if l.Fence < 0 {
		return Invalidf("lockstore: Fence is %d; want 0 or more", l.Fence)
	}
	return nil
}
