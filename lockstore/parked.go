package lockstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
)

// MaxParkedTurn bounds [Request.Parked].
const MaxParkedTurn = driver.MaxParkedTurn

// WakeAddress says where a parked owner is woken. Whoever knows it can end the wait of a program, so it
// is a secret: a printed WakeAddress shows only its kind and length. Its text, for a store, is string(address).
type WakeAddress string

// The kinds of addresses. A store keeps no other, because a function that wakes an address calls
// AWS with its own rights.
const taskToken = "states "

// MaxTaskTokenBytes bounds a task token, as the reference of SendTaskSuccess does.
const MaxTaskTokenBytes = 2048

// TaskToken is the address of a state of AWS Step Functions that waits for a task token.
func TaskToken(token string) WakeAddress { return WakeAddress(taskToken + token) }

// TaskToken returns the token of a state of AWS Step Functions; false if the address is of another kind.
func (a WakeAddress) TaskToken() (token string, ok bool) {
	return strings.CutPrefix(string(a), taskToken)
}

// validate returns an error that matches ErrInvalid unless the address is of a known kind, printable ASCII
// without spaces, and not too long. The error does not show the address.
func (a WakeAddress) validate() error {
	token, known := a.TaskToken()
	switch {
	case !known:
		return Invalidf("lockstore: Address has %d bytes (not shown, it is a secret) and is of no kind that this version knows; want TaskToken", len(a))
	case token == "" || len(token) > MaxTaskTokenBytes:
		return Invalidf("lockstore: Address has a task token of %d bytes (not shown, it is a secret); want 1 to %d", len(token), MaxTaskTokenBytes)
	}
	if i := notWord(token); i >= 0 {
		return Invalidf("lockstore: Address has a task token with a byte at %d that is not printable ASCII (not shown, it is a secret)", i)
	}
	return nil
}

// String shows the kind and the length.
func (a WakeAddress) String() string {
	if token, ok := a.TaskToken(); ok {
		return "task token of " + strconv.Itoa(len(token)) + " bytes"
	}
	return "address of " + strconv.Itoa(len(a)) + " bytes"
}

// Format is String for every verb.
func (a WakeAddress) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, a.String()) }

func (a WakeAddress) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// validateParked checks a request for a parked place.
func validateParked(r driver.Request, address WakeAddress) error {
	switch {
	case r.Parked < TurnTime || r.Parked > MaxParkedTurn:
		return Invalidf("lockstore: Parked is %v; want %v to %v, with an Address", r.Parked, TurnTime, MaxParkedTurn)
	case !r.Join:
		return Invalidf("lockstore: Parked is %v without JoinQueue; only a place in the queue is parked", r.Parked)
	}
	return address.validate()
}

const (
	// addressTime is how long a store keeps an address after the last request with it. A place lasts for as
	// long as others renew their leases, or as the key is in doubt, so no time is enough for all.
	addressTime = StartMarkTime

	// forgetTime bounds the time that an Acquire takes to delete an address that nobody needs: its lease runs meanwhile.
	forgetTime = time.Second
)

// parker returns the Parker of the driver, for a request that may be sent.
func (s *Store) parker(ctx context.Context, key string, r driver.Request) (driver.Parker, error) {
	if err := s.usable(ctx, key, r); err != nil {
		return nil, err
	}
	return optional[driver.Parker](ctx, s, "park a waiting owner")
}

// park stores the address before it asks for the place, because from then on somebody may hand
// the key over. An owner that has no place then needs no address.
func (s *Store) park(ctx context.Context, key string, r driver.Request, address WakeAddress) (Lease, error) {
	if err := validateParked(r, address); err != nil {
		return Lease{}, err
	}
	p, err := s.parker(ctx, key, r)
	if err != nil {
		return Lease{}, err
	}
	if err := p.PutAddress(ctx, key, r.Owner, driver.HiddenBytes(address), addressTime); errors.Is(err, ErrUnavailable) || errors.Is(err, ErrCorrupt) {
		return Lease{}, err
	} else if err != nil {
		return Lease{}, fmt.Errorf("%s: not applied, because the address may not be stored: %w: %w", s.name, ErrUnavailable, err)
	}
	lease, err := s.grant(ctx, key, r)
	refused, isRefused := errors.AsType[*Refused](err)
	if err == nil || errors.Is(err, ErrLost) || isRefused && refused.QueuePosition == 0 {
		ctx, cancel := context.WithTimeout(ctx, forgetTime)
		defer cancel()
		_, _ = p.TakeAddress(ctx, key, r.Owner) // if it stays, it ends by itself
	}
	return lease, err
}

// TakeAddress returns the address of a parked owner and deletes it: who calls it has to wake the owner. The
// address is "" if the store has none. The error matches ErrCorrupt if the address is of no kind that this version knows, and
// errors.ErrUnsupported if the store has no parked places. A guard calls it.
func (s *Store) TakeAddress(ctx context.Context, key string, owner Owner) (WakeAddress, error) {
	p, err := s.parker(ctx, key, driver.Request{Kind: driver.AwaitTurn, Owner: owner})
	if err != nil {
		return "", err
	}
	text, err := p.TakeAddress(ctx, key, owner)
	if err != nil || len(text) == 0 {
		return "", err
	}
	a := WakeAddress(text)
	if bad := a.validate(); bad != nil {
		return "", fmt.Errorf("%s: key %q: %w: the address of a parked owner: %v", s.name, key, ErrCorrupt, bad)
	}
	return a, nil
}
