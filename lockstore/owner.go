package lockstore

import (
	"crypto/rand"
	"fmt"
	"io"
)

// Owner is the secret id of one acquisition. Whoever knows an owner can release its
// lease, so a printed owner shows four characters only. To store an owner use
// string(owner). In three places Go prints an owner whole: as the key of a JSON map; in
// an unexported field, when the struct around the field is printed; behind a pointer
// inside a value that is printed with a verb for texts or numbers.
type Owner string

// MaxOwnerBytes bounds an Owner, which is printable ASCII without spaces.
const MaxOwnerBytes = 64

// NewOwner returns a new owner with at least 128 random bits.
func NewOwner() Owner { return Owner(rand.Text()) }

// String shows four characters, enough to tell two owners apart in a log.
func (o Owner) String() string {
	if len(o) <= 4 {
		return "…"
	}
	return string(o[:4]) + "…"
}

// Format is String for every verb, so that %#v of a Lease, or a wrong verb,
// hides the owner too.
func (o Owner) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, o.String()) }

// MarshalText is String, so that JSON of a Lease hides the owner too.
func (o Owner) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

func validateOwner(o Owner) error {
	if len(o) < 1 || len(o) > MaxOwnerBytes {
		return Invalidf("lockstore: Owner has %d bytes; want 1 to %d", len(o), MaxOwnerBytes)
	}
	for i := range len(o) {
		if o[i] <= ' ' || o[i] > '~' {
			return Invalidf("lockstore: Owner has a byte at %d that is not printable ASCII", i)
		}
	}
	return nil
}
