package lockstore

import (
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
)

const (
	// MaxResultTime bounds the time of a Complete. The lower bound is MinTTL.
	MaxResultTime = 31 * 24 * time.Hour
	// MaxResultBytes bounds the data of a Complete, in bytes.
	MaxResultBytes = 256 << 10
	// StartMarkTime is for how long a store remembers at least that the work has begun.
	StartMarkTime = 30 * 24 * time.Hour
)

// HiddenBytes is data of a user. Printed, or encoded as text or JSON, it shows its length only.
// To use the data, convert it: []byte(secret). In an unexported field Go prints it whole,
// when the struct around the field is printed.
type HiddenBytes = driver.HiddenBytes

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
func ValidateComplete(l Lease, result []byte, d time.Duration) error {
	if err := ValidateGrant(l); err != nil {
		return err
	}
	return validateResult(result, d)
}

// ValidateResolveEffect checks the arguments of ResolveEffect.
func ValidateResolveEffect(key string, fence Fence, result []byte, d time.Duration) error {
	if err := ValidateResolveNoEffect(key, fence); err != nil {
		return err
	}
	return validateResult(result, d)
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

func validateResult(result []byte, d time.Duration) error {
	if d < MinTTL || d > MaxResultTime {
		return Invalidf("lockstore: the time of the result is %v; want %v to %v", d, MinTTL, MaxResultTime)
	}
	if len(result) > MaxResultBytes {
		return Invalidf("lockstore: Result has %d bytes; want at most %d", len(result), MaxResultBytes)
	}
	return nil
}
