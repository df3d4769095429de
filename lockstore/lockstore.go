package lockstore

import (
	"cmp"
	"encoding/base64"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
)

// Request asks for the lease of a key.
type Request struct {
	Key        string        // 1 to MaxKeyBytes bytes, see ValidateKey
	Owner      Owner         // new for every acquisition, the same for its repeats
	TTL        time.Duration // MinTTL to MaxTTL
	HolderInfo HolderInfo    // for people; never compared

	// MaxHolders is how many may hold the key together with this request, 1 to the constant
	// MaxHolders; 0 is 1. The key is granted only if fewer hold it than the smallest number among
	// this request and those who hold it. So with 1 everywhere it is a mutex.
	MaxHolders int

	// JoinQueue asks for a place in the key's queue if the request is refused. An owner that
	// has a place keeps it as it is, parked or not.
	JoinQueue bool

	// Parked, if it is not 0, is for an owner that does not wait itself: somebody wakes it at Address
	// when the key is handed over to it or completed. Parked is how long this hand-over lasts, [TurnTime] to
	// [MaxParkedTurn]: in this time the owner has to ask again. It needs JoinQueue, and a store whose
	// queue has parked places: another store sends nothing, and its error matches errors.ErrUnsupported. At most half of a
	// queue's places are parked; if there is none left, the request gets no place.
	//
	// A wake-up may be lost, late or doubled. So a parked owner asks again after a time of its own, too,
	// and it never trusts a wake-up: its next Acquire says whether it has the lease. A repeat with another address
	// replaces the first one. The store forgets an address StartMarkTime after the last request with it.
	Parked  time.Duration
	Address WakeAddress

	// Work, if it is not empty, lets another run of the same work do what this request is for: if the request is refused
	// while such a run waits for another Event, and no run waits for this one, it takes no place, and the refusal says Covered. Work has 1 to MaxWorkBytes
	// characters of printable ASCII without spaces. Event is the id by which the event's source sends it again, of any length; the store
	// keeps a hash of it. Both need JoinQueue.
	Work, Event string

	Hint Hint // of this owner's last refusal or AwaitedTurn
}

// MaxWorkBytes bounds Request.Work. It is as long as the name of a Lambda function may be.
const MaxWorkBytes = 64

// Hint is what a store tells itself, see [Request], [Lease] and [Refused]. A caller that
// loses it loses speed and nothing else.
type Hint = driver.Hint

// Fence is a fencing token: a number that grows with every grant of its key. A resource
// keeps the largest fence that it has seen and refuses a write with a smaller one. Then
// the write of a holder that stalled past its lease does no harm. The idea is from
// Kleppmann, "How to do distributed locking" (2016), and from Chubby's sequencers
// (Burrows, OSDI 2006).
type Fence = driver.Fence

// HiddenBytes is data of a user. Printed, or encoded as text or JSON, it shows its length only.
// To use the data, convert it: []byte(secret). In an unexported field Go prints it whole,
// when the struct around the field is printed.
type HiddenBytes = driver.HiddenBytes

// Lease is a grant. TTL is the time for which the caller may trust the lease, counted
// from before the request that returned it. TTL is zero or negative when the answer
// came too late to be of use.
//
// Owner is a secret, so a printed Lease shows four characters of it, and a Lease is not JSON:
// json.Marshal is an error. To write a lease down, use Encode; ParseLease reads it again.
type Lease struct {
	Key   string
	Owner Owner
	Fence Fence
	TTL   time.Duration
	Seat  int // the lowest number, from 0, that no other holder of the key had at the grant
	Hint  Hint
}

// Encode writes the key, the owner and the fence as one line of text, for a program that
// releases the lease later or elsewhere. Whoever reads the text can release the lease, so keep
// it as a secret. It has neither the seat nor the Hint nor the TTL, which counts from a moment that is over.
func (l Lease) Encode() string {
	return "lease1 " + strconv.FormatInt(int64(l.Fence), 10) + " " + string(l.Owner) + " " + base64.RawURLEncoding.EncodeToString([]byte(l.Key))
}

// ParseLease reads what Encode wrote. The TTL of the lease is 0: renew it to learn for how long
// it may be trusted. Its error matches ErrInvalid and does not show the text.
func ParseLease(text string) (Lease, error) {
	parts := strings.Split(text, " ")
	if len(parts) != 4 {
		return Lease{}, errLeaseText
	}
	fence, _ := strconv.ParseInt(parts[1], 10, 64)
	key, _ := base64.RawURLEncoding.DecodeString(parts[3])
	l := Lease{Key: string(key), Owner: Owner(parts[2]), Fence: Fence(fence)}
	if l.Encode() != text || fence < 0 {
		return Lease{}, errLeaseText
	}
	if err := cmp.Or(ValidateKey(l.Key), validateOwner(l.Owner)); err != nil {
		return Lease{}, err
	}
	return l, nil
}

var errLeaseText = Invalidf("lockstore: the text is no lease that Lease.Encode wrote, or it is damaged (not shown, it may hold a secret)")

var errLeaseJSON = errors.New("lockstore: a Lease is not JSON, because its owner is a secret; use Lease.Encode and ParseLease")

// MarshalJSON returns an error, see Lease.
func (Lease) MarshalJSON() ([]byte, error) { return nil, errLeaseJSON }

// UnmarshalJSON returns an error, see Lease.
func (*Lease) UnmarshalJSON([]byte) error { return errLeaseJSON }

// State is the state of a key, in one word. Its text is in small letters: "held".
type State = driver.State

// The states of a key.
const (
	// Free: an Acquire is granted. The entry of a dead holder may still be there.
	Free = driver.Free
	// Reserved: nobody is known to be at work. The key is kept for those who have waited longer, or
	// was handed over to one of them, who has not extended its lease yet and may have begun its work.
	Reserved = driver.Reserved
	// Held: somebody has a lease.
	Held = driver.Held
	// Revoked: an operator has ended the lease, and nobody has the key until its end.
	Revoked = driver.Revoked
	// Completed: the work is done, and its result is stored.
	Completed = driver.Completed
	// Cooldown: the work is done, without a result, and for a time nobody gets the key.
	Cooldown = driver.Cooldown
	// InDoubt: the lease has ended under work that had started. Nobody knows whether it
	// had its effect, and nobody gets the key until somebody resolves it.
	InDoubt = driver.InDoubt
)

// Status is the state of a key, with its details.
type Status struct {
	Key       string
	State     State
	Holder    HolderInfo    // of the live lease, who did or started the work, or who revoked the lease; zero if the key is free or reserved. Of several holders it is one
	Fence     Fence         // of the last grant; 0 when the store knows none
	Remaining time.Duration // the longest time until State is over, if nobody renews; 0 if the key is free, reserved or in doubt
	Waiting   int           // places in the key's queue
	Parked    int           // those of them where nobody waits, see Request.Parked
	Started   bool          // the work has started, see Store.MarkStarted: the key is in doubt if its lease ends without an answer
	Holders   []LiveLease   // everybody who has a live lease, in the order of the grants

	OldestWait time.Duration // for which the first place of the queue has waited; 0 if there is none, or if it is not known
	Queue      []Place       // the places in the order of arrival; Revoke leaves them out
}

// Place is a place in a queue. Waited is the time since its owner joined, on the store's clock, or on the owner's if the store has none. It is for
// people: no decision of a store rests on it.
type Place = driver.Place

// LiveLease is the lease of one who holds a key.
type LiveLease struct {
	State      State      // Held, Revoked, or Reserved if the key was handed over and the lease is not extended yet
	HolderInfo HolderInfo // who has the lease, or who revoked it; zero if State is Reserved
	Fence      Fence
	Seat       int
	MaxHolders int           // of the request that was granted
	Remaining  time.Duration // the longest time until the lease ends, if it is not renewed
}

// MaxHolders is how many may hold the key at once: the smallest number among Holders, or 0 if there are none.
func (s Status) MaxHolders() int {
	if len(s.Holders) == 0 {
		return 0
	}
	return slices.MinFunc(s.Holders, func(a, b LiveLease) int { return a.MaxHolders - b.MaxHolders }).MaxHolders
}

func statusOf(key string, s driver.Status) Status {
	status := Status{Key: key, State: s.State, Fence: s.Fence, Waiting: s.Waiting, Parked: s.Parked, Started: s.Started, OldestWait: s.OldestWait, Queue: s.Queue}
	if s.State.Taken() {
		status.Holder, status.Remaining = DecodeHolderInfo(s.Holder), s.Remaining
	}
	for _, h := range s.Holders {
		one := LiveLease{State: h.State, Fence: h.Fence, Seat: h.Seat, MaxHolders: h.MaxHolders, Remaining: h.Remaining}
		if h.State.Taken() {
			one.HolderInfo = DecodeHolderInfo(h.Text)
		}
		status.Holders = append(status.Holders, one)
	}
	return status
}
