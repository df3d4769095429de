package lockstore

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Store keeps leases. It is safe for concurrent use. Each method makes one
// attempt; the guard decides about repeating. Arguments are checked first, and bad
// ones match ErrInvalid: nothing is sent. A method returns within 50 ms of the end of
// its context, whatever the server does, with an error that matches the context's;
// and within 2 s when the server refuses connections, with ErrUnavailable.
type Store interface {
	// Acquire grants the key to the owner, or returns an error that matches
	// ErrHeld (as *HeldError) when another has it. The same request again
	// returns the same lease. It calls Request.Validate first, and keeps the
	// holder as Holder.Encode writes it: cleaned and cut.
	Acquire(ctx context.Context, req Request) (Lease, error)

	// Renew makes the lease last at least ttl from now, and at least as long as it
	// would have lasted without it. It returns the time for which the lease may be
	// trusted, counted from before the call: a ttl below what is left takes nothing
	// off it. It returns ErrLost when the lease is expired, released or another's. It
	// calls Lease.Validate and ValidateTTL first.
	Renew(ctx context.Context, lease Lease, ttl time.Duration) (time.Duration, error)

	// Release frees the key if this lease holds it. Again is nil. With Fence 0
	// it abandons an Acquire whose outcome is unknown. It calls Lease.Validate
	// first.
	Release(ctx context.Context, lease Lease) error
}

// Inspector is implemented by stores that can look at a key without changing
// it. A waiter looks this way and tries to acquire only when it may win. The look
// sees every write that ended before it began.
type Inspector interface {
	// Inspect looks at the key. It calls ValidateKey first.
	Inspect(ctx context.Context, key string) (Status, error)
}

// CooldownReleaser is implemented by stores that can keep a key closed after a
// release.
type CooldownReleaser interface {
	// ReleaseAfter ends the lease for its owner at once and keeps the key
	// closed to everybody for d more, then it is free. It answers as Release
	// does, but it does not abandon. It calls ValidateReleaseAfter first.
	ReleaseAfter(ctx context.Context, lease Lease, d time.Duration) error
}

// Checker is implemented by stores that can look at their own server's set-up.
// It is for deploy time and for operators; it may need more permissions than
// locking does.
type Checker interface {
	Check(ctx context.Context) ([]Finding, error)
}

// Finding is one thing that Check would change.
type Finding struct {
	Problem string // what is set, and what it does to locks
	Fix     string // what to set instead
}

// As finds an optional interface on s or on a store that s wraps. A wrapper
// shows the store it wraps with a method Unwrap() Store.
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
	Key    string        // 1 to MaxKeyBytes bytes, see ValidateKey
	Owner  Owner         // new for every acquisition, the same for its repeats
	TTL    time.Duration // MinTTL to MaxTTL
	Holder Holder        // for people; never compared
}

// Lease is a grant. TTL is the time for which it may be trusted, counted from
// before the request that returned it. It can be zero or negative when the
// answer came too late to be of use.
type Lease struct {
	Key   string
	Owner Owner
	Fence Fence
	TTL   time.Duration
}

// Status is what Inspect saw. Held is false as soon as an Acquire may win,
// also when a dead holder's entry is still there.
type Status struct {
	Key       string
	Held      bool
	Holder    Holder        // of the live lease; zero when not held
	Fence     Fence         // of the last grant; 0 when the store knows none
	Remaining time.Duration // until another may take over at the latest, if nobody renews
}

// Fence is a fencing token. It grows with every grant of its key. A resource
// that stores the largest fence it has seen, and refuses smaller ones, is safe
// from a holder that woke up too late. The idea is from Kleppmann, "How to do
// distributed locking" (2016), and from Chubby's sequencers (Burrows, OSDI 2006).
type Fence int64

// MarshalBinary writes the fence in decimal digits, so that Redis clients take
// it as an argument.
func (f Fence) MarshalBinary() ([]byte, error) {
	return strconv.AppendInt(nil, int64(f), 10), nil
}

// NextFence is the fence of the next grant: one more than the previous one, and
// at least now in microseconds since 1970, so that it still grows when the
// previous value is gone. A previous value of 0 means none.
func NextFence(previous Fence, now time.Time) Fence {
	return max(previous+1, Fence(now.UnixMicro()))
}

// Owner is the secret id of one acquisition. Whoever knows it can release the
// lease, so printing it shows its first four characters only. Use
// string(owner) to store it. Go itself shows it whole as the key of a JSON map,
// in an unexported field that is printed with the struct around it, and behind a
// pointer inside a value that is printed with a verb for texts or numbers.
type Owner string

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

// Holder says who holds a lock, for people. It is never compared. Whoever acquires
// writes it, so a Name or an ID may be made up.
type Holder struct {
	Name  string    // what holds it, for example the function's name
	ID    string    // which run of it, for example the request id
	Since time.Time // when it asked, by its own clock; kept in milliseconds

	// Caller is whom the service that took the lock for another had authenticated,
	// for example the ARN of a role; "" when nobody was. The service writes it, and
	// never takes it from the request.
	Caller string
}

// Bounds of a stored Holder: of its whole text, and of Caller in it.
const (
	MaxHolderBytes = 256
	MaxCallerBytes = 128
)

// String is a sentence part for people: who, which, since when. The caller stands
// first. A name that it gave stands in quotes, and so does a name that could be
// taken for a caller.
func (h Holder) String() string {
	if h == (Holder{}) {
		return "unknown"
	}
	s := h.Name
	switch {
	case h.Caller != "" && h.Name != "" && h.Name != h.Caller:
		s = h.Caller + " as " + strconv.Quote(h.Name)
	case h.Caller != "":
		s = h.Caller
	case h.Name == "":
		s = "unnamed"
	case strings.IndexFunc(h.Name, isSpecial) >= 0:
		s = strconv.Quote(h.Name) // or it could look like a caller
	}
	if h.ID != "" {
		s += " (" + h.ID + ")"
	}
	if !h.Since.IsZero() {
		s += " since " + h.Since.UTC().Format(time.RFC3339)
	}
	return s
}

// isSpecial is false for what names of functions and programs are made of.
func isSpecial(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune(" _-.", r)
}

// Encode writes the holder as stores keep it: milliseconds since 1970, id, name
// and, if there is one, caller, separated by tabs, at most MaxHolderBytes. Control
// characters and invalid UTF-8 become spaces. A caller of more than MaxCallerBytes
// keeps its beginning and its end, and "…" between them. To fit, the end of the
// name is cut, then the end of the id.
func (h Holder) Encode() string {
	ms := int64(0)
	if !h.Since.IsZero() {
		ms = h.Since.UnixMilli()
	}
	since, caller := strconv.FormatInt(ms, 10), clean(h.Caller)
	if caller != "" {
		caller = "\t" + shorten(caller, MaxCallerBytes)
	}
	room := MaxHolderBytes - len(since) - len("\t\t") - len(caller)
	id := cut(clean(h.ID), room)
	return since + "\t" + id + "\t" + cut(clean(h.Name), room-len(id)) + caller
}

// cut keeps the beginning of s: at most n bytes, and no half character.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// shorten keeps the beginning and the end of s: the account or the issuer stands
// in the one, the name in the other.
func shorten(s string, n int) string {
	const gap = "…"
	if len(s) <= n {
		return s
	}
	half := (n - len(gap)) / 2
	end := len(s) - half
	for !utf8.RuneStart(s[end]) {
		end++
	}
	return cut(s, half) + gap + s[end:]
}

// DecodeHolder reads what Encode wrote, now or when there was no caller. Other text
// is kept as the name, cut and cleaned: a holder is for people, and half an answer
// beats none.
func DecodeHolder(s string) Holder {
	s = s[:min(len(s), MaxHolderBytes)]
	parts := strings.SplitN(s, "\t", 4)
	ms, err := strconv.ParseInt(parts[0], 10, 64)
	if err != nil {
		return Holder{Name: clean(s)}
	}
	var h Holder
	// JSON refuses other years, and a holder must not spoil the log line it is in.
	if since := time.UnixMilli(ms).UTC(); ms != 0 && since.Year() >= 1 && since.Year() <= 9999 {
		h.Since = since
	}
	for i, field := range []*string{&h.ID, &h.Name, &h.Caller} {
		if len(parts) > i+1 {
			*field = clean(parts[i+1])
		}
	}
	return h
}

func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || isControl(r) {
			return ' '
		}
		return r
	}, s)
}

// MarshalJSON writes name, id, since and caller, and leaves out what is not known.
func (h Holder) MarshalJSON() ([]byte, error) {
	var out struct {
		Name   string     `json:"name,omitempty"`
		ID     string     `json:"id,omitempty"`
		Since  *time.Time `json:"since,omitempty"`
		Caller string     `json:"caller,omitempty"`
	}
	out.Name, out.ID, out.Caller = h.Name, h.ID, h.Caller
	if !h.Since.IsZero() {
		out.Since = &h.Since
	}
	return json.Marshal(out)
}

// Bounds of a Request. They are the same for every store.
const (
	MaxKeyBytes   = 1024
	MaxOwnerBytes = 64
	MinTTL        = time.Second
	MaxTTL        = 24 * time.Hour
)

// ValidateTTL returns an error matching ErrInvalid unless ttl is MinTTL to
// MaxTTL.
func ValidateTTL(ttl time.Duration) error {
	if ttl < MinTTL || ttl > MaxTTL {
		return invalid("TTL is %v; want %v to %v", ttl, MinTTL, MaxTTL)
	}
	return nil
}

func validateOwner(o Owner) error {
	if len(o) < 1 || len(o) > MaxOwnerBytes {
		return invalid("Owner has %d bytes; want 1 to %d", len(o), MaxOwnerBytes)
	}
	for i := range len(o) {
		if o[i] <= ' ' || o[i] > '~' {
			return invalid("Owner has a byte at %d that is not printable ASCII", i)
		}
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
// abandons, is valid here; TTL is not looked at.
func (l Lease) Validate() error {
	if err := ValidateKey(l.Key); err != nil {
		return err
	}
	if err := validateOwner(l.Owner); err != nil {
		return err
	}
	if l.Fence < 0 {
		return invalid("Fence is %d; want 0 or more", l.Fence)
	}
	return nil
}

// ValidateReleaseAfter checks the arguments of ReleaseAfter: a lease whose Fence
// is known, because what was perhaps never granted cannot be kept closed, and a
// time within the bounds of a TTL.
func ValidateReleaseAfter(l Lease, d time.Duration) error {
	if err := l.Validate(); err != nil {
		return err
	}
	if l.Fence == 0 {
		return invalid("Fence is 0; want that of a grant")
	}
	return ValidateTTL(d)
}
