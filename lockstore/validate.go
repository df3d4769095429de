package lockstore

import (
	"slices"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
)

// Bounds of a TTL, the same for every store.
const (
	MinTTL = time.Second
	MaxTTL = 24 * time.Hour
)

// MaxHolders bounds Request.MaxHolders. Each request reads and writes the whole entry of its key,
// and 32 holders make it about 10 KB. On DynamoDB each write of it costs a unit for each KB, and a partition has 1,000 units a
// second.
const MaxHolders = 32

const (
	// MaxResultTime bounds the time of a Complete. The lower bound is MinTTL.
	MaxResultTime = 31 * 24 * time.Hour
	// MaxResultBytes bounds the data of a Complete, in bytes.
	MaxResultBytes = 256 << 10
	// StartMarkTime is how long, at least, a store remembers that the work has begun.
	StartMarkTime = 30 * 24 * time.Hour
)

// validate checks what a driver gets. Its error matches ErrInvalid, and names the field and the bound.
func validate(key string, r driver.Request) error {
	if err := ValidateKey(key); err != nil {
		return err
	}
	if byOperator := r.Kind == driver.Inspect || r.Kind == driver.Resolve || r.Kind == driver.Revoke; !byOperator {
		if err := validateOwner(r.Owner); err != nil {
			return err
		}
	}
	ofGrant := slices.Contains([]driver.Kind{driver.Release, driver.MarkStarted, driver.Complete, driver.Resolve, driver.Revoke}, r.Kind)
	switch {
	case ofGrant && r.Fence < 1:
		return Invalidf("lockstore: Fence is %d; want that of a grant", r.Fence)
	case r.Fence < 0:
		return Invalidf("lockstore: Fence is %d; want 0 or more", r.Fence)
	case r.Kind == driver.Acquire && (r.MaxHolders < 1 || r.MaxHolders > MaxHolders):
		return Invalidf("lockstore: MaxHolders is %d; want 1 to %d", r.MaxHolders, MaxHolders)
	case r.Kind == driver.Acquire || r.Kind == driver.Renew:
		return ValidateTTL(r.TTL)
	case r.Kind != driver.Complete && !r.Effect:
		return nil
	case r.TTL < MinTTL || r.TTL > MaxResultTime:
		return Invalidf("lockstore: the time of the result is %v; want %v to %v", r.TTL, MinTTL, MaxResultTime)
	case len(r.Result) > MaxResultBytes:
		return Invalidf("lockstore: Result has %d bytes; want at most %d", len(r.Result), MaxResultBytes)
	}
	return nil
}

// ValidateWork returns an error that matches ErrInvalid unless work has 1 to MaxWorkBytes characters of printable ASCII without
// spaces.
func ValidateWork(work string) error {
	if work == "" || len(work) > MaxWorkBytes || notWord(work) >= 0 {
		return Invalidf("lockstore: Work is %.70q; want 1 to %d characters of printable ASCII without spaces", work, MaxWorkBytes)
	}
	return nil
}

// validateWork checks a request that another run may cover.
func validateWork(req Request) error {
	if err := ValidateWork(req.Work); err != nil {
		return err
	}
	switch {
	case req.Event == "":
		return Invalidf("lockstore: Work is %q without Event; want the id by which the source sends the event again", req.Work)
	case !req.JoinQueue:
		return Invalidf("lockstore: Work is %q without JoinQueue; only who waits is covered", req.Work)
	}
	return nil
}

// ValidateTTL returns an error that matches ErrInvalid unless ttl is MinTTL to MaxTTL.
func ValidateTTL(ttl time.Duration) error {
	if ttl < MinTTL || ttl > MaxTTL {
		return Invalidf("lockstore: TTL is %v; want %v to %v", ttl, MinTTL, MaxTTL)
	}
	return nil
}

// ValidateResolveEffect checks the arguments of ResolveEffect, for a store that also completes in a transaction of the caller's.
func ValidateResolveEffect(key string, fence Fence, result []byte, d time.Duration) error {
	return validate(key, driver.Request{Kind: driver.Resolve, Fence: fence, Effect: true, Result: result, TTL: d})
}

// ValidateResolveNoEffect checks the arguments of ResolveNoEffect.
func ValidateResolveNoEffect(key string, fence Fence) error {
	return validate(key, driver.Request{Kind: driver.Resolve, Fence: fence})
}
