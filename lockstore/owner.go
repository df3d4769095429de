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
	if !isWord(string(o), MaxOwnerBytes) {
		return Invalidf("lockstore: Owner has %d bytes; want 1 to %d of printable ASCII without spaces", len(o), MaxOwnerBytes)
	}
	return nil
}

// isWord says that a text has 1 to most bytes, all of printable ASCII without spaces.
func isWord(text string, most int) bool {
	return text != "" && len(text) <= most && !strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' })
}
