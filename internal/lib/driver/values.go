package driver

import (
	"fmt"
	"io"
	"strconv"
	"time"
)

// Owner is the secret id of one acquisition, see lockstore.Owner.
type Owner string

// String shows four characters, enough to tell two owners apart in a log.
func (o Owner) String() string {
	if len(o) <= 4 {
		return "…"
	}
	return string(o[:4]) + "…"
}

// Format is String for every verb, so that %#v of a Request, or a wrong verb,
// hides the owner too.
func (o Owner) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, o.String()) }

// MarshalText is String, so that JSON of a Request hides the owner too.
func (o Owner) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// Fence is a fencing token, see lockstore.Fence.
type Fence int64

// NextFence is the fence of the next grant: max(previous+1, now in microseconds since
// 1970). The clock's part makes the fence grow also when the previous value is gone. A
// previous value of 0 means none.
func NextFence(previous Fence, now time.Time) Fence {
	return max(previous+1, Fence(now.UnixMicro()))
}

// MarshalBinary writes the fence in decimal digits, so that Redis clients take
// it as an argument.
func (f Fence) MarshalBinary() ([]byte, error) {
	return strconv.AppendInt(nil, int64(f), 10), nil
}

// Hint is what a driver tells itself: what it saw in an answer, for the next request of the
// same owner. A request without its hint has the same outcome, and may cost more. A hint may
// hold owners, so it is not printed.
type Hint string

// String shows the length.
func (n Hint) String() string { return "note of " + strconv.Itoa(len(n)) + " bytes" }

// Format is String for every verb.
func (n Hint) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, n.String()) }

func (n Hint) MarshalText() ([]byte, error) { return []byte(n.String()), nil }

// HiddenBytes is data of a user, see lockstore.HiddenBytes.
type HiddenBytes []byte

// String shows the length.
func (s HiddenBytes) String() string { return strconv.Itoa(len(s)) + " bytes" }

// Format is String for every verb.
func (s HiddenBytes) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

func (s HiddenBytes) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
