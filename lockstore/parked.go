package lockstore

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// MaxParked bounds [Request.Parked].
const MaxParked = driver.MaxParked

// Address says where a parked owner is woken. Whoever knows it can end the wait of a program, so it
// is a secret: a printed Address shows its kind only. Its text, for a store, is string(address).
type Address string

// The kinds of addresses. A store keeps no other, because a function that wakes an address calls
// AWS with its own rights.
const taskToken = "states "

// maxAddressBytes is above the 2,048 bytes that AWS allows a task token.
const maxAddressBytes = 3 << 10

// TaskToken is the address of a state of AWS Step Functions that waits for a task token.
func TaskToken(token string) Address { return Address(taskToken + token) }

// TaskToken returns the token of a state of AWS Step Functions; false if the address is of another kind.
func (a Address) TaskToken() (token string, ok bool) {
	return strings.CutPrefix(string(a), taskToken)
}

// Validate returns an error that matches ErrInvalid unless the address is of a known kind and not too
// long. The error does not show the address.
func (a Address) Validate() error {
	token, known := a.TaskToken()
	switch {
	case !known:
		return Invalidf("lockstore: Address has %d bytes (not shown, it is a secret) and is of no kind that this version knows; want TaskToken", len(a))
	case token == "" || len(a) > maxAddressBytes:
		return Invalidf("lockstore: Address has %d bytes (not shown, it is a secret); want a token, and at most %d", len(a), maxAddressBytes)
	}
	return nil
}

// String shows the kind and the length.
func (a Address) String() string {
	if token, ok := a.TaskToken(); ok {
		return "task token of " + strconv.Itoa(len(token)) + " bytes"
	}
	return "address of " + strconv.Itoa(len(a)) + " bytes"
}

// Format is String for every verb.
func (a Address) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, a.String()) }

// MarshalText is String.
func (a Address) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// validateParked checks the fields of a request for a parked place.
func (r Request) validateParked() error {
	switch {
	case r.Parked == 0 && r.Address == "":
		return nil
	case r.Parked < Turn || r.Parked > MaxParked:
		return Invalidf("lockstore: Parked is %v; want %v to %v, with an Address", r.Parked, Turn, MaxParked)
	case !r.JoinQueue:
		return Invalidf("lockstore: Parked is %v without JoinQueue; only a place in the queue is parked", r.Parked)
	case r.Fence != 0:
		return Invalidf("lockstore: Parked is %v with Fence %d; an owner that extends a lease needs no place", r.Parked, r.Fence)
	}
	return r.Address.Validate()
}

// addressTime is how long a store keeps an address: longer than any program waits.
const addressTime = 2 * MaxTTL

// park keeps the address of a request before it asks for the place.
func (s *Store) park(ctx context.Context, r Request) error {
	p, ok := driver.As[driver.Parker](s.Driver())
	if !ok {
		return s.unsupported("park a waiting owner")
	}
	return p.PutAddress(ctx, r.Key, r.Owner, driver.Secret(r.Address), addressTime)
}

// TakeAddress returns the address of a parked owner, and forgets it: who calls it wakes the owner. The
// address is "" if the store has none, or one that is of no known kind. A guard calls it.
func (s *Store) TakeAddress(ctx context.Context, key string, owner Owner) (Address, error) {
	if err := s.usable(ctx, Lease{Key: key, Owner: owner}); err != nil {
		return "", err
	}
	p, ok := driver.As[driver.Parker](s.Driver())
	if !ok {
		return "", s.unsupported("park a waiting owner")
	}
	text, err := p.TakeAddress(ctx, key, owner)
	if a := Address(text); err == nil && a.Validate() == nil {
		return a, nil
	}
	return "", err
}
