package lockstore

import (
	"crypto/rand"
	"strings"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
)

// Owner is the secret id of one acquisition. Whoever knows an owner can release its
// lease, so a printed owner shows four characters only. To store an owner use
// string(owner). In three places Go prints an owner whole: as the key of a JSON map; in
// an unexported field, when the struct around the field is printed; behind a pointer
// inside a value that is printed with a verb for texts or numbers.
type Owner = driver.Owner

// MaxOwnerBytes bounds an Owner, which is printable ASCII without spaces.
const MaxOwnerBytes = 64

// NewOwner returns a new owner with at least 128 random bits.
func NewOwner() Owner { return Owner(rand.Text()) }

func validateOwner(o Owner) error {
	if o == "" || len(o) > MaxOwnerBytes {
		return Invalidf("lockstore: Owner has %d bytes; want 1 to %d", len(o), MaxOwnerBytes)
	}
	if i := notWord(string(o)); i >= 0 {
		return Invalidf("lockstore: Owner has a byte at %d that is not printable ASCII", i)
	}
	return nil
}

// notWord is where the first byte of a text is that is a space or no printable ASCII; -1 if there is none.
func notWord(text string) int {
	return strings.IndexFunc(text, func(r rune) bool { return r <= ' ' || r > '~' })
}
